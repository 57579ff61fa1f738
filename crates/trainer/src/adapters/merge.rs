//! An adapter added into its base: a plain model that needs no adapter any more.

use std::collections::HashMap;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::attachment::Attachment;
use super::peft::PeftAdapter;
use crate::Error;
use crate::model::{Parameters, Weight};
use crate::weights::{LazyTensor, Pretrained, WeightsError, write_safetensors};

/// Writes `base` with `adapter` merged into it to the folder `target`, as `kind`. Only one
/// weight is in memory at a time. An adapter that was trained over a base in fewer bits is
/// added to the base as it was published, as PEFT's users do: the rounding that it learned
/// to live with is gone then, so the merged model is close to the trained one, not equal.
///
/// # Errors
/// When the adapter does not fit the base, or a file fails.
pub fn merge(
    base: &Pretrained,
    adapter: PeftAdapter,
    target: &Path,
    kind: Kind,
) -> Result<(), Error> {
    let attachment = std::cell::RefCell::new(Attachment::saved(adapter)?);
    let merged = |name: &str| -> Result<Tensor, Error> {
        let weight = base.tensors.read(name, Kind::Float)?;
        let module = name.strip_suffix(".weight").filter(|_| weight.dim() == 2);
        let Some(module) = module.filter(|module| *module != "model.embed_tokens") else {
            return Ok(weight.f_to_kind(kind)?);
        };
        let base = Weight::Dense(weight.shallow_clone());
        let layer = attachment.borrow_mut().attach(
            module,
            &base,
            Device::Cpu,
            &mut Parameters::default(),
        )?;
        let weight = match layer {
            Some(layer) => layer.merged(&weight)?,
            None => weight,
        };
        Ok(weight.f_to_kind(kind)?)
    };
    std::fs::create_dir_all(target).map_err(|error| Error::io("create", target, error))?;
    let tensors = base
        .tensors
        .names()
        .into_iter()
        .map(|name| {
            let shape = base.tensors.shape(&name).unwrap_or_default();
            let merged = &merged;
            let tensor = LazyTensor::made(&shape, kind, {
                let name = name.clone();
                move || {
                    merged(&name).map_err(|error| match error {
                        Error::Weights(error) => error,
                        other => WeightsError::file(base.tensors.path(), other.to_string()),
                    })
                }
            });
            (name, tensor)
        })
        .collect::<Vec<_>>();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    write_safetensors(&target.join("model.safetensors"), tensors, metadata)?;
    attachment.into_inner().finish()?;
    Ok(base.write_companions(target, kind)?)
}
