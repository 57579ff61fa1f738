//! The error catalogue: messages of the ROCm stack, what causes them, what mends them.
//!
//! Data, not code. The order within a file and of the files is the order of
//! judgement: where two entries match, the earlier one is nearer to the cause.
//! Every entry names a public source; add none without.

mod architecture;
mod libraries;
mod memory;
mod python;
mod runtime;

use super::{Confidence, Severity};

/// One known error.
#[derive(Debug)]
pub struct Entry {
    /// Its name, stable across versions.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// How sure it is that the cause is this one, when the message is this one.
    pub confidence: Confidence,
    /// Regular expressions; a line that matches any of them is this error.
    pub patterns: &'static [&'static str],
    /// Regular expressions that must all be found somewhere in the text as well.
    pub also: &'static [&'static str],
    /// What causes it.
    pub cause: &'static str,
    /// What to do, most promising first.
    pub fix: &'static [&'static str],
    /// Where this is known from.
    pub source: &'static str,
}

/// All entries, in the order of judgement.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [
        architecture::ENTRIES,
        memory::ENTRIES,
        runtime::ENTRIES,
        libraries::ENTRIES,
        python::ENTRIES,
    ]
    .into_iter()
    .flatten()
}
