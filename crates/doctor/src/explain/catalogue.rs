//! The error catalogue: messages of the ROCm stack, their causes and remedies.
//!
//! The entries are data: `catalogue/*.toml` of this crate, which its build script checks (`schema.rs`) and turns into a
//! table. CONTRIBUTING.md describes how to add one. Where several match, an entry that another one `covers` is left out,
//! and the lower `rank` is nearer to the cause; entries from [`LAST_RESORT`] on are left out if there is any other.

use crate::schema;
pub use crate::schema::{Confidence, Fact, Scope, Severity};
pub use crate::steps::Step;

include!(concat!(env!("OUT_DIR"), "/entries.rs"));

/// From this rank on, an entry only knows which part failed.
pub const LAST_RESORT: u16 = 900;

/// One known error.
///
/// In `cause` and `fix`, what stands in `{places}` is taken from the text (`Context::value`); a step that has nothing else, or
/// whose place has no value, is left out.
#[derive(Debug)]
pub struct Entry {
    /// Its id, stable across versions.
    pub id: &'static str,
    /// How near to the cause it is: the lower, the nearer.
    pub rank: u16,
    /// The severity.
    pub severity: Severity,
    /// How certain the cause is, given the message.
    pub confidence: Confidence,
    /// The systems on which it applies.
    pub scope: Scope,
    /// On how many lines it must be found at least.
    pub times: usize,
    /// Whether it is a page fault on the GPU, after which a program may be started again.
    pub page_fault: bool,
    /// Whether its patterns are of sentences in which people complain, and not of what programs print.
    pub said: bool,
    /// Regular expressions over ASCII; a line that matches any of them is this error.
    pub patterns: &'static [&'static str],
    /// Regular expressions that must all be found somewhere in the text as well.
    pub also: &'static [&'static str],
    /// Regular expressions of which none may be found anywhere in the text.
    pub absent: &'static [&'static str],
    /// Less specific entries for the same error, which are hidden by this one.
    pub covers: &'static [&'static str],
    /// The cause.
    pub cause: &'static str,
    /// Causes that replace it where their facts are known.
    pub causes: &'static [Step],
    /// What to do, most promising first.
    pub fix: &'static [Step],
    /// Commands whose output would settle whether this is the cause.
    pub ask: &'static [Step],
    /// Checks of `surefoot probe`, of which one fails where this is the cause.
    pub probe: &'static [&'static str],
    /// Where this is known from.
    pub source: &'static str,
}

/// The entries of one more file, for as long as the program runs, each with the lines that it must match.
///
/// # Errors
///
/// What is wrong with the file: its name, the line and the key.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<(&'static Entry, Vec<String>)>, String> {
    let known: Vec<&str> = ENTRIES.iter().map(|entry| entry.id).collect();
    let files = [(name.to_owned(), text.to_owned())];
    let entries = schema::read(&files, &known, crate::pattern::needs::check)?;
    let with_seen = |mut entry: schema::Entry| {
        let seen = std::mem::take(&mut entry.seen);
        (kept(entry), seen)
    };
    Ok(entries.into_iter().map(with_seen).collect())
}

fn kept(entry: schema::Entry) -> &'static Entry {
    fn texts(texts: Vec<String>) -> &'static [&'static str] {
        let texts: Vec<&'static str> = texts.into_iter().map(|text| &*text.leak()).collect();
        texts.leak()
    }
    fn steps(steps: Vec<schema::Step>) -> &'static [Step] {
        let kept = |step: schema::Step| Step {
            when: step.when.leak(),
            unless: step.unless.leak(),
            gpus: texts(step.gpus),
            named: texts(step.named),
            unnamed: texts(step.unnamed),
            text: step.text.leak(),
        };
        steps.into_iter().map(kept).collect::<Vec<_>>().leak()
    }
    Box::leak(Box::new(Entry {
        id: entry.id.leak(),
        rank: entry.rank.unwrap_or_default(),
        severity: entry.severity,
        confidence: entry.confidence,
        scope: entry.scope,
        times: entry.times,
        page_fault: entry.page_fault,
        said: entry.said,
        patterns: texts(entry.patterns),
        also: texts(entry.also),
        absent: texts(entry.absent),
        covers: texts(entry.covers),
        cause: entry.cause.leak(),
        causes: steps(entry.causes),
        fix: steps(entry.fix),
        ask: steps(entry.ask),
        probe: texts(entry.probe),
        source: entry.source.leak(),
    }))
}
