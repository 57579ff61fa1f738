//! `cargo xtask bench wan`: LoRAs on Wan, against diffusers with PEFT, and the memory of full-size models on the simulated
//! device, where the experts' changing places is timed, too.

use std::path::PathBuf;

use anyhow::Result;

use super::diffusion::simulated::{Case, Settings};
use super::diffusion::{Model, Report, encoding, simulated, steps};
use super::median;
use crate::{setup, train};

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

impl WanBench {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let surefoot = train::build(&libtorch)?;
        let mut report = Report::new();
        if self.pairs > 0 {
            let model = small(
                self.frames,
                [("layers", self.layers), ("heads", self.heads)],
            );
            let how = (self.pairs, self.steps, self.bf16);
            report
                .steps
                .push(steps::measure(&model, how, &python, &surefoot)?);
        }
        for frames in &self.encoded {
            let model = small(
                *frames,
                [("layers", 1), ("heads", 1), ("encoder-channels", 32)],
            );
            report
                .encoding
                .push(encoding::measure(&model, &python, &surefoot)?);
        }
        if self.simulated || self.simulated_small {
            let mut cases = small_cases();
            if self.simulated {
                cases.extend(real_cases());
            }
            report.simulated = simulated::measure(&python, &cases, &self.case)?;
        }
        let steps = |name: &str| {
            let fit = report
                .simulated
                .iter()
                .find(|fit| fit.name.contains(name))?;
            Some(fit.seconds_of_steps.get(1..)?.to_vec())
        };
        if let (Some(each), Some(none)) = (steps("in every step"), steps("one after the other")) {
            let swap = median(&each) - median(&none);
            println!(
                "an expert of 2.6 GiB takes the other's place in {swap:.2} s at 25 GB/s (what a step adds to that is the \
                 device's, which is not simulated)"
            );
        }
        report.finish(self.out, "wan")
    }
}

fn small<const N: usize>(frames: u32, sizes: [(&'static str, u32); N]) -> Model {
    Model {
        kind: "wan",
        sizes: sizes
            .map(|(name, number)| (name, number.to_string()))
            .into(),
        size: (256, 160),
        frames: Some(frames),
        step: 16,
    }
}

fn published(name: &str, frames: u32) -> Model {
    Model {
        kind: "wan",
        sizes: vec![("real", name.to_owned())],
        size: (832, 480),
        frames: Some(frames),
        step: 16,
    }
}

fn case(name: &str, model: Model, (unified, gib): (bool, u64), settings: Settings) -> Case {
    Case {
        name: name.to_owned(),
        model,
        unified,
        gib,
        settings,
    }
}

fn small_cases() -> Vec<Case> {
    // Too little for both experts.
    let (card, pair) = ((false, 5), || published("pair", 1));
    vec![
        case(
            "1.3B, bf16, on a card of 16 GiB",
            published("1.3b", 81),
            (false, 16),
            &[],
        ),
        case(
            "two of 1.3B that change places in every step",
            pair(),
            card,
            &["train.steps_per_expert=1"],
        ),
        case(
            "two of 1.3B, one after the other",
            pair(),
            card,
            &["train.steps_per_expert=4"],
        ),
    ]
}

fn real_cases() -> Vec<Case> {
    vec![
        case(
            "A14B, bf16, both experts, one memory of 128 GiB",
            published("a14b", 81),
            (true, 128),
            &["train.steps_per_expert=2"],
        ),
        case(
            "I2V-A14B, bf16, both experts, one memory of 128 GiB",
            published("i2v-a14b", 81),
            (true, 128),
            &["train.steps_per_expert=2"],
        ),
        case(
            "A14B, NF4, all blocks streamed, a card of 24 GiB",
            published("a14b", 81),
            (false, 24),
            &[
                "train.experts=high",
                "model.quantization=nf4",
                "model.offload=all",
                "train.activation_offload=true",
            ],
        ),
    ]
}
