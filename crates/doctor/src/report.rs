//! What `surefoot doctor` says: as JSON, for people, and as a script to review.
//!
//! The JSON shape is relied on by other programs; fields are added, never changed. What is
//! not known is null, `class` too (`apu` or `dgpu` only where one of them is certain);
//! `memory_rule` has a word for it, `unknown`.

use crate::explain;
use crate::findings::{Check, Finding, Severity, findings};
use crate::plan::{Plan, plan};
use crate::wheels;
use anstyle::{AnsiColor, Style};
use platform::machine;
use platform::machine::{Gpu, Machine, ReadFrom, System};
use platform::memory::{Capacity, MemoryRule};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The diagnosis of a machine: its facts, what is wrong, and a verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts that the diagnosis is made from.
    pub machine: Machine,
    /// Its GPUs, in HIP's order.
    pub gpus: Vec<Entry>,
    /// The GPU to train on.
    pub pick: Option<usize>,
    /// All GPUs that stay visible, the picked one first.
    #[serde(rename = "use")]
    pub visible: Vec<usize>,
    /// GPUs to hide.
    pub hide: Vec<usize>,
    /// The variables to set.
    pub env: BTreeMap<String, String>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// Why each variable is to be set.
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
    /// on it; null when none is needed or none is safe.
    pub upstream_wheel_override: Option<&'static str>,
    /// What a process can allocate on it, in bytes ([`Machine::capacity`]); null where that is not known.
    pub capacity: Option<Capacity>,
}

/// Diagnoses a machine.
#[must_use]
pub fn diagnose(machine: Machine) -> Report {
    let plan = plan(&machine);
    let findings = findings(&machine, &plan);
    build(machine, plan, findings)
}

/// Diagnoses what a text describes: a machine, or a log whose messages become findings.
///
/// # Errors
/// [`crate::dump::UnknownFormat`] when the text is neither.
pub fn diagnose_text(text: &str) -> Result<Report, crate::dump::UnknownFormat> {
    let machine = crate::dump::read(text)?;
    let hints = explain::Hints {
        ram: machine.memory.total,
    };
    let mut report = diagnose(machine);
    if report.machine.read_from != ReadFrom::Kfd {
        report.findings.extend(
            explain::explain_with(text, hints)
                .matches
                .into_iter()
                .map(from_log),
        );
        report
            .findings
            .sort_by_key(|finding| (finding.severity, finding.check));
    }
    Ok(report)
}

fn from_log(found: explain::Match) -> Finding {
    Finding {
        id: found.id,
        severity: found.severity,
        title: format!(
            "Line {}: {}",
            found.line_number,
            explain::clip(&found.line, 100)
        ),
        seen: found.line,
        why: found.cause,
        fix: found.fix,
        source: found.source,
        check: Check::Gpu,
    }
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
        machine,
        plan,
    }
}

impl Report {
    /// Whether anything found stops training.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Error)
    }

    /// For people: one line a check, then what was found, then the verdict.
    #[must_use]
    pub fn to_text(&self, colour: bool) -> String {
        let paint = Paint { colour };
        let mut text = String::new();
        // Writing to a `String` cannot fail, here and below.
        for check in Check::ALL {
            let worst = self
                .findings
                .iter()
                .filter(|finding| finding.check == check)
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
                "{} to mend before training, {looks}.",
                plural(errors, "error")
            );
        }
        if let Some(doubt) = self.doubt() {
            return if warnings > 0 {
                format!("{doubt} {looks} to look at.")
            } else {
                doubt
            };
        }
        match warnings {
            0 => format!("This machine is ready to train.{next}"),
            _ => format!("This machine can train; {looks} to look at.{next}"),
        }
    }

    /// Why it cannot be said that this machine trains, though nothing wrong was found.
    fn doubt(&self) -> Option<String> {
        let sentence = |text: &str| Some(text.to_owned());
        let is_posted = matches!(
            self.machine.read_from,
            ReadFrom::Log | ReadFrom::Listing | ReadFrom::Memory
        ) || self.machine.posted.is_cut;
        if self.gpus.is_empty() && is_posted {
            return sentence(
                "Nothing wrong was found; the text does not say which GPU the machine has.",
            );
        }
        if self.gpus.is_empty() {
            return sentence("Nothing wrong was found, and no GPU either.");
        }
        let Some(picked) = self
            .gpus
            .iter()
            .find(|entry| Some(entry.gpu.index) == self.pick)
        else {
            return sentence("None of these GPUs can be recommended for training.");
        };
        match picked.gpu.gfx {
            None => sentence("Which GPU this is is not known, and so not whether it can train."),
            Some(gfx) if gfx.architecture().is_some() && wheels::install(gfx).is_empty() => {
                Some(format!(
                    "No published wheel has code for {gfx}: it trains only with one that was built for it."
                ))
            }
            Some(_) if self.machine.posted.instead_of_rocm.is_some() => {
                sentence("The program of this text does not use ROCm; the GPU may train with it.")
            }
            Some(_) if self.machine.posted.has_failed => sentence(
                "Nothing that is known here keeps the GPU from training; a program failed in this text, and why is not known.",
            ),
            Some(_) if is_posted => sentence("Nothing in this text keeps the GPU from training."),
            Some(_) => None,
        }
    }

    /// The commands of all findings, to read before running them.
    #[must_use]
    pub fn fix_script(&self) -> String {
        let mut script = "#!/bin/sh\n# Written by `surefoot doctor --fix-script`; nothing of it was run.\n# Read it, remove what you do not want, and run it yourself.\nset -eu\n".to_owned();
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
                let is_command = ["sudo ", "pip ", "unset ", "export ", "echo ", "ulimit "]
                    .iter()
                    .any(|word| step.starts_with(word));
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

    /// Whether a check without a finding is nevertheless not fine: without a GPU nobody
    /// misses its devices.
    fn is_missing(&self, check: Check) -> bool {
        check == Check::Access
            && self.machine.system != System::Wsl
            && self
                .machine
                .devices
                .iter()
                .any(|device| device.access != "ok")
    }

    /// The facts behind a check; `None` when nothing is known about it.
    fn summary(&self, check: Check) -> Option<String> {
        let machine = &self.machine;
        match check {
            Check::Gpu if self.gpus.is_empty() => {
                let is_about_gpus = machine.read_from != ReadFrom::Log;
                if machine.posted.is_cut {
                    Some("none in this part of the text".to_owned())
                } else {
                    is_about_gpus.then(|| "none that HIP can use".to_owned())
                }
            }
            Check::Gpu => Some(
                self.gpus
                    .iter()
                    .map(|entry| self.describe(entry))
                    .collect::<Vec<_>>()
                    .join("\n                   "),
            ),
            Check::Access => {
                let devices: Vec<String> = machine
                    .devices
                    .iter()
                    // WSL has none, and needs none.
                    .filter(|device| machine.system != System::Wsl || device.path != "/dev/kfd")
                    .map(|device| format!("{} {}", device.path, device.access))
                    .collect();
                (!devices.is_empty()).then(|| devices.join(", "))
            }
            Check::Kernel => {
                let mut words = Vec::new();
                words.extend(machine.kernel.as_ref().map(|kernel| kernel.release.clone()));
                words.extend(machine.distribution.clone());
                words.extend(machine.firmware.clone());
                words.extend(
                    machine
                        .container
                        .as_ref()
                        .map(|container| format!("in {container}")),
                );
                words.extend(
                    machine
                        .posted
                        .rocm
                        .as_ref()
                        .map(|version| format!("ROCm {version}")),
                );
                words.extend((machine.system == System::Wsl).then(|| "WSL".to_owned()));
                (!words.is_empty()).then(|| words.join(", "))
            }
            Check::Memory => {
                let mut words = Vec::new();
                words.extend(machine.memory.total.map(|total| format!("{total} RAM")));
                words.extend(
                    machine
                        .memory
                        .available
                        .map(|available| format!("{available} available")),
                );
                words.extend(machine.memory.swap_total.map(|swap| format!("{swap} swap")));
                words.extend(
                    machine
                        .cgroup
                        .limit
                        .map(|limit| format!("{limit} for this process")),
                );
                words.extend(
                    machine
                        .ttm_pages_limit
                        .map(|pages| format!("{} for GPUs (TTM)", platform::Bytes::pages(pages))),
                );
                (!words.is_empty()).then(|| words.join(", "))
            }
            Check::Python => {
                let python = machine.python.as_ref()?;
                let torch = python
                    .torch
                    .as_ref()
                    .map_or("no torch".to_owned(), |torch| {
                        format!("torch {}", torch.version)
                    });
                Some(format!("{torch} in {}", python.prefix))
            }
            Check::Override | Check::Visibility | Check::Variables | Check::Limits => {
                self.summary_of_settings(check)
            }
        }
    }

    fn summary_of_settings(&self, check: Check) -> Option<String> {
        let machine = &self.machine;
        let set = |is: fn(&str) -> bool| -> Option<String> {
            let set: Vec<String> = machine
                .variables
                .iter()
                .filter(|(name, _)| is(name))
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            match (set.is_empty(), machine.is_complete) {
                (false, _) => Some(set.join(" ")),
                (true, true) => Some("none set".to_owned()),
                (true, false) => None,
            }
        };
        match check {
            Check::Override => set(|name| name.starts_with("HSA_OVERRIDE_GFX_VERSION")),
            Check::Visibility => {
                let hidden = self
                    .hide
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(", ");
                let set = set(|name| crate::plan::VISIBILITY.contains(&name));
                if self.hide.is_empty() {
                    set
                } else {
                    Some(format!(
                        "train on GPU {}, hide {hidden}",
                        self.pick.unwrap_or(0)
                    ))
                }
            }
            Check::Variables => {
                let count = machine
                    .variables
                    .keys()
                    .filter(|name| !is_shown_elsewhere(name))
                    .count();
                (machine.is_complete || count > 0).then(|| format!("{count} that concern the GPU"))
            }
            _ => machine.open_files.map(|limit| match limit {
                u64::MAX => "open files unlimited".to_owned(),
                limit => format!("{limit} open files"),
            }),
        }
    }

    fn describe(&self, entry: &Entry) -> String {
        let gpu = &entry.gpu;
        let mut words = vec![gpu.name()];
        words.extend(gpu.class.map(|class| match class {
            machine::Class::Apu => "APU".to_owned(),
            machine::Class::Dgpu => "card".to_owned(),
        }));
        words.extend(gpu.compute_units.map(|units| format!("{units} CUs")));
        words.extend(
            gpu.usable_bytes
                .map(|bytes| format!("{bytes} usable ({})", rule_name(gpu.memory_rule))),
        );
        if gpu.usable_bytes.is_none() {
            words.extend(gpu.vram_bytes.map(|bytes| format!("{bytes} VRAM")));
        }
        // What the host and its limits leave of the pool; on a card only the driver knows.
        let is_known = gpu.is_apu() && self.machine.memory.available.is_some();
        let shared = entry.capacity.filter(|_| is_known);
        let now = shared.filter(|capacity| Some(capacity.free) < gpu.usable_bytes);
        words.extend(now.map(|capacity| format!("{} for a process now", capacity.free)));
        words.extend(gpu.pci.map(|pci| pci.to_string()));
        let mark = if Some(gpu.index) == self.pick {
            "▸"
        } else {
            " "
        };
        format!("{mark} {}: {}", gpu.index, words.join(", "))
    }
}

fn is_shown_elsewhere(name: &str) -> bool {
    name.starts_with("HSA_OVERRIDE_GFX_VERSION")
        || crate::plan::VISIBILITY.contains(&name)
        || matches!(
            name,
            "VIRTUAL_ENV" | "CONDA_PREFIX" | "PYTHONPATH" | "PYTHONHOME"
        )
}

fn rule_name(rule: Option<MemoryRule>) -> &'static str {
    match rule {
        Some(MemoryRule::Gtt) => "RAM, up to the TTM limit",
        Some(MemoryRule::Carveout) => "BIOS carve-out",
        Some(MemoryRule::Discrete) => "its own",
        Some(MemoryRule::Unknown) | None => "rule not known",
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

/// Breaks a sentence into lines of at most 100 columns; all but the first are indented.
fn wrap(text: &str, indent: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let options = textwrap::Options::new(100 - indent)
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let indentation = format!("\n{}", " ".repeat(indent));
    textwrap::fill(&words.join(" "), options).replace('\n', &indentation)
}

struct Paint {
    colour: bool,
}

impl Paint {
    fn label(&self, severity: Option<Severity>) -> String {
        let (word, colour) = match severity {
            None => ("ok", AnsiColor::Green),
            Some(Severity::Info) => ("note", AnsiColor::Cyan),
            Some(Severity::Warning) => ("warn", AnsiColor::Yellow),
            Some(Severity::Error) => ("ERROR", AnsiColor::Red),
        };
        self.style(&format!("{word:>5}"), colour.on_default())
    }

    fn bold(&self, text: &str) -> String {
        self.style(text, Style::new().bold())
    }

    fn style(&self, text: &str, style: Style) -> String {
        let style = if self.colour { style } else { Style::new() };
        format!("{style}{text}{style:#}")
    }
}

/// An explanation, for people.
#[must_use]
pub fn explanation_text(explanation: &explain::Explanation, colour: bool) -> String {
    let paint = Paint { colour };
    let mut text = String::new();
    for found in &explanation.matches {
        let times = if found.count > 1 {
            format!(" ({} times)", found.count)
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "{} {}",
            paint.label(Some(found.severity)),
            paint.bold(&format!(
                "line {}{times}: {}",
                found.line_number,
                explain::clip(&found.line, 160)
            ))
        );
        let _ = writeln!(text, "    cause {}", wrap(&found.cause, 10));
        for (index, step) in found.fix.iter().enumerate() {
            let _ = writeln!(text, "    {:<6}{step}", if index == 0 { "fix" } else { "" });
        }
        let confidence = match found.confidence {
            explain::Confidence::High => "certain",
            explain::Confidence::Medium => "likely",
            explain::Confidence::Low => "one of several causes",
        };
        if !found.facts.is_empty() {
            let facts = found.facts.join(", ");
            let _ = writeln!(text, "    from  line {}, and {facts}", found.line_number);
        }
        let _ = writeln!(
            text,
            "    see   {}   [{}, {confidence}]\n",
            found.source, found.id
        );
    }
    if explanation.matches.is_empty() {
        text.push_str("Nothing in this text is a message we know. To find out more, collect:\n");
        for step in explain::WHAT_TO_COLLECT {
            let _ = writeln!(text, "    {step}");
        }
    }
    text
}
