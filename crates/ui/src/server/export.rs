//! The numbers of a run as a table for other programs.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::sync::Arc;

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
    let (sender, receiver) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        let _ = file.and_then(|file| send(file, &sender));
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

/// Sends the table; ends when nobody takes it.
fn send(file: File, sender: &mpsc::Sender<io::Result<Bytes>>) -> Option<()> {
    let mut file = BufReader::new(file);
    let mut piece = COLUMNS.join(",") + "\n";
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = (&mut file)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .ok()?;
        if count == 0 || piece.len() > PIECE {
            sender
                .blocking_send(Ok(std::mem::take(&mut piece).into()))
                .ok()?;
        }
        if count == 0 {
            return Some(());
        }
        if let Ok(record) = serde_json::from_slice(&line) {
            add_row(&mut piece, &record);
        }
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
