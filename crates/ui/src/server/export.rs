//! The numbers of a run as a table for other programs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State as Shared};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::State;
use super::api::blocking;
use super::error::Refusal;
use crate::runs::RunName;

/// About how many bytes are sent at once.
const PIECE: usize = 64 << 10;
/// How long a browser may take to receive a piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// A longer line is a sample, not numbers.
const MAX_LINE: u64 = 1 << 20;
const COLUMNS: [&str; 10] = [
    "step",
    "loss",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "memory.live_peak",
    "memory.held_peak",
    "memory.resident",
    "eval_loss",
    "eval_nats_per_byte",
];

/// The numbers of every logged step, as comma-separated values.
pub(super) async fn csv(
    Shared(state): Shared<Arc<State>>,
    Path(name): Path<String>,
) -> Result<Response, Refusal> {
    let name = RunName::parse(&name)?;
    let run = name.clone();
    let shared = state.clone();
    let file = blocking(move || Ok(shared.runs.metrics_file(&run)?)).await?;
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(2);
    tokio::spawn(async move {
        let mut table = file.map(Table::new);
        // A thread is taken for one piece only: whoever takes the pieces may be slow.
        while let Some(rest) = table {
            let Ok((piece, rest)) = blocking(move || Ok(rest.next()?)).await else {
                return;
            };
            let sent = tokio::time::timeout(PIECE_TIMEOUT, sender.send(Ok(piece))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
            table = rest;
        }
    });
    // The name of a run may have letters that a header cannot have.
    let letters = |letter: char| {
        if letter.is_ascii_alphanumeric() || "-_.".contains(letter) {
            letter
        } else {
            '_'
        }
    };
    let file: String = name.as_str().chars().map(letters).collect();
    let head = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{file}.csv\""),
        ),
    ];
    Ok((head, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// What is left of a table.
struct Table {
    file: BufReader<File>,
    head: String,
}

impl Table {
    fn new(file: File) -> Self {
        Self {
            file: BufReader::new(file),
            head: COLUMNS.join(",") + "\n",
        }
    }

    /// The next piece, and what is left behind it.
    fn next(mut self) -> io::Result<(Bytes, Option<Self>)> {
        let mut piece = std::mem::take(&mut self.head);
        let mut line = Vec::new();
        while piece.len() <= PIECE {
            line.clear();
            let mut file = (&mut self.file).take(MAX_LINE);
            if file.read_until(b'\n', &mut line)? == 0 {
                return Ok((piece.into(), None));
            }
            if let Ok(record) = serde_json::from_slice(&line) {
                add_row(&mut piece, &record);
            }
        }
        Ok((piece.into(), Some(self)))
    }
}

fn add_row(table: &mut String, record: &Value) {
    if !matches!(record["kind"].as_str(), Some("train" | "eval")) {
        return;
    }
    for (index, column) in COLUMNS.into_iter().enumerate() {
        let value = column.split('.').fold(record, |value, key| &value[key]);
        let comma = if index > 0 { "," } else { "" };
        // Only numbers: a text could be a formula to the program that opens the table.
        let _ = match value {
            Value::Number(number) => write!(table, "{comma}{number}"),
            _ => write!(table, "{comma}"),
        };
    }
    table.push('\n');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_table_comes_in_pieces() {
        let mut file = tempfile::tempfile().unwrap();
        let lines = (0..20_000).map(|step| json!({ "kind": "train", "step": step }).to_string());
        let lines = lines.collect::<Vec<_>>().join("\n");
        io::Write::write_all(&mut file, lines.as_bytes()).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let (mut table, mut pieces) = (Some(Table::new(file)), Vec::new());
        while let Some(rest) = table {
            let (piece, rest) = rest.next().unwrap();
            pieces.push(piece);
            table = rest;
        }
        assert!(pieces.len() > 1);
        let text = String::from_utf8(pieces.concat()).unwrap();
        assert_eq!(text.lines().count(), 20_001);
        assert!(text.ends_with("\n19999,,,,,,,,,\n"));
    }

    #[test]
    fn a_row_has_numbers_only() {
        let mut table = String::new();
        for record in [
            json!({ "kind": "train", "step": 1, "loss": 2.5, "grad_norm": "=cmd()", "memory": { "resident": 7 } }),
            json!({ "kind": "eval", "step": 2, "eval_loss": 1.5 }),
            json!({ "kind": "samples", "step": 3 }),
            json!([1]),
        ] {
            add_row(&mut table, &record);
        }
        assert_eq!(table, "1,2.5,,,,,,7,,\n2,,,,,,,,1.5,\n");
    }
}
