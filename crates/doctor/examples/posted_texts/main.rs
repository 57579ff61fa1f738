//! `cargo xtask bench doctor`: the doctor's answers to texts that people posted, whose causes are known.
//!
//! The texts and the rules that judge the answers are in the repository's `tests/corpus`; its `README.md` describes
//! both. One third of the texts is held out: only totals of it are shown. The first argument is the file for the
//! numbers; the others are options, which `cargo xtask bench doctor --help` describes.

extern crate surefoot_doctor as doctor;

mod corpus;
mod forms;
mod judge;
mod scores;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use self::corpus::{Case, Kind};
use self::judge::{Class, Judgement, judge};
use self::scores::Scores;

/// A case with its judgement.
struct Judged {
    case: Case,
    judgement: Judgement,
    time: Duration,
}

#[derive(Serialize)]
struct Document {
    scores: Scores,
    median_milliseconds: f64,
    slowest_milliseconds: f64,
    /// The texts that are not held out.
    texts: Vec<Text>,
}

#[derive(Serialize)]
struct Text {
    slug: String,
    kind: Kind,
    topic: String,
    class: Class,
    milliseconds: f64,
    unmet: Vec<String>,
    wrong: Vec<String>,
    said: Vec<String>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let out = arguments.first().context("no file for the numbers")?;
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    let folder = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--texts="));
    let judged = judge_all(corpus::load(folder)?);
    let scores = scores::of(&judged);
    scores.print();
    if folder.is_some() {
        print_unmet(&judged);
        return write_document(Path::new(out), &judged, &scores);
    }
    print_projects(&judged);
    print_false_alarms(&judged);
    print_times(&judged);
    print_topics(&judged);
    if has("--list") {
        print_unmet(&judged);
    }
    if has("--held-out") {
        print_held_out(&judged);
    }
    if has("--forms") {
        forms::print(&judged, has("--list"))?;
    }
    write_document(Path::new(out), &judged, &scores)?;
    if has("--write") {
        scores.write_baseline()?;
        eprintln!("wrote {}", scores::BASELINE);
        return Ok(());
    }
    let baseline = Scores::baseline()?;
    println!();
    for change in scores.against(&baseline) {
        println!("{change}");
    }
    if !scores.falls(&baseline).is_empty() {
        println!("the scores are worse or belong to a different corpus: a test fails");
    }
    Ok(())
}

fn write_document(path: &Path, judged: &[Judged], scores: &Scores) -> Result<()> {
    let shown = judged.iter().filter(|one| !one.case.held_out);
    let document = Document {
        scores: scores.clone(),
        median_milliseconds: median(judged),
        slowest_milliseconds: judged.iter().map(Judged::milliseconds).fold(0.0, f64::max),
        texts: shown.map(Text::of).collect(),
    };
    fs::write(path, serde_json::to_string_pretty(&document)? + "\n")
        .with_context(|| format!("cannot write `{}`", path.display()))
}

/// The middle of all times, in milliseconds.
fn median(judged: &[Judged]) -> f64 {
    let mut times: Vec<f64> = judged.iter().map(Judged::milliseconds).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Text {
    fn of(judged: &Judged) -> Self {
        let Judged {
            case, judgement, ..
        } = judged;
        Self {
            slug: case.slug.clone(),
            kind: case.truth.kind,
            topic: case.truth.topic.clone(),
            class: judgement.class,
            milliseconds: judged.milliseconds(),
            unmet: judgement.unmet.clone(),
            wrong: judgement.wrong.clone(),
            said: judgement.said.clone(),
        }
    }
}

impl Judged {
    fn milliseconds(&self) -> f64 {
        self.time.as_secs_f64() * 1e3
    }
}

fn judge_all(cases: Vec<Case>) -> Vec<Judged> {
    // The patterns are compiled on first use; keep that out of the timings.
    let _ = judge::answer(b"warm up");
    let timed = |case: Case| {
        let start = Instant::now();
        let answer = judge::answer(&case.text);
        let time = start.elapsed();
        let judgement = judge(&case.truth, &answer);
        Judged {
            case,
            judgement,
            time,
        }
    };
    cases.into_iter().map(timed).collect()
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn part(held_out: bool) -> &'static str {
    if held_out { "held out" } else { "open" }
}

/// Per project. Projects with few texts share one line, since the row of a single text would reveal its
/// class.
fn print_projects(judged: &[Judged]) {
    const FEW: usize = 5;
    type Classes = [usize; Class::ALL.len()];
    println!("\n{:<9} {:<24} {}", "", "project", scores::HEADER);
    for held_out in [false, true] {
        let mut projects: BTreeMap<&str, Classes> = BTreeMap::new();
        for one in judged.iter().filter(|one| one.case.held_out == held_out) {
            projects.entry(one.case.project()).or_default()[one.judgement.class as usize] += 1;
        }
        let mut others = Classes::default();
        for (project, classes) in projects {
            if classes.iter().sum::<usize>() >= FEW {
                println!(
                    "{:<9} {project:<24} {}",
                    part(held_out),
                    scores::row(&classes)
                );
            } else {
                for (other, class) in others.iter_mut().zip(classes) {
                    *other += class;
                }
            }
        }
        println!(
            "{:<9} {:<24} {}",
            part(held_out),
            "others",
            scores::row(&others)
        );
    }
}

fn print_false_alarms(judged: &[Judged]) {
    for of_held_out in [false, true] {
        let healthy = judged
            .iter()
            .filter(|one| one.case.truth.kind == Kind::Healthy && one.case.held_out == of_held_out);
        let (texts, alarms): (Vec<_>, Vec<_>) = (
            healthy.clone().collect(),
            healthy
                .filter(|one| one.judgement.class == Class::Wrong)
                .collect(),
        );
        let warned = texts.iter().filter(|one| one.judgement.warns).count();
        println!(
            "\n{}: {} false alarms on {} healthy texts, {warned} with a warning",
            part(of_held_out),
            alarms.len(),
            texts.len()
        );
        for one in alarms.iter().filter(|_| !of_held_out) {
            println!("  {}: {}", one.case.slug, one.judgement.wrong.join("; "));
        }
    }
}

fn print_times(judged: &[Judged]) {
    let slowest = judged
        .iter()
        .filter(|one| !one.case.held_out)
        .max_by_key(|one| one.time);
    println!(
        "\ntime of a text, both commands{}: median {:.2} ms; {}",
        if cfg!(debug_assertions) {
            ", not optimised"
        } else {
            ""
        },
        median(judged),
        slowest.map_or(String::new(), |one| format!(
            "slowest {:.2} ms ({} KiB, {})",
            one.milliseconds(),
            one.case.text.len() / 1024,
            one.case.slug
        ))
    );
}

/// The ten most frequent errors, with the answer to the first text of each.
fn print_topics(judged: &[Judged]) {
    let mut topics: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for one in judged
        .iter()
        .filter(|one| !one.case.held_out && one.case.truth.kind == Kind::Error)
    {
        topics.entry(&one.case.truth.topic).or_default().push(one);
    }
    let mut topics: Vec<_> = topics.into_iter().collect();
    topics.sort_by_key(|(_, of_topic)| std::cmp::Reverse(of_topic.len()));
    println!("\nthe errors that are met most often (open part)");
    for (topic, of_topic) in topics.into_iter().take(10) {
        let right = of_topic
            .iter()
            .filter(|one| one.judgement.class == Class::Right);
        println!(
            "\n{topic}: {} texts, {} right",
            of_topic.len(),
            right.count()
        );
        let Some(first) = of_topic.first() else {
            continue;
        };
        println!("  {} ({})", first.case.slug, first.judgement.class.name());
        println!("    thread: {}", first.case.truth.cause);
        for said in first.judgement.said.iter().take(3) {
            println!("    doctor: {said}");
        }
    }
}

fn print_unmet(judged: &[Judged]) {
    println!();
    for one in judged {
        let Judgement {
            class,
            unmet,
            wrong,
            ..
        } = &one.judgement;
        if *class == Class::Right || one.case.held_out {
            continue;
        }
        println!("{:<7} {}", class.name(), one.case.slug);
        for rule in unmet {
            println!("          not said: {rule}");
        }
        for rule in wrong {
            println!("          wrong: {rule}");
        }
    }
}

/// What the held-out answers miss, by kind of rule: the rules themselves would reveal the texts.
fn print_held_out(judged: &[Judged]) {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for one in judged.iter().filter(|one| one.case.held_out) {
        let kind = one.case.truth.kind.name();
        let missed = one
            .judgement
            .unmet
            .iter()
            .map(|rule| judge::kind_of_unmet(rule));
        let wrong = one
            .judgement
            .wrong
            .iter()
            .map(|rule| judge::kind_of_wrong(rule));
        for what in missed.chain(wrong) {
            *counts.entry((kind, what)).or_default() += 1;
        }
    }
    println!("\nheld out: what is missed, and how often");
    for ((kind, what), count) in counts {
        println!("{kind:<9} {what:<40} {count:>3}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_is_not_worse_than_its_baseline() {
        let scores = scores::of(&judge_all(corpus::load(None).expect("the corpus")));
        let falls = scores.falls(&Scores::baseline().expect("the baseline"));
        assert!(
            falls.is_empty(),
            "{}\n`cargo xtask bench doctor --list` shows the texts of the open part. When the corpus itself has \
             changed, `cargo xtask bench doctor --write` makes the new scores the baseline.",
            falls.join("\n")
        );
    }
}
