//! `cargo xtask bench wan`: LoRAs on Wan, against diffusers with PEFT, and the memory of full-size models.
//!
//! ```text
//! steps       a transformer with layers of Wan 2.1 1.3B, fewer and narrower, trained by both sides in turn
//! encoding    clips of more and more frames, and the most memory that encoding them takes
//! simulated   shapes of real size on the simulated device, without data: the most that tensors took, beside the
//!             estimate before the first step; and what the experts' changing places takes there
//! ```

mod simulated;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::simulated::Fit;
use self::steps::{Encoding, Steps};
use super::process;
use super::train::cpu_name;
use crate::{setup, train, workspace};

/// LoRAs on Wan: speed and memory against diffusers with PEFT, and real sizes on a simulated device.
#[derive(clap::Args)]
pub(crate) struct WanBench {
    /// How many times each side trains
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..))]
    pairs: u32,

    /// Steps of each run; the first two are not counted
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(4..))]
    steps: u32,

    /// Layers of the transformer
    #[arg(long, default_value_t = 6)]
    layers: u32,

    /// Heads of 128 numbers
    #[arg(long, default_value_t = 3)]
    heads: u32,

    /// Frames of the clip, of 256 × 160 pixels
    #[arg(long, default_value_t = 17)]
    frames: u32,

    /// Base and matrix products in bfloat16 on both sides
    #[arg(long)]
    bf16: bool,

    /// Frames of the clips that are encoded
    #[arg(long, value_delimiter = ',', num_args = 0.., default_values_t = [9, 33, 81])]
    encoded: Vec<u32>,

    /// Real sizes on the simulated device as well: an hour, mostly of reading holes as zeros
    #[arg(long)]
    simulated: bool,

    /// Of those, the small one alone: minutes
    #[arg(long, conflicts_with = "simulated")]
    simulated_small: bool,

    /// Of the simulated ones, those whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,

    /// Where the numbers go [default: bench/wan.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    evidence_level: &'static str,
    cpu: String,
    cores: usize,
    steps: Option<Steps>,
    encoding: Vec<Encoding>,
    simulated: Vec<Fit>,
}

impl WanBench {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let surefoot = train::build(&libtorch)?;
        let steps = match self.pairs {
            0 => None,
            _ => Some(steps::measure(&self, &python, &surefoot)?),
        };
        let mut encoding = Vec::new();
        for frames in &self.encoded {
            encoding.push(steps::encode(*frames, &python, &surefoot)?);
        }
        let simulated = match self.simulated || self.simulated_small {
            true => simulated::measure(&python, self.simulated, &self.case)?,
            false => Vec::new(),
        };
        let report = Report {
            evidence_level: "CPU, real; simulated: memory without data",
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            steps,
            encoding,
            simulated,
        };
        if let Some(steps) = &report.steps {
            steps.print();
        }
        steps::print_encoding(&report.encoding);
        simulated::print(&report.simulated);
        let target = workspace::target(&workspace::shell()?)?;
        let out = self.out.clone().unwrap_or(target.join("bench/wan.json"));
        let context = || format!("cannot write `{}`", out.display());
        fs::create_dir_all(out.parent().unwrap_or(Path::new("."))).with_context(context)?;
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(&out, text).with_context(context)?;
        eprintln!("all numbers are in `{}`", out.display());
        Ok(())
    }
}

/// Writes a model and clips into `folder` by running `bench/wan/model.py` with `arguments`.
fn make_model(python: &Path, folder: &Path, arguments: &[String]) -> Result<()> {
    let mut command = Command::new(python);
    command
        .arg(workspace::root().join("bench/wan/model.py"))
        .arg(folder)
        .args(arguments)
        .env("HF_HUB_OFFLINE", "1");
    process::run(command)?;
    let index = folder.join("model/model_index.json");
    ensure!(index.is_file(), "there is no `{}`", index.display());
    Ok(())
}

/// Writes a config for what [`make_model`] wrote into `folder`.
fn config(folder: &Path, device: &str, size: (u32, u32), frames: u32) -> Result<PathBuf> {
    let path = folder.join("config.yaml");
    let root = folder.display();
    let text = format!(
        "name: bench\noutput_dir: {root}/runs\ndevice: {device}\nmodel: {{name_or_path: {root}/model}}\n\
         adapter: {{r: 16, lora_alpha: 16}}\n\
         data: {{path: {root}/clips, resolution: [{}, {}], num_frames: {frames}, cache_dir: {root}/cache}}\n\
         train: {{per_device_train_batch_size: 1, gradient_checkpointing: true, learning_rate: 1.0e-4, \
         lr_scheduler_type: constant, warmup_steps: 0, max_grad_norm: 1.0, logging_steps: 1, eval_steps: 0, \
         save_steps: 0}}\n",
        size.0, size.1
    );
    fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}
