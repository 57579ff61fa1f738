//! Low-rank adapters: small trained changes to a frozen model, in the format of
//! Hugging Face's PEFT.
//!
//! ```text
//! LoraConfig ──(which layers, what rank)──▶ Attachment ──attach──▶ LoraLayer on each Linear
//!     ▲                                        │
//!     └── adapter_config.json      adapter_model.safetensors ──(or fresh)
//! ```
//!
//! The names of the parameters are those of PEFT's files, so saving is writing them
//! down. [`merge()`] adds an adapter into its base for programs that know none.

mod attachment;
mod config;
mod layer;
mod merge;
mod peft;
#[cfg(test)]
mod quantized_tests;
#[cfg(test)]
mod tests;

pub use attachment::{Attached, Attachment};
pub use config::{LoraConfig, Modules};
pub use layer::LoraLayer;
pub use merge::merge;
pub use peft::{PeftAdapter, write_peft};
