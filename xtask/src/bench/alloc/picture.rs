//! What each allocator holds too much of on each trace, as a picture: beyond the live memory at the peak, and between
//! steps.

use std::fmt::Write as _;

use super::{Row, TraceReport};

const WIDTH: f64 = 860.0;
const TOP: f64 = 84.0;
const BAR: f64 = 8.0;
/// Room below the bars of a trace.
const GAP: f64 = 10.0;
const GIB: f64 = (1u64 << 30) as f64;

/// A column of bars.
struct Panel {
    title: &'static str,
    /// Where bars begin, and how long the longest may be.
    left: f64,
    span: f64,
    /// The number that fills it; a bar of more is cut, and its number tells.
    full: f64,
    value: fn(&Row) -> f64,
    label: fn(f64) -> String,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "held beyond live at the peak",
        left: 190.0,
        span: 240.0,
        full: 0.5,
        value: |row| row.peak_ratio - 1.0,
        label: |value| format!("{:.1} %", 100.0 * value),
    },
    Panel {
        title: "held beyond live between steps",
        left: 530.0,
        span: 240.0,
        full: 14.0,
        value: |row| row.idle_excess_bytes as f64 / GIB,
        label: |value| format!("{value:.1} GiB"),
    },
];

/// Which allocators are drawn, and how. No caching holds what is live: it would be empty.
const DRAWN: [(&str, &str); 4] = [
    ("hip-alloc", "ours"),
    ("PyTorch, default", "default"),
    ("PyTorch, expandable_segments", "expandable"),
    ("PyTorch, max_split_size_mb:128", "split"),
];

/// The report as an SVG.
pub(super) fn draw(traces: &[TraceReport]) -> String {
    let rows = |trace: &TraceReport| -> Vec<(&'static str, usize)> {
        let known = |name| trace.allocators.iter().position(|row| named(row, name));
        let found = DRAWN.iter();
        found
            .filter_map(|(name, class)| Some((*class, known(name)?)))
            .collect()
    };
    let tall = |trace: &TraceReport| BAR * rows(trace).len() as f64 + GAP;
    let height = TOP + traces.iter().map(tall).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"11\" role=\"img\">\n\
         <style>text{{fill:#1f2328}} .ours{{fill:#0969da}} .default{{fill:#bc4c00}} .expandable{{fill:#d4a72c}} \
         .split{{fill:#8b949e}}\n\
         @media (prefers-color-scheme: dark){{text{{fill:#e6edf3}} .ours{{fill:#58a6ff}}}}</style>\n\
         <title>Memory that allocators hold beyond what is live, on recorded training runs</title>\n\
         <text x=\"16\" y=\"22\" font-size=\"15\">Memory held beyond what is live</text>\n"
    );
    // Writing to a `String` cannot fail, here and below.
    for (number, (name, class)) in DRAWN.iter().enumerate() {
        let x = 16.0 + 205.0 * number as f64;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"34\" width=\"11\" height=\"11\"/>\
             <text x=\"{}\" y=\"44\">{name}</text>",
            x + 17.0
        );
    }
    for panel in &PANELS {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"72\" font-size=\"12\">{}</text>",
            panel.left, panel.title
        );
    }
    let mut y = TOP;
    for trace in traces {
        let rows = rows(trace);
        let _ = writeln!(
            svg,
            "<text x=\"182\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            y + BAR * rows.len() as f64 / 2.0 + 4.0,
            trace.trace
        );
        for (class, row) in rows {
            for panel in &PANELS {
                let value = (panel.value)(&trace.allocators[row]);
                let length = panel.span * (value / panel.full).clamp(0.0, 1.0);
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\"/>\
                     <text x=\"{:.1}\" y=\"{}\" font-size=\"8\">{}</text>",
                    panel.left,
                    BAR - 1.0,
                    panel.left + length + 4.0,
                    y + BAR - 1.0,
                    (panel.label)(value)
                );
            }
            y += BAR;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

/// Whether a row is of this allocator, the real one or the model of it.
fn named(row: &Row, name: &str) -> bool {
    row.name == name || row.name.strip_suffix(" (model)") == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, peak_ratio: f64, gib: f64) -> Row {
        Row {
            name: name.to_owned(),
            peak_ratio,
            idle_excess_bytes: (gib * GIB) as u64,
            driver_calls_per_step: 1.0,
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
        let svg = draw(&[trace]);
        for expected in [
            "class=\"ours\" x=\"190\" y=\"84\" width=\"120.0\"",
            "class=\"ours\" x=\"530\" y=\"84\" width=\"120.0\"",
            "class=\"default\" x=\"190\" y=\"92\" width=\"240.0\"",
            ">200.0 %<",
            ">28.0 GiB<",
        ] {
            assert!(svg.contains(expected), "{expected}\n{svg}");
        }
        assert!(!svg.contains(">9.0 GiB<"));
    }
}
