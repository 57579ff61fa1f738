//! Optimization: gradients, clipping, AdamW, and the learning rate schedule.

mod adamw;
mod ema;
mod gradients;
mod groups;
mod moments;
mod schedule;

pub use adamw::{AdamW, AdamWSettings};
pub use ema::Ema;
pub use gradients::Gradients;
pub use groups::{ParameterGroup, parameter_groups};
pub use schedule::Schedule;

#[cfg(test)]
mod tests;
