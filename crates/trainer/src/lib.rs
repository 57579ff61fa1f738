//! Configs, models, optimizers, data, checkpoints and the training loop.
//!
//! ```text
//! Config ──▶ run ──▶ Task (model + data) ──batch──▶ Placer ──▶ loss ──▶ Gradients ──▶ AdamW
//!             │                                                                       │
//!             └── every so often: Recorder, samples, checkpoint, Observer ◀───────────┘
//! ```
//!
//! [`run()`] is the whole program; `cli` only reads arguments and draws what the
//! [`Observer`] is told.

pub mod adapters;
mod allocator;
pub mod checkpoint;
pub mod checks;
pub mod config;
pub mod data;
pub mod device;
mod dry_run;
mod error;
mod estimate;
pub mod examples;
#[cfg(test)]
mod golden;
pub mod inference;
mod memory;
mod memory_plan;
mod metrics;
pub mod model;
mod observer;
pub mod optim;
pub mod quant;
mod report;
mod run;
mod run_folder;
mod sampling;
mod setup;
mod stop;
mod summary;
pub mod task;
pub mod tensor_file;
pub mod text;
pub mod weights;

pub use allocator::Allocator;
pub use config::Config;
pub use dry_run::{DryRun, dry_run};
pub use error::Error;
pub use estimate::{Estimate, EstimateError, Footprint};
pub use memory::MemorySample;
pub use memory_plan::MemoryPlan;
pub use metrics::Record;
/// The fault matrix of the placement ladder, in process and on this machine, for `surefoot probe --placement`.
pub use placement::{
    FaultMatrix as PlacementMatrix, fault_matrix as placement_matrix,
    fault_matrix_here as placement_matrix_here,
};

pub use observer::{Metrics, Observer, Silent, Start};
pub use run::{DamagedTensor, Rollback, ShortOfMemory, SkippedStep, run, run_task};
pub use run_folder::RunFolder;
pub use stop::Stop;
pub use summary::{Ending, Environment, MemorySummary, Summary};
