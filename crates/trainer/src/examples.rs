//! Text for fine-tuning and evaluation: records from files, turned into tokens of which
//! some are to be learned.
//!
//! ```text
//! file or folder ──reader──▶ Record ──Encoder──▶ Example { tokens, learned } ──pack──▶ TokenFile ──▶ blocks
//! ```
//!
//! Records stream: neither the text nor its tokens are ever in memory as a whole.

mod chat;
mod encoder;
mod reader;
#[cfg(test)]
mod tests;
mod token_file;

pub use chat::{ChatTemplate, Message};
pub use encoder::{Encoder, Example};
pub use reader::{Record, records};
pub use token_file::TokenFile;
