//! How much of each model stays on the device under a budget, as a picture: a bar for accelerate's plan and one for
//! ours, and a line where the budget ends.

use std::fmt::Write as _;

use super::PlanQuality;

const WIDTH: f64 = 720.0;
/// Where the bars begin, and how long the largest budget is.
const LEFT: f64 = 230.0;
const SPAN: f64 = 440.0;
const BAR: f64 = 9.0;
const ROW: f64 = 2.0 * BAR + 8.0;
const TOP: f64 = 64.0;

/// The plans as an SVG; each budget is as long as the line of its model, so that models of any size fit.
pub(super) fn draw(plans: &[PlanQuality]) -> String {
    let height = TOP + ROW * plans.len() as f64 + 16.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <style>text{{fill:#1f2328}} .ours{{fill:#b3261e}} .theirs{{fill:#8b949e}} .budget{{stroke:#57606a}}\n\
         @media (prefers-color-scheme: dark){{text{{fill:#e6edf3}} .ours{{fill:#ff8a80}}}}</style>\n\
         <title>Bytes that stay on the device under a budget</title>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\">Bytes that stay on the device, of a budget</text>\n"
    );
    for (x, class, label) in [
        (16.0, "theirs", "accelerate, infer_auto_device_map"),
        (260.0, "ours", "surefoot, two ring slots"),
    ] {
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"38\" width=\"12\" height=\"12\"/>\
             <text x=\"{}\" y=\"48\">{label}</text>",
            x + 18.0
        );
    }
    for (row, plan) in plans.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let share = |bytes: u64| SPAN * bytes as f64 / plan.budget.max(1) as f64;
        let ours = plan.resident_two_slots.unwrap_or(0);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}, {:.1} GiB</text>\
             <rect class=\"theirs\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\"/>\
             <rect class=\"ours\" x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"{BAR}\"/>\
             <line class=\"budget\" x1=\"{x}\" x2=\"{x}\" y1=\"{y}\" y2=\"{}\"/>",
            LEFT - 8.0,
            y + BAR + 4.0,
            plan.model,
            plan.budget as f64 / f64::from(1 << 30),
            share(plan.resident_accelerate),
            y + BAR + 1.0,
            share(ours),
            y + 2.0 * BAR + 1.0,
            x = LEFT + SPAN,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let svg = draw(&[plan]);
        assert!(
            svg.contains("class=\"ours\" x=\"230\" y=\"74\" width=\"220.0\""),
            "{svg}"
        );
        assert!(
            svg.contains("class=\"theirs\" x=\"230\" y=\"64\" width=\"110.0\""),
            "{svg}"
        );
    }
}
