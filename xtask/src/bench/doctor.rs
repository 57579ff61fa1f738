//! `cargo xtask bench doctor`: the doctor's answers to texts that people posted, and what texts of 200 MB take.
//!
//! The answers are judged by an example of the doctor's crate; here, both commands get a long log, and as many bytes
//! of binary data.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use xshell::cmd;

use crate::bench::process;
use crate::workspace;

const BYTES: usize = 200_000_000;

/// The doctor's answers to posted texts, against what their threads confirmed.
#[derive(clap::Args)]
pub(crate) struct DoctorBench {
    /// List the texts whose answer is not right, with the rules that are not met
    #[arg(long)]
    list: bool,

    /// Count what the answers to held-out texts miss, without naming any text, so that no rule is written for
    /// one
    #[arg(long)]
    held_out: bool,

    /// Judge the texts again as terminals, log collectors and forums change them: prefixed, quoted, wrapped
    #[arg(long)]
    forms: bool,

    /// Leave out the files of 200 MB, for which `surefoot` is built for release
    #[arg(long)]
    quick: bool,

    /// Save the scores as the new baseline, `tests/corpus/scores.json`
    #[arg(long)]
    write: bool,

    /// Judge the texts of this folder, which are as those of `tests/corpus`, and name those whose answer is not right
    #[arg(long, value_name = "FOLDER")]
    texts: Option<PathBuf>,

    /// Where the numbers go [default: bench/doctor.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// One command on one of the long files.
#[derive(Serialize)]
struct Measured {
    command: &'static str,
    text: &'static str,
    bytes: usize,
    seconds: f64,
    resident_bytes: u64,
}

impl DoctorBench {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        let cargo = workspace::cargo();
        let out = match &self.out {
            Some(path) => std::path::absolute(path)?,
            None => workspace::target(&shell)?.join("bench/doctor.json"),
        };
        if let Some(folder) = out.parent() {
            fs::create_dir_all(folder)?;
        }
        let options = [
            (self.list, "--list"),
            (self.held_out, "--held-out"),
            (self.forms, "--forms"),
            (self.write, "--write"),
        ];
        let options = options.into_iter().filter(|(is_set, _)| *is_set);
        let mut options: Vec<String> = options.map(|(_, name)| name.to_owned()).collect();
        if let Some(folder) = &self.texts {
            let folder = std::path::absolute(folder)?;
            options.push(format!("--texts={}", folder.display()));
        }
        let example = ["--package", "surefoot-doctor", "--example", "posted_texts"];
        cmd!(
            shell,
            "{cargo} run --quiet {example...} -- {out} {options...}"
        )
        .run()?;
        if !self.quick && self.texts.is_none() {
            let long = measure()?;
            print(&long);
            let mut document: Value = serde_json::from_slice(&fs::read(&out)?)?;
            document["long"] = json!(long);
            fs::write(&out, serde_json::to_string_pretty(&document)? + "\n")?;
        }
        eprintln!("wrote {}", out.display());
        Ok(())
    }
}

/// Builds `surefoot` for release and measures it.
fn measure() -> Result<Vec<Measured>> {
    let shell = workspace::shell()?;
    let cargo = workspace::cargo();
    eprintln!("building");
    let features = "--no-default-features";
    cmd!(
        shell,
        "{cargo} build --release --quiet --package surefoot {features} --bin surefoot"
    )
    .run()?;
    let target = workspace::target(&shell)?;
    let surefoot = target.join("release/surefoot");
    let folder = target.join("bench");
    fs::create_dir_all(&folder)?;
    let text = written(&folder.join("long.txt"), log)?;
    let junk = written(&folder.join("long.bin"), random)?;
    // The error in the middle of the log is found (3), and binary data is refused (2).
    let runs = [
        ("doctor --from", "log", &text, 3),
        ("explain", "log", &text, 0),
        ("doctor --from", "no text", &junk, 2),
        ("explain", "no text", &junk, 2),
    ];
    let mut measured = Vec::new();
    for (command, name, file, code) in runs {
        let mut program = Command::new(&surefoot);
        program
            .args(command.split(' '))
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let start = Instant::now();
        let peak = process::run_to(program, code)?;
        measured.push(Measured {
            command,
            text: name,
            bytes: BYTES,
            seconds: start.elapsed().as_secs_f64(),
            resident_bytes: peak.resident_bytes,
        });
    }
    for file in [text, junk] {
        fs::remove_file(file)?;
    }
    Ok(measured)
}

fn print(measured: &[Measured]) {
    println!("\nfiles of {} MB", BYTES / 1_000_000);
    for one in measured {
        println!(
            "{:<14} {:<8} {:>6.2} s   {:>4} MB resident at most",
            one.command,
            one.text,
            one.seconds,
            one.resident_bytes / 1_000_000
        );
    }
}

fn written(path: &Path, write: fn(&mut dyn Write) -> std::io::Result<()>) -> Result<PathBuf> {
    let mut file = BufWriter::new(File::create(path)?);
    write(&mut file)
        .and_then(|()| file.flush())
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path.to_owned())
}

/// A training log with a GPU at the beginning and an error in the middle.
fn log(out: &mut dyn Write) -> std::io::Result<()> {
    let mut written = 0;
    let mut step = 0;
    let mut has_failed = false;
    out.write_all(b"Device: cuda:0 AMD Radeon RX 7600 XT : native\n")?;
    while written < BYTES {
        step += 1;
        let mut line = format!(
            "2026-03-01 10:22:31,411 INFO trainer: step {step} loss 2.{:04} grad_norm 0.91 lr 1.0e-4 tokens/s 1234\n",
            step % 9973
        );
        if !has_failed && written > BYTES / 2 {
            has_failed = true;
            line.push_str("RuntimeError: HIP error: invalid device function\n");
        }
        out.write_all(line.as_bytes())?;
        written += line.len();
    }
    Ok(())
}

/// Random bytes, as in a compressed archive.
fn random(out: &mut dyn Write) -> std::io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..BYTES / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.write_all(&state.to_le_bytes())?;
    }
    Ok(())
}
