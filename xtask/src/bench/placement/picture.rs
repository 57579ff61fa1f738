//! A chart of how much of each model stays on the device under a budget: one bar for accelerate's plan and
//! one for ours, as shares of the budget, so that models of any size fit.

use anyhow::Result;
use plotters::style::RGBColor;

use super::PlanQuality;
use crate::bench::bars::{self, Contender, Panel};

const DRAWN: [Contender; 2] = [
    Contender {
        name: "accelerate, infer_auto_device_map",
        colour: RGBColor(0x8B, 0x94, 0x9E),
    },
    Contender {
        name: "surefoot, two buffers",
        colour: RGBColor(0xB3, 0x26, 0x1E),
    },
];

/// The plans as SVG.
pub(super) fn draw(plans: &[PlanQuality]) -> Result<String> {
    let values = plans.iter().map(|plan| {
        let share = |bytes: u64| Some(bytes as f64 / plan.budget.max(1) as f64);
        vec![
            share(plan.resident_accelerate),
            share(plan.resident_two_slots.unwrap_or(0)),
        ]
    });
    let panel = Panel {
        title: "share of the budget that stays on the device",
        end: 1.0,
        label: |share| format!("{:.0} %", 100.0 * share),
        values: values.collect(),
    };
    let subjects: Vec<String> = plans
        .iter()
        .map(|plan| {
            format!(
                "{}, {:.1} GiB",
                plan.model,
                plan.budget as f64 / f64::from(1 << 30)
            )
        })
        .collect();
    bars::draw(
        "Bytes that stay on the device, of a budget",
        &subjects,
        &DRAWN,
        &[panel],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bars::tests::widths;

    #[test]
    fn a_bar_is_as_long_as_its_share_of_the_budget() {
        let plan = PlanQuality {
            model: "m".to_owned(),
            budget: 100,
            modules: serde_json::Value::Null,
            resident_one_slot: None,
            resident_two_slots: Some(50),
            resident_accelerate: 25,
        };
        let svg = draw(&[plan]).expect("it draws into memory");
        let (theirs, ours) = (widths(&svg, DRAWN[0].colour), widths(&svg, DRAWN[1].colour));
        assert!(
            (2.0 * theirs[1] - ours[1]).abs() <= 2.0,
            "{theirs:?} {ours:?}"
        );
        for expected in ["25 %", "50 %"] {
            assert!(svg.contains(expected), "{expected}\n{svg}");
        }
    }
}
