//! The config's section `data`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::encoded_by::EncodedBy;
use super::mixture::{MixtureSource, StoppingStrategy};
use super::video::{FrameExtraction, Numbers};

/// The text or the videos to learn from, and how they are cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// A data set that `cargo xtask setup` fetches. Leave unset when `path` or `mixture` is given.
    pub dataset: Option<Dataset>,
    /// A file of data, or a folder whose files are read in the order of their names: `.txt` and
    /// `.md` are plain text; `.jsonl`, `.json`, `.csv` and `.parquet` hold records of `text`, of `prompt` and
    /// `completion`, or of `messages`, which only published models are trained on.
    /// With `resolution`, a folder of videos, images and folders of frames with captions beside them, or
    /// a `.jsonl` file that names them. With `encoded_by`, a folder with caches of another trainer.
    /// Or a data set on the Hugging Face hub: `org/name`, or `org/name@revision`, where no such path is.
    #[schemars(extend("format" = "path"))]
    pub path: Option<PathBuf>,
    /// Several sets of data in place of `path`, for published models; with weights, so many examples of
    /// each (`interleave_datasets`), else all of them one after the other (`concatenate_datasets`).
    pub mixture: Vec<MixtureSource>,
    /// When a pass over a `mixture` with weights is over. Unset means `first_exhausted`.
    pub stopping_strategy: Option<StoppingStrategy>,
    /// Which subset of a data set on the hub (its page and `datasets` call it subset, or config). Unset
    /// takes the default one.
    #[schemars(length(min = 1))]
    pub subset: Option<String>,
    /// Which split of it is trained on, or several as in `train+validation`. Unset means `train`.
    #[schemars(length(min = 1))]
    pub split: Option<String>,
    /// Which split the held-out loss is measured on, of `eval_dataset` if that names a data set on the
    /// hub, else of `path` or of each of `mixture`, all of whose other split is then trained on.
    #[schemars(length(min = 1))]
    pub eval_split: Option<String>,
    /// Other data to measure the held-out loss on, a file or folder as `path`; then all of `path`, or
    /// what `mixture` takes, is trained on.
    #[schemars(extend("format" = "path"))]
    pub eval_dataset: Option<PathBuf>,
    /// What every file of `path` holds, where names and contents do not say it, or say it wrong.
    pub format: Option<DataFormat>,
    /// Names that columns of tables and keys of records have in these data, by the names that are read
    /// here: `{prompt: question, completion: answer}`.
    pub columns: BTreeMap<String, String>,
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
    /// Makes this a run on videos: the side of a square, or width and height, whose area pictures
    /// get. A picture keeps its shape as well as a bucket of that area can.
    #[schemars(range(min = 16, max = 16384))]
    pub resolution: Option<Numbers>,
    /// Makes this a run on clips that another trainer has encoded: `path` is the folder with its caches.
    pub encoded_by: Option<EncodedBy>,
    /// Frames of a clip, or several numbers of them; each is rounded down to 4 n + 1. Images are
    /// clips of one frame whatever this says.
    #[schemars(range(min = 1, max = 4096))]
    pub num_frames: Option<Numbers>,
    /// Which clips are cut from a video. Unset means `head`.
    pub frame_extraction: Option<FrameExtraction>,
    /// Frames from the start of a clip to that of the next, for `slide`. Unset means 1.
    #[schemars(range(min = 1, max = 65536))]
    pub frame_stride: Option<u32>,
    /// How many clips, for `uniform`. Unset means 1.
    #[schemars(range(min = 1, max = 65536))]
    pub frame_sample: Option<u32>,
    /// Most frames of a clip, for `full`. Unset means 129.
    #[schemars(range(min = 1, max = 4096))]
    pub max_frames: Option<u32>,
    /// Frames a second that videos are resampled to, by their time stamps. Unset means the model's:
    /// 16, and 24 for Wan 2.2 5B.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 240))]
    pub fps: Option<f64>,
    /// Whether pictures of other shapes get other widths and heights of the same area. `false`: all
    /// get `resolution`, and what is beyond it is cut off. Unset means `true`.
    pub enable_bucket: Option<bool>,
    /// Pictures that are smaller than `resolution` keep their size. Unset means `false`.
    pub bucket_no_upscale: Option<bool>,
    /// What the name of a caption ends in, beside a video or an image. Unset means `.txt`.
    #[schemars(regex(pattern = "^\\.[A-Za-z0-9._-]+$"))]
    pub caption_extension: Option<String>,
    /// A word that stands for what is learned: put in place of `[trigger]` in captions, and before
    /// those that do not have it.
    #[schemars(length(min = 1))]
    pub trigger_word: Option<String>,
    /// Probability with which a caption is left empty in training. Unset means 0.
    #[schemars(range(min = 0, max = 1))]
    pub caption_dropout: Option<f64>,
    /// How often each clip is seen in an epoch. Unset means 1.
    #[schemars(range(min = 1, max = 65536))]
    pub num_repeats: Option<u32>,
    /// For Wan 2.2 5B: the first frame is given, and only the others are learned. Unset means `false`.
    pub image_to_video: Option<bool>,
    /// Folder for encoded clips and captions. Unset takes a folder in the cache.
    #[schemars(extend("format" = "path"))]
    pub cache_dir: Option<PathBuf>,
}

impl DataConfig {
    /// Whether other data than those that are trained on are measured on.
    pub(crate) fn has_eval_data(&self) -> bool {
        self.eval_dataset.is_some() || self.eval_split.is_some()
    }

    /// What those are, for people.
    pub(crate) fn eval_data(&self) -> Option<String> {
        match (&self.eval_dataset, &self.eval_split) {
            (Some(path), _) => Some(format!("`data.eval_dataset` `{}`", path.display())),
            (None, Some(split)) => Some(format!("`data.eval_split` `{split}`")),
            (None, None) => None,
        }
    }
}

/// The keys of records that `data.columns` can give.
pub(crate) const RECORD_KEYS: [&str; 13] = [
    "text",
    "prompt",
    "completion",
    "messages",
    "tools",
    "documents",
    "chat_template_kwargs",
    "conversations",
    "instruction",
    "input",
    "output",
    "history",
    "system",
];

/// Data sets known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// The works of William Shakespeare, 5 MB of public-domain text.
    Shakespeare,
    /// Clips of garments of Fashion-MNIST that move to the left, to the right, up or down.
    MovingGarments,
    /// Clips of the same garments that move in a circle.
    CirclingGarments,
}

impl Dataset {
    /// The name in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shakespeare => "shakespeare",
            Self::MovingGarments => "moving_garments",
            Self::CirclingGarments => "circling_garments",
        }
    }

    /// Whether it is one of videos.
    pub fn is_video(self) -> bool {
        self != Self::Shakespeare
    }
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
    /// A table of Hugging Face's data sets.
    Parquet,
}

impl std::fmt::Display for DataFormat {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Text => "plain text",
            Self::Jsonl => "JSON lines",
            Self::Json => "JSON",
            Self::Csv => "CSV",
            Self::Parquet => "Parquet",
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
            mixture: Vec::new(),
            stopping_strategy: None,
            subset: None,
            split: None,
            eval_split: None,
            eval_dataset: None,
            format: None,
            columns: BTreeMap::new(),
            block_size: 256,
            packing: None,
            validation_fraction: 0.05,
            validation_shuffle: false,
            tokenizer: TokenizerKind::Bytes,
            vocab_size: 2048,
            resolution: None,
            encoded_by: None,
            num_frames: None,
            frame_extraction: None,
            frame_stride: None,
            frame_sample: None,
            max_frames: None,
            fps: None,
            enable_bucket: None,
            bucket_no_upscale: None,
            caption_extension: None,
            trigger_word: None,
            caption_dropout: None,
            num_repeats: None,
            image_to_video: None,
            cache_dir: None,
        }
    }
}
