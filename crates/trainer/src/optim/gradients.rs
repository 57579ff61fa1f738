//! Gradients as values.
//!
//! A backward pass leaves its gradients in hidden fields of the parameters. They are taken out at once, so
//! the first pass of a step is moved instead of added to zeros, and nothing has to be cleared.

use std::ops::Range;

use tch::Tensor;

use crate::Error;
use models::{Parameter, Parameters};

/// One gradient per parameter that is trained in a step, in the parameters' order.
#[derive(Debug, Default)]
pub struct Gradients {
    /// Empty before the first backward pass.
    list: Vec<Tensor>,
    /// Indices of these parameters; `None` for all.
    range: Option<Range<usize>>,
}

impl Gradients {
    /// Gradients of the parameters with these indices.
    pub fn of(range: Range<usize>) -> Self {
        Self {
            list: Vec::new(),
            range: Some(range),
        }
    }

    /// Indices of its parameters, out of `count`.
    pub fn range(&self, count: usize) -> Range<usize> {
        self.range.clone().unwrap_or(0..count)
    }

    /// Its parameters.
    pub fn of_parameters<'a>(
        &self,
        parameters: &'a Parameters,
    ) -> impl Iterator<Item = &'a Parameter> + use<'a> {
        let range = self.range(parameters.iter().len());
        parameters.iter().skip(range.start).take(range.len())
    }

    /// Adds the gradients of `loss` (a scalar).
    ///
    /// # Errors
    /// If a parameter does not contribute to the loss, or memory runs out.
    pub fn accumulate(&mut self, loss: &Tensor, parameters: &Parameters) -> Result<(), Error> {
        // Not with respect to selected inputs, which would skip checkpointed blocks.
        torch_ext::backward(loss)?;
        let fresh = self
            .of_parameters(parameters)
            .map(|parameter| {
                let gradient = torch_ext::take_gradient(&mut parameter.tensor.shallow_clone())?;
                let name = &parameter.name;
                gradient.ok_or_else(|| {
                    Error::Internal(format!("`{name}` does not contribute to the loss"))
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        if self.list.is_empty() {
            self.list = fresh;
            return Ok(());
        }
        for (sum, gradient) in self.list.iter_mut().zip(&fresh) {
            let _ = sum.f_add_(gradient)?;
        }
        Ok(())
    }

    /// Puts the sums so far back into the parameters, so that the next backward pass adds to them there, and
    /// leaves the sums of all passes.
    pub(crate) fn put_back(&mut self, parameters: &Parameters) -> Result<(), Error> {
        let sums = std::mem::take(&mut self.list);
        for (parameter, sum) in self.of_parameters(parameters).zip(&sums) {
            torch_ext::put_gradient(&mut parameter.tensor.shallow_clone(), sum)?;
        }
        Ok(())
    }

    /// Drops what a failed backward pass has left in the parameters.
    pub fn discard(parameters: &Parameters) -> Result<(), Error> {
        for parameter in parameters.iter() {
            torch_ext::take_gradient(&mut parameter.tensor.shallow_clone())?;
        }
        Ok(())
    }

    /// The norm of all gradients as one vector: a float32 scalar on the device. It is finite only if all
    /// gradients are.
    pub fn norm(&self) -> Result<Tensor, Error> {
        Ok(torch_ext::optimizer::total_norm(&self.list)?)
    }

    /// Scales the gradients, whose norm is `norm`, down to `max_norm` if they exceed it, like
    /// `torch.nn.utils.clip_grad_norm_`; 0 disables clipping.
    pub fn clip(&mut self, norm: f64, max_norm: f64) -> Result<(), Error> {
        // PyTorch's margin, below which its coefficient is clamped to 1.
        if max_norm > 0.0 && norm + 1e-6 > max_norm {
            let _ = torch_ext::optimizer::clip_norm(&self.list, max_norm)?;
        }
        Ok(())
    }

    /// Overwrites the gradients with the values in `flat`, concatenated in order.
    pub(crate) fn fill(&mut self, flat: &Tensor) -> Result<(), Error> {
        let mut start = 0;
        for gradient in &mut self.list {
            let length = gradient.numel() as i64;
            let values = flat.f_narrow(0, start, length)?;
            gradient.f_copy_(&values.f_reshape(gradient.size())?)?;
            start += length;
        }
        Ok(())
    }

    /// The gradients in parameter order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.list
    }
}
