//! Counts of answers per class, and the committed baseline below which they may not fall.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::corpus::Kind;
use super::judge::Class;
use super::{Judged, part};

pub(super) const BASELINE: &str = "tests/corpus/scores.json";

pub(super) const HEADER: &str = "texts    right   partly   silent   beside    wrong";

/// Totals per part and kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(super) struct Scores(BTreeMap<String, BTreeMap<String, Counts>>);

/// Number of texts in each class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct Counts {
    texts: usize,
    right: usize,
    partly: usize,
    silent: usize,
    beside: usize,
    wrong: usize,
}

/// The totals of judged cases.
pub(super) fn of(judged: &[Judged]) -> Scores {
    let mut scores = Scores::default();
    for held_out in [false, true] {
        for kind in Kind::ALL {
            let of_kind = judged
                .iter()
                .filter(|one| one.case.held_out == held_out && one.case.truth.kind == kind);
            let mut classes = [0; Class::ALL.len()];
            for one in of_kind {
                classes[one.judgement.class as usize] += 1;
            }
            let [right, partly, silent, beside, wrong] = classes;
            let texts = classes.iter().sum();
            let counts = Counts {
                texts,
                right,
                partly,
                silent,
                beside,
                wrong,
            };
            scores
                .0
                .entry(part(held_out).to_owned())
                .or_default()
                .insert(kind.name().to_owned(), counts);
        }
    }
    scores
}

impl Scores {
    /// The committed baseline.
    pub(super) fn baseline() -> Result<Self> {
        let text = fs::read_to_string(super::root().join(BASELINE))
            .with_context(|| format!("cannot read `{BASELINE}`"))?;
        serde_json::from_str(&text).with_context(|| {
            format!("`{BASELINE}` cannot be read: `cargo xtask bench doctor --write` renews it")
        })
    }

    pub(super) fn write_baseline(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(super::root().join(BASELINE), text)
            .with_context(|| format!("cannot write `{BASELINE}`"))
    }

    pub(super) fn print(&self) {
        println!("{:<9} {:<24} {HEADER}", "", "kind");
        for (part, kinds) in &self.0 {
            for (kind, counts) in kinds {
                println!("{part:<9} {kind:<24} {}", row(&counts.classes()));
            }
        }
    }

    /// Describes what is worse than in the baseline.
    pub(super) fn falls(&self, baseline: &Self) -> Vec<String> {
        self.compare(baseline, |now, then| {
            let better = |counts: &Counts| counts.right + counts.partly;
            now.texts != then.texts
                || now.right < then.right
                || better(now) < better(then)
                || now.wrong > then.wrong
        })
    }

    /// Describes all differences from the baseline.
    pub(super) fn against(&self, baseline: &Self) -> Vec<String> {
        let mut changes = self.compare(baseline, |now, then| now != then);
        if !changes.is_empty() {
            changes.push("`--write` makes these numbers the baseline".to_owned());
        }
        changes
    }

    fn compare(&self, baseline: &Self, is_told: impl Fn(&Counts, &Counts) -> bool) -> Vec<String> {
        let missing = Counts::default();
        let mut changes = Vec::new();
        for (part, kinds) in &self.0 {
            for (kind, now) in kinds {
                let then = baseline
                    .0
                    .get(part)
                    .and_then(|kinds| kinds.get(kind))
                    .unwrap_or(&missing);
                if is_told(now, then) {
                    changes.push(format!(
                        "{part}, {kind}: {} (baseline: {})",
                        now.sentence(),
                        then.sentence()
                    ));
                }
            }
        }
        changes
    }
}

impl Counts {
    fn classes(&self) -> [usize; 5] {
        [
            self.right,
            self.partly,
            self.silent,
            self.beside,
            self.wrong,
        ]
    }

    fn sentence(&self) -> String {
        let Self {
            texts,
            right,
            partly,
            wrong,
            ..
        } = self;
        format!("{right} right, {partly} partly, {wrong} wrong of {texts}")
    }
}

/// The counts of all classes and their percentages.
pub(super) fn row(classes: &[usize; 5]) -> String {
    let texts: usize = classes.iter().sum();
    let share = |count: usize| match texts {
        0 => String::new(),
        _ => format!("{:.0}%", 100.0 * count as f64 / texts as f64),
    };
    let cells = classes.map(|count| format!("{count:>3} {:>4}", share(count)));
    format!("{texts:>5} {}", cells.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(right: usize, partly: usize, wrong: usize) -> Scores {
        let counts = Counts {
            texts: 10,
            right,
            partly,
            wrong,
            ..Counts::default()
        };
        Scores([("open".to_owned(), [("error".to_owned(), counts)].into())].into())
    }

    #[test]
    fn less_that_is_right_or_more_that_is_wrong_is_a_fall() {
        let baseline = scores(5, 2, 1);
        for worse in [scores(4, 3, 1), scores(5, 1, 1), scores(6, 2, 2)] {
            assert_eq!(worse.falls(&baseline).len(), 1);
        }
        for better in [scores(5, 2, 1), scores(6, 1, 1), scores(5, 2, 0)] {
            assert_eq!(better.falls(&baseline), Vec::<String>::new());
        }
    }

    #[test]
    fn a_baseline_of_another_corpus_does_not_hold() {
        let mut other = scores(5, 2, 1);
        other
            .0
            .get_mut("open")
            .and_then(|kinds| kinds.get_mut("error"))
            .expect("counts")
            .texts = 11;
        assert_eq!(other.falls(&scores(5, 2, 1)).len(), 1);
        assert_eq!(scores(5, 2, 1).falls(&Scores::default()).len(), 1);
    }
}
