//! Horizontal bar charts: a row for each subject, a bar for each contender, a panel for each quantity.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const FONT: &str = "system-ui, sans-serif";
const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
const GRID: RGBColor = RGBColor(0xE2, 0xE8, 0xF0);
const WIDTH: u32 = 900;
/// Heights in pixels: title and legend, caption and axis of a panel, a bar, the gap between rows.
const HEADER: u32 = 60;
const FRAME: u32 = 56;
const BAR: u32 = 10;
const GAP: u32 = 8;
/// Widths: what stands left of the bars, with and without names of subjects, and a letter of the legend.
const NAMES: u32 = 170;
const MARGIN: u32 = 8;
const LETTER: usize = 7;

/// A contender: its name in the legend and its colour.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) colour: RGBColor,
}

/// One quantity, shown for every subject.
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// Where the axis ends. Longer bars are clipped there; their labels give the value.
    pub(super) end: f64,
    pub(super) label: fn(f64) -> String,
    /// The value for each subject and contender; `None` draws no bar.
    pub(super) values: Vec<Vec<Option<f64>>>,
}

/// The chart as SVG.
pub(super) fn draw(
    title: &str,
    subjects: &[String],
    contenders: &[Contender],
    panels: &[Panel],
) -> Result<String> {
    let row = BAR * contenders.len() as u32 + GAP;
    let height = HEADER + FRAME + row * subjects.len() as u32;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (header, body) = root.split_vertically(HEADER);
        legend(&header, title, contenders)?;
        // The first panel has the names besides, so that all have bars of one length.
        let each = (WIDTH + MARGIN - NAMES) / panels.len().max(1) as u32;
        let ends = (1..panels.len() as u32).map(|number| (NAMES - MARGIN + number * each) as i32);
        let areas = body.split_by_breakpoints(ends.collect::<Vec<_>>(), [0; 0]);
        for (number, (area, panel)) in areas.iter().zip(panels).enumerate() {
            let names = if number == 0 { subjects } else { &[] };
            bars(area, panel, names, subjects.len(), contenders)?;
        }
        root.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn legend(area: &Area<'_>, title: &str, contenders: &[Contender]) -> Result<()> {
    let text = |size: u32| (FONT, size).into_font().color(&INK);
    area.draw(&Text::new(title, (16, 8), text(16)))?;
    let mut left = 16;
    for contender in contenders {
        let mark = [(left, 36), (left + 12, 48)];
        area.draw(&Rectangle::new(mark, contender.colour.filled()))?;
        area.draw(&Text::new(contender.name, (left + 18, 37), text(12)))?;
        left += (40 + LETTER * contender.name.chars().count()) as i32;
    }
    Ok(())
}

/// Draws one panel; the first one has the names of the subjects beside it.
fn bars(
    area: &Area<'_>,
    panel: &Panel,
    names: &[String],
    rows: usize,
    contenders: &[Contender],
) -> Result<()> {
    let text = |size: u32| (FONT, size).into_font().color(&INK);
    let name = |row: &f64| names.get(*row as usize).cloned().unwrap_or_default();
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, text(13))
        .margin_right(64)
        .x_label_area_size(28)
        .y_label_area_size(if names.is_empty() { MARGIN } else { NAMES })
        // Rows run from the top down, each one unit high.
        .build_cartesian_2d(0.0..panel.end, rows as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(GRID)
        .x_labels(4)
        .y_labels(0)
        .x_label_formatter(&|value| (panel.label)(*value))
        .label_style(text(11))
        .draw()?;
    let middle = Pos::new(HPos::Right, VPos::Center);
    let side = text(11).pos(middle);
    let plot = chart.plotting_area();
    let bar = f64::from(BAR) / f64::from(BAR * contenders.len() as u32 + GAP);
    for (row, values) in panel.values.iter().enumerate() {
        let label = (0.0, row as f64 + bar * contenders.len() as f64 / 2.0);
        plot.draw(
            &(EmptyElement::at(label) + Text::new(name(&(row as f64)), (-6, 0), side.clone())),
        )?;
        for (number, (value, contender)) in values.iter().zip(contenders).enumerate() {
            let Some(value) = value else { continue };
            let top = row as f64 + bar * number as f64;
            let end = value.clamp(0.0, panel.end);
            let corners = [(0.0, top), (end, top + 0.9 * bar)];
            plot.draw(&Rectangle::new(corners, contender.colour.filled()))?;
            let label = Text::new((panel.label)(*value), (3, -4), text(9));
            plot.draw(&(EmptyElement::at((end, top + bar / 2.0)) + label))?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The widths of the bars of a colour, in drawing order; the mark in the legend comes first.
    pub(in crate::bench) fn widths(svg: &str, colour: RGBColor) -> Vec<f64> {
        let fill = format!("fill=\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
        let bars = svg
            .split("<rect ")
            .skip(1)
            .filter(|bar| bar.contains(&fill));
        let width = |bar: &str| {
            let value = bar.split("width=\"").nth(1)?.split('"').next()?;
            value.parse().ok()
        };
        bars.map(|bar| width(bar).expect("a bar has a width"))
            .collect()
    }

    #[test]
    fn bars_are_in_proportion_and_end_with_the_axis() {
        let contenders = [
            Contender {
                name: "a",
                colour: RED,
            },
            Contender {
                name: "b",
                colour: BLUE,
            },
        ];
        let panel = Panel {
            title: "share",
            end: 2.0,
            label: |value| format!("{value:.1} x"),
            values: vec![vec![Some(1.0), Some(2.0)], vec![Some(9.0), None]],
        };
        let subjects = ["one".to_owned(), "two".to_owned()];
        let svg = draw("Title", &subjects, &contenders, &[panel]).expect("it draws into memory");
        let (red, blue) = (widths(&svg, RED), widths(&svg, BLUE));
        assert!((red[1] * 2.0 - blue[1]).abs() <= 2.0, "{red:?} {blue:?}");
        assert_eq!(red[2], blue[1], "a bar that is too long ends with the axis");
        assert_eq!((red.len(), blue.len()), (3, 2));
        for text in ["Title", "one", "two", "share", "9.0 x"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
