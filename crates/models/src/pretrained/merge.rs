//! Merges adapters into their base: the result is a plain model that needs no adapter.

use std::cell::RefCell;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::slices::expert;
use super::{Pretrained, write_weights};
use crate::Error;
use crate::adapters::{Attachment, Biases, EMBEDDING, ExpertLora, HEAD, LoraLayer, PeftAdapter};
use crate::formats::{LazyTensor, TensorSource};
use crate::language::DecoderConfig;
use crate::parameters::Parameters;
use crate::quant::Mxfp4;
use crate::weight::Weight;

const EMBEDDING_WEIGHT: &str = "model.embed_tokens.weight";
const HEAD_WEIGHT: &str = "lm_head.weight";

/// A model with an adapter, as one without: its weights are merged one by one when they are read. An adapter that was
/// trained on a quantised base is added to the unquantised base, as is usual with PEFT: the quantisation error that it
/// was trained with is then gone, so the merged model is close to the trained one but not equal.
pub struct Merged<'a> {
    base: &'a dyn TensorSource,
    /// Whether embedding and head of the base share a weight.
    was_tied: bool,
    /// The model as it was before an earlier adapter was merged into `base`.
    original: Option<&'a dyn TensorSource>,
    /// What the adapter's change is multiplied by.
    strength: f64,
    attachment: RefCell<Attachment>,
    /// The adapters of the experts that were read last, by the name of all of them.
    experts: RefCell<(String, [Option<ExpertLora>; 2])>,
    /// Of the merged model: if embedding and head share a weight that the adapter changes for only one of them, it has
    /// two.
    config: DecoderConfig,
}

impl<'a> Merged<'a> {
    /// `base` with `adapter`.
    ///
    /// # Errors
    /// If the adapter is damaged.
    pub fn new(base: &'a Pretrained, adapter: PeftAdapter) -> Result<Self, Error> {
        Self::over(base.tensors.as_ref(), &base.config, (adapter, 1.0))
    }

    /// A model with this config with the change of an adapter, which is multiplied by a number.
    fn over(
        base: &'a dyn TensorSource,
        config: &DecoderConfig,
        (adapter, strength): (PeftAdapter, f64),
    ) -> Result<Self, Error> {
        let attachment = Attachment::saved(adapter)?;
        let mut config = config.clone();
        let was_tied = config.tie_word_embeddings;
        config.tie_word_embeddings &=
            !attachment.changes(EMBEDDING)? && !attachment.changes(HEAD)?;
        Ok(Self {
            base,
            original: None,
            was_tied,
            strength,
            attachment: RefCell::new(attachment),
            experts: RefCell::default(),
            config,
        })
    }

    /// The config of the merged model.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// If a part of the adapter belongs to no weight that was read.
    pub fn finish(self) -> Result<(), Error> {
        self.attachment.into_inner().finish()?;
        Ok(())
    }

    /// The change to the matrix `name` of an expert, if an adapter has one.
    fn change(&self, name: &str) -> Result<Option<Tensor>, Error> {
        let (Some((all, number, part)), Some(mixture)) = (expert(name), &self.config.experts)
        else {
            return Ok(None);
        };
        let Some(part) = part.strip_suffix(".weight") else {
            return Ok(None);
        };
        let sizes = mixture.sizes(self.config.hidden_size);
        let mut experts = self.experts.borrow_mut();
        if experts.0 != all {
            let mut adapter = self.attachment.borrow_mut();
            let parameters = &mut Parameters::default();
            let read = adapter.attach_experts(all, &sizes, Device::Cpu, parameters)?;
            *experts = (all.to_owned(), read);
        }
        let [gate_up, down] = &experts.1;
        let half = |start: i64| -> Result<Option<Tensor>, Error> {
            match gate_up {
                Some(both) => Ok(Some(both.change(number)?.f_narrow(
                    0,
                    start,
                    sizes.inner,
                )?)),
                None => Ok(None),
            }
        };
        match part {
            "gate_proj" => half(0),
            "up_proj" => half(sizes.inner),
            _ => down.as_ref().map(|down| down.change(number)).transpose(),
        }
    }

    /// The tensor of the base that `name` is made of.
    fn source<'n>(&self, name: &'n str) -> &'n str {
        match self.was_tied && name == HEAD_WEIGHT {
            true => EMBEDDING_WEIGHT,
            false => name,
        }
    }
}

impl TensorSource for Merged<'_> {
    fn path(&self) -> &Path {
        self.base.path()
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.base.names();
        if self.was_tied {
            names.retain(|name| name != HEAD_WEIGHT);
            if !self.config.tie_word_embeddings {
                names.push(HEAD_WEIGHT.to_owned());
            }
        }
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.base.shape(self.source(name))
    }

    fn is_mxfp4(&self, name: &str) -> bool {
        // With an adapter on it, it is no longer.
        let mut has_adapter = false;
        if let (true, Some((all, _, part))) = (self.base.is_mxfp4(name), expert(name)) {
            has_adapter = self.attachment.borrow().adapts_expert(all, part);
        }
        self.base.is_mxfp4(name) && !has_adapter
    }

    fn read_mxfp4(&self, name: &str) -> Result<Mxfp4, Error> {
        self.base.read_mxfp4(name)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        let mut weight = self.base.read(self.source(name), Kind::Float)?;
        if expert(name).is_some() {
            return match self.change(name)? {
                Some(change) => {
                    let change = change.f_mul_scalar(self.strength)?;
                    Ok(weight.f_add(&change)?.f_to_kind(kind)?)
                }
                None => self.base.read(name, kind),
            };
        }
        let mut adapter = self.attachment.borrow_mut();
        let mut parameters = Parameters::default();
        let module = name.strip_suffix(".weight").filter(|_| weight.dim() == 2);
        // The adapter may contain its own weight, for both if they share one.
        if let Some(table) = module.filter(|module| [EMBEDDING, HEAD].contains(module)) {
            let (table, tied) = match self.was_tied {
                true => (EMBEDDING, Some(HEAD)),
                false => (table, None),
            };
            match (adapter.table(table, &weight.size(), tied)?, self.original) {
                (Some(own), None) => weight = own,
                (Some(own), Some(original)) => {
                    // What an earlier adapter changed must not be lost: PEFT saves the unchanged weight with a change.
                    let stored = match original.shape(name) {
                        Some(_) => name,
                        None => EMBEDDING_WEIGHT,
                    };
                    let stored = original.read(stored, Kind::Float)?;
                    if !own.f_to_kind(Kind::Float)?.f_equal(&stored)? {
                        return Err(Error::Invalid(format!(
                            "an adapter has a `{module}` of its own, which differs from the model's: merge it as the first one",
                            module = table
                        )));
                    }
                }
                (None, _) => {}
            }
        }
        let place = (Device::Cpu, false);
        if let Some(whole) = adapter.trained_copy(name, &weight, place, &mut parameters)? {
            return Ok(whole.detach().f_to_kind(kind)?);
        }
        let scaled = |mut layer: LoraLayer| {
            layer.scaling *= self.strength;
            layer
        };
        let weight = match module {
            None => weight,
            Some(EMBEDDING) => {
                match adapter.attach_embedding(EMBEDDING, &weight, &mut parameters)? {
                    Some(layer) => scaled(layer)
                        .merged(&weight.f_tr()?)?
                        .f_tr()?
                        .f_contiguous()?,
                    None => weight,
                }
            }
            Some(module) => {
                let base = Weight::Dense(weight.shallow_clone());
                match adapter.attach(module, &base, Device::Cpu, &mut parameters)? {
                    Some(layer) => scaled(layer).merged(&weight)?,
                    None => weight,
                }
            }
        };
        Ok(weight.f_to_kind(kind)?)
    }
}

/// Writes `base` to the folder `target`, as `kind`, with the changes of all `adapters` merged into it, each multiplied by a
/// number: what PEFT's `add_weighted_adapter` gives with `combination_type="cat"`. Only one weight is in memory at a time.
///
/// # Errors
/// Those of [`Merged`]; if an adapter has more than changes that can be multiplied and added, unless it is the only one and
/// merged as it was trained; or if the folder cannot be written.
pub fn merge(
    base: &Pretrained,
    adapters: &[(PeftAdapter, f64)],
    target: &Path,
    kind: Kind,
) -> Result<(), Error> {
    if !matches!(adapters, [(_, 1.0)]) {
        for (adapter, _) in adapters {
            let config = adapter.config();
            for (is_set, key) in [
                (config.dora, "use_dora"),
                (config.bias != Biases::None, "bias"),
                (!config.modules_to_save.is_empty(), "modules_to_save"),
            ] {
                if is_set {
                    return Err(adapter.error(format!(
                        "`{key}` is no change that is multiplied or added to others: merge this adapter alone, with the strength 1"
                    )));
                }
            }
        }
    }
    let is_new = !target.exists();
    let source = (base.tensors.as_ref(), &base.config);
    let written = write_merged(base, source, adapters, target, kind);
    if written.is_err() && is_new {
        // What is half there would stand in the way of the next try.
        let _ = std::fs::remove_dir_all(target);
    }
    written
}

fn write_merged(
    base: &Pretrained,
    (source, config): (&dyn TensorSource, &DecoderConfig),
    adapters: &[(PeftAdapter, f64)],
    target: &Path,
    kind: Kind,
) -> Result<(), Error> {
    if let [first, rest @ ..] = adapters {
        let mut merged = Merged::over(source, config, first.clone())?;
        let original = base.tensors.as_ref();
        merged.original = (!std::ptr::addr_eq(source, original)).then_some(original);
        write_merged(base, (&merged, merged.config()), rest, target, kind)?;
        return merged.finish();
    }
    std::fs::create_dir_all(target).map_err(|error| Error::io("create", target, error))?;
    let tensors = source.names().into_iter().map(|name| {
        let tensor = LazyTensor::of(source, &name, kind)?;
        Ok((name, tensor))
    });
    let tensors = tensors.collect::<Result<Vec<_>, Error>>()?;
    write_weights(&target.join("model.safetensors"), config, tensors, None)?;
    base.write_companions(config, target, kind)
}
