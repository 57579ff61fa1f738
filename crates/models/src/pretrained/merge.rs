//! Merges an adapter into its base: the result is a plain model that needs no adapter.

use std::cell::RefCell;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::Pretrained;
use crate::Error;
use crate::adapters::{Attachment, EMBEDDING, HEAD, PeftAdapter};
use crate::formats::{LazyTensor, write_safetensors};
use crate::parameters::Parameters;
use crate::weight::Weight;

/// Writes `base` with `adapter` merged into it to the folder `target`, as `kind`. Only one weight is in
/// memory at a time. An adapter that was trained on a quantised base is added to the unquantised base, as is
/// usual with PEFT: the quantisation error that it was trained with is then gone, so the merged model is
/// close to the trained one but not equal.
pub fn merge(
    base: &Pretrained,
    adapter: PeftAdapter,
    target: &Path,
    kind: Kind,
) -> Result<(), Error> {
    let attachment = RefCell::new(Attachment::saved(adapter)?);
    let (table_name, head_name) = (format!("{EMBEDDING}.weight"), format!("{HEAD}.weight"));
    // If embedding and head share a weight that the adapter changes for only one of them, the merged model
    // has two.
    let mut config = base.config.clone();
    let was_tied = config.tie_word_embeddings;
    config.tie_word_embeddings = was_tied
        && !attachment.borrow().changes(EMBEDDING)?
        && !attachment.borrow().changes(HEAD)?;
    let mut names = base.tensors.names();
    if was_tied {
        names.retain(|name| *name != head_name);
        if !config.tie_word_embeddings {
            names.push(head_name.clone());
        }
    }
    // Which tensor to read.
    let source = |name: &str| match was_tied && name == head_name {
        true => table_name.clone(),
        false => name.to_owned(),
    };
    let merged = |name: &str| -> Result<Tensor, Error> {
        let mut adapter = attachment.borrow_mut();
        let mut parameters = Parameters::default();
        let mut weight = base.tensors.read(&source(name), Kind::Float)?;
        let module = name.strip_suffix(".weight").filter(|_| weight.dim() == 2);
        // The adapter may contain its own weight, for both if they share one.
        if let Some(table) = module.filter(|module| [EMBEDDING, HEAD].contains(module)) {
            let (table, tied) = match was_tied {
                true => (EMBEDDING, Some(HEAD)),
                false => (table, None),
            };
            let own = adapter.table(table, &weight.size(), tied)?;
            weight = own.unwrap_or(weight);
        }
        if let Some(whole) = adapter.trained_copy(name, &weight, Device::Cpu, &mut parameters)? {
            return Ok(whole.detach().f_to_kind(kind)?);
        }
        let weight = match module {
            None => weight,
            Some(EMBEDDING) => {
                match adapter.attach_embedding(EMBEDDING, &weight, &mut parameters)? {
                    Some(layer) => layer.merged(&weight.f_tr()?)?.f_tr()?.f_contiguous()?,
                    None => weight,
                }
            }
            Some(module) => {
                let base = Weight::Dense(weight.shallow_clone());
                match adapter.attach(module, &base, Device::Cpu, &mut parameters)? {
                    Some(layer) => layer.merged(&weight)?,
                    None => weight,
                }
            }
        };
        Ok(weight.f_to_kind(kind)?)
    };
    std::fs::create_dir_all(target).map_err(|error| Error::io("create", target, error))?;
    let tensors = names
        .into_iter()
        .map(|name| {
            let shape = base.tensors.shape(&source(&name)).unwrap_or_default();
            let merged = &merged;
            let tensor = LazyTensor::made(&shape, kind, {
                let name = name.clone();
                move || merged(&name)
            });
            (name, tensor)
        })
        .collect::<Vec<_>>();
    write_safetensors(&target.join("model.safetensors"), tensors, None)?;
    attachment.into_inner().finish()?;
    base.write_companions(&config, target, kind)
}
