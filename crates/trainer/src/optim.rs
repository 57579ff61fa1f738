//! Optimization: gradients, clipping, optimizers, and the learning rate schedule.

mod ema;
mod gradients;
mod groups;
mod optimizer;
mod rules;
mod schedule;

pub use ema::Ema;
pub use gradients::Gradients;
pub use groups::{ParameterGroup, parameter_groups};
pub use optimizer::{AdamWSettings, Optimizer, SetAside};
pub use schedule::Schedule;

#[cfg(test)]
mod tests;
