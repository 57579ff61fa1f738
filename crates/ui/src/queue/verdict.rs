//! Why a job is not begun, with what helps.

use std::fmt::Write as _;

use doctor::Report;
use doctor::explain::{Severity, explain};
use doctor::findings::{Check, Finding, seen_by_hip};
use doctor::report::diagnose;
use platform::machine::Gpu;

/// What speaks against a run on `device` (`gpu:1`, as a run counts them), by the doctor: a check passes where
/// gradients are wrong without a message. What is wrong with another GPU alone is no matter here.
pub(super) fn against(report: &Report, device: &str) -> Option<String> {
    let number = device
        .rsplit([':', ' '])
        .next()
        .and_then(|number| number.parse().ok());
    let place = number.and_then(|number: usize| seen_by_hip(&report.machine).get(number).copied());
    let alone = place.and_then(|place| alone(report, place));
    // What the whole machine has, and what this GPU would have if there were no other.
    let of_all = |finding: &&Finding| {
        let checks = [Check::Access, Check::Visibility, Check::Limits];
        alone.is_none() || checks.contains(&finding.check)
    };
    let own = alone.iter().flat_map(|report| &report.findings);
    let own = own.filter(|finding| !of_all(finding));
    let findings = report.findings.iter().filter(of_all).chain(own);
    let mut text = String::new();
    for finding in findings.filter(|finding| finding.severity == Severity::Error) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n{}\n{}", finding.title, finding.why);
        text += &listed(&finding.fix);
    }
    (!text.is_empty()).then(|| format!("the doctor says that {device} cannot train:{text}"))
}

/// The report of this machine with no other GPU than that in `place`.
fn alone(report: &Report, place: usize) -> Option<Report> {
    let mut machine = report.machine.clone();
    let gpu = machine.gpus.get(place)?.clone();
    machine.gpus = vec![Gpu { index: 0, ..gpu }];
    for variable in [
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ] {
        machine.variables.remove(variable);
    }
    Some(diagnose(machine))
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
        let text = against(&report("kfd_gfx1033_steamdeck"), "gpu:0").unwrap();
        assert!(text.contains("gradients"), "{text}");
        assert_eq!(against(&report("kfd_gfx1201_plus_gfx1036"), "gpu:0"), None);
    }

    #[test]
    fn what_is_wrong_with_another_gpu_refuses_nothing() {
        let mut machine = report("kfd_gfx1201_plus_gfx1036").machine;
        let wrong = report("kfd_gfx1033_steamdeck").machine.gpus[0].clone();
        machine.gpus.push(Gpu {
            index: machine.gpus.len(),
            ..wrong
        });
        let last = machine.gpus.len() - 1;
        let both = diagnose(machine);
        assert_eq!(against(&both, "GPU 0"), None);
        let text = against(&both, &format!("gpu:{last}")).unwrap();
        assert!(
            text.contains("gradients") && text.contains("gfx1033"),
            "{text}"
        );
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
