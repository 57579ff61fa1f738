//! The doctor's answer to a text, and how well it matches the truth.

use doctor::explain::{self, Explanation, Severity};
use doctor::report::{Report, explanation_text};
use regex::{Regex, RegexBuilder};
use serde::Serialize;

use super::corpus::{Kind, System, Truth, Verdict};

/// How well an answer matches the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Class {
    /// Everything required, and nothing wrong.
    Right,
    /// Some of what is required, and nothing wrong.
    Partly,
    /// Nothing was said.
    Silent,
    /// Something was said, but nothing that is required.
    Beside,
    Wrong,
}

impl Class {
    pub(super) const ALL: [Self; 5] = [
        Self::Right,
        Self::Partly,
        Self::Silent,
        Self::Beside,
        Self::Wrong,
    ];

    pub(super) fn name(self) -> &'static str {
        ["right", "partly", "silent", "beside", "wrong"][self as usize]
    }
}

/// How an answer was judged, and by which rules.
pub(super) struct Judgement {
    pub(super) class: Class,
    /// Required statements that are missing.
    pub(super) unmet: Vec<String>,
    /// Statements that are wrong.
    pub(super) wrong: Vec<String>,
    /// Each statement, abridged for readers of the results.
    pub(super) said: Vec<String>,
    /// Whether something is said at the level of a warning.
    pub(super) warns: bool,
}

/// The answers of both commands, without quotations from the text.
pub(super) struct Answer {
    /// Output of `surefoot explain`; empty if no message was recognised.
    explain: String,
    /// Output of `surefoot doctor --from`; empty if the text was not recognised.
    doctor: String,
    report: Option<Report>,
    has_errors: bool,
    warns: bool,
    said: Vec<String>,
}

/// Runs both commands on a text.
pub(super) fn answer(text: &[u8]) -> Answer {
    let text = doctor::dump::decode(text);
    let doctor::answer::Answer {
        explanation,
        report,
    } = doctor::answer(&text);
    let report = report.ok();
    let mut said: Vec<String> = explanation
        .matches
        .iter()
        .map(|found| format!("[{}] {}", found.id, found.cause))
        .collect();
    let has = |severity| {
        let mut messages = explanation.matches.iter().map(|found| found.severity);
        let findings = report.iter().flat_map(|report| &report.findings);
        messages.any(|of| of == severity) || findings.map(|of| of.severity).any(|of| of == severity)
    };
    let (mut has_errors, warns) = (has(Severity::Error), has(Severity::Warning));
    if let Some(report) = &report {
        has_errors |= report.has_errors();
        let findings = report
            .findings
            .iter()
            .filter(|finding| !finding.is_from_log());
        said.extend(findings.map(|finding| format!("[{}] {}", finding.id, finding.title)));
    }
    Answer {
        explain: without_quotes_of_explain(explanation),
        doctor: report
            .clone()
            .map(without_quotes_of_doctor)
            .unwrap_or_default(),
        report,
        has_errors,
        warns,
        said,
    }
}

fn without_quotes_of_explain(mut explanation: Explanation) -> String {
    let is_honest = matches!(explanation.verdict, explain::Verdict::Failed { .. });
    if explanation.matches.is_empty() && !is_honest {
        return String::new();
    }
    for found in &mut explanation.matches {
        found.line.clear();
        found.source.clear();
    }
    quote_nothing(&mut explanation.verdict);
    one_line(&explanation_text(&explanation, false))
}

fn without_quotes_of_doctor(mut report: Report) -> String {
    for finding in &mut report.findings {
        finding.source.clear();
        if finding.is_from_log() {
            finding.title.clear();
            finding.seen.clear();
        }
    }
    if let Some(verdict) = &mut report.of_text {
        quote_nothing(verdict);
    }
    one_line(&report.to_text(false))
}

/// The line that a verdict quotes is of the text as well.
fn quote_nothing(verdict: &mut explain::Verdict) {
    if let explain::Verdict::Failed { line, .. } | explain::Verdict::Works { line } = verdict {
        line.clear();
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Compares an answer with the truth.
pub(super) fn judge(truth: &Truth, answer: &Answer) -> Judgement {
    let mut met = 0;
    let mut unmet = Vec::new();
    let mut hold = |is_met: bool, rule: String| {
        if is_met {
            met += 1;
        } else {
            unmet.push(rule);
        }
    };
    let judged = match truth.kind {
        Kind::Error => &answer.explain,
        Kind::Dump | Kind::Healthy => &answer.doctor,
    };
    for rule in &truth.must_say {
        hold(rule.is_match(judged), rule.to_string());
    }
    let expect = &truth.expect;
    if let Some(expected) = &expect.gpus {
        let mut expected = expected.clone();
        expected.sort();
        hold(
            answer.gpus() == expected,
            format!("the GPUs {}", expected.join(", ")),
        );
    }
    if let Some(expected) = &expect.pick {
        hold(
            answer.pick().as_ref() == Some(expected),
            format!("train on {expected}"),
        );
    }
    if expect.verdict == Some(Verdict::Mend) {
        hold(
            answer.report.as_ref().is_some_and(Report::has_errors),
            "an error to mend".to_owned(),
        );
    }
    let wrong = wrongs(truth, answer);
    let is_silent = answer.explain.is_empty() && answer.doctor.is_empty();
    let class = match (wrong.is_empty(), unmet.is_empty(), met) {
        (false, ..) => Class::Wrong,
        (_, true, _) => Class::Right,
        (.., 1..) => Class::Partly,
        _ if is_silent => Class::Silent,
        _ => Class::Beside,
    };
    Judgement {
        class,
        unmet,
        wrong,
        said: answer.said.clone(),
        warns: answer.warns,
    }
}

/// The kind of an unmet rule.
pub(super) fn kind_of_unmet(rule: &str) -> &'static str {
    match rule {
        "an error to mend" => "not said: an error to mend",
        _ if rule.starts_with("the GPUs ") => "not said: all GPUs",
        _ if rule.starts_with("train on gfx") => "not said: the GPU to train on",
        _ => "not said: a cause or a cure",
    }
}

/// The kind of a wrong statement.
pub(super) fn kind_of_wrong(rule: &str) -> &'static str {
    match rule {
        "an error where nothing stops training" => "wrong: an error where there is none",
        "`ready to train`" => "wrong: ready to train",
        _ if rule.starts_with("says ") => "wrong: a cause that it is not",
        _ if rule.starts_with("train on gfx") => "wrong: the GPU to train on",
        _ if rule.starts_with('`') => "wrong: a command of another system",
        _ => "wrong: a GPU that is not there",
    }
}

/// The statements of an answer that contradict the truth.
fn wrongs(truth: &Truth, answer: &Answer) -> Vec<String> {
    let said = |rule: &Regex| rule.is_match(&answer.explain) || rule.is_match(&answer.doctor);
    let forbidden = truth.must_not_say.iter().filter(|&rule| said(rule));
    let mut wrong: Vec<String> = forbidden.map(|rule| format!("says {rule}")).collect();
    let foreign = match truth.system {
        System::Windows => r"\bsudo |modprobe|usermod|update-grub|/dev/kfd",
        System::Wsl => r"modprobe |usermod -|update-grub|grubby",
        System::Linux | System::Unknown => "",
    };
    if let Ok(foreign) = RegexBuilder::new(foreign).case_insensitive(true).build()
        && let Some(found) = [&answer.explain, &answer.doctor].iter().find_map(|text| {
            (!foreign.as_str().is_empty())
                .then(|| foreign.find(text))
                .flatten()
        })
    {
        wrong.push(format!("`{}` on {:?}", found.as_str().trim(), truth.system));
    }
    let verdict = truth.expect.verdict;
    if answer.has_errors && (truth.kind == Kind::Healthy || verdict == Some(Verdict::Train)) {
        wrong.push("an error where nothing stops training".to_owned());
    }
    let is_broken =
        verdict == Some(Verdict::Mend) || truth.kind == Kind::Error && verdict.is_none();
    if is_broken && answer.doctor.contains("ready to train") {
        wrong.push("`ready to train`".to_owned());
    }
    if let Some(expected) = &truth.expect.gpus {
        let others = answer
            .gpus()
            .into_iter()
            .filter(|gfx| !expected.contains(gfx));
        wrong.extend(others.map(|gfx| format!("a {gfx}, which is not there")));
    }
    if let (Some(expected), Some(pick)) = (&truth.expect.pick, answer.pick())
        && *expected != pick
    {
        wrong.push(format!("train on {pick}"));
    }
    wrong
}

impl Answer {
    /// The architectures of the GPUs that the doctor knows, sorted.
    fn gpus(&self) -> Vec<String> {
        let entries = self.report.iter().flat_map(|report| &report.gpus);
        let mut gpus: Vec<String> = entries
            .filter_map(|entry| Some(entry.gpu.gfx?.to_string()))
            .collect();
        gpus.sort();
        gpus
    }

    /// The architecture of the GPU that the doctor would train on.
    fn pick(&self) -> Option<String> {
        let report = self.report.as_ref()?;
        let picked = report
            .gpus
            .iter()
            .find(|entry| Some(entry.gpu.index) == report.pick)?;
        Some(picked.gpu.gfx?.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "RuntimeError: HIP error: invalid device function\n";

    fn class(text: &str, truth: &serde_json::Value) -> Class {
        let mut whole = serde_json::json!({
            "source": "https://example.com", "kind": "error", "system": "linux", "topic": "test",
            "cause": "c", "cure": "", "certainty": "confirmed", "must_say": [], "must_not_say": [],
        });
        for (key, value) in truth.as_object().expect("an object") {
            whole[key] = value.clone();
        }
        let truth: Truth = serde_json::from_value(whole).expect("a truth");
        judge(&truth, &answer(text.as_bytes())).class
    }

    #[test]
    fn an_answer_is_right_when_all_is_said_and_partly_right_when_some_is() {
        let rules = |rules: &[&str]| serde_json::json!({ "must_say": rules });
        assert_eq!(class(TEXT, &rules(&["CAUSE", "fix"])), Class::Right);
        assert_eq!(
            class(TEXT, &rules(&["cause", "green cheese"])),
            Class::Partly
        );
        assert_eq!(class(TEXT, &rules(&["green cheese"])), Class::Beside);
        assert_eq!(class("hello\n", &rules(&["cause"])), Class::Silent);
    }

    #[test]
    fn a_statement_that_must_not_be_made_is_wrong_whatever_else_is_said() {
        let truth =
            serde_json::json!({ "must_say": ["cause"], "must_not_say": ["certain|likely|causes"] });
        assert_eq!(class(TEXT, &truth), Class::Wrong);
    }

    #[test]
    fn repeating_the_message_is_no_answer() {
        let text = "marzipan: HIP error: invalid device function\n";
        assert_eq!(
            class(text, &serde_json::json!({ "must_say": ["marzipan"] })),
            Class::Beside
        );
        let log = format!("Agent 2\n  Name: gfx1100\n  Device Type: GPU\n{text}");
        assert_eq!(
            class(
                &log,
                &serde_json::json!({ "kind": "dump", "must_say": ["marzipan"] })
            ),
            Class::Beside
        );
    }

    #[test]
    fn an_error_about_something_healthy_is_wrong() {
        assert_eq!(
            class(TEXT, &serde_json::json!({ "kind": "healthy" })),
            Class::Wrong
        );
        assert_eq!(
            class("hello\n", &serde_json::json!({ "kind": "healthy" })),
            Class::Right
        );
        let harmless =
            serde_json::json!({ "must_say": ["cause"], "expect": { "verdict": "train" } });
        assert_eq!(class(TEXT, &harmless), Class::Wrong);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_wrong_and_one_that_is_not_found_is_missed() {
        let text = "hipInfo\ndevice# 0\nName: AMD Radeon RX 7900 XTX\ngcnArchName: gfx1100\n";
        let gpus =
            |names: &[&str]| serde_json::json!({ "kind": "dump", "expect": { "gpus": names } });
        assert_eq!(class(text, &gpus(&["gfx1100"])), Class::Right);
        assert_eq!(class(text, &gpus(&["gfx1151"])), Class::Wrong);
        assert_eq!(class(text, &gpus(&["gfx1100", "gfx1151"])), Class::Beside);
        let ready = serde_json::json!({ "kind": "dump", "expect": { "verdict": "mend" } });
        let text = "Collecting environment information...\nPyTorch version: 2.9.1+rocm6.4\nIs debug build: False\n\
                    GPU models and configuration: AMD Radeon RX 7900 XTX (gfx1100)\n";
        assert_eq!(class(text, &ready), Class::Wrong);
    }

    #[test]
    fn commands_of_linux_are_wrong_on_windows() {
        let text = "Unable to open /dev/kfd read-write: Permission denied\n";
        let on = |system: &str| serde_json::json!({ "must_say": ["cause"], "system": system });
        assert_eq!(class(text, &on("linux")), Class::Right);
        assert_eq!(class(text, &on("windows")), Class::Wrong);
        assert_eq!(class(text, &on("wsl")), Class::Wrong);
    }
}
