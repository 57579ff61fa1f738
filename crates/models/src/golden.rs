//! Where the tests' reference values are: `tests/reference/golden`, or the folder named by `SUREFOOT_GOLDEN`,
//! which the heavy tier fills with freshly computed ones.

use std::path::{Path, PathBuf};

/// The language models that `tests/reference/models.py` makes.
pub(crate) const LANGUAGE_MODELS: [&str; 23] = [
    "llama-grouped",
    "llama-tied-biases",
    "llama-scaled",
    "qwen2",
    "qwen3",
    "qwen3-untied",
    "llama-yarn",
    "qwen2-dynamic",
    "gemma3",
    "gemma3-biases",
    "gemma3-multimodal",
    "mistral",
    "granite",
    "granite-biases",
    "smollm3",
    "smollm3-list",
    "olmo2",
    "olmo3",
    "olmo3-old",
    "phi3",
    "phi3-longrope",
    "ministral3",
    "ministral3-multimodal",
];

pub(crate) fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join(name)
}
