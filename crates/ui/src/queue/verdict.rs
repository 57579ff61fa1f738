//! Why a job is not started, and what to do about it.

use std::fmt::Write as _;

use doctor::Report;
use doctor::explain::{Severity, explain};
use doctor::findings::{Check, Finding, seen_by_hip};
use doctor::report::diagnose;
use platform::machine::Gpu;

/// The doctor's objections to a run on `device` (`gpu:1`, as a run counts them). They matter because a check
/// passes where gradients are silently wrong. Problems of another GPU alone are ignored.
pub(super) fn objections(report: &Report, device: &str) -> Option<String> {
    let number = device
        .rsplit([':', ' '])
        .next()
        .and_then(|number| number.parse().ok());
    let place = number.and_then(|number: usize| seen_by_hip(&report.machine).get(number).copied());
    let report_of_gpu = place.and_then(|place| report_of_gpu(report, place));
    // Findings about the whole machine, and those of this GPU if it were the only one.
    let of_all = |finding: &&Finding| {
        let checks = [Check::Access, Check::Visibility, Check::Limits];
        report_of_gpu.is_none() || checks.contains(&finding.check)
    };
    let own = report_of_gpu.iter().flat_map(|report| &report.findings);
    let own = own.filter(|finding| !of_all(finding));
    let findings = report.findings.iter().filter(of_all).chain(own);
    let mut text = String::new();
    for finding in findings.filter(|finding| finding.severity == Severity::Error) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n{}\n{}", finding.title, finding.why);
        text += &fix_list(&finding.fix);
    }
    (!text.is_empty()).then(|| format!("the doctor says that {device} cannot train:{text}"))
}

/// The report of this machine with the GPU at `place` only.
fn report_of_gpu(report: &Report, place: usize) -> Option<Report> {
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

/// An error of the trainer, with its cause and remedies if they are known.
pub(super) fn explained(error: String) -> String {
    match explain(&error).matches.first() {
        Some(found) => format!("{error}\n{}{}", found.cause, fix_list(&found.fix)),
        None => error,
    }
}

/// Whether an error is an out-of-memory error.
pub(super) fn is_out_of_memory(error: &str) -> bool {
    error.to_lowercase().contains("out of memory")
}

fn fix_list<T: AsRef<str>>(fix: &[T]) -> String {
    let lines: String = fix
        .iter()
        .map(|line| format!("\n- {}", line.as_ref()))
        .collect();
    match lines.is_empty() {
        true => lines,
        false => format!("\nwhat helps:{lines}"),
    }
}

/// The message for a check that expects too much memory.
pub(super) fn too_large(advice: &[&str]) -> String {
    format!(
        "it needs more memory than there is; what helps, most effective first:\n- {}",
        advice.join("\n- ")
    )
}

#[cfg(test)]
mod tests {
    use doctor::diagnose_text;

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
    fn a_gpu_that_trains_wrongly_is_refused_with_the_fix() {
        let text = objections(&report("kfd_gfx1033_steamdeck"), "gpu:0").unwrap();
        assert!(text.contains("gradients"), "{text}");
        assert_eq!(
            objections(&report("kfd_gfx1201_plus_gfx1036"), "gpu:0"),
            None
        );
    }

    #[test]
    fn problems_of_another_gpu_are_ignored() {
        let mut machine = report("kfd_gfx1201_plus_gfx1036").machine;
        let wrong = report("kfd_gfx1033_steamdeck").machine.gpus[0].clone();
        machine.gpus.push(Gpu {
            index: machine.gpus.len(),
            ..wrong
        });
        let last = machine.gpus.len() - 1;
        let both = diagnose(machine);
        assert_eq!(objections(&both, "GPU 0"), None);
        let text = objections(&both, &format!("gpu:{last}")).unwrap();
        assert!(
            text.contains("gradients") && text.contains("gfx1033"),
            "{text}"
        );
    }

    #[test]
    fn a_known_error_is_shown_with_its_cause_and_fix() {
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
