//! `cargo xtask bench garments`: what the small model of `configs/garments.yaml` makes, with and without its LoRA, as a
//! classifier sees it. The example `02-garments` of the trainer measures it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xshell::cmd;

use super::measured;
use super::train::cpu_name;
use crate::{setup, train, workspace};

/// What the small model of garments makes, with and without its LoRA, as a classifier sees it.
#[derive(clap::Args)]
pub(crate) struct GarmentsBench {
    /// The model
    #[arg(long, value_name = "DIR", default_value = "runs/garments/model")]
    model: PathBuf,

    /// The LoRA
    #[arg(
        long,
        value_name = "FILE",
        default_value = "runs/garments-lora/adapter/garments-lora.safetensors"
    )]
    lora: PathBuf,

    /// Pictures of each garment
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,

    /// Where the numbers go [default: bench/garments.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Where a picture of what was made goes [default: none is drawn]
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

impl GarmentsBench {
    pub(crate) fn run(self) -> Result<()> {
        for (path, config) in [(&self.model, "garments"), (&self.lora, "garments-lora")] {
            ensure!(
                path.exists(),
                "`{}` is not there: run `cargo xtask train configs/{config}.yaml` first",
                path.display()
            );
        }
        let libtorch = setup::ensure()?;
        let data = setup::garments()?;
        let shell = setup::shell(&libtorch)?;
        let (cargo, profile) = (workspace::cargo(), train::profile());
        // With the features that the trainer is built with.
        let packages = ["--package", "surefoot", "--package", "surefoot-trainer"];
        cmd!(
            shell,
            "{cargo} build --profile {profile} {packages...} --example 02-garments"
        )
        .run()?;
        let target = workspace::target(&shell)?;
        let program = target
            .join(train::folder(&profile))
            .join("examples/02-garments");
        let mut command = Command::new(program);
        command
            .arg(data)
            .args([&self.model, &self.lora])
            .arg(self.seeds.to_string())
            .args(&self.picture)
            .stderr(Stdio::inherit());
        let output = command
            .output()
            .with_context(|| format!("cannot start {command:?}"))?;
        ensure!(
            output.status.success(),
            "{command:?} failed: {}",
            output.status
        );
        let mut report: Value = serde_json::from_slice(&output.stdout)?;
        report["evidence_level"] = json!("CPU, real");
        report["cpu"] = json!(cpu_name());
        print(&report);
        let default = target.join("bench/garments.json");
        measured::write(&report, &self.out.unwrap_or(default))
    }
}

fn print(report: &Value) {
    let percent = |value: &Value| 100.0 * value.as_f64().unwrap_or(f64::NAN);
    println!(
        "a classifier that is right about {:.1} % of held-out pictures takes so many of {} for what was asked:",
        percent(&report["classifier_held_out_accuracy"]),
        report["pictures_of_each"]
    );
    println!("{:<12} {:>8} {:>14}", "", "the base", "with the LoRA");
    let garments = report["base"].as_object().into_iter().flatten();
    for (garment, share) in garments {
        let with = percent(&report["base_with_lora"][garment]);
        println!("{garment:<12} {:>6.0} % {with:>12.0} %", percent(share));
    }
}
