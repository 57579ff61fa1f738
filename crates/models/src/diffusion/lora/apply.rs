//! A transformer's weights with LoRAs merged in.

use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use super::LoraFile;
use crate::Error;
use crate::formats::TensorSource;

/// The weights of `base`; the LoRAs are added to each tensor as it is read.
pub struct WithLoras {
    base: Box<dyn TensorSource>,
    /// Each with its strength.
    loras: Vec<(LoraFile, f64)>,
}

impl std::fmt::Debug for WithLoras {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithLoras")
            .field("base", &self.base.path())
            .field("loras", &self.loras.len())
            .finish_non_exhaustive()
    }
}

impl WithLoras {
    /// The weights of a transformer, under diffusers' names, with `loras` of the given strengths.
    pub fn new(base: Box<dyn TensorSource>, loras: Vec<(LoraFile, f64)>) -> Result<Self, Error> {
        for (lora, strength) in &loras {
            if !strength.is_finite() {
                return Err(Error::Invalid(format!("a LoRA of strength {strength}")));
            }
            for (name, module) in &lora.modules {
                let change = module.change.size().map(Some);
                let shape = base.shape(&format!("{name}.weight"));
                let rows = shape.as_ref().map(|shape| {
                    let columns = shape.iter().skip(1).product();
                    [shape.first().copied(), Some(columns)]
                });
                check(
                    base.path(),
                    name,
                    &format!("{change:?}"),
                    rows.map(|rows| rows == change),
                )?;
            }
            for (name, change) in &lora.differences {
                let shape = base.shape(name);
                let fits = shape.map(|shape| shape == change.size());
                check(base.path(), name, &format!("{:?}", change.size()), fits)?;
            }
        }
        Ok(Self { base, loras })
    }

    /// `tensor` with the changes of all LoRAs.
    fn changed(&self, name: &str, tensor: Tensor) -> Result<Tensor, Error> {
        let module = name.strip_suffix(".weight");
        let mut sum = tensor;
        for (lora, strength) in &self.loras {
            if let Some(module) = module.and_then(|module| lora.modules.get(module)) {
                sum = module.merged(&sum, *strength)?;
            }
            if let Some(change) = lora.differences.get(name) {
                sum = sum.f_add(&change.f_to_kind(Kind::Float)?.f_mul_scalar(*strength)?)?;
            }
        }
        Ok(sum)
    }

    fn is_changed(&self, name: &str) -> bool {
        let module = name.strip_suffix(".weight");
        self.loras.iter().any(|(lora, _)| {
            module.is_some_and(|module| lora.modules.contains_key(module))
                || lora.differences.contains_key(name)
        })
    }
}

fn check(path: &Path, name: &str, change: &str, fits: Option<bool>) -> Result<(), Error> {
    match fits {
        Some(true) => Ok(()),
        Some(false) => Err(Error::file(
            path,
            format!(
                "the LoRA changes `{name}` as if its shape were {change}, which it is not: the LoRA is for another model"
            ),
        )),
        None => Err(Error::file(
            path,
            format!(
                "the LoRA changes `{name}`, which this model does not have: the LoRA is for another model"
            ),
        )),
    }
}

impl TensorSource for WithLoras {
    fn path(&self) -> &Path {
        self.base.path()
    }

    fn weight_files(&self) -> Vec<PathBuf> {
        self.base.weight_files()
    }

    fn names(&self) -> Vec<String> {
        self.base.names()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.base.shape(name)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        if !self.is_changed(name) {
            return self.base.read(name, kind);
        }
        let tensor = self.base.read(name, Kind::Float)?;
        Ok(self.changed(name, tensor)?.f_to_kind(kind)?)
    }
}
