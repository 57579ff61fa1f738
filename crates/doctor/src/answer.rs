//! One reading of a text: the facts of its machine, the messages in it, and what follows from both.
//!
//! `surefoot explain` and `surefoot doctor --from` give the same answer, and differ in what they print of it.

use crate::ansi::strip_escapes;
use crate::dump::{self, Kept, UnknownFormat};
use crate::explain::catalogue::LAST_RESORT;
use crate::explain::difference::NEEDS_OVERRIDE;
use crate::explain::{
    Catalogue, Explainer, Explanation, Hints, Match, Severity, Verdict, WHAT_TO_COLLECT, clip,
};
use crate::failure;
use crate::findings::{Check, Finding};
use crate::report::{Report, diagnose};
use crate::tables::COMPONENTS;
use crate::wheels;
use platform::machine::{Machine, ReadFrom, System};
use platform::snapshot::Snapshot;
use std::iter;

/// The rank of what people complain of.
const COMPLAINTS: std::ops::Range<u16> = 950..960;
/// Where a dump keeps the log of the program that failed.
const LOG: &str = "log/last";

/// Adds the end of a log to the facts of its machine: a dump of them is one file that tells both.
pub fn add_log(facts: &mut Snapshot, log: &str) {
    const LINES: usize = 400;
    let lines: Vec<&str> = log.lines().collect();
    let end = &lines[lines.len().saturating_sub(LINES)..];
    facts.insert_text(LOG, end.join("\n") + "\n");
}

/// What a text says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The messages in it, and what its facts say of the machine.
    pub explanation: Explanation,
    /// The machine that it tells of, with the same findings.
    pub report: Result<Report, UnknownFormat>,
}

/// Reads a text of any length piece by piece, once, in little memory.
pub struct Reader {
    explainer: Explainer,
    kept: Kept,
}

impl Reader {
    /// Ready for the first piece; `hints` are known from elsewhere.
    #[must_use]
    pub fn new(hints: Hints, catalogue: &'static Catalogue) -> Self {
        Self {
            explainer: Explainer::with(hints, catalogue),
            kept: Kept::default(),
        }
    }

    /// Takes the next piece; it may end within a line, or within a character.
    pub fn read(&mut self, piece: &[u8]) {
        self.explainer.read(piece);
        self.kept.read(piece);
    }

    /// The answer to everything read.
    #[must_use]
    pub fn finish(self) -> Answer {
        let Self {
            mut explainer,
            kept,
        } = self;
        let text = kept.into_text();
        explainer.end();
        let facts = dump::facts(&text);
        let machine = facts.as_ref().map(|(machine, _)| machine);
        // Its own dumps hold facts, and no messages.
        let is_dump = machine
            .is_some_and(|machine| matches!(machine.read_from, ReadFrom::Kfd | ReadFrom::Windows));
        if is_dump {
            let snapshot = Snapshot::parse(&text);
            explainer = explainer.anew();
            explainer.read(snapshot.text(LOG).unwrap_or_default().as_bytes());
            explainer.end();
        }
        let works = explainer.works().map(str::to_owned);
        let package = explainer.package().map(str::to_owned);
        let is_linux = explainer.system() == Some(System::Linux);
        let mut explanation = explainer.judge(machine, &text);
        let Some((mut machine, says_something)) = facts else {
            return Answer {
                explanation,
                report: Err(UnknownFormat),
            };
        };
        let works = works.filter(|_| uses_gpu(&machine));
        // What its user says of a program that works is in the title.
        let is_complaint = |(number, _): &(usize, &str)| works.is_none() || *number == 1;
        let of_catalogue = explanation
            .matches
            .iter()
            .filter(|found| COMPLAINTS.contains(&found.rank) && found.severity < Severity::Info);
        let said = of_catalogue.map(|found| (found.line_number, &*found.line));
        let mut said = said.chain(failure::complaint(&text));
        let complains = !is_dump && said.any(|said| is_complaint(&said));
        let failed = machine.posted.has_failed || complains;
        machine.posted.works = works.filter(|_| !complains);
        if machine.posted.works.is_some() && !failed {
            // It went on.
            let warnings = explanation.matches.iter_mut();
            for found in warnings.filter(|found| found.severity == Severity::Warning) {
                found.severity = Severity::Info;
            }
        }
        machine.posted.has_failed = failed;
        let mut report = diagnose(machine);
        let is_wrong = |severity: Severity| severity < Severity::Info;
        // What the numbers of a training are does not tell why it ended.
        let is_explained = explanation.matches.iter().any(|found| {
            is_wrong(found.severity) && !(failed && found.line.starts_with("training: "))
        });
        let mut own = std::mem::take(&mut report.findings);
        // What it works with, by its author, is not taken away.
        let needs_override = explanation
            .matches
            .iter()
            .any(|one| one.id == NEEDS_OVERRIDE);
        own.retain(|finding| !needs_override || finding.check != Check::Override);
        let of_log = left(&mut own, &explanation.matches);
        // The finding says more of the same cause.
        explanation.matches.retain(|message| {
            let says_more = |finding: &Finding| finding.covers().contains(&&*message.id);
            !(message.rank >= LAST_RESORT && own.iter().any(says_more))
        });
        let about_machine = own.iter().filter(|finding| {
            is_wrong(finding.severity)
                && !explanation.matches.iter().any(|one| covers(finding, one))
        });
        let about_machine: Vec<_> = about_machine.map(from_finding).collect();
        explanation.verdict = match &report.machine.posted.works {
            _ if is_explained => Verdict::Explained,
            _ if failed && !is_dump => {
                unexplained(&text, &explanation.matches, package, is_linux, &report)
            }
            _ if !about_machine.is_empty() => Verdict::Explained,
            Some(line) if report.pick.is_some() => Verdict::Works { line: line.clone() },
            _ => Verdict::Unknown,
        };
        if !is_dump {
            report.of_text = Some(explanation.verdict.clone());
        }
        report.findings = own;
        report.findings.extend(of_log);
        report
            .findings
            .sort_by_key(|finding| (finding.severity, finding.check));
        explanation.matches.extend(about_machine);
        explanation.matches.sort_by_key(|found| found.severity);
        let is_open = matches!(
            explanation.verdict,
            Verdict::Unknown | Verdict::Works { .. }
        );
        let is_known = says_something
            || dump::is_told(&text, &explanation.matches)
            || matches!(explanation.verdict, Verdict::Failed { .. });
        explanation.summary = (is_known && is_open).then(|| report.verdict());
        Answer {
            explanation,
            report: match is_known {
                true => Ok(report),
                false => Err(UnknownFormat),
            },
        }
    }
}

/// The answer to a text.
#[must_use]
pub fn answer(text: &str) -> Answer {
    let mut reader = Reader::new(Hints::default(), Catalogue::built_in());
    reader.read(text.as_bytes());
    reader.finish()
}

/// Diagnoses what a text describes: a machine, or a log whose messages become findings.
///
/// # Errors
/// [`UnknownFormat`] when the text is neither.
pub fn diagnose_text(text: &str) -> Result<Report, UnknownFormat> {
    answer(text).report
}

/// Whether what a text shows at work is at work on a GPU of AMD.
fn uses_gpu(machine: &Machine) -> bool {
    let posted = &machine.posted;
    !machine.gpus.is_empty()
        && posted.on_cpu.is_none()
        && posted.cpu_only.is_none()
        && !posted.torch_sees_none
}

/// Whether a finding and a message are about the same cause.
fn covers(finding: &Finding, message: &Match) -> bool {
    finding.id == message.id || finding.covers().contains(&&*message.id)
}

/// The messages that no finding covers, as findings; one that covers a worse one becomes as bad.
fn left(findings: &mut [Finding], messages: &[Match]) -> Vec<Finding> {
    let mut left = Vec::new();
    for message in messages {
        let mut is_covered = false;
        for finding in findings
            .iter_mut()
            .filter(|finding| covers(finding, message))
        {
            finding.severity = finding.severity.min(message.severity);
            is_covered = true;
        }
        if !is_covered {
            left.push(from_log(message));
        }
    }
    left
}

/// What is known of a failure that nothing explains; the messages are remarks.
fn unexplained(
    text: &str,
    remarks: &[Match],
    package: Option<String>,
    is_linux: bool,
    report: &Report,
) -> Verdict {
    let plain = strip_escapes(text);
    let harmless: Vec<&str> = remarks
        .iter()
        .flat_map(|remark| iter::once(&remark.line).chain(&remark.others))
        .map(String::as_str)
        .collect();
    let Some(found) = failure::failure(&plain, &harmless) else {
        return Verdict::Unknown;
    };
    let of_title = || component(plain.lines().next().unwrap_or_default());
    let part = component(found.line);
    let (name, ask) = match (part, package) {
        (None, Some(package)) => (Some(package), ""),
        (part, _) => match part.or_else(of_title) {
            Some((name, ask)) => (Some(name.to_owned()), ask),
            None => (None, ""),
        },
    };
    let first = WHAT_TO_COLLECT[0].to_owned();
    let own = (!ask.is_empty()).then(|| ask.to_owned());
    let rest = WHAT_TO_COLLECT[1..].iter();
    let rest = rest.filter(|step| is_linux || !step.starts_with("on Linux"));
    Verdict::Failed {
        line: clip(found.line, 500).to_owned(),
        line_number: found.line_number,
        component: name,
        is_said: found.is_said,
        ask: iter::once(first)
            .chain(own)
            .chain(which_torch(report).filter(|_| found.is_said))
            .chain(rest.map(|&step| step.to_owned()))
            .take(Explanation::MOST_TO_ASK)
            .collect(),
    }
}

/// Where somebody only says that it fails, the usual reason is another torch than one for the GPU.
fn which_torch(report: &Report) -> Option<String> {
    let machine = &report.machine;
    let posted = &machine.posted;
    let is_torch = posted.framework.is_none() && posted.instead_of_rocm.is_none();
    let gfx = report
        .gpus
        .iter()
        .find(|gpu| Some(gpu.gpu.index) == report.pick)?
        .gpu
        .gfx?;
    let install = wheels::install_on(machine.system, gfx);
    let install = install
        .first()
        .filter(|_| is_torch && machine.python.is_none())?;
    Some(format!(
        "python -c 'import torch; print(torch.__version__, torch.version.hip)' (None: it is no build for ROCm; for {gfx}: {install})"
    ))
}

/// The part of the software that a line names, and what to ask for.
fn component(line: &str) -> Option<(&'static str, &'static str)> {
    let line = format!("{} ", line.to_ascii_lowercase());
    let names = |words: &[&str]| words.iter().any(|word| line.contains(word));
    let found = COMPONENTS.iter().find(|(_, words, _)| names(words));
    found.map(|(name, _, ask)| (*name, *ask))
}

fn from_finding(finding: &Finding) -> Match {
    Match {
        line: finding.title.clone(),
        severity: finding.severity,
        cause: format!("{} {}", finding.seen, finding.why),
        fix: finding.fix.clone(),
        source: finding.source.clone(),
        probe: finding.probe.clone(),
        ..Match::new(&finding.id)
    }
}

fn from_log(found: &Match) -> Finding {
    Finding {
        id: found.id.clone(),
        severity: found.severity,
        title: format!("Line {}: {}", found.line_number, clip(&found.line, 100)),
        seen: found.line.clone(),
        why: found.cause.clone(),
        fix: found.fix.clone(),
        source: found.source.clone(),
        probe: found.probe.clone(),
        check: Check::Gpu,
        said: None,
    }
}
