//! What an [`Attachment`](super::Attachment) has attached to a model.

use tch::{Device, Tensor};

use super::attachment::PREFIX;
use super::change::Change;
use super::config::{LoraConfig, Matcher};
use super::module::LoraModule;
use crate::Error;
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
