//! How the matrices of a new adapter begin: as nothing, as the principal components of the weights, or as what quantisation
//! has lost of them.

use tch::{Device, Kind, Tensor};

use super::attachment::{Attachment, PREFIX};
use super::config::RankAndScaling;
use super::low_rank::{Keep, low_rank};
use crate::Error;
use crate::weight::Weight;

/// How a new LoRA begins, by PEFT's names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Init {
    /// It changes nothing.
    #[default]
    Default,
    /// It is the principal components of the weight, which the base loses (Meng et al., 2024).
    Pissa,
    /// It is the principal components of what quantisation has lost of the weight (Li et al., 2023), in one iteration, so that
    /// the base is the quantised weight as without it.
    Loftq,
}

/// What a new matrix contains.
pub(super) enum Start {
    Zeros,
    /// PyTorch's `kaiming_uniform_(a=√5)`.
    Uniform,
    Normal,
    Given(Tensor),
}

impl Start {
    pub(super) fn tensor(self, size: [i64; 2]) -> Result<Tensor, Error> {
        let options = (Kind::Float, Device::Cpu);
        let bound = 1.0 / (size[1] as f64).sqrt();
        Ok(match self {
            Self::Zeros => Tensor::f_zeros(size, options)?,
            Self::Uniform => Tensor::f_zeros(size, options)?.f_uniform(-bound, bound)?,
            Self::Normal => Tensor::f_randn(size, options)?,
            Self::Given(tensor) => tensor,
        })
    }
}

impl Attachment {
    /// Lets new LoRAs on linear layers other than the head begin as `init` says.
    #[must_use]
    pub fn starting(mut self, init: Init) -> Self {
        self.init = init;
        self
    }

    /// What is left of `dense`, the weight of the linear layer `name`, if its LoRA begins as a part of it.
    pub(crate) fn take_principal(
        &mut self,
        name: &str,
        dense: &Tensor,
    ) -> Result<Option<Tensor>, Error> {
        let Some(shape) = self.beginning(Init::Pissa, name, dense) else {
            return Ok(None);
        };
        let whole = full(dense)?;
        let [a, b] = self.begin(name, shape, &whole)?;
        let rest = whole.f_sub(&b.f_matmul(&a)?.f_mul_scalar(shape.scaling)?)?;
        Ok(Some(
            rest.f_to_kind(dense.kind())?.f_to_device(dense.device())?,
        ))
    }

    /// Lets the LoRA of the linear layer `name` begin as a part of what `stored` has lost of the weight `dense`, if it does so.
    pub(crate) fn take_lost(
        &mut self,
        name: &str,
        dense: &Tensor,
        stored: &Weight,
    ) -> Result<(), Error> {
        if let Some(shape) = self.beginning(Init::Loftq, name, dense) {
            let lost = full(dense)?.f_sub(&full(&stored.dense(Kind::Float)?)?)?;
            self.begin(name, shape, &lost).map(drop)?;
        }
        Ok(())
    }

    /// Rank and scale of the LoRA of the layer `name`, if it is new and begins as `init` says. One with fewer components than
    /// the rank, such as a gate with one output, begins as without `init`.
    fn beginning(&self, init: Init, name: &str, dense: &Tensor) -> Option<RankAndScaling> {
        if self.init != init || self.saved.is_some() || self.left_out.contains(name) {
            return None;
        }
        let most = dense.size().into_iter().min().unwrap_or(0);
        let shape = self.matcher.shape(name);
        shape.filter(|shape| shape.rank <= most)
    }

    /// The matrices `A` and `B` of the LoRA of the layer `name`, which is to be built next: the principal components of `matrix`.
    fn begin(
        &mut self,
        name: &str,
        shape: RankAndScaling,
        matrix: &Tensor,
    ) -> Result<[Tensor; 2], Error> {
        let (found, _) = low_rank(&matrix.f_div_scalar(shape.scaling)?, Keep::Rank(shape.rank))?;
        let Some([a, b]) = found.factors() else {
            return Err(Error::Internal("a low rank without factors".into()));
        };
        for (part, matrix) in [("lora_A", &a), ("lora_B", &b)] {
            let name = format!("{PREFIX}{name}.{part}.weight");
            self.taken.push((name, matrix.copy()));
        }
        let both = || [a.shallow_clone(), b.shallow_clone()];
        self.begun = Some((name.to_owned(), both()));
        Ok(both())
    }
}

/// In fp32 on the CPU, where the same numbers give the same components.
fn full(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?)
}
