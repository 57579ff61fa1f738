//! What findings say: `catalogue/findings/*.toml`, which the build script turns into a static for each row.

use super::{Check, Finding, Severity};
use crate::measured;
use crate::powershell;
use crate::schema::{Fact, Scope};
use crate::steps::{Known, Step, filled};
use platform::machine::{Machine, System};
use std::fmt::Display;

include!(concat!(env!("OUT_DIR"), "/findings.rs"));

/// What one finding says; `{places}` are filled in where it is found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// Its id, stable across versions.
    pub(crate) id: &'static str,
    pub(super) check: Check,
    /// Unless the machine makes it a worse or a lesser one.
    pub(super) severity: Severity,
    /// Where it has a meaning.
    pub(super) scope: Scope,
    /// A note where a program is shown at work on the GPU, though it is an error elsewhere; warnings are notes there anyway.
    pub(super) refuted_by_work: bool,
    /// Findings and messages that say less about the same cause, which are left out beside it.
    pub(crate) covers: &'static [&'static str],
    pub(super) title: &'static str,
    pub(super) seen: &'static str,
    pub(super) why: &'static str,
    /// Reasons that replace it where their facts are known.
    pub(super) whys: &'static [Step],
    pub(super) fix: &'static [Step],
    /// Checks of `surefoot probe`, of which one fails where it is so.
    pub(super) probe: &'static [&'static str],
    pub(super) source: &'static str,
}

/// The findings about a machine.
pub(super) struct Found<'a> {
    pub(super) machine: &'a Machine,
    known: Known,
    pub(super) all: Vec<Finding>,
}

impl<'a> Found<'a> {
    pub(super) fn about(machine: &'a Machine) -> Self {
        Self {
            machine,
            known: Known::of(machine),
            all: Vec::new(),
        }
    }

    /// Adds a finding with these values in its places. A value may have several lines, each of them a step, or be empty: a step
    /// that has nothing else is then none.
    pub(super) fn add(
        &mut self,
        said: &'static Said,
        values: &[(&str, &dyn Display)],
    ) -> &mut Finding {
        let fill = |text: &str| {
            let value = |place: &str| values.iter().find(|(name, _)| *name == place);
            filled(text, |place| {
                value(place).map(|(_, value)| value.to_string())
            })
        };
        let why = self.known.sentence(said.whys);
        let steps = self.known.chosen(said.fix).into_iter();
        let steps = steps.map(|step| fill(&step));
        let lines = steps.flat_map(|step| step.lines().map(str::to_owned).collect::<Vec<_>>());
        self.all.push(Finding {
            id: said.id.to_owned(),
            severity: said.severity,
            title: fill(said.title),
            seen: fill(said.seen),
            why: fill(why.unwrap_or(said.why)),
            fix: lines.collect(),
            source: fill(said.source),
            probe: said.probe.to_vec(),
            check: said.check,
            said: Some(said),
        });
        let last = self.all.len() - 1;
        &mut self.all[last]
    }

    /// All of them that have a meaning on this system, the worst first, and nothing that another one covers.
    pub(super) fn weighed(self) -> Vec<Finding> {
        let (system, posted) = (self.machine.system, &self.machine.posted);
        let is_at_work = posted.works.is_some() && !posted.has_failed;
        let mut all = self.all;
        all.retain(|finding| {
            finding
                .said
                .is_none_or(|said| said.scope.holds_on(Some(system)))
        });
        let covered: Vec<&str> = all.iter().flat_map(Finding::covers).copied().collect();
        all.retain(|finding| !covered.contains(&&*finding.id));
        for finding in &mut all {
            let is_refuted = finding.said.is_some_and(|said| said.refuted_by_work)
                || finding.severity == Severity::Warning;
            if is_at_work && is_refuted {
                finding.severity = Severity::Info;
            }
            match measured::by(&finding.probe, &self.machine.probed) {
                Some((fails, word)) => {
                    finding.severity = match fails {
                        true => Severity::Error,
                        false => Severity::Info,
                    };
                    finding.seen = format!("{} {word}.", finding.seen);
                    finding.probe.clear();
                }
                None => measured::keep_open(&mut finding.probe, &self.machine.probed),
            }
            if system == System::Windows {
                for step in &mut finding.fix {
                    if let Some(said) = powershell::translated(step) {
                        *step = said;
                    }
                }
            }
        }
        all.sort_by_key(|finding| (finding.severity, finding.check));
        all
    }
}
