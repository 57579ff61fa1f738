//! What something asks of a machine, and what of it is there.

use serde::Serialize;

/// One thing that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// What it is.
    pub what: &'static str,
    /// Whether this machine has it; `None` where that is not known.
    pub met: Option<bool>,
    /// What was seen, and what to do.
    pub text: String,
}

/// For people, one line a need, below a heading.
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
