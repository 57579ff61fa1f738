//! Models: weights with names, and what is computed with them.
//!
//! A model is built by asking a [`WeightSource`] for each tensor by its Hugging Face
//! name. Random initial weights and files are two sources; the model cannot tell them
//! apart. What the optimizer may change is registered in [`Parameters`], which is all
//! that the loop, the optimizer and the checkpoints know of a model.

mod attention;
mod attention_kernel;
mod blocks;
mod builder;
mod decoder;
mod decoder_config;
pub mod layers;
mod parameters;
mod rope;
#[cfg(test)]
mod tests;
mod weight;
mod weights;

pub(crate) use attention_kernel::attention_writes_scores;
pub use blocks::Streaming;
pub use builder::{Base, Builder};
pub use decoder::{Cache, Decoder, DecoderOptions, Pass};
pub(crate) use decoder_config::end_tokens;
pub use decoder_config::{Architecture, DecoderConfig};
pub use parameters::{Parameter, Parameters};
pub use rope::{RopeScaling, RopeSettings, Yarn};
pub use weight::Weight;
pub(crate) use weights::Outline;
pub use weights::{FileWeights, Initial, RandomWeights, WeightSource};
