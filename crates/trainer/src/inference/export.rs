//! Writing a language model in the form of other programs.

use std::path::Path;

use models::adapters::PeftAdapter;
use models::formats::TensorSource;
use models::pretrained::{Export, GgufType, Merged, Pretrained, export_adapter};
use models::text::Encoder;

use crate::Error;

/// What a Modelfile says of an exported model.
#[derive(Debug)]
pub struct Exported {
    /// The tokens that end an answer, as they are written.
    pub ends: Vec<String>,
    /// The chat template in Ollama's form, if there is one that writes the same.
    pub ollama_template: Option<String>,
}

/// Writes the model at `path` (a Hugging Face folder or a GGUF file), with an adapter merged into it, as the GGUF file
/// `output`. `on_tensor(done, total)` reports progress.
///
/// # Errors
/// When the model or the adapter is damaged, such a file cannot say what it is, or the file cannot be written.
pub fn export_gguf(
    path: &Path,
    adapter: Option<&Path>,
    stored: GgufType,
    output: &Path,
    on_tensor: &dyn Fn(usize, usize),
) -> Result<Exported, Error> {
    let model = Pretrained::open(path)?;
    let merged = match adapter {
        Some(folder) => Some(Merged::new(&model, PeftAdapter::open(folder)?)?),
        None => None,
    };
    let (tensors, config): (&dyn TensorSource, _) = match &merged {
        Some(merged) => (merged, merged.config()),
        None => (model.tensors.as_ref(), &model.config),
    };
    let encoder = Encoder::new(&model)?;
    let name = match adapter.unwrap_or(path) {
        file if file.is_file() => file.file_stem(),
        folder => folder.file_name(),
    };
    let mut name = name.unwrap_or_default().to_string_lossy().into_owned();
    // Only in files of this name does llama.cpp take away the spaces behind special tokens.
    let tokens = encoder.tokenizer().get_added_tokens_decoder();
    if tokens.values().any(|token| token.special && token.rstrip) {
        name = format!("phi-3 {name}");
    }
    let export = Export {
        model: &model,
        tokenizer: encoder.tokenizer(),
        tensors,
        config,
        name,
        stored,
    };
    export.write(output, on_tensor)?;
    if let Some(merged) = merged
        && let Err(error) = merged.finish()
    {
        // A model without a part of its adapter is none.
        let _ = std::fs::remove_file(output);
        return Err(error.into());
    }
    let ends = super::ends_of_answers(&model.config, &encoder);
    let names = ends.into_iter().filter_map(|id| {
        let id = u32::try_from(id).ok()?;
        model.tokenizer.id_to_token(id)
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    Ok(Exported {
        ends: names,
        ollama_template: encoder.ollama_template(),
    })
}

/// Writes the adapter in `adapter`, which belongs to the model at `path`, as the GGUF file `output`, which llama.cpp loads
/// beside its base.
///
/// # Errors
/// When one of them is damaged, such a file cannot say what the adapter has, or it cannot be written.
pub fn export_gguf_adapter(path: &Path, adapter: &Path, output: &Path) -> Result<(), Error> {
    let model = Pretrained::open(path)?;
    let adapter = PeftAdapter::open(adapter)?;
    let name = output.file_stem().unwrap_or_default().to_string_lossy();
    Ok(export_adapter(&model, &adapter, &name, output)?)
}
