//! The config's section `data`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The text to learn from and how it is cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// A data set that `cargo xtask setup` fetches. Leave unset when `path` is given.
    pub dataset: Option<Dataset>,
    /// A file of data, or a folder whose files are read in the order of their names: `.txt` and
    /// `.md` are plain text; `.jsonl`, `.json` and `.csv` hold records of `text`, of `prompt` and
    /// `completion`, or of `messages`, which only published models are trained on.
    #[schemars(extend("format" = "path"))]
    pub path: Option<PathBuf>,
    /// Other data to measure the held-out loss on, a file or folder as `path`; then all of `path` is
    /// trained on.
    #[schemars(extend("format" = "path"))]
    pub eval_dataset: Option<PathBuf>,
    /// What every file of `path` holds, where names and contents do not say it, or say it wrong.
    pub format: Option<DataFormat>,
    /// Tokens in one training sequence.
    #[schemars(range(min = 2, max = 1_048_576))]
    pub block_size: u32,
    /// How examples make the rows of a batch, for published models. `false`: one a row, padded. `true`:
    /// as many whole ones as fit, which see nothing of each other and learn the same. Either way what
    /// is longer than `block_size` ends there, and a warning counts it. Unset: one after the
    /// other without gaps, cut where a row is full, so that rows may begin and end within an example.
    pub packing: Option<bool>,
    /// Share of the text held out for validation, which is never trained on: its end. 0 holds nothing
    /// out, and nothing is evaluated. Beside `eval_dataset` it has no effect, and a warning says so.
    #[schemars(range(min = 0, max = 0.5))]
    pub validation_fraction: f64,
    /// Hold out records chosen by `seed`, as `shuffle` of Hugging Face's `train_test_split`, and not
    /// the last ones.
    pub validation_shuffle: bool,
    /// How text becomes tokens.
    pub tokenizer: TokenizerKind,
    /// Size of the vocabulary that the `bpe` tokenizer learns from the training text.
    #[schemars(range(min = 258, max = 65_535))]
    pub vocab_size: u32,
}

/// Data sets known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// The works of William Shakespeare, 5 MB of public-domain text.
    Shakespeare,
}

/// What a file of data holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// One text, whatever is in it.
    Text,
    /// A JSON object on each line.
    Jsonl,
    /// A list of JSON objects, or an object that holds one.
    Json,
    /// A table whose first line names the columns.
    Csv,
}

impl std::fmt::Display for DataFormat {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Text => "plain text",
            Self::Jsonl => "JSON lines",
            Self::Json => "JSON",
            Self::Csv => "CSV",
        })
    }
}

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token for each byte.
    Bytes,
    /// A byte-level BPE learned from the training text.
    Bpe,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            dataset: None,
            path: None,
            eval_dataset: None,
            format: None,
            block_size: 256,
            packing: None,
            validation_fraction: 0.05,
            validation_shuffle: false,
            tokenizer: TokenizerKind::Bytes,
            vocab_size: 2048,
        }
    }
}
