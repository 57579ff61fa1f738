//! Models: named weights, and the computation on them.
//!
//! A model is built by asking a [`WeightSource`] for each tensor by its Hugging Face name. Random
//! initialisation and files are two such sources; the model cannot tell them apart. Tensors to train are
//! registered in [`Parameters`](crate::Parameters), which is all that the loop, the optimizer and the
//! checkpoints know of a model.

mod attention;
mod attention_kernel;
mod blocks;
mod builder;
mod decoder;
mod decoder_config;
pub mod layers;
mod load;
mod quantized;
mod rope;
#[cfg(test)]
mod tests;
mod weights;

pub use attention_kernel::attention_materialises_scores;
pub use blocks::{BlockList, Blocks, Layer, Streaming};
pub use builder::{Base, Builder};
pub use decoder::{Cache, Decoder, DecoderOptions, Pass};
pub(crate) use decoder_config::end_tokens;
pub use decoder_config::{Architecture, DecoderConfig};
pub use load::Load;
pub use rope::{RopeScaling, RopeSettings, Yarn};
pub use weights::{FileWeights, Initial, MetaWeights, RandomWeights, WeightSource};
