//! What models are built of: named weights, layers, blocks, and the kernels that they share.
//!
//! A model is built by asking a [`WeightSource`] for each tensor by its Hugging Face name. Random
//! initialisation and files are two such sources; the model cannot tell them apart. Tensors to train are
//! registered in [`Parameters`](crate::Parameters), which is all that the loop, the optimizer and the
//! checkpoints know of a model.

mod attention_kernel;
mod attention_path;
mod blocks;
mod builder;
pub(crate) mod delta_rule;
pub mod experts;
pub mod layers;
mod load;
pub(crate) mod rope;
mod sinks;
mod soft_cap;
mod weights;

pub use attention_kernel::{PackedTexts, Sight};
pub(crate) use attention_kernel::{Scoring, Special, causal_attention};
pub use attention_path::{AttentionPath, Heads, attention_path};
pub use blocks::{BlockList, Blocks, Layer, Pass, Streaming};
pub use builder::{Base, Builder};
pub use load::Load;
pub use rope::{LongRope, QueryGrowth, RopeScaling, RopeSettings, Yarn};
pub(crate) use sinks::Sinks;
pub(crate) use soft_cap::capped_attention;
pub use weights::{FileWeights, Initial, MetaWeights, RandomWeights, WeightSource};
