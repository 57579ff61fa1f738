//! Low-rank adapters: small trained changes to a frozen model, in the format of
//! Hugging Face's PEFT.
//!
//! ```text
//! LoraConfig ──(which layers, what rank)──▶ Attachment ──attach──▶ LoraLayer on each Linear
//!     ▲                                        │
//!     └── adapter_config.json      adapter_model.safetensors ──(or fresh)
//! ```
//!
//! Parameters have the names used in PEFT's files, so saving an adapter is writing them out.
//! [`merge`](crate::pretrained::merge) adds an adapter to its base, for programs that support no adapters.

mod attachment;
mod config;
mod experts;
mod layer;
mod naming;
mod peft;
#[cfg(test)]
mod tests;

pub use attachment::{Attached, Attachment};
pub use config::{Biases, Layers, LoraConfig, Modules};
pub(crate) use config::{EMBEDDING, HEAD};
pub use experts::{ExpertLora, ExpertSizes};
pub use layer::{AdaptersOff, LoraLayer};
pub use naming::Naming;
pub(crate) use peft::write_folder;
pub use peft::{PeftAdapter, adapter_config, write_peft};
