//! `cargo xtask bench image`: LoRAs on models of pictures, against diffusers with PEFT, and their memory on the simulated
//! device, in each precision, with and without streamed blocks.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::diffusion::simulated::Case;
use super::diffusion::{Model, Report, simulated, steps};
use crate::{setup, train};

/// The kinds of models: as the script calls them, and pixels on a side of a token. The autoencoders have 4 × 4 pixels per latent.
const KINDS: [(&str, u32); 3] = [("z_image", 8), ("flux2", 8), ("sdxl", 4)];

/// The largest error of an estimate.
const MOST: f64 = 0.05;

/// LoRAs on models of pictures: speed and memory against diffusers with PEFT, memory on a simulated device.
#[derive(clap::Args)]
pub(crate) struct ImageBench {
    /// How many times each side trains
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..))]
    pairs: u32,

    /// Steps of each run; the first two are not counted
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(4..))]
    steps: u32,

    /// Blocks of a transformer, and of each in the last stage of a UNet
    #[arg(long, default_value_t = 5)]
    layers: u32,

    /// Heads of 128 numbers, or of 64 in the last stage of a UNet
    #[arg(long, default_value_t = 4)]
    heads: u32,

    /// Pixels on a side of the picture
    #[arg(long, default_value_t = 128)]
    side: u32,

    /// Base and matrix products in bfloat16 on both sides
    #[arg(long)]
    bf16: bool,

    /// Runs on the simulated device as well: half an hour
    #[arg(long)]
    simulated: bool,

    /// Of the kinds and the simulated runs, those whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,

    /// Where the numbers go [default: bench/image.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl ImageBench {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let mut report = Report::new();
        if self.pairs > 0 {
            let surefoot = train::build(&libtorch)?;
            let how = (self.pairs, self.steps, self.bf16);
            for (kind, step) in KINDS {
                if kind.contains(&self.case) || self.case.contains(kind) {
                    let model = model(kind, step, (self.layers, self.heads), self.side);
                    report
                        .steps
                        .push(steps::measure(&model, how, &python, &surefoot)?);
                }
            }
        }
        if self.simulated {
            report.simulated = simulated::measure(&python, &cases(), &self.case)?;
        }
        let far: Vec<_> = report
            .simulated
            .iter()
            .filter(|fit| fit.error.abs() > MOST)
            .map(|fit| fit.name.clone())
            .collect();
        report.finish(self.out, "image")?;
        ensure!(
            far.is_empty(),
            "estimates that are off by more than 5 %: {far:?}"
        );
        Ok(())
    }
}

fn model(kind: &'static str, step: u32, (layers, heads): (u32, u32), side: u32) -> Model {
    Model {
        kind,
        sizes: vec![("layers", layers.to_string()), ("heads", heads.to_string())],
        size: (side, side),
        frames: None,
        step,
    }
}

/// Each kind in each precision, with all blocks on the card and with half of them streamed.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, step) in KINDS {
        let settings: [(&str, &'static [&'static str]); 6] = [
            ("bf16", &[]),
            ("bf16, streamed", &["model.offload=50%"]),
            ("int8", &["model.quantization=int8"]),
            (
                "int8, streamed",
                &["model.quantization=int8", "model.offload=50%"],
            ),
            ("NF4", &["model.quantization=nf4"]),
            (
                "NF4, streamed",
                &["model.quantization=nf4", "model.offload=50%"],
            ),
        ];
        for (how, settings) in settings {
            cases.push(Case {
                name: format!("{kind}, {how}"),
                // Nearly as wide as the published ones, and as many tokens as 1024 pixels have there.
                model: Model {
                    sizes: [("layers", 10), ("heads", 20), ("holes", 1)]
                        .map(|(name, number)| (name, number.to_string()))
                        .into(),
                    ..model(kind, step, (0, 0), 512)
                },
                unified: false,
                gib: 8,
                settings,
            });
        }
    }
    cases
}
