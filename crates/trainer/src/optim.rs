//! Optimization: gradients, their clipping, AdamW, and the learning rate's schedule.

mod adamw;
mod gradients;
mod schedule;

pub use adamw::{AdamW, AdamWSettings};
pub use gradients::Gradients;
pub use schedule::Schedule;
