//! Text to tokens as a published model wants it: its tokenizer, with the keys of all its files, and its chat
//! template.
//!
//! ```text
//! text, prompt and completion ─────────────▶ ┐
//! Conversation ──ChatTemplate──▶ text, spans ▶ Encoder ──▶ Example { tokens, learned }
//! ```

mod added_tokens;
mod chat;
mod encoder;
mod jinja;
mod ollama;
mod refusals;
mod template_source;
#[cfg(test)]
mod templates;
mod tokenizer_class;
mod tokenizer_keys;

pub use chat::{ChatTemplate, Conversation, Message};
pub use encoder::{Encoder, Example};
