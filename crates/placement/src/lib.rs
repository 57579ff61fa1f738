//! Tensors and modules onto the device step by step, verified, with fallback.

mod bytes;
pub mod checksum;
mod report;
mod route;
mod rung;
pub mod transport;
mod verify;

pub use bytes::{Bytes, NotASize};
pub use report::{Attempt, Failure, Outcome, PlacementReport, RouteTotal, Story};
pub use route::{Ladder, MoveError, Placed, PlacedBy, Policy, Request};
pub use rung::Rung;
pub use verify::{NotAMode, Role, Verify};
