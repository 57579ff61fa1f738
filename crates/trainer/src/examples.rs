//! Text for fine-tuning and evaluation: records from files, converted to tokens, some of which are
//! trained on.
//!
//! ```text
//! file or folder ──reader──▶ Record ──Encoder──▶ Example { tokens, learned } ──▶ TokenFile ──▶ rows
//! ```
//!
//! Records are streamed: neither all of the text nor all of its tokens are ever in memory.

mod added_tokens;
mod chat;
mod columns;
mod csv_rows;
mod encoder;
mod jinja;
mod numbers;
mod parquet;
mod reader;
#[cfg(test)]
mod record_keys;
mod record_shapes;
mod template_source;
#[cfg(test)]
mod templates;
#[cfg(test)]
mod tests;
mod token_file;
mod tokenizer_class;
mod tokenizer_keys;

pub use chat::{ChatTemplate, Conversation, Message};
pub use columns::Columns;
pub use encoder::{Encoder, Example};
pub(crate) use reader::texts;
pub use reader::{Located, Record, records, records_of_columns};
pub use token_file::{Span, TokenFile};
