//! Adapters as files: merged into their models, taken out of tuned ones, and made plain.

use std::path::Path;

pub use models::adapters::Keep;
use models::adapters::{Extracted, Kept, PeftAdapter, extract, write_changes};
use models::diffusion::lora::{LoraFile, LoraForm, WithLoras};
use models::diffusion::{self, Expert, Part, PartPaths, denoiser_at};
use models::formats::TensorSource;
use models::pretrained::{self, Pretrained};
pub use tch::Kind;

use crate::Error;
use crate::media_sampling::{Lora, expect_new};
use crate::task::diffusion::write_model;

/// Writes the model at `path` with LoRAs merged into it to `output`: a file for a single file, with all else that it has, and
/// otherwise a folder with all parts. `loras_2` are for the denoiser of low noise. Weights are stored as `kind`, or as they are.
///
/// # Errors
/// If a file is damaged, a LoRA is for another model, or `output` exists or cannot be written.
pub fn merge(
    path: &Path,
    [loras, loras_2]: [&[Lora]; 2],
    output: &Path,
    kind: Option<Kind>,
) -> Result<(), Error> {
    expect_new(output)?;
    if !diffusion::is_at(path) {
        if !loras_2.is_empty() {
            return Err(Error::Data("a language model has no second expert".into()));
        }
        let adapters = loras
            .iter()
            .map(|lora| Ok((PeftAdapter::open(&lora.path)?, lora.strength)));
        let adapters = adapters.collect::<Result<Vec<_>, Error>>()?;
        let base = Pretrained::open(path)?;
        let stored = base
            .tensors
            .names()
            .iter()
            .find_map(|name| base.tensors.kind(name));
        let kind = kind.or(stored).unwrap_or(Kind::Float);
        return Ok(pretrained::merge(&base, &adapters, output, kind)?);
    }
    if path.is_file() {
        let (arch, file) = denoiser_at(path, Expert::High)?;
        if !loras_2.is_empty() {
            return Err(Error::Data(format!(
                "`{}` is one denoiser: merge the LoRA of the other into its own file",
                path.display()
            )));
        }
        let loras = read(loras, arch, None)?;
        let (_, weights) = denoiser_at(path, Expert::High)?;
        let weights = WithLoras::new(Box::new(weights), loras)?;
        return Ok(file.rewrite(&weights, output, kind)?);
    }
    let parts = PartPaths::default();
    let model = diffusion::open(path, &parts)?;
    let (arch, two) = (model.arch(), model.has_low_noise());
    if !two && !loras_2.is_empty() {
        return Err(Error::Data(format!(
            "`{}` has one denoiser",
            path.display()
        )));
    }
    let mut merged = Vec::new();
    for (which, loras) in [(Expert::High, loras), (Expert::Low, loras_2)] {
        if loras.is_empty() {
            continue;
        }
        let file = model.weights(Part::Denoiser(which))?;
        // As they are stored, which is the same for nearly all of them.
        let largest = file.names().into_iter().max_by_key(|name| {
            file.shape(name)
                .map_or(0, |shape| shape.iter().product::<i64>())
        });
        let stored = largest.and_then(|name| file.kind(&name));
        let stored = stored.filter(|kind| kind.elt_size_in_bytes() > 1);
        let loras = read(loras, arch, two.then_some(which))?;
        let weights = WithLoras::new(Box::new(file), loras)?;
        merged.push((two.then_some(which), weights, stored));
    }
    let kind = kind.or(merged
        .first()
        .map(|(_, _, stored)| stored.unwrap_or(Kind::BFloat16)));
    let all = merged
        .iter()
        .map(|(which, weights, _)| (*which, weights as &dyn TensorSource));
    write_model(parts, &*model, &all.collect::<Vec<_>>(), output, kind)
}

fn read(
    loras: &[Lora],
    arch: &'static diffusion::Arch,
    expert: Option<Expert>,
) -> Result<Vec<(LoraFile, f64)>, Error> {
    let loras = loras.iter().map(|lora| {
        let file = LoraFile::read(&lora.path, arch, expert)?;
        let text = file.text_layers().next().cloned();
        match text {
            None => Ok((file, lora.strength)),
            Some(name) => Err(Error::Data(format!(
                "`{}` changes a text encoder, too (`{name}`), which is not merged: only `surefoot generate --lora` uses such a file whole",
                lora.path.display()
            ))),
        }
    });
    loras.collect()
}

/// What [`extract_lora`] found.
#[derive(Debug)]
pub struct Summary {
    /// Number of layers with a LoRA.
    pub layers: usize,
    /// How much of their change is kept.
    pub kept: Kept,
    /// Tensors that changed, too, which are not in the LoRA.
    pub others: Vec<String>,
}

/// Writes the LoRAs that make of the model at `base` nearly the one at `tuned`, which was trained from it: for a language model
/// a folder in PEFT's format, and otherwise a LoRA file in `form`, or in the one that all programs read.
///
/// # Errors
/// If the two are of different kinds or the same, a file is damaged, or `output` exists or cannot be written.
pub fn extract_lora(
    [base, tuned]: [&Path; 2],
    output: &Path,
    keep: Keep,
    form: Option<LoraForm>,
    expert: Expert,
    on_tensor: &dyn Fn(usize, usize),
) -> Result<Summary, Error> {
    expect_new(output)?;
    let of_media = [base, tuned].map(diffusion::is_at);
    let found = match of_media {
        [true, true] => {
            let (arch, from) = denoiser_at(base, expert)?;
            let (other, to) = denoiser_at(tuned, expert)?;
            if arch.name != other.name {
                return Err(Error::Data(format!(
                    "`{}` is {}, and `{}` is {}",
                    base.display(),
                    arch.title,
                    tuned.display(),
                    other.title
                )));
            }
            let is_layer = |name: &str| arch.is_layer(name);
            let mut found = learned(extract(&from, &to, &is_layer, keep, on_tensor)?, tuned)?;
            let mut file = LoraFile::new(arch);
            file.modules = std::mem::take(&mut found.modules);
            file.write(output, form.unwrap_or(arch.lora.partial))?;
            return Ok(summary(found, file.modules.len()));
        }
        [false, false] => {
            let [from, to] = [Pretrained::open(base)?, Pretrained::open(tuned)?];
            // The adapter of an embedding has another form.
            let is_layer = |name: &str| !name.ends_with("embed_tokens");
            if from.config.experts.is_some() || from.config.delta.is_some() {
                return Err(Error::Data(format!(
                    "`{}` has experts or layers of a delta rule, of which no LoRA is extracted",
                    base.display()
                )));
            }
            let (from, to) = (from.tensors.as_ref(), to.tensors.as_ref());
            learned(extract(from, to, &is_layer, keep, on_tensor)?, tuned)?
        }
        _ => {
            return Err(Error::Data(
                "one is a language model, and one makes pictures or videos".into(),
            ));
        }
    };
    let name = base.display().to_string();
    write_changes(output, &found.modules, Some(&name), Some("CAUSAL_LM"))?;
    let layers = found.modules.len();
    Ok(summary(found, layers))
}

/// Fails if no layer learned anything.
fn learned(found: Extracted, tuned: &Path) -> Result<Extracted, Error> {
    match found.modules.is_empty() {
        false => Ok(found),
        true => Err(Error::Data(format!(
            "no layer of `{}` differs from the base",
            tuned.display()
        ))),
    }
}

fn summary(found: Extracted, layers: usize) -> Summary {
    Summary {
        layers,
        kept: found.kept,
        others: found.others,
    }
}

/// Converts a LoRA file as [`convert_lora`](crate::media_sampling::convert_lora) does, after what is no plain LoRA was made
/// one; a DoRA needs the model at `base`. Returns the number of layers and how much of those changes is kept.
///
/// # Errors
/// If it cannot be read, the format cannot represent it, or `to` exists.
pub fn plain_lora(
    from: &Path,
    to: &Path,
    form: Option<LoraForm>,
    expert: Option<Expert>,
    keep: Keep,
    base: Option<&Path>,
) -> Result<(usize, Kept), Error> {
    expect_new(to)?;
    let (base, mut lora) = match base {
        None => (None, LoraFile::read_any(from, expert)?),
        Some(base) => {
            let (arch, file) = denoiser_at(base, expert.unwrap_or(Expert::High))?;
            (Some(file), LoraFile::read(from, arch, expert)?)
        }
    };
    let base = base.as_ref().map(|file| file as &dyn TensorSource);
    let kept = lora.make_plain(base, keep)?;
    match form {
        Some(form) => drop(lora.write(to, form)?),
        None => lora.write_peft(to)?,
    }
    Ok((lora.modules.len(), kept))
}
