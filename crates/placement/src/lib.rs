#![doc = include_str!("../README.md")]
//!
//! # Where to look
//!
//! | question | answer |
//! |---|---|
//! | how do tensors, modules and batches get to the device? | a [`Placer`] |
//! | how is one tensor moved, and did it arrive intact? | [`transfer`]: the [`TransferEngine`] tries each [`TransferStrategy`] and compares checksums as [`Verify`] says |
//! | what lives where? | [`plan`], made before anything moves; [`phases`] carries it out |
//! | what if a model is larger than the device? | [`swap`] copies its blocks in when they are used |
//! | what if memory runs out all the same? | [`oom`] decides what to try next |
//! | how are batches ready when they are needed? | [`prefetch`] |
//!
//! The decisions are pure code without libtorch; [`torch_transport`] carries them out. `docs/transfer.md` is
//! the exact specification of a verified copy, for this crate and the Python package.
//!
//! The feature `test-support` adds `testing`: a transport with fault injection, and the fault matrix.

pub mod offload;
mod placer;
pub mod prefetch;
mod tensor_tree;
#[cfg(any(test, feature = "test-support"))]
pub mod testing;
pub mod transfer;

pub use offload::{oom, phases, plan, swap};
pub use placer::{PlaceError, Placer};
pub use platform::Bytes;
pub use tensor_tree::{FieldPath, TensorTree};
pub use transfer::engine::{PlacedBy, TransferEngine};
pub use transfer::policy::{MoveError, Placed, Policy, Request};
pub use transfer::report::{
    Attempt, Failure, Outcome, PlacementReport, ProblemCounts, RouteTotal, TransferTrace,
};
pub use transfer::strategy::TransferStrategy;
pub use transfer::verify::{ParseVerifyError, Role, Verify};
pub use transfer::{checksum, torch_transport, transport};
