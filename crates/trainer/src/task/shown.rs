//! Rows of training data as the model sees them, for people to look at.

use serde::Serialize;

use super::sequences::Part;
use crate::Error;

/// Rows of the training data, as a run of a config would see them.
#[derive(Debug, Clone, Serialize)]
pub struct ShownData {
    /// One line on the data.
    pub data: String,
    /// The first rows in the order of training.
    pub rows: Vec<ShownRow>,
    /// Rows in a pass over the data.
    pub rows_in_epoch: u64,
    /// Whether rows are made of whole examples, so that what does not fit is cut off; else it is in
    /// another row.
    pub whole_examples: bool,
    /// Of all training examples, those that are cut off.
    pub truncated: u64,
    /// Of all training examples, those of which nothing would be learned, and which are left out.
    pub left_out: u64,
}

/// A row of a batch.
#[derive(Debug, Clone, Serialize)]
pub struct ShownRow {
    /// Tokens in it.
    pub tokens: u64,
    /// Of these, those that the model learns to say.
    pub learned: u64,
    /// The examples in it, or parts of them, which see nothing of each other where `packing` is set.
    pub examples: Vec<ShownExample>,
}

/// An example, or a part of one, in a row.
#[derive(Debug, Clone, Serialize)]
pub struct ShownExample {
    /// What it is to the others of its row, if they are not alike: `chosen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// Tokens of it in this row.
    pub tokens: u64,
    /// Its tokens before these, in another row.
    pub tokens_before: u64,
    /// Its tokens behind these.
    pub tokens_after: u64,
    /// Its text, in pieces of which either all is learned or nothing.
    pub pieces: Vec<Piece>,
}

/// A stretch of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Piece {
    /// The tokens as text, special ones included.
    pub text: String,
    /// The tokens.
    pub ids: Vec<u32>,
    /// Whether the model learns to say it.
    pub learned: bool,
}

/// The row that is made of these parts.
pub(super) fn row(
    parts: &[Part],
    decode: &dyn Fn(&[u32]) -> Result<String, Error>,
) -> Result<ShownRow, Error> {
    let count = |learned: &Vec<bool>| learned.iter().filter(|learned| **learned).count() as u64;
    let examples = parts.iter().map(|part| {
        Ok(ShownExample {
            name: part.name,
            tokens: part.tokens.len() as u64,
            tokens_before: part.before,
            tokens_after: part.after,
            pieces: pieces(&part.tokens, &part.learned, decode)?,
        })
    });
    Ok(ShownRow {
        tokens: parts.iter().map(|part| part.tokens.len() as u64).sum(),
        learned: parts.iter().map(|part| count(&part.learned)).sum(),
        examples: examples.collect::<Result<_, Error>>()?,
    })
}

fn pieces(
    tokens: &[u32],
    learned: &[bool],
    decode: &dyn Fn(&[u32]) -> Result<String, Error>,
) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let (mut start, mut before) = (0, String::new());
    for stretch in learned.chunk_by(|one, other| one == other) {
        let end = start + stretch.len();
        let ids = &tokens[start..end];
        // What a tokenizer makes of a stretch may depend on what stands before it, as the space that
        // some leave out at the start of a text.
        let whole = decode(&tokens[..end])?;
        let text = match whole.strip_prefix(&before) {
            Some(text) => text.to_owned(),
            // A character was cut in two.
            None => decode(ids)?,
        };
        pieces.push(Piece {
            text,
            ids: ids.to_vec(),
            learned: stretch[0],
        });
        (start, before) = (end, whole);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters of which the first of a text loses its space, as with SentencePiece.
    fn decode(ids: &[u32]) -> Result<String, Error> {
        let text: String = ids.iter().map(|id| format!(" {id}")).collect();
        Ok(text.trim_start().to_owned())
    }

    #[test]
    fn pieces_are_the_text_and_change_where_learning_does() {
        let learned = [false, false, true, false];
        let found = pieces(&[1, 2, 3, 4], &learned, &decode).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|piece| (piece.text.as_str(), piece.learned))
            .collect();
        assert_eq!(found, [("1 2", false), (" 3", true), (" 4", false)]);
    }
}
