//! The posted texts in other forms, as terminals, log collectors and forums change what people paste. The truth about a
//! text stays the same.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::corpus;
use super::judge::Class;
use super::{Judged, judge_all, scores};
use anyhow::Result;

/// A form, and how a text gets it.
type Form = (&'static str, fn(&str) -> Vec<u8>);

const FORMS: [Form; 24] = [
    ("quoted", |text| each_line(text, |line| format!("> {line}"))),
    ("docker compose", |text| {
        each_line(text, |line| format!("trainer-1  | {line}"))
    }),
    ("systemd's journal", |text| {
        each_line(text, |line| {
            format!("Mar 01 12:00:00 host python3[4242]: {line}")
        })
    }),
    ("container log with times", |text| {
        each_line(text, |line| {
            format!("2026-03-01T12:00:00.123456789Z {line}")
        })
    }),
    ("times of a logger", |text| {
        each_line(text, |line| {
            format!("2026-03-01 12:00:00,123 - INFO - {line}")
        })
    }),
    ("ranks of torchrun", |text| {
        each_line(text, |line| format!("[rank0]: {line}"))
    }),
    ("processes of vLLM", |text| {
        each_line(text, |line| format!("(EngineCore_DP0 pid=4242) {line}"))
    }),
    ("difference", |text| {
        each_line(text, |line| format!("+{line}"))
    }),
    ("numbered lines", |text| {
        let mut number = 0;
        each_line(text, |line| {
            number += 1;
            format!("{number:>4}  {line}")
        })
    }),
    ("colours", |text| {
        each_line(text, |line| format!("\x1b[31m{line}\x1b[0m"))
    }),
    ("indented", |text| {
        each_line(text, |line| format!("    {line}  "))
    }),
    ("list", |text| {
        each_line(text, |line| match line.trim() {
            "" => String::new(),
            _ => format!("- {line}"),
        })
    }),
    ("empty lines between", |text| {
        each_line(text, |line| format!("{line}\n"))
    }),
    ("spaces collapsed", |text| {
        each_line(text, |line| {
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        })
    }),
    ("no-break spaces", |text| {
        text.replace(' ', "\u{a0}").into_bytes()
    }),
    ("typographic quotes", |text| {
        let mut is_open = false;
        let quote = |c| match c {
            '"' => {
                is_open = !is_open;
                if is_open { '“' } else { '”' }
            }
            '\'' => '’',
            c => c,
        };
        text.chars().map(quote).collect::<String>().into_bytes()
    }),
    ("HTML entities", |text| {
        let escaped = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        escaped
            .replace('"', "&quot;")
            .replace('\'', "&#39;")
            .into_bytes()
    }),
    ("wrapped at 80 columns", |text| {
        each_line(text, |line| wrapped(line, 80))
    }),
    ("UTF-16 without a mark", |text| {
        let text = text.replace('\n', "\r\n");
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }),
    ("details of a forum", |text| {
        format!("<details><summary>log</summary>\n\n```shell\n{text}\n```\n\n</details>\n")
            .into_bytes()
    }),
    ("within a long log", |text| {
        let log = |from: usize| {
            (from..from + 200).fold(String::new(), |mut log, step| {
                let _ = writeln!(
                    log,
                    "step {step}/4000 loss {:.4} lr 1.0e-4 ({} it/s)",
                    2.0 / (step + 1) as f64,
                    1 + step % 3
                );
                log
            })
        };
        [&log(0), text, "\n", &log(200)].concat().into_bytes()
    }),
    ("line breaks lost", |text| {
        text.lines().collect::<Vec<_>>().join(" ").into_bytes()
    }),
    ("line breaks escaped", |text| {
        text.lines().collect::<Vec<_>>().join("\\n").into_bytes()
    }),
    ("docker's JSON", |text| {
        each_line(text, |line| {
            let log = serde_json::json!({"log": format!("{line}\n"), "stream": "stderr", "time": "2026-03-01T12:00:00.123456789Z"});
            log.to_string()
        })
    }),
];

fn each_line(text: &str, mut change: impl FnMut(&str) -> String) -> Vec<u8> {
    text.lines()
        .flat_map(|line| (change(line) + "\n").into_bytes())
        .collect()
}

/// A line as a terminal of that many columns shows it, copied with its breaks.
fn wrapped(line: &str, columns: usize) -> String {
    let characters: Vec<char> = line.chars().collect();
    let rows = characters
        .chunks(columns)
        .map(|row| row.iter().collect::<String>());
    rows.collect::<Vec<_>>().join("\n")
}

/// Judges the texts that are right as posted in every other form, and prints how many still are.
pub(super) fn print(judged: &[Judged], list: bool) -> Result<()> {
    let right: HashSet<&str> = judged
        .iter()
        .filter(|one| one.judgement.class == Class::Right)
        .map(|one| one.case.slug.as_str())
        .collect();
    let mut cases = corpus::load(None)?;
    cases.retain(|case| right.contains(case.slug.as_str()));
    let posted: Vec<String> = cases
        .iter()
        .map(|case| String::from_utf8_lossy(&case.text).into_owned())
        .collect();
    println!(
        "\nthe texts that are right as posted, in other forms\n{:<28} {}",
        "",
        scores::HEADER
    );
    for (name, form) in FORMS {
        for (case, text) in cases.iter_mut().zip(&posted) {
            case.text = form(text);
        }
        let judged = judge_all(cases);
        let mut classes = [0; Class::ALL.len()];
        for one in &judged {
            classes[one.judgement.class as usize] += 1;
        }
        println!("{name:<28} {}", scores::row(&classes));
        if list {
            let open = judged.iter().filter(|one| !one.case.held_out);
            for one in open.filter(|one| one.judgement.class != Class::Right) {
                let rules = [&one.judgement.unmet[..], &one.judgement.wrong].concat();
                println!(
                    "    {:<7} {}: {}",
                    one.judgement.class.name(),
                    one.case.slug,
                    rules.join("; ")
                );
            }
        }
        cases = judged.into_iter().map(|one| one.case).collect();
    }
    Ok(())
}
