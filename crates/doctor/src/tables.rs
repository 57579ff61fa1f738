//! The tables of `catalogue/tables`, and what their rows are.

use crate::findings::said::Said;
use crate::schema::{Fact, Severity};

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// A family of distributions that does not install with apt.
pub(crate) struct Distribution {
    pub(crate) fact: Fact,
    pub(crate) name: &'static str,
    /// What shows it in a log.
    pub(crate) signs: &'static [&'static str],
    /// What `{apt}` becomes there.
    pub(crate) apt: &'static str,
    /// What `{initramfs}` becomes there.
    pub(crate) initramfs: &'static str,
}

/// Variables, the values that make them a problem, and why.
pub(crate) struct VariableRule {
    pub(crate) names: &'static [&'static str],
    pub(crate) severity: Severity,
    pub(crate) said: &'static Said,
    pub(crate) applies: Applies,
    pub(crate) why: &'static str,
    pub(crate) instead: &'static str,
    pub(crate) source: &'static str,
}

/// The values that are a problem.
pub(crate) enum Applies {
    Any,
    Zero,
    NotZero,
    AtLeast(u32),
}

impl Applies {
    /// Whether this value is one.
    pub(crate) fn to(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Zero => value == "0",
            Self::NotZero => value != "0",
            Self::AtLeast(least) => value.parse::<u32>().is_ok_and(|level| level >= *least),
        }
    }
}
