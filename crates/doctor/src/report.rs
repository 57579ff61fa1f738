//! The report of `surefoot doctor`: as JSON, as text, and as a script to review.
//!
//! Other programs rely on the JSON shape; fields are added, but never changed. What is
//! unknown is null, including `class` (`apu` or `dgpu` only if certain);
//! `memory_rule` is then `unknown`.

mod facts;
mod text;

use crate::explain::Verdict;
use crate::findings::{Check, Finding, Severity, findings};
use crate::plan::{Plan, plan};
use crate::wheels;
use platform::machine::{Gpu, Machine, ReadFrom, System};
use platform::memory::Capacity;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
pub use text::explanation_text;
use text::{Paint, wrap};

/// The diagnosis of a machine: its facts, problems, and a verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts on which the diagnosis is based.
    pub machine: Machine,
    /// Its GPUs, in HIP's order.
    pub gpus: Vec<Entry>,
    /// The GPU to train on.
    pub pick: Option<usize>,
    /// All GPUs that stay visible, the selected one first.
    #[serde(rename = "use")]
    pub visible: Vec<usize>,
    /// GPUs to hide.
    pub hide: Vec<usize>,
    /// The variables to set.
    pub env: BTreeMap<String, String>,
    /// The problems, worst first.
    pub findings: Vec<Finding>,
    /// What follows from a text that was posted.
    #[serde(rename = "verdict", skip_serializing_if = "Option::is_none")]
    pub of_text: Option<Verdict>,
    /// The reasons for the variables.
    #[serde(skip)]
    pub plan: Plan,
}

/// A GPU of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Facts of the GPU.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// The value of `HSA_OVERRIDE_GFX_VERSION` under which PyTorch's own wheels run
    /// on it; null if none is needed or none is safe.
    pub upstream_wheel_override: Option<&'static str>,
    /// What a process can allocate on it, in bytes ([`Machine::capacity`]); null if unknown.
    pub capacity: Option<Capacity>,
}

/// Diagnoses a machine.
#[must_use]
pub fn diagnose(machine: Machine) -> Report {
    let plan = plan(&machine);
    let findings = findings(&machine, &plan);
    build(machine, plan, findings)
}

fn build(machine: Machine, plan: Plan, findings: Vec<Finding>) -> Report {
    let entry = |gpu: &Gpu| Entry {
        gpu: gpu.clone(),
        upstream_wheel_override: gpu
            .gfx
            .filter(|&gfx| !wheels::is_in_newest_upstream(gfx))
            .and_then(wheels::override_for),
        capacity: machine.capacity(gpu),
    };
    Report {
        gpus: machine.gpus.iter().map(entry).collect(),
        pick: plan.pick,
        visible: plan.visible.clone(),
        hide: plan.hide.clone(),
        env: plan
            .variables
            .iter()
            .map(|variable| (variable.name.clone(), variable.value.clone()))
            .collect(),
        findings,
        of_text: None,
        machine,
        plan,
    }
}

/// The verdict on a GPU that can train according to the text.
const NOTHING_AGAINST: &str = "Nothing in this text keeps the GPU from training.";
/// The same where the text only names it.
const NOT_SHOWN: &str = "No error was found; the text does not show the GPU at work.";

impl Report {
    /// Whether anything found stops training.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }

    /// The report as text: one line per check, then the findings, then the verdict.
    #[must_use]
    pub fn to_text(&self, colour: bool) -> String {
        let paint = Paint { colour };
        let mut text = String::new();
        // Writing to a `String` cannot fail, here and below.
        for check in Check::ALL {
            let worst = self
                .findings
                .iter()
                .filter(|finding| finding.check == check && !finding.is_from_log())
                .map(|finding| finding.severity)
                .min();
            let Some(summary) = self.summary(check) else {
                continue;
            };
            let worst = worst.or(self.is_missing(check).then_some(Severity::Info));
            let _ = writeln!(text, "{} {:<10} {summary}", paint.label(worst), name(check));
        }
        for finding in &self.findings {
            let _ = write!(
                text,
                "\n{} {}\n",
                paint.label(Some(finding.severity)),
                paint.bold(&finding.title)
            );
            for (key, value) in [("seen", &finding.seen), ("why", &finding.why)] {
                if !value.is_empty() && *value != finding.title {
                    let _ = writeln!(text, "    {key:<5}{}", wrap(value, 9));
                }
            }
            for (index, step) in finding.fix.iter().enumerate() {
                let key = if index == 0 { "fix" } else { "" };
                let _ = writeln!(text, "    {key:<5}{step}");
            }
            let _ = writeln!(text, "    see  {}   [{}]", finding.source, finding.id);
        }
        let _ = writeln!(text, "\n{}", self.verdict());
        text
    }

    /// The finding that measuring would decide first, with the checks of `surefoot probe` for it. Without a GPU nothing can be
    /// measured.
    #[must_use]
    pub fn to_probe(&self) -> Option<&Finding> {
        let is_open =
            |finding: &&Finding| finding.severity < Severity::Info && !finding.probe.is_empty();
        self.pick.and(self.findings.iter().find(is_open))
    }

    /// One line: what to do next.
    #[must_use]
    pub fn verdict(&self) -> String {
        let count = |severity| {
            self.findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count()
        };
        let plural = |count: usize, word: &str| {
            format!("{count} {word}{}", if count == 1 { "" } else { "s" })
        };
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let next = if self.env.is_empty() {
            ""
        } else {
            " `surefoot run -- COMMAND` sets the variables that this machine needs."
        };
        let looks = plural(warnings, "warning");
        if errors > 0 {
            return format!(
                "{} to fix before training, {looks}.",
                plural(errors, "error")
            );
        }
        if let Some(doubt) = self.doubt(warnings) {
            let next = match [NOTHING_AGAINST, NOT_SHOWN].contains(&&*doubt) {
                true => next,
                false => "",
            };
            return if warnings > 0 {
                format!("{doubt} {looks} to look at.{next}")
            } else {
                format!("{doubt}{next}")
            };
        }
        match warnings {
            0 => format!("This machine is ready to train.{next}"),
            _ => format!("This machine can train; {looks} to look at.{next}"),
        }
    }

    /// Why it cannot be said that this machine trains, though nothing wrong was found.
    fn doubt(&self, warnings: usize) -> Option<String> {
        let sentence = |text: &str| Some(text.to_owned());
        if matches!(self.of_text, Some(Verdict::Failed { .. })) {
            return self.of_text.as_ref().and_then(Verdict::text);
        }
        let is_message =
            |finding: &Finding| finding.is_from_log() && finding.severity == Severity::Warning;
        let is_told = self.of_text == Some(Verdict::Explained) && self.machine.posted.has_failed;
        if is_told && self.findings.iter().any(is_message) {
            return sentence("What is known of the failure stands above.");
        }
        let is_posted = matches!(
            self.machine.read_from,
            ReadFrom::Log | ReadFrom::Listing | ReadFrom::Memory
        ) || self.machine.posted.is_cut;
        // Only a live machine, or a Python with a torch, can be ready.
        let knows_torch = self
            .machine
            .python
            .as_ref()
            .is_some_and(|python| python.torch.is_some());
        if self.gpus.is_empty() && is_posted {
            let found = match warnings {
                0 => "Nothing wrong was found",
                _ => "No error was found",
            };
            let missing = match self.machine.posted.other_gpus.is_empty() {
                true => "the text does not say which GPU the machine has",
                false => "the text names no AMD GPU",
            };
            return Some(format!("{found}; {missing}."));
        }
        if self.gpus.is_empty() {
            return sentence("Nothing wrong was found, and no GPU either.");
        }
        let Some(picked) = self
            .gpus
            .iter()
            .find(|entry| Some(entry.gpu.index) == self.pick)
        else {
            return sentence(match self.machine.posted.works {
                Some(_) => {
                    "A program works on this GPU, but it cannot be recommended for training."
                }
                None => "None of these GPUs can be recommended for training.",
            });
        };
        match picked.gpu.gfx {
            None => sentence(
                "The text does not tell which GPU this is, so whether it can train is not known.",
            ),
            Some(gfx) if gfx.architecture().is_some() && wheels::install(gfx).is_empty() => {
                Some(format!(
                    "No published wheel has code for {gfx}: it trains only with one that was built for it."
                ))
            }
            Some(_) if self.machine.posted.instead_of_rocm.is_some() => {
                sentence("The program of this text does not use ROCm; the GPU may train with it.")
            }
            Some(_) if is_posted || !self.machine.is_complete && !knows_torch => {
                sentence(match self.shows_a_gpu_that_works() {
                    true => NOTHING_AGAINST,
                    false => NOT_SHOWN,
                })
            }
            Some(_) => None,
        }
    }

    /// Whether a program, or a tool that opens the GPU, shows that it works.
    fn shows_a_gpu_that_works(&self) -> bool {
        let posted = &self.machine.posted;
        let is_of_runtime = matches!(
            self.machine.read_from,
            ReadFrom::Kfd | ReadFrom::Rocminfo | ReadFrom::Hipinfo | ReadFrom::Windows
        );
        let complains =
            |finding: &Finding| finding.is_from_log() && finding.severity < Severity::Info;
        let is_seen = posted.sees_gpu || is_of_runtime;
        posted.works.is_some() || is_seen && !self.findings.iter().any(complains)
    }

    /// The commands of all findings, to read before running them.
    #[must_use]
    pub fn fix_script(&self) -> String {
        let (start, end) = match self.machine.system {
            System::Windows => ("", "$ErrorActionPreference = \"Stop\""),
            _ => ("#!/bin/sh\n", "set -eu"),
        };
        let mut script = format!(
            "{start}# Written by `surefoot doctor --fix-script`; nothing of it was run.\n# Read it, remove what you do not want, and run it yourself.\n{end}\n"
        );
        // One remedy often serves several findings.
        let mut written = BTreeSet::new();
        for finding in self
            .findings
            .iter()
            .filter(|finding| finding.severity != Severity::Info && !finding.fix.is_empty())
        {
            let _ = write!(
                script,
                "\n# {} [{}]\n# {}\n",
                one_line(&finding.title),
                finding.id,
                one_line(&finding.source)
            );
            for step in &finding.fix {
                if !written.insert(step) {
                    let _ = writeln!(script, "# (as above) {}", one_line(step));
                    continue;
                }
                // Only what we know to be a command goes in as one.
                let commands: &[&str] = match self.machine.system {
                    System::Windows => &["pip ", "winget ", "$env:", "Remove-Item Env:"],
                    _ => &["sudo ", "pip ", "unset ", "export ", "echo ", "ulimit "],
                };
                let is_command = commands.iter().any(|word| step.starts_with(word));
                let restarts = step.contains("reboot");
                let prefix = if is_command && !restarts || step.starts_with('#') {
                    ""
                } else {
                    "# "
                };
                let _ = writeln!(script, "{prefix}{}", one_line(step));
            }
        }
        script
    }
}

fn name(check: Check) -> &'static str {
    match check {
        Check::Gpu => "GPU",
        Check::Access => "access",
        Check::Kernel => "kernel",
        Check::Memory => "memory",
        Check::Python => "Python",
        Check::Override => "override",
        Check::Visibility => "visibility",
        Check::Variables => "variables",
        Check::Limits => "limits",
    }
}

/// Text of a dump must not become a second line of a script.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
