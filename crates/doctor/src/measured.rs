//! What the checks of `surefoot probe` say of a cause.
//!
//! A log often has several causes, and a known defect may not be there on one machine: measuring decides.

use crate::schema::Fact;
use std::collections::BTreeMap;

/// The fact that a failed check shows.
const FACTS: [(&str, Fact); 9] = [
    ("copy-small", Fact::CopiesFail),
    ("copy-mixed", Fact::CopiesFail),
    ("copy-loader", Fact::CopiesFail),
    ("copy-large", Fact::CopiesFail),
    ("matmul-fp32", Fact::ProductsFail),
    ("matmul-bf16", Fact::ProductsFail),
    ("autograd", Fact::GradientsFail),
    ("attention", Fact::AttentionFails),
    ("attention-fused", Fact::AttentionUnfused),
];

/// Whether one of these checks fails on this machine, with the results in words; nothing unless one fails or all pass.
pub(crate) fn by(checks: &[&str], probed: &BTreeMap<String, bool>) -> Option<(bool, String)> {
    let is = |good: bool| move |check: &&&str| probed.get(**check) == Some(&good);
    if let Some(failed) = checks.iter().find(is(false)) {
        let word = format!("`surefoot probe` measured it: {failed} is not as expected here");
        return Some((true, word));
    }
    let all_pass = !checks.is_empty() && checks.iter().all(|check| is(true)(&check));
    let word = || {
        let checks = checks.join(", ");
        format!("`surefoot probe` did not find it: {checks} as expected here")
    };
    all_pass.then(|| (false, word()))
}

/// What the checks of an entry show.
pub(crate) fn facts(checks: &[&str], probed: &BTreeMap<String, bool>) -> Vec<Fact> {
    let failed = FACTS
        .iter()
        .filter(|(check, _)| checks.contains(check) && probed.get(*check) == Some(&false));
    let failed = failed.map(|(_, fact)| *fact);
    let measured = by(checks, probed).map(|_| Fact::Measured);
    measured.into_iter().chain(failed).collect()
}

/// Leaves the checks that were not run.
pub(crate) fn keep_open(checks: &mut Vec<&'static str>, probed: &BTreeMap<String, bool>) {
    checks.retain(|check| !probed.contains_key(*check));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_check_decides_and_all_others_must_pass() {
        let probed = |results: &[(&str, bool)]| {
            let named = |(name, good): &(&str, bool)| ((*name).to_owned(), *good);
            results.iter().map(named).collect::<BTreeMap<_, _>>()
        };
        let checks = ["attention", "copy-large"];
        let said = |results: &[(&str, bool)]| by(&checks, &probed(results)).map(|(fails, _)| fails);
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[("attention", true)]), None);
        assert_eq!(said(&[("copy-large", false)]), Some(true));
        assert_eq!(
            said(&[("attention", true), ("copy-large", true)]),
            Some(false)
        );
        assert_eq!(by(&[], &probed(&[("attention", true)])), None);
        let facts = |results: &[(&str, bool)]| facts(&checks, &probed(results));
        assert_eq!(
            facts(&[("copy-large", false), ("autograd", false)]),
            [Fact::Measured, Fact::CopiesFail]
        );
        assert_eq!(facts(&[("attention", true)]), []);
    }
}
