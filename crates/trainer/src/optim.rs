//! Optimization: gradients, their clipping, AdamW, and the learning rate's schedule.

mod adamw;
mod ema;
mod gradients;
mod groups;
mod moments;
mod outer;
mod schedule;

pub use adamw::{AdamW, AdamWSettings};
pub use ema::Ema;
pub use gradients::Gradients;
pub use groups::{ParameterGroup, parameter_groups};
pub use outer::Outer;
pub use schedule::Schedule;

#[cfg(test)]
mod tests;
