//! A run in numbers: `summary.json` and the last lines on the screen.

use placement::swap::SwapReport;
use serde::Serialize;

use crate::estimate::{Estimate, EstimateError};
use crate::events::{Best, Evaluation, FoundRate};
use crate::memory_plan::MemoryPlan;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All steps were done, or it ended early because it learned nothing more.
    Completed,
    /// Somebody asked it to stop; it can be resumed.
    Stopped,
    /// An error ended it.
    Failed,
    /// It goes on, or something ended it that left it no time to say so.
    Running,
}

/// A run in numbers.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Name of the run folder.
    pub name: String,
    /// How it ended.
    pub ending: Ending,
    /// Optimizer steps done.
    pub steps: u64,
    /// Optimizer steps asked for.
    pub max_steps: u64,
    /// Evaluations, one after the other, that were no better than the best, after which it ended
    /// early (`train.early_stopping_patience`); unset when it did not.
    pub stopped_early: Option<u32>,
    /// Mean training loss of the first record.
    pub first_loss: Option<f64>,
    /// Mean training loss of the last record.
    pub last_loss: Option<f64>,
    /// Steps of this process that were skipped, their loss or gradient being no number.
    pub skipped_steps: u64,
    /// How often it went back to a checkpoint after several of them.
    pub rollbacks: u64,
    /// How often this process repeated a step that ran out of memory.
    pub repeated_steps: u64,
    /// Samples in one pass at the end, where that is not what the config says: memory was short, or it says `auto`.
    pub micro_batch: Option<u32>,
    /// The best evaluation on the way, where the config asks for it.
    pub best: Option<Best>,
    /// What a search for a learning rate found, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<FoundRate>,
    /// The last evaluation: of all held-out data when the run completed.
    pub held_out: Option<Evaluation>,
    /// Tokens trained on, over all resumes.
    pub tokens: u64,
    /// Tokens a second while training, evaluations and saves left out.
    pub tokens_per_second: f64,
    /// Seconds in training steps, over all resumes.
    pub train_seconds: f64,
    /// Seconds since this process began the run, everything included.
    pub wall_seconds: f64,
    /// Peak memory, expected and measured.
    pub memory: MemorySummary,
    /// What was expected of it before the first step.
    pub memory_estimate: Estimate,
    /// How that compares with what the steps took; unset without an allocator that counts.
    pub memory_estimate_error: Option<EstimateError>,
    /// What lived where, if the config asked for a plan.
    pub memory_plan: Option<MemoryPlan>,
    /// What streaming did in this process, if a part of the model was streamed.
    pub streamed: Option<SwapReport>,
    /// Where it ran.
    pub environment: Environment,
}

/// The memory of a run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct MemorySummary {
    /// Most bytes in tensors at once; `None` without an allocator that counts.
    pub peak_live_bytes: Option<u64>,
    /// Most bytes that the allocator held at once.
    pub peak_held_bytes: Option<u64>,
    /// Allocations that went to the driver (for the CPU: the operating system).
    pub driver_allocations: Option<u64>,
    /// Releases that went to the driver.
    pub driver_frees: Option<u64>,
    /// Most bytes this process had in main memory.
    pub peak_resident_bytes: u64,
}

/// Where a run took place.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of this program.
    pub surefoot: &'static str,
    /// libtorch's version and build.
    pub libtorch: String,
    /// Device that was trained on.
    pub device: String,
    /// Allocator that served the device.
    pub allocator: String,
    /// What was trained on.
    pub data: String,
    /// What was trained.
    pub model: String,
    /// How its attention ran, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// How the samples of a step are divided into passes, and why, where memory decided it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// CPU cores of the machine.
    pub cores: usize,
    /// Operating system and architecture.
    pub system: String,
}
