//! Why a job is not begun, with what helps.

use std::fmt::Write as _;

use doctor::Report;
use doctor::explain::{Severity, explain};

/// What speaks against a run on a GPU of this machine, by the doctor: a check passes where gradients are wrong
/// without a message.
pub(super) fn against(report: &Report) -> Option<String> {
    let mut text = String::new();
    let findings = report.findings.iter();
    for finding in findings.filter(|finding| finding.severity == Severity::Error) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n{}\n{}", finding.title, finding.why);
        text += &listed(&finding.fix);
    }
    (!text.is_empty()).then(|| format!("the doctor says that this machine cannot train:{text}"))
}

/// An error of the trainer, with the cause and what helps where they are known.
pub(super) fn explained(error: String) -> String {
    match explain(&error).matches.first() {
        Some(found) => format!("{error}\n{}{}", found.cause, listed(&found.fix)),
        None => error,
    }
}

/// Whether an error is for lack of memory.
pub(super) fn is_out_of_memory(error: &str) -> bool {
    error.to_lowercase().contains("out of memory")
}

fn listed<T: AsRef<str>>(fix: &[T]) -> String {
    let lines: String = fix
        .iter()
        .map(|line| format!("\n- {}", line.as_ref()))
        .collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\nwhat helps:{lines}"),
    }
}

/// What a check says of memory.
pub(super) fn too_large(advice: &[&str]) -> String {
    format!(
        "it needs more memory than there is; what helps, most first:\n- {}",
        advice.join("\n- ")
    )
}

#[cfg(test)]
mod tests {
    use doctor::report::diagnose_text;

    use super::*;

    fn report(name: &str) -> Report {
        let folder = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../doctor/tests/fixtures/synthetic"
        );
        let text = std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap();
        diagnose_text(&text).unwrap()
    }

    #[test]
    fn what_trains_wrong_is_refused_with_the_fix() {
        let text = against(&report("kfd_gfx1033_steamdeck")).unwrap();
        assert!(text.contains("gradients"), "{text}");
        assert_eq!(against(&report("kfd_gfx1201_plus_gfx1036")), None);
    }

    #[test]
    fn a_known_error_has_its_cause_and_what_helps() {
        let error = "HIP error: invalid device function";
        let text = explained(error.into());
        assert!(
            text.starts_with(error) && text.contains("what helps:\n- "),
            "{text}"
        );
        let unknown = "data.jsonl, line 3: the key `text` is missing";
        assert_eq!(explained(unknown.into()), unknown);
    }
}
