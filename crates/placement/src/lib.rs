#![doc = include_str!("../README.md")]
//!
//! # Where to look
//!
//! | question | answer |
//! |---|---|
//! | how do tensors, modules and batches get to the device? | a [`Placer`] |
//! | how does one tensor get there, and did it arrive? | [`transfer`]: the [`TransferEngine`] tries each [`TransferStrategy`] and compares checksums as [`Verify`] asks |
//! | what lives where? | [`plan`], made before anything moves; [`phases`] carries it out |
//! | what if a model is larger than the device? | [`swap`] brings its blocks when they are used |
//! | what if memory runs out all the same? | [`oom`] says what to try next |
//! | how do batches come? | [`loader`] |
//!
//! The decisions are pure and know no libtorch; [`torch_transport`] carries them out. `docs/transfer.md` specifies a
//! verified copy to the byte, for this crate and for the Python package alike.
//!
//! The feature `test-support` adds `testing`: a device made of vectors with faults to order, and the fault matrix.

pub mod loader;
pub mod offload;
mod placer;
mod tensor_tree;
#[cfg(any(test, feature = "test-support"))]
pub mod testing;
pub mod transfer;

pub use offload::profile::{ParseProfileError, Profile};
pub use offload::{oom, phases, plan, swap};
pub use placer::{ModuleSummary, PlaceError, Placer};
pub use platform::Bytes;
pub use tensor_tree::{FieldPath, TensorTree};
pub use transfer::engine::{PlacedBy, TransferEngine};
pub use transfer::policy::{MoveError, Placed, Policy, Request};
pub use transfer::report::{
    Attempt, Failure, Outcome, PlacementReport, RouteTotal, TransferTrace, Trouble,
};
pub use transfer::strategy::TransferStrategy;
pub use transfer::verify::{ParseVerifyError, Role, Verify};
pub use transfer::{checksum, torch_transport, transport};
