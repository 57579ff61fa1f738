#![doc = include_str!("../README.md")]
//!
//! # How a run goes
//!
//! ```text
//! Config ──▶ run ──▶ Task (model + data) ──batch──▶ Placer ──▶ loss ──▶ Gradients ──▶ Optimizer
//!             │                                                                         │
//!             └── every so often: Recorder, samples, checkpoint, Observer ◀─────────────┘
//! ```
//!
//! [`run()`] is the whole program; `cli` only reads arguments and draws what the
//! [`Observer`] reports.

mod adapter_speed;
pub mod adapters;
mod allocator;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod device;
mod dry_run;
mod encoding;
mod error;
mod estimate;
mod events;
mod fit;
mod found_models;
#[cfg(test)]
mod golden;
pub mod hub;
pub mod inference;
mod locate;
mod media;
pub mod media_sampling;
mod memory;
mod memory_plan;
mod metrics;
mod observer;
pub mod optim;
mod pass_size;
mod ranks;
pub mod records;
mod report;
pub mod resume;
mod run;
mod run_facts;
mod run_folder;
mod sampling;
mod setup;
mod single_file;
mod stop;
mod summary;
pub mod task;
pub mod text;
mod timetable;

pub use allocator::Allocator;
pub use config::Config;
pub use dry_run::{DryRun, dry_run};
pub use encoding::encode;
pub use error::Error;
pub use estimate::{Estimate, EstimateError, Footprint};
pub use events::{
    Best, Evaluation, FoundRate, Metrics, NonFiniteTensor, OomRetry, PlacementTrouble, Rollback,
    Sample, SkippedStep, Streaming,
};
pub use fit::{Fit, Way, fit};
pub use found_models::{FoundModel, FoundModels, ModelPlace, found_models};
pub use media::{Encoded, ShownMedia, ShownMedium};
pub use memory::MemorySample;
pub use memory_plan::MemoryPlan;
pub use metrics::Record;
pub use observer::{NoObserver, Observer, Start};
pub use pass_size::PassSize;
pub use ranks::rank_of_this_process;
pub use run::{run, run_task};
pub use run_folder::RunFolder;
pub use setup::{Shown, show_data};
pub use stop::Stop;
pub use summary::{Ending, Environment, MemorySummary, Summary};
pub use task::{Makes, Piece, ShownData, ShownExample, ShownRow};
