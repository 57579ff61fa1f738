//! Putting adapters on a model while it is built.

use tch::{Device, Kind, Tensor};

use super::config::{LoraConfig, Matcher, Shape};
use super::layer::{Dora, LoraLayer};
use super::peft::PeftAdapter;
use crate::Error;
use crate::model::{Parameters, Weight};
use crate::weights::TensorSource;

/// Prefix of every name in PEFT's files.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Puts an adapter on each layer that a config targets.
pub struct Attachment {
    matcher: Matcher,
    /// Weights of an adapter that exists already.
    saved: Option<PeftAdapter>,
    attached: Vec<String>,
    seen: Vec<String>,
}

impl Attachment {
    /// Fresh adapters, which change nothing yet. `A` is drawn from the global random
    /// generator on the CPU, so that the same seed gives the same adapter everywhere.
    ///
    /// # Errors
    /// When the config makes no sense; which key, and what would be right.
    pub fn fresh(config: &LoraConfig) -> Result<Self, Error> {
        Ok(Self {
            matcher: Matcher::new(config).map_err(Error::Data)?,
            saved: None,
            attached: Vec::new(),
            seen: Vec::new(),
        })
    }

    /// The adapter that somebody saved.
    ///
    /// # Errors
    /// When its config makes no sense.
    pub fn saved(adapter: PeftAdapter) -> Result<Self, Error> {
        Ok(Self {
            saved: Some(adapter.clone()),
            ..Self::fresh(adapter.config())?
        })
    }

    /// Probability with which an input of an adapter is left out in training.
    pub fn dropout(&self) -> f64 {
        self.matcher.config().dropout
    }

    /// The adapter for the layer called `name`, if it is targeted, on `device`, registered as
    /// trainable.
    ///
    /// # Errors
    /// When the saved adapter lacks it or has it in another shape, or memory runs out.
    pub(crate) fn attach(
        &mut self,
        name: &str,
        weight: &Weight,
        device: Device,
        parameters: &mut Parameters,
    ) -> Result<Option<LoraLayer>, Error> {
        self.seen.push(name.to_owned());
        let Some(shape) = self.matcher.shape(name) else {
            return Ok(None);
        };
        self.attached.push(name.to_owned());
        let (outputs, inputs) = weight.size();
        let config = self.matcher.config();
        let mut register = |part: &str, size: &[i64], fresh: &dyn Fn() -> Result<Tensor, Error>| {
            let name = format!("{PREFIX}{name}.{part}");
            let tensor = match &self.saved {
                Some(saved) => saved.read(&name, size)?,
                None => fresh()?,
            };
            let tensor = tensor.f_to_device(device)?;
            // Hugging Face's Trainer decays all parts of an adapter.
            parameters.register(&name, &tensor, true)
        };
        let Shape { rank, scaling } = shape;
        let a = register("lora_A.weight", &[rank, inputs], &|| {
            // PyTorch's `kaiming_uniform_(a=√5)`, which PEFT draws A from.
            let bound = 1.0 / (inputs as f64).sqrt();
            let zeros = Tensor::f_zeros([rank, inputs], (Kind::Float, Device::Cpu))?;
            Ok(zeros.f_uniform(-bound, bound)?)
        })?;
        let b = register("lora_B.weight", &[outputs, rank], &|| {
            Ok(Tensor::f_zeros(
                [outputs, rank],
                (Kind::Float, Device::Cpu),
            )?)
        })?;
        let dora = match config.dora {
            false => None,
            true => {
                let base_squares = Dora::squares(weight)?;
                // B is zero, so the whole weight is the base.
                let magnitude = register("lora_magnitude_vector", &[outputs], &|| {
                    Ok(base_squares.f_sqrt()?)
                })?;
                Some(Dora {
                    magnitude,
                    base_squares,
                })
            }
        };
        Ok(Some(LoraLayer {
            a,
            b,
            scaling,
            dropout: config.dropout,
            dora,
        }))
    }

    /// To be called when the model is complete.
    ///
    /// # Errors
    /// When no layer was targeted, or the saved adapter has weights for layers that this
    /// model lacks.
    pub fn finish(self) -> Result<Attached, Error> {
        if self.attached.is_empty() {
            let mut layers: Vec<&str> = self
                .seen
                .iter()
                .map(|name| name.rsplit('.').next().unwrap_or(name))
                .collect();
            layers.sort_unstable();
            layers.dedup();
            return Err(Error::Data(format!(
                "the adapter's target modules match no layer of this model; its linear layers are {}",
                layers.join(", ")
            )));
        }
        if let Some(saved) = &self.saved {
            saved.expect_only(&self.attached)?;
        }
        Ok(Attached {
            config: self.matcher.config().clone(),
            modules: self.attached,
        })
    }
}

/// Adapters that are on a model.
#[derive(Debug, Clone)]
pub struct Attached {
    /// What they are made of.
    pub config: LoraConfig,
    /// The layers they are on, in the order of the model.
    pub modules: Vec<String>,
}

impl PeftAdapter {
    /// Reads one of its tensors, which must have this size.
    fn read(&self, name: &str, size: &[i64]) -> Result<Tensor, Error> {
        let file = self.tensors();
        match file.shape(name) {
            Some(found) if found == size => Ok(file.read(name, Kind::Float)?),
            Some(found) => Err(self.error(format!(
                "`{name}` is {found:?}, and this model needs {size:?}: it was made for another model"
            ))),
            None => Err(self.error(format!(
                "there is no `{name}`, which its config and this model ask for"
            ))),
        }
    }

    /// Fails when the file has weights for layers beside `modules`.
    fn expect_only(&self, modules: &[String]) -> Result<(), Error> {
        let known = |name: &str| {
            let layer = name.strip_prefix(PREFIX).and_then(|name| {
                ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"]
                    .iter()
                    .find_map(|part| name.strip_suffix(part)?.strip_suffix('.'))
            });
            layer.is_some_and(|layer| modules.iter().any(|module| module == layer))
        };
        match self.tensors().names().iter().find(|name| !known(name)) {
            Some(name) => Err(self.error(format!("`{name}` has no place in this model"))),
            None => Ok(()),
        }
    }
}
