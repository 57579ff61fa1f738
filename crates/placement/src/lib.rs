//! Tensors and modules onto the device step by step, verified, with fallback.

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
pub use matrix::{FaultMatrix, fault_matrix};
pub use placer::{ModuleSummary, PlaceError, Placer};
pub use policy::{MoveError, Placed, Policy, Request};
pub use prepare::prepare;
pub use profile::{NotAProfile, Profile};
pub use report::{Attempt, Failure, Outcome, PlacementReport, RouteTotal, Story};
pub use route::{Ladder, PlacedBy};
pub use rung::Rung;
pub use verify::{NotAMode, Role, Verify};
