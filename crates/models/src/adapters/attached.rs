//! What an [`Attachment`](super::Attachment) has attached to a model.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use tch::{Device, Kind, Tensor};

use super::attachment::PREFIX;
use super::change::Change;
use super::config::{Biases, LoraConfig, Matcher, Modules};
use super::module::LoraModule;
use super::naming::{Naming, exactly};
use super::peft::PeftAdapter;
use crate::Error;
use crate::formats::{TensorSource, require_finite};
use crate::parameters::Parameters;

/// The adapters that were attached to a model.
#[derive(Debug)]
pub struct Attached {
    /// Their config, reduced to entries that match this model.
    pub config: LoraConfig,
    /// The layers that have an adapter, in model order.
    pub modules: Vec<String>,
    /// The tensors of experts that have one, in model order.
    pub parameters: Vec<String>,
    /// The modules that are trained in full (`modules_to_save`), in model order.
    pub saved_modules: Vec<String>,
    /// The config as it was, with what it calls modules.
    pub(super) matcher: Matcher,
    /// Frozen embeddings and heads that PEFT saves with the adapter, by their names in its files.
    pub(super) tables: Vec<(String, Tensor)>,
    /// What the base has lost to the adapters, by the names of their matrices.
    pub(super) taken: Vec<(String, Tensor)>,
}

impl Attached {
    /// Their name for people.
    pub fn name(&self) -> &'static str {
        match self.config.dora {
            true => "DoRA",
            false => self.config.kind.name(),
        }
    }

    /// The trained change of the layer `name`, in fp32 on the CPU; `parameters` has its tensors.
    ///
    /// # Errors
    /// If there is none.
    pub fn module(&self, name: &str, parameters: &Parameters) -> Result<LoraModule, Error> {
        let take = |part: &str| {
            let name = format!("{PREFIX}{name}.{part}");
            let mut all = parameters.iter();
            all.find(|parameter| parameter.name == name)
                .map(|parameter| parameter.tensor.detach().to_device(Device::Cpu))
        };
        let change =
            Change::of(take).map_err(|reason| Error::Internal(format!("`{name}` {reason}")))?;
        let shape = self.matcher.shape(name);
        let scaling = shape.map_or(1.0, |shape| shape.scaling);
        LoraModule::scaled(change, scaling, take("lora_magnitude_vector"))
    }
}

impl Attached {
    /// Its config for a model whose modules have the names of `naming`. Where that or the config is of a part of a larger
    /// model, what it selects is written out, so that the same words select nothing in other parts.
    /// An adapter that the base has lost a part to is written with twice the rank: see [`Attached::restoring`].
    pub(super) fn config_for(&self, naming: Naming) -> LoraConfig {
        let mut config = self.own_config_for(naming);
        if !self.taken.is_empty() {
            // With the same scale.
            let more = if config.rslora { 2f64.sqrt() } else { 2.0 };
            config.rank *= 2;
            config.alpha *= more;
            config.rank_pattern.values_mut().for_each(|rank| *rank *= 2);
            let alphas = config.alpha_pattern.values_mut();
            alphas.for_each(|alpha| *alpha *= more);
        }
        config
    }

    /// The matrix `name` of an adapter for the base without what it has lost, `None` if it is `tensor` itself: beside what was
    /// trained stands what the base lost, with the opposite sign, as PEFT converts PiSSA.
    pub(super) fn restoring(&self, name: &str, tensor: &Tensor) -> Result<Option<Tensor>, Error> {
        let (axis, sign) = match name {
            _ if self.taken.is_empty() => return Ok(None),
            name if name.ends_with(".lora_A.weight") => (0, 1.0),
            name if name.ends_with(".lora_embedding_A") => (0, 1.0),
            name if name.ends_with(".lora_B.weight") => (1, -1.0),
            name if name.ends_with(".lora_embedding_B") => (1, -1.0),
            _ => return Ok(None),
        };
        let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?;
        let taken = self.taken.iter().find(|(taken, _)| taken == name);
        let taken = match taken {
            Some((_, taken)) => taken.f_mul_scalar(sign)?,
            None => tensor.f_zeros_like()?,
        };
        Ok(Some(Tensor::f_cat(&[tensor, taken], axis)?))
    }

    fn own_config_for(&self, naming: Naming) -> LoraConfig {
        let (config, matcher) = (&self.config, &self.matcher);
        if [naming, matcher.naming()] == [Naming::ALONE; 2] {
            return config.clone();
        }
        let theirs = |names: &[String]| -> Vec<String> {
            names.iter().map(|name| naming.theirs(name)).collect()
        };
        let modules = theirs(&self.modules);
        let (mut rank_pattern, mut alpha_pattern) = (IndexMap::new(), IndexMap::new());
        for name in self.modules.iter().chain(&self.parameters) {
            let (rank, alpha) = matcher.rank_and_alpha(&matcher.naming().theirs(name));
            let key = regex::escape(&naming.theirs(name));
            if rank != config.rank {
                rank_pattern.insert(key.clone(), rank);
            }
            if alpha != config.alpha {
                alpha_pattern.insert(key, alpha);
            }
        }
        LoraConfig {
            target_modules: match modules.is_empty() {
                true => Modules::Suffixes(Vec::new()),
                false => Modules::from_text(&exactly(&modules))
                    .unwrap_or_else(|_| Modules::Suffixes(modules)),
            },
            target_parameters: theirs(&self.parameters),
            modules_to_save: theirs(&self.saved_modules),
            exclude_modules: None,
            layers: None,
            rank_pattern,
            alpha_pattern,
            ..config.clone()
        }
    }
}

impl PeftAdapter {
    /// Reads one of the adapter's tensors, which must have this size.
    pub(super) fn read(&self, name: &str, size: &[i64]) -> Result<Tensor, Error> {
        let file = self.tensors();
        let name = &self.stored_name(name);
        match file.shape(name) {
            Some(found) if found == size => {
                let tensor = file.read(name, Kind::Float)?;
                require_finite(file, name, &tensor)?;
                Ok(tensor)
            }
            Some(found) => Err(self.error(format!(
                "`{name}` is {found:?}, but this model needs {size:?}: the adapter is for another model"
            ))),
            None => Err(self.error(format!(
                "`{name}` is missing, which its config and this model require"
            ))),
        }
    }

    /// Fails if the file has weights other than `used`.
    pub(super) fn expect_only(&self, used: &BTreeSet<String>) -> Result<(), Error> {
        // With `bias: all`, PEFT writes the biases of modules in `modules_to_save` three times: the original,
        // the trained copy, and under the name it reads them from.
        let copies = [".original_module.", ".modules_to_save."];
        let is_copy = |name: &str| {
            self.config().bias == Biases::All
                && name.ends_with(".bias")
                && copies.iter().any(|copy| name.contains(copy))
        };
        let mut others = false;
        for name in self.tensors().names() {
            let ours = match name.strip_prefix(PREFIX) {
                Some(module) => (self.naming().ours(module)).map(|ours| format!("{PREFIX}{ours}")),
                None => Some(name.clone()),
            };
            match ours {
                None => others = true,
                Some(ours) if used.contains(&ours) || is_copy(&name) => {}
                Some(_) => {
                    return Err(self.error(format!("`{name}` does not exist in this model")));
                }
            }
        }
        if others {
            tracing::warn!(
                "what the adapter has for other parts of the model, such as those for pictures, is not used, and will not be \
                 in what is saved"
            );
        }
        Ok(())
    }
}
