//! Records of text from files, for fine-tuning and evaluation, converted to tokens, some of which are trained on.
//!
//! ```text
//! file or folder ──reader──▶ Record ──Encoder──▶ Example { tokens, learned } ──▶ TokenFile ──▶ rows
//! ```
//!
//! Records are streamed: neither all of the text nor all of its tokens are ever in memory.

mod columns;
mod csv_rows;
mod json_file;
mod numbers;
mod parquet;
mod preference;
mod reader;
#[cfg(test)]
mod record_keys;
mod record_shapes;
#[cfg(test)]
mod tests;
mod token_file;

pub use columns::Columns;
pub use models::text::{Conversation, Message};
pub use preference::{Answer, Answers, Preference, Prompt};
pub(crate) use reader::preferences;
pub(crate) use reader::texts;
pub use reader::{Located, Record, records, records_of_columns};
pub use token_file::{Judged, Span, TokenFile};
