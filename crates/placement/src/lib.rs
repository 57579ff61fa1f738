//! Tensors and modules onto the device step by step, verified, with fallback.
//!
//! | question | answer |
//! |---|---|
//! | how does one tensor get there? | [`Ladder`]: the rungs of [`Rung`], over a [`transport`] |
//! | did it arrive? | [`Verify`] decides when to look, [`checksum`] what is compared |
//! | what lives where? | [`plan`], made before anything moves; [`stage`] carries out its phases |
//! | what if a model is larger than the device? | [`stream`] brings its blocks when they are used |
//! | what if memory runs out all the same? | [`shortage`] says what to try next |
//! | how do batches come? | [`loader`]; and [`prepare()`] makes all of it ready in one call |
//!
//! The decisions are pure and know no libtorch; `torch_transport` carries them out. That faults are noticed is
//! shown three times: by [`matrix`] on [`fake`] and on the routes of whatever device is here, and by
//! `examples/on-device` through real libtorch on `device-sim`.

mod batch;
mod bytes;
pub mod checksum;
pub mod fake;
pub mod loader;
mod mapped;
pub mod matrix;
mod placer;
pub mod plan;
mod policy;
pub mod prepare;
mod profile;
mod report;
mod ring;
mod route;
mod rung;
pub mod shortage;
pub mod stage;
pub mod stream;
pub mod torch_transport;
pub mod transport;
mod verify;
mod watch;

pub use batch::{Batch, FieldPath};
pub use bytes::{Bytes, NotASize};
pub use matrix::{FaultMatrix, fault_matrix, fault_matrix_here};
pub use placer::{ModuleSummary, PlaceError, Placer};
pub use policy::{MoveError, Placed, Policy, Request};
pub use prepare::prepare;
pub use profile::{NotAProfile, Profile};
pub use report::{Attempt, Failure, Outcome, PlacementReport, RouteTotal, Story};
pub use route::{Ladder, PlacedBy};
pub use rung::Rung;
pub use verify::{NotAMode, Role, Verify};
