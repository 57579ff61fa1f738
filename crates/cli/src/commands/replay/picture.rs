//! Live and held memory over a run, as an SVG file.

use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1080, 560);
const INK: RGBColor = RGBColor(0x33, 0x41, 0x55);
const GRID: RGBColor = RGBColor(0xE2, 0xE8, 0xF0);
/// Live, ours, and the peers, told apart by colour-blind eyes too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x94, 0xA3, 0xB8),
    RGBColor(0x25, 0x63, 0xEB),
    RGBColor(0xEA, 0x58, 0x0C),
    RGBColor(0x0F, 0x76, 0x6E),
    RGBColor(0xB9, 0x1C, 0x1C),
    RGBColor(0x7E, 0x22, 0xCE),
];
const FONT: &str = "system-ui, sans-serif";
/// Points of a curve: what a picture this wide can show.
const POINTS: usize = 600;

/// Bytes over the events of a trace, thinned to the highest of each stretch.
pub(super) struct Curve {
    name: String,
    stretch: usize,
    highest: Vec<u64>,
}

impl Curve {
    /// An empty curve over `events` events.
    pub(super) fn new(name: &str, events: usize) -> Self {
        Self {
            name: name.to_owned(),
            stretch: events.div_ceil(POINTS).max(1),
            highest: Vec::new(),
        }
    }

    /// Adds the value after an event; events come in order.
    pub(super) fn add(&mut self, event: usize, bytes: u64) {
        let place = event / self.stretch;
        if self.highest.len() <= place {
            self.highest.resize(place + 1, 0);
        }
        self.highest[place] = self.highest[place].max(bytes);
    }

    fn peak(&self) -> u64 {
        self.highest.iter().copied().max().unwrap_or(0)
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        let count = self.highest.len().max(2) as f64 - 1.0;
        let point = move |(place, bytes): (usize, &u64)| (place as f64 / count, gib(*bytes));
        self.highest.iter().enumerate().map(point)
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// Draws the curves; the first is filled.
pub(super) fn draw(path: &Path, title: &str, curves: &[Curve]) -> anyhow::Result<()> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let top = curves.iter().map(Curve::peak).max().unwrap_or(1);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, (FONT, 20).into_font().color(&INK))
            .margin(16)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..1.0, 0.0..gib(top) * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_labels(6)
            .x_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .x_desc("of the requests and frees")
            .y_desc("GiB")
            .label_style((FONT, 14).into_font().color(&INK))
            .draw()?;
        // Ours last, on top of the others.
        let order = (0..curves.len()).filter(|number| *number != 1);
        for number in order.chain((curves.len() > 1).then_some(1)) {
            let (curve, colour) = (&curves[number], COLOURS[number % COLOURS.len()]);
            let label = format!("{} (peak {:.2} GiB)", curve.name, gib(curve.peak()));
            let width = if number == 1 { 3 } else { 2 };
            let series = match number {
                0 => chart.draw_series(AreaSeries::new(curve.points(), 0.0, colour.mix(0.35)))?,
                _ => chart
                    .draw_series(LineSeries::new(curve.points(), colour.stroke_width(width)))?,
            };
            series.label(label).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 18, y + 5)], colour.filled())
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(GRID)
            .label_font((FONT, 14).into_font().color(&INK))
            .draw()?;
        root.present()?;
    }
    std::fs::write(path, text)?;
    Ok(())
}
