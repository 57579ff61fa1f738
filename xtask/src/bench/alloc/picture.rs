//! A chart of what each allocator holds beyond the live memory of each trace, at the peak and between steps.

use anyhow::Result;
use plotters::style::RGBColor;

use super::{Row, TraceReport};
use crate::bench::bars::{self, Contender, Panel};

const GIB: f64 = (1u64 << 30) as f64;

/// The allocators that are drawn. Without caching, only live memory is held, so the bars would be empty.
const DRAWN: [Contender; 4] = [
    Contender {
        name: "hip-alloc",
        colour: RGBColor(0x09, 0x69, 0xDA),
    },
    Contender {
        name: "PyTorch, default",
        colour: RGBColor(0xBC, 0x4C, 0x00),
    },
    Contender {
        name: "PyTorch, expandable_segments",
        colour: RGBColor(0xD4, 0xA7, 0x2C),
    },
    Contender {
        name: "PyTorch, max_split_size_mb:128",
        colour: RGBColor(0x8B, 0x94, 0x9E),
    },
];

/// The report as SVG.
pub(super) fn draw(traces: &[TraceReport]) -> Result<String> {
    let values = |value: fn(&Row) -> f64| -> Vec<Vec<Option<f64>>> {
        let of = |trace: &TraceReport, name| {
            let row = trace.allocators.iter().find(|row| is_named(row, name));
            row.map(value)
        };
        let traces = traces.iter();
        traces
            .map(|trace| DRAWN.iter().map(|drawn| of(trace, drawn.name)).collect())
            .collect()
    };
    let panels = [
        Panel {
            title: "held beyond live at the peak",
            end: 0.5,
            label: |share| format!("{:.1} %", 100.0 * share),
            values: values(|row| row.peak_ratio - 1.0),
        },
        Panel {
            title: "held beyond live between steps",
            end: 14.0,
            label: |gib| format!("{gib:.1} GiB"),
            values: values(|row| row.idle_excess_bytes as f64 / GIB),
        },
    ];
    let subjects: Vec<String> = traces.iter().map(|trace| trace.trace.clone()).collect();
    bars::draw(
        "Memory held beyond what is live, on recorded training runs",
        &subjects,
        &DRAWN,
        &panels,
    )
}

/// Whether a row belongs to this allocator, either the real one or its model.
fn is_named(row: &Row, name: &str) -> bool {
    row.name == name || row.name.strip_suffix(" (model)") == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bars::tests::widths;

    fn row(name: &str, peak_ratio: f64, gib: f64) -> Row {
        Row {
            name: name.to_owned(),
            peak_ratio,
            idle_excess_bytes: (gib * GIB) as u64,
            driver_calls_per_step: 1.0,
            driver_bytes_per_step: 0.0,
            driver_milliseconds_per_step: None,
            share_of_calls: 1.0,
        }
    }

    #[test]
    fn bars_are_as_long_as_what_is_held_too_much_and_long_ones_are_cut() {
        let trace = TraceReport {
            trace: "t".to_owned(),
            peak_live_bytes: 1,
            calls_allowed_per_step: 1.0,
            allocators: vec![
                row("hip-alloc", 1.25, 7.0),
                row("PyTorch, default (model)", 3.0, 28.0),
                row("something else", 9.0, 9.0),
            ],
        };
        let svg = draw(&[trace]).expect("it draws into memory");
        // The legend's mark, then a bar in each panel: half the axis, and one clipped at its end.
        let (ours, default) = (widths(&svg, DRAWN[0].colour), widths(&svg, DRAWN[1].colour));
        for panel in [1, 2] {
            assert!(
                (2.0 * ours[panel] - default[panel]).abs() <= 2.0,
                "{ours:?} {default:?}"
            );
        }
        for expected in [">\n200.0 %\n<", ">\n28.0 GiB\n<"] {
            assert!(svg.contains(expected), "{expected}\n{svg}");
        }
        assert!(!svg.contains("9.0 GiB"));
    }
}
