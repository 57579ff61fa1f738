//! The curves of a run as SVG files: loss, and memory.

use std::collections::BTreeSet;
use std::path::Path;

use platform::Bytes;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Record;
use crate::Error;

const SIZE: (u32, u32) = (960, 480);
const INK: RGBColor = RGBColor(0x33, 0x41, 0x55);
const GRID: RGBColor = RGBColor(0xE2, 0xE8, 0xF0);
const BLUE: RGBColor = RGBColor(0x25, 0x63, 0xEB);
const PALE_BLUE: RGBColor = RGBColor(0x93, 0xB4, 0xF5);
const ORANGE: RGBColor = RGBColor(0xEA, 0x58, 0x0C);
const PALE_ORANGE: RGBColor = RGBColor(0xFD, 0xBA, 0x74);
const FONT: &str = "system-ui, sans-serif";

/// A named line over steps.
struct Curve {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
    dots: bool,
}

/// Draws `loss.svg`: the training loss, and the held-out loss on the same scale; of models that learn in
/// turn, those of each.
pub(super) fn loss(path: &Path, records: &[Record], unit: &str) -> Result<(), Error> {
    let turns = records.iter().flat_map(|record| match record {
        Record::Train { turns, .. } => turns.keys().collect(),
        _ => Vec::new(),
    });
    let turns: BTreeSet<&String> = turns.collect();
    if !turns.is_empty() {
        return draw(path, "Loss", unit, &of_turns(records, &turns), None);
    }
    let training = points(records, |record| match record {
        Record::Train { loss, .. } => Some(*loss),
        _ => None,
    });
    let held_out = points(records, |record| match record {
        Record::Eval { eval_loss, .. } => Some(*eval_loss),
        _ => None,
    });
    let curves = [
        Curve {
            name: "training".into(),
            colour: PALE_BLUE,
            points: training,
            dots: false,
        },
        Curve {
            name: "held out".into(),
            colour: BLUE,
            points: held_out,
            dots: true,
        },
    ];
    draw(path, "Loss", unit, &curves, None)
}

/// Two curves of each, in colours of its own.
fn of_turns(records: &[Record], turns: &BTreeSet<&String>) -> Vec<Curve> {
    let colours = [(PALE_BLUE, BLUE), (PALE_ORANGE, ORANGE)]
        .into_iter()
        .cycle();
    let curves = turns.iter().zip(colours).flat_map(|(turn, (pale, full))| {
        let training = points(records, |record| match record {
            Record::Train { turns, .. } => turns.get(*turn).map(|turn| turn.loss),
            _ => None,
        });
        let held_out = points(records, |record| match record {
            Record::Eval { turns, .. } => turns.get(*turn).copied(),
            _ => None,
        });
        let name = turn.replace('_', " ");
        let curve = |what: &str, colour, points, dots| Curve {
            name: format!("{name}, {what}"),
            colour,
            points,
            dots,
        };
        [
            curve("training", pale, training, false),
            curve("held out", full, held_out, true),
        ]
    });
    curves.collect()
}

/// Draws `memory.svg`: what is live and what is held, or the process where nobody counts.
pub(super) fn memory(path: &Path, records: &[Record]) -> Result<(), Error> {
    let curve = |name: &str, colour, value: fn(&crate::MemorySample) -> Option<u64>| {
        let points = points(records, |record| match record {
            Record::Train { memory, .. } => value(memory).map(|bytes| Bytes(bytes).as_gib()),
            _ => None,
        });
        Curve {
            name: name.into(),
            colour,
            points,
            dots: false,
        }
    };
    let counted = [
        curve("held, peak", ORANGE, |memory| memory.held_peak),
        curve("live, peak", BLUE, |memory| memory.live_peak),
        curve("held after the step", PALE_ORANGE, |memory| memory.held),
        curve("live after the step", PALE_BLUE, |memory| memory.live),
    ];
    if counted.iter().any(|curve| !curve.points.is_empty()) {
        return draw(path, "Memory", "GiB", &counted, Some(0.0));
    }
    let process = [curve("process", BLUE, |memory| Some(memory.resident))];
    draw(path, "Memory", "GiB", &process, Some(0.0))
}

fn points(records: &[Record], value: impl Fn(&Record) -> Option<f64>) -> Vec<(f64, f64)> {
    let point = |record: &Record| Some((record.step() as f64, value(record)?));
    records
        .iter()
        .filter_map(point)
        .filter(|(_, value)| value.is_finite())
        .collect()
}

/// One chart. `floor` fixes the lower end of the scale. Nothing is drawn without points.
fn draw(
    path: &Path,
    title: &str,
    unit: &str,
    curves: &[Curve],
    floor: Option<f64>,
) -> Result<(), Error> {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let Some(last) = all().map(|(step, _)| *step).reduce(f64::max) else {
        return Ok(());
    };
    let least = all().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let most = all()
        .map(|(_, value)| *value)
        .fold(f64::NEG_INFINITY, f64::max);
    let margin = ((most - least) * 0.06).max(most.abs() * 1e-3).max(1e-9);
    let low = floor.unwrap_or(least - margin);
    let mut svg = String::new();
    paint(&mut svg, title, unit, curves, last, low..most + margin)
        .map_err(|error| Error::Internal(format!("drawing `{}`: {error}", path.display())))?;
    // Through a temporary file, so that a viewer never sees half a picture.
    let temporary = path.with_extension("svg.tmp");
    std::fs::write(&temporary, svg)
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|error| Error::io("write", path, error))
}

fn paint(
    svg: &mut String,
    title: &str,
    unit: &str,
    curves: &[Curve],
    last: f64,
    scale: std::ops::Range<f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |size: i32| (FONT, size).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .margin_right(28)
        .caption(title, text(22))
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..last.max(1.0), scale)?;
    chart
        .configure_mesh()
        .axis_style(INK.mix(0.4))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .x_desc("step")
        .y_desc(unit)
        .label_style(text(14))
        .axis_desc_style(text(14))
        .x_label_formatter(&|step| crate::text::thousands(step.round() as u64))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for curve in curves.iter().filter(|curve| !curve.points.is_empty()) {
        let style = curve.colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if curve.dots {
            let dot = |point: &(f64, f64)| Circle::new(*point, 3, curve.colour.filled());
            chart.draw_series(curve.points.iter().map(dot))?;
            if let Some((step, value)) = curve.points.last() {
                let style = text(14).pos(Pos::new(HPos::Right, VPos::Bottom));
                let label = Text::new(format!("{value:.3}"), (*step, *value), style);
                chart.draw_series(std::iter::once(label))?;
            }
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font(text(14))
        .draw()?;
    area.present()?;
    Ok(())
}

/// A number for an axis: as many digits as say something.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => crate::text::thousands(value.round() as u64),
        size if size >= 10.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}
