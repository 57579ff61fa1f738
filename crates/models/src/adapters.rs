//! Adapters: small trained changes to a frozen model, in the format of Hugging Face's PEFT: LoRA, DoRA, LoHa and
//! LoKr.
//!
//! ```text
//! LoraConfig ──(which layers, what rank)──▶ Attachment ──attach──▶ LoraLayer on each Linear
//!     ▲                                        │
//!     └── adapter_config.json      adapter_model.safetensors ──(or fresh)
//! ```
//!
//! Parameters have the names used in PEFT's files, so saving an adapter is writing them out.
//! [`merge`](crate::pretrained::merge) adds an adapter to its base, for programs that support no adapters.

mod attached;
mod attachment;
mod change;
mod config;
mod experts;
mod layer;
mod low_rank;
mod module;
mod naming;
mod peft;
mod start;
#[cfg(test)]
mod tests;

pub use attached::Attached;
pub use attachment::Attachment;
pub use change::{AdapterType, Change, Factor};
pub use config::{Biases, Layers, LoraConfig, Modules};
pub(crate) use config::{EMBEDDING, HEAD};
pub use experts::{ExpertLora, ExpertSizes};
pub use layer::{AdaptersOff, LoraLayer};
pub use low_rank::{Extracted, Keep, Kept, extract, plain};
pub use module::LoraModule;
pub use naming::Naming;
pub use peft::write_changes;
#[cfg(test)]
pub(crate) use peft::write_folder;
pub use peft::{PeftAdapter, adapter_config, write_peft};
pub use start::Init;
