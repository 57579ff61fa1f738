//! What several diffusion models share.

pub mod prompt;
pub mod rotary;
pub mod schedule;
pub mod t5;
pub mod unigram;
