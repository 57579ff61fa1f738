//! Texts of 200 MB, and as many bytes of binary data: how much time and memory both commands take.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use xshell::cmd;

use crate::bench::process;
use crate::workspace;

const BYTES: usize = 200_000_000;

/// One command on one of the long files.
#[derive(Serialize)]
pub(super) struct Measured {
    command: &'static str,
    text: &'static str,
    bytes: usize,
    seconds: f64,
    resident_bytes: u64,
}

/// Builds `surefoot` for release and measures it.
pub(super) fn measure() -> Result<Vec<Measured>> {
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

pub(super) fn print(measured: &[Measured]) {
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
