//! The config's section `data`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::encoded_by::EncodedBy;
use super::mixture::{MixtureSource, StoppingStrategy};
use super::video::{FrameExtraction, Numbers, Paths};

section! {
    /// How the data is read and split into samples.
    pub struct DataConfig {
        /// A data set that `cargo xtask setup` downloads. Leave it unset if `path` or `mixture` is set.
        #[schemars(extend("x-sets" = "what is trained on"))]
        pub dataset: Option<Dataset> = None, for Any, resume Free;
        /// A data file, or a folder whose files are read in the order of their names: `.txt` and
        /// `.md` are plain text; `.jsonl`, `.json`, `.csv` and `.parquet` contain records of `text`, of `prompt` and
        /// `completion`, or of `messages`; only published models can be trained on the latter two. With `preference`,
        /// they contain `chosen` and `rejected` answers.
        /// With `resolution`, a folder of videos, images and folders of frames with captions beside them, or
        /// a `.jsonl` file that lists them. With `encoded_by`, a folder with the cache of another trainer.
        /// Or a data set on the Hugging Face hub: `org/name`, or `org/name@revision`, if no such path exists.
        #[schemars(extend("x-sets" = "what is trained on", "x-per-machine" = true, "format" = "path"))]
        pub path: Option<PathBuf> = None, for Any, resume Free;
        /// Several data sets in place of `path`, for published models. With weights, examples are mixed in that proportion
        /// (`interleave_datasets`); without, all data sets are used one after the other (`concatenate_datasets`).
        #[schemars(extend("x-sets" = "what is trained on"))]
        pub mixture: Vec<MixtureSource> = Vec::new(), for PublishedLanguage, resume Free;
        /// When an epoch of a `mixture` with weights ends. Unset means `first_exhausted`.
        pub stopping_strategy: Option<StoppingStrategy> = None, for Any, resume Free;
        /// Which subset of a data set on the hub is used (also called config). Unset
        /// means the default one.
        #[schemars(length(min = 1))]
        pub subset: Option<String> = None, for Any, resume Free;
        /// Which split is trained on, or several joined as in `train+validation`. Unset means `train`.
        #[schemars(length(min = 1))]
        pub split: Option<String> = None, for Any, resume Free;
        /// Which split is used for the held-out loss: of `eval_dataset` if that names a data set on the
        /// hub, else of `path` or of each data set of `mixture`, whose other split is then trained on completely.
        #[schemars(length(min = 1))]
        pub eval_split: Option<String> = None, for Any, resume Free;
        /// Other data for the held-out loss, a file or folder as for `path`; then all of `path` or
        /// `mixture` is trained on.
        #[schemars(extend("format" = "path"))]
        pub eval_dataset: Option<PathBuf> = None, for Any, resume Free;
        /// The format of all files of `path`, if their names and contents do not tell it, or tell it wrong.
        pub format: Option<DataFormat> = None, for Language, resume Free;
        /// The names of table columns and record keys in these data, by the names that are read
        /// here: `{prompt: question, completion: answer}`.
        pub columns: BTreeMap<String, String> = BTreeMap::new(), for Any, resume Free;
        /// Tokens in one training sequence.
        #[schemars(range(min = 2, max = 1_048_576))]
        pub block_size: u32 = 256, for Language, resume Fixed;
        /// How examples are put into the rows of a batch, for published models. `false`: one per row, padded. `true`:
        /// as many whole ones as fit, which do not attend to each other, with the same result. Either way examples
        /// longer than `block_size` are truncated, and a warning counts them. Unset: one after the
        /// other without gaps, so that rows may begin and end within an example.
        #[schemars(extend("x-not-with" = "preference"))]
        pub packing: Option<bool> = None, for PublishedLanguage, resume Fixed;
        /// Fraction of the text that is held out for validation and never trained on: its end. 0 holds nothing
        /// out, and nothing is evaluated. With `eval_dataset` it has no effect, and a warning says so.
        #[schemars(range(min = 0, max = 0.5))]
        pub validation_fraction: f64 = 0.05, for Any, resume Fixed;
        /// Hold out records selected by `seed`, like `shuffle` of Hugging Face's `train_test_split`, instead of
        /// the last ones.
        pub validation_shuffle: bool = false, for Language, resume Fixed;
        /// The tokenizer, for models that are trained from scratch.
        pub tokenizer: TokenizerKind = TokenizerKind::Bytes, for LanguageFromScratch, resume Fixed;
        /// Size of the vocabulary that the `bpe` tokenizer learns from the training text.
        #[schemars(range(min = 258, max = 65_535))]
        pub vocab_size: u32 = 2048, for LanguageFromScratch, resume Fixed;
        /// Makes this a run on videos: the side of a square, or width and height, whose area all pictures
        /// are resized to. A picture keeps its aspect ratio as well as a bucket of that area allows.
        #[schemars(range(min = 16, max = 16384), extend("x-not-with" = "data.encoded_by"))]
        pub resolution: Option<Numbers> = None, for Any, resume Free;
        /// Train on clips that another trainer has encoded: `path` is the folder with its cache.
        pub encoded_by: Option<EncodedBy> = None, for Any, resume Free;
        /// Frames per clip, or a list of allowed numbers; each is rounded down to what the model
        /// can encode: for Wan, 4 n + 1. Images are always clips of one frame.
        #[schemars(range(min = 1, max = 4096), extend("x-not-with" = "data.encoded_by"))]
        pub num_frames: Option<Numbers> = None, for Diffusion, resume Free;
        /// Which clips are cut from a video. Unset means `head`.
        #[schemars(extend("x-not-with" = "data.encoded_by"))]
        pub frame_extraction: Option<FrameExtraction> = None, for Diffusion, resume Free;
        /// Frames from the start of one clip to the start of the next, for `slide`. Unset means 1.
        #[schemars(range(min = 1, max = 65536), extend("x-needs" = "data.frame_extraction: slide"))]
        pub frame_stride: Option<u32> = None, for Diffusion, resume Free;
        /// The number of clips, for `uniform`. Unset means 1.
        #[schemars(range(min = 1, max = 65536), extend("x-needs" = "data.frame_extraction: uniform"))]
        pub frame_sample: Option<u32> = None, for Diffusion, resume Free;
        /// The most frames per clip, for `full`. Unset means 129.
        #[schemars(range(min = 1, max = 4096), extend("x-needs" = "data.frame_extraction: full"))]
        pub max_frames: Option<u32> = None, for Diffusion, resume Free;
        /// Frames per second that videos are resampled to, by their time stamps. Unset means the model's:
        /// 16, and 24 for Wan 2.2 5B.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 240))]
        pub fps: Option<f64> = None, for Diffusion, resume Free;
        /// Whether pictures with another aspect ratio are resized to other widths and heights of the same area. `false`: all
        /// get `resolution`, and the excess is cropped. Unset means `true`.
        #[schemars(extend("x-not-with" = "data.encoded_by"))]
        pub enable_bucket: Option<bool> = None, for Diffusion, resume Free;
        /// Sides of squares with whose areas everything is learned, too: then a pass has each picture and clip once at `resolution`
        /// and once at each of these.
        #[schemars(range(min = 1, max = 65536), extend("x-not-with" = "data.encoded_by"))]
        pub other_resolutions: Option<Numbers> = None, for Diffusion, resume Free;
        /// Pictures smaller than `resolution` keep their size. Unset means `false`.
        #[schemars(extend("x-not-with" = "data.encoded_by"))]
        pub bucket_no_upscale: Option<bool> = None, for Diffusion, resume Free;
        /// The file extension of captions beside videos and images. Unset means `.txt`.
        #[schemars(regex(pattern = "^\\.[A-Za-z0-9._-]+$"), extend("x-not-with" = "data.encoded_by"))]
        pub caption_extension: Option<String> = None, for Diffusion, resume Free;
        /// A trigger word: it replaces `[trigger]` in captions, and is prepended to
        /// those that do not contain it.
        #[schemars(length(min = 1), extend("x-not-with" = "data.encoded_by"))]
        pub trigger_word: Option<String> = None, for Diffusion, resume Free;
        /// A folder of regularisation media: pictures of what the model should go on to know, with captions of their own. In a pass
        /// they are together seen as often as those of `path`. It must not be inside `path`.
        #[schemars(extend("format" = "path", "x-not-with" = "data.encoded_by"))]
        pub reg_data_dir: Option<PathBuf> = None, for Diffusion, resume Fixed;
        /// Captions are lists of tags, and each pass sees them in another order; there are eight of each caption. Unset
        /// means `false`.
        #[schemars(extend("x-not-with" = "data.encoded_by"))]
        pub shuffle_caption: Option<bool> = None, for Diffusion, resume Free;
        /// How many tags at the start of a caption, trigger word included, stay where they are, and are never dropped. Unset means 0.
        #[schemars(range(min = 0, max = 1000), extend("x-not-with" = "data.encoded_by"))]
        pub keep_tokens: Option<u32> = None, for Diffusion, resume Free;
        /// What stands between the tags that stay and the others, such as `|||`; captions without it follow `keep_tokens`.
        #[schemars(length(min = 1), extend("x-not-with" = "data.encoded_by"))]
        pub keep_tokens_separator: Option<String> = None, for Diffusion, resume Free;
        /// What separates tags. Unset means a comma.
        #[schemars(length(min = 1), extend("x-not-with" = "data.encoded_by"))]
        pub caption_separator: Option<String> = None, for Diffusion, resume Free;
        /// Probability of dropping each of the other tags, in each of the orders. Unset means 0.
        #[schemars(range(min = 0, max = 1), extend("x-not-with" = "data.encoded_by"))]
        pub caption_tag_dropout_rate: Option<f64> = None, for Diffusion, resume Free;
        /// Probability of dropping a caption during training. Unset means 0.
        #[schemars(range(min = 0, max = 1))]
        pub caption_dropout: Option<f64> = None, for Diffusion, resume Free;
        /// A folder of masks: pictures with the names and forms of the media, whose white parts are learned and whose black
        /// parts are not. It must not be inside `path`.
        #[schemars(extend("format" = "path", "x-not-with" = "data.encoded_by"))]
        pub mask_path: Option<PathBuf> = None, for Diffusion, resume Fixed;
        /// Whether the transparency of pictures is their mask. Unset means `false`.
        #[schemars(extend("x-not-with" = "data.mask_path"))]
        pub alpha_mask: Option<bool> = None, for Diffusion, resume Fixed;
        /// How much counts what is masked, from 0 (not at all) to 1. Unset means 0.
        #[schemars(range(min = 0, max = 1))]
        pub mask_min_value: Option<f64> = None, for Diffusion, resume Fixed;
        /// For models that change pictures: a folder of control pictures, from which those of `path` are made. They have the
        /// names and subfolders of those, with `_0`, `_1`, … behind the name if there are several. Or a list of folders, of
        /// which each has one. Unset: a `.jsonl` file names them (`control_path`). It must not be inside `path`.
        #[schemars(extend("x-not-with" = "data.encoded_by"))]
        pub control_path: Option<Paths> = None, for Diffusion, resume Fixed;
        /// The area at which control pictures are encoded, as the side of a square or width and height; each keeps its form.
        /// Unset means the model's: 1024 × 1024.
        #[schemars(range(min = 32, max = 4096), extend("x-not-with" = "data.encoded_by"))]
        pub control_resolution: Option<Numbers> = None, for Diffusion, resume Fixed;
        /// How often each clip is used per epoch. Unset means the number that its folder's name begins with
        /// (`10_cat`), else 1.
        #[schemars(range(min = 1, max = 65536))]
        pub num_repeats: Option<u32> = None, for Diffusion, resume Free;
        /// For Wan 2.2 5B: the first frame is given, and only the others are trained on. Unset means `false`.
        pub image_to_video: Option<bool> = None, for Diffusion, resume Fixed;
        /// Folder for encoded clips and captions. Unset uses a folder in the cache.
        #[schemars(extend("format" = "path"))]
        pub cache_dir: Option<PathBuf> = None, for Diffusion, resume Free;
    }
}

impl DataConfig {
    /// What one learns from, for sentences with numbers of them.
    pub fn media_words(&self) -> &'static str {
        let is_moving =
            self.num_frames.is_some() || self.frame_extraction == Some(FrameExtraction::Full);
        match (is_moving, &self.other_resolutions) {
            (true, _) => "clips",
            (false, None) => "pictures",
            (false, Some(_)) => "sizes of pictures",
        }
    }

    /// Whether the held-out loss is measured on other data than the training data.
    pub(crate) fn has_eval_data(&self) -> bool {
        self.eval_dataset.is_some() || self.eval_split.is_some()
    }

    /// A description of that data for messages.
    pub(crate) fn eval_data(&self) -> Option<String> {
        match (&self.eval_dataset, &self.eval_split) {
            (Some(path), _) => Some(format!("`data.eval_dataset` `{}`", path.display())),
            (None, Some(split)) => Some(format!("`data.eval_split` `{split}`")),
            (None, None) => None,
        }
    }
}

/// The keys of records that `data.columns` can rename.
pub(crate) const RECORD_KEYS: [&str; 16] = [
    "text",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "label",
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

/// Named data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// The works of William Shakespeare, 5 MB of public-domain text.
    Shakespeare,
    /// 1,800 pictures of nine kinds of garments, of Fashion-MNIST.
    Garments,
    /// 200 pictures of the tenth kind.
    Trousers,
}

impl Dataset {
    /// The name in configs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shakespeare => "shakespeare",
            Self::Garments => "garments",
            Self::Trousers => "trousers",
        }
    }

    /// Whether it consists of pictures.
    pub fn is_pictures(self) -> bool {
        self != Self::Shakespeare
    }
}

/// The format of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// One text, whatever it contains.
    Text,
    /// A JSON object on each line.
    Jsonl,
    /// A list of JSON objects, or an object that contains one.
    Json,
    /// A table whose first line has the column names.
    Csv,
    /// Hugging Face's format for data sets.
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

/// A tokenizer for a model that is trained from scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token for each byte.
    Bytes,
    /// A byte-level BPE learned from the training text.
    Bpe,
}
