//! LoRAs on diffusion models: what `cargo xtask bench wan` and `cargo xtask bench image` share.
//!
//! ```text
//! steps       a denoiser with layers like those of a published model, fewer and narrower, trained by both sides in turn
//! encoding    what encoding clips of more and more frames takes
//! simulated   runs on the simulated device, without data: the most that tensors took, beside the estimate before the first step
//! ```

pub(super) mod encoding;
pub(super) mod simulated;
pub(super) mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::encoding::Encoding;
use self::simulated::Fit;
use self::steps::Steps;
use super::train::cpu_name;
use super::{measured, process};
use crate::workspace;

/// A model that `bench/diffusion/model.py` makes, and a clip or a picture to train it on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    /// As the script calls it.
    pub(super) kind: &'static str,
    /// Further arguments: its size.
    pub(super) sizes: Vec<(&'static str, String)>,
    /// Width and height in pixels.
    pub(super) size: (u32, u32),
    /// `None` for a picture.
    pub(super) frames: Option<u32>,
    /// Pixels on a side of a token.
    pub(super) step: u32,
}

impl Model {
    /// Tokens of the clip.
    pub(super) fn tokens(&self) -> f64 {
        let frames = self.frames.map_or(1, |frames| (frames - 1) / 4 + 1);
        let (width, height) = self.size;
        f64::from(frames) * f64::from(width / self.step * (height / self.step))
    }

    /// Writes model, clip and a config of a run on them into `folder`; returns the config.
    pub(super) fn make(&self, python: &Path, folder: &Path, device: &str) -> Result<PathBuf> {
        let mut command = Command::new(python);
        let (width, height) = self.size;
        command
            .arg(workspace::root().join("bench/diffusion/model.py"))
            .arg(folder)
            .arg(self.kind)
            .args([
                "--width",
                &width.to_string(),
                "--height",
                &height.to_string(),
            ])
            .env("HF_HUB_OFFLINE", "1");
        let frames = self.frames.map(|frames| ("frames", frames.to_string()));
        for (name, value) in self.sizes.iter().cloned().chain(frames) {
            command.arg(format!("--{name}")).arg(value);
        }
        process::run(command)?;
        let index = folder.join("model/model_index.json");
        ensure!(index.is_file(), "there is no `{}`", index.display());
        let path = folder.join("config.yaml");
        let root = folder.display();
        let frames = self
            .frames
            .map_or(String::new(), |frames| format!("num_frames: {frames}, "));
        let text = format!(
            "name: bench\noutput_dir: {root}/runs\ndevice: {device}\nmodel: {{name_or_path: {root}/model}}\n\
             adapter: {{r: 16, lora_alpha: 16}}\n\
             data: {{path: {root}/clips, resolution: [{width}, {height}], {frames}cache_dir: {root}/cache}}\n\
             train: {{per_device_train_batch_size: 1, gradient_checkpointing: true, learning_rate: 1.0e-4, \
             lr_scheduler_type: constant, warmup_steps: 0, max_grad_norm: 1.0, logging_steps: 1, eval_steps: 0, \
             save_steps: 0}}\n"
        );
        fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(path)
    }
}

/// What was measured.
#[derive(Serialize)]
pub(super) struct Report {
    evidence_level: &'static str,
    cpu: String,
    cores: usize,
    pub(super) steps: Vec<Steps>,
    pub(super) encoding: Vec<Encoding>,
    pub(super) simulated: Vec<Fit>,
}

impl Report {
    pub(super) fn new() -> Self {
        Self {
            evidence_level: "CPU, real; simulated: memory without data",
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            steps: Vec::new(),
            encoding: Vec::new(),
            simulated: Vec::new(),
        }
    }

    /// Prints it, and writes it to `out` or to `bench/NAME.json` in the target folder.
    pub(super) fn finish(self, out: Option<PathBuf>, name: &str) -> Result<()> {
        self.steps.iter().for_each(Steps::print);
        encoding::print(&self.encoding);
        simulated::print(&self.simulated);
        let target = workspace::target(&workspace::shell()?)?;
        let out = out.unwrap_or(target.join(format!("bench/{name}.json")));
        measured::write(&self, &out)?;
        eprintln!("all numbers are in `{}`", out.display());
        Ok(())
    }
}
