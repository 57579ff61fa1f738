//! What several diffusion models share.

pub mod causal_kl;
pub mod clip;
pub mod codec;
pub(crate) mod conv;
pub mod decoder;
pub(crate) mod dimensions;
pub(crate) mod double;
pub(crate) mod joined;
pub mod kl;
pub(crate) mod picture;
pub(crate) mod places;
pub mod prompt;
pub mod resample;
pub mod rotary;
pub mod schedule;
pub(crate) mod stills;
pub mod t5;
pub mod tiles;
pub(crate) mod time;
pub mod unigram;
pub(crate) mod vision_language;
