#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//! live machine ─┐                       ┌─▶ findings     what, why, how to fix it, source
//!               ├─▶ Snapshot ─▶ Machine ┼─▶ environment  the variables this machine needs
//! a dump ───────┘   (text)     (facts)  └─▶ report       for people, programs and bug reports
//!
//! a text ───────▶ answer: its facts (a Machine), then explain, then findings: one answer for both commands
//!                    ▲
//! catalogue/*.toml ──┘ (by build.rs)
//! ```
//!
//! Facts come from [`platform`]; this crate judges them. Every arrow is a pure function,
//! except that [`live`] (a default feature) reads this machine.

#![forbid(unsafe_code)]

mod ansi;
pub mod answer;
pub mod dump;
pub mod encoding;
pub mod explain;
mod failure;
pub mod findings;
#[cfg(feature = "live")]
pub mod live;
mod measured;
mod names;
pub mod needs;
mod pasted;
mod pattern;
pub mod plan;
mod powershell;
#[cfg(feature = "live")]
pub mod probe_cache;
#[cfg(feature = "live")]
pub mod ranks;
pub mod redact;
pub mod report;
pub mod restart;
mod schema;
mod signs;
mod steps;
mod tables;
pub mod wan;
pub mod wheels;

pub use answer::{answer, diagnose_text};
pub use report::{Report, diagnose};
pub use schema::CHECKS;

/// Diagnoses this machine with its active Python environment.
///
/// Reads files, and writes nothing. Takes some milliseconds, and a second more where a
/// ROCm build of torch is installed, whose library is searched for architectures; with
/// [`live::snapshot`] and a cache folder it is searched only once.
///
/// ```
/// let report = surefoot_doctor::diagnose_live();
/// for finding in &report.findings {
///     println!("{}: {}", finding.id, finding.title);
/// }
/// ```
#[cfg(feature = "live")]
#[must_use]
pub fn diagnose_live() -> Report {
    let snapshot = live::snapshot(&live::Python::Active, None);
    diagnose(platform::detect::machine(&snapshot))
}
