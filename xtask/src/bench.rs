//! `cargo xtask bench`: this project against its peers, on this machine.

mod alloc;
mod bars;
mod diffusion;
mod distributed;
mod doctor;
mod garments;
mod image;
mod lora;
mod measured;
mod placement;
mod process;
mod simulator;
mod step;
mod train;
mod ui;
mod wan;

use anyhow::Result;
use clap::Subcommand;

use alloc::AllocBench;
use distributed::DistributedBench;
use doctor::DoctorBench;
use garments::GarmentsBench;
use image::ImageBench;
use lora::LoraBench;
use placement::PlacementBench;
use step::StepBench;
pub(crate) use train::TrainBench;
use ui::UiBench;
use wan::WanBench;

/// Measure this project against its peers, on this machine.
#[derive(clap::Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// What allocators hold on recorded training runs, against PyTorch's own
    Alloc(AllocBench),
    /// The doctor's answers to posted texts, against what their threads confirmed
    Doctor(DoctorBench),
    /// Training in two processes over links of known rates, against PyTorch's DDP; needs root
    Distributed(DistributedBench),
    /// The cost of copy routes and verification, and plans against accelerate's
    Placement(PlacementBench),
    /// What the small model of garments makes, with and without its LoRA, as a classifier sees it
    Garments(GarmentsBench),
    /// LoRAs on models of pictures: speed and memory against diffusers with PEFT, memory on a simulated device
    Image(ImageBench),
    /// Fine-tuning speed and memory, against Hugging Face's Trainer with PEFT
    Lora(LoraBench),
    /// What a training step asks of a GPU, counted on a simulated one, beside PEFT's
    Step(StepBench),
    /// Training speed and memory, against the same model in plain Python PyTorch
    Train(TrainBench),
    /// The page: memory, CPU, first paint, and what it takes from a training
    Ui(UiBench),
    /// LoRAs on Wan: speed and memory against diffusers with PEFT, real sizes on a simulated device
    Wan(WanBench),
}

impl Bench {
    pub(crate) fn run(self) -> Result<()> {
        match self.benchmark {
            Benchmark::Alloc(bench) => bench.run(),
            Benchmark::Doctor(bench) => bench.run(),
            Benchmark::Distributed(bench) => bench.run(),
            Benchmark::Placement(bench) => bench.run(),
            Benchmark::Garments(bench) => bench.run(),
            Benchmark::Image(bench) => bench.run(),
            Benchmark::Lora(bench) => bench.run(),
            Benchmark::Step(bench) => bench.run(),
            Benchmark::Train(bench) => bench.run(),
            Benchmark::Ui(bench) => bench.run(),
            Benchmark::Wan(bench) => bench.run(),
        }
    }
}

/// The middle value; the mean of the two in the middle for an even number of them.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_ignores_order_and_one_stray_value() {
        assert_eq!(median(&[3.0, 100.0, 1.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
