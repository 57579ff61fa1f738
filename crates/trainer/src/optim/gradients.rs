//! Gradients as values.
//!
//! A backward pass leaves its gradients in hidden fields of the parameters; they are
//! taken out at once, so that the first pass of a step is moved, not added to zeros,
//! and nothing has to be cleared.

use std::ops::Range;

use tch::Tensor;

use crate::Error;
use models::{Parameter, Parameters};

/// One gradient for each parameter that learns in a step, in the parameters' order.
#[derive(Debug, Default)]
pub struct Gradients {
    /// Empty before the first backward pass.
    list: Vec<Tensor>,
    /// Positions of these parameters; `None` for all.
    range: Option<Range<usize>>,
}

impl Gradients {
    /// Those of the parameters at these positions alone.
    pub fn of(range: Range<usize>) -> Self {
        Self {
            list: Vec::new(),
            range: Some(range),
        }
    }

    /// Positions of the parameters that these are of, out of `count`.
    pub fn range(&self, count: usize) -> Range<usize> {
        self.range.clone().unwrap_or(0..count)
    }

    /// The parameters that these are of.
    pub fn of_parameters<'a>(
        &self,
        parameters: &'a Parameters,
    ) -> impl Iterator<Item = &'a Parameter> + use<'a> {
        let range = self.range(parameters.iter().len());
        parameters.iter().skip(range.start).take(range.len())
    }

    /// Adds the gradients of `loss` (a scalar) to these.
    ///
    /// # Errors
    /// When a parameter had no part in the loss, or memory runs out.
    pub fn accumulate(&mut self, loss: &Tensor, parameters: &Parameters) -> Result<(), Error> {
        // Not into chosen inputs: backward would then pass by checkpointed blocks.
        torch_ext::backward(loss)?;
        let fresh = self
            .of_parameters(parameters)
            .map(|parameter| {
                let gradient = torch_ext::take_gradient(&mut parameter.tensor.shallow_clone())?;
                let name = &parameter.name;
                gradient.ok_or_else(|| Error::Internal(format!("`{name}` has no part in the loss")))
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

    /// Drops what a backward pass that failed has left in the parameters.
    ///
    /// # Errors
    /// When libtorch refuses.
    pub fn discard(parameters: &Parameters) -> Result<(), Error> {
        for parameter in parameters.iter() {
            torch_ext::take_gradient(&mut parameter.tensor.shallow_clone())?;
        }
        Ok(())
    }

    /// The norm of all gradients as one vector: a float32 scalar on the device. It is finite
    /// only when every gradient is.
    ///
    /// # Errors
    /// When there was no backward pass.
    pub fn norm(&self) -> Result<Tensor, Error> {
        Ok(torch_ext::optimizer::total_norm(&self.list)?)
    }

    /// Scales the gradients, whose norm is `norm`, down to `max_norm` if they are longer, as
    /// `torch.nn.utils.clip_grad_norm_`; 0 leaves them.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clip(&mut self, norm: f64, max_norm: f64) -> Result<(), Error> {
        // PyTorch's margin, below which its coefficient would be 1.
        if max_norm > 0.0 && norm + 1e-6 > max_norm {
            let _ = torch_ext::optimizer::clip_norm(&self.list, max_norm)?;
        }
        Ok(())
    }

    /// Takes other values, which lie behind one another in `flat`.
    ///
    /// # Errors
    /// When there are too few.
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

    /// The gradients in the order of their parameters.
    pub fn tensors(&self) -> &[Tensor] {
        &self.list
    }
}
