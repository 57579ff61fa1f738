//! Requirements for a task, and whether a machine meets them.

use serde::Serialize;

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// What is required.
    pub what: &'static str,
    /// Whether this machine has it; `None` if that is unknown.
    pub met: Option<bool>,
    /// What was seen, and what to do.
    pub text: String,
}

/// The requirements as text, one per line, below a heading.
#[must_use]
pub fn text(heading: &str, needs: &[Need]) -> String {
    let lines = needs.iter().map(|need| {
        let met = match need.met {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        format!("  {met:<4}{:<10} {}\n", need.what, need.text)
    });
    format!("{heading}\n{}", lines.collect::<String>())
}
