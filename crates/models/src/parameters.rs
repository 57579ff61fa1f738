//! The trainable tensors of a model, by name.

use tch::Tensor;

use crate::Error;

/// A trainable tensor.
#[derive(Debug)]
pub struct Parameter {
    /// Its name in Hugging Face's files.
    pub name: String,
    /// The leaf tensor; the model holds a handle to the same storage.
    pub tensor: Tensor,
    /// Whether weight decay applies: to matrices, but not to norms, biases and embeddings.
    pub decay: bool,
}

/// All trainable tensors, in the order in which the model was built.
#[derive(Debug, Default)]
pub struct Parameters {
    list: Vec<Parameter>,
    /// Tensors that are saved with a model that is trained in full, and are not trained.
    constants: Vec<(String, Tensor)>,
}

impl Parameters {
    /// Makes a tensor trainable and records it.
    ///
    /// # Errors
    /// If the tensor's type cannot have a gradient, such as integers.
    pub fn register(&mut self, name: &str, tensor: &Tensor, decay: bool) -> Result<Tensor, Error> {
        let tensor = tensor.f_set_requires_grad(true)?;
        let kept = tensor.shallow_clone();
        self.list.push(Parameter {
            name: name.to_owned(),
            tensor: kept,
            decay,
        });
        Ok(tensor)
    }

    /// Records a tensor that is part of a model that is trained in full, but not trained.
    pub(crate) fn hold(&mut self, name: &str, tensor: &Tensor) {
        self.constants
            .push((name.to_owned(), tensor.shallow_clone()));
    }

    /// All tensors of a model that is trained in full, each with its name.
    pub fn whole(&self) -> Vec<(String, &Tensor)> {
        let mut all = self.named();
        let constants = self.constants.iter();
        all.extend(constants.map(|(name, tensor)| (name.clone(), tensor)));
        all
    }

    /// Appends the parameters of `other`, with `prefix` before their names.
    pub fn extend(&mut self, prefix: &str, other: &Self) {
        self.list.extend(other.iter().map(|parameter| Parameter {
            name: format!("{prefix}{}", parameter.name),
            tensor: parameter.tensor.shallow_clone(),
            decay: parameter.decay,
        }));
    }

    /// The parameters in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Parameter> {
        self.list.iter()
    }

    /// The tensors in order, each with its name.
    pub fn named(&self) -> Vec<(String, &Tensor)> {
        let named = |parameter: &Parameter| parameter.name.clone();
        self.iter().map(|p| (named(p), &p.tensor)).collect()
    }

    /// The tensors in order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.list.iter().map(|parameter| &parameter.tensor)
    }

    /// Number of trained values.
    pub fn count(&self) -> u64 {
        self.tensors().map(|tensor| tensor.numel() as u64).sum()
    }
}
