//! What encoding a clip takes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use super::super::process::{self, PeakMemory};
use super::Model;

/// Peak memory while encoding a clip.
#[derive(Serialize)]
pub(in super::super) struct Encoding {
    frames: u32,
    memory: PeakMemory,
}

/// Encodes the clip of `model`.
pub(in super::super) fn measure(model: &Model, python: &Path, surefoot: &Path) -> Result<Encoding> {
    let frames = model.frames.unwrap_or(1);
    eprintln!("encoding {frames} frames");
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let path = model.make(python, scratch.path(), "cpu")?;
    let mut command = Command::new(surefoot);
    command.arg("cache").arg(&path);
    command.args(["--set", "train.bf16=false"]);
    let memory = process::run(command)?;
    Ok(Encoding { frames, memory })
}

pub(in super::super) fn print(list: &[Encoding]) {
    for Encoding { frames, memory } in list {
        println!(
            "encoding a clip of {frames:>3} frames: peak {} MiB, {} MiB of it anonymous",
            memory.resident_bytes >> 20,
            memory.anonymous_bytes >> 20
        );
    }
}
