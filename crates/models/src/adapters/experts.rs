//! Adapters of experts: PEFT's `target_parameters` on the tensors in which transformers has all experts of a layer.
//!
//! ```text
//! lora_A [rank · experts, inputs]    of expert e: rows e · rank …
//! lora_B [outputs, rank · experts]   of expert e: every experts-th column, from the e-th
//! ```
//!
//! Gate and up are one tensor, so that they share their `A`.

use tch::{Device, Kind, Tensor};

use super::attachment::{Attachment, PREFIX, Part};
use super::layer::are_off;
use super::start::Start;
use crate::Error;
use crate::parameters::Parameters;
use crate::tensor::to_kind;

/// The experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSizes {
    /// How many there are.
    pub count: i64,
    /// Width of what goes in and comes out.
    pub hidden: i64,
    /// Inner width of each.
    pub inner: i64,
    /// Whether the outputs of gate and up take turns in transformers' tensor; otherwise those of up follow.
    pub alternating: bool,
}

/// The tensors of a layer's experts, each with its number of inputs and outputs: gate and up, and down.
pub(crate) const TENSORS: [&str; 2] = ["gate_up_proj", "down_proj"];

impl ExpertSizes {
    /// Inputs and outputs of the matrices in each of [`TENSORS`].
    pub(crate) fn matrices(&self) -> [(i64, i64); 2] {
        [(self.hidden, 2 * self.inner), (self.inner, self.hidden)]
    }
}

impl Attachment {
    /// The adapters for the experts `name`, on `device` and registered as trainable: those for gate and up, and for down, if
    /// they are targeted.
    ///
    /// # Errors
    /// If a saved adapter does not fit.
    pub(crate) fn attach_experts(
        &mut self,
        name: &str,
        sizes: &ExpertSizes,
        device: Device,
        parameters: &mut Parameters,
    ) -> Result<[Option<ExpertLora>; 2], Error> {
        let names = TENSORS.map(|tensor| format!("{name}.{tensor}"));
        self.experts.extend(names.clone());
        let [first, second] = names
            .each_ref()
            .map(|name| self.matcher.parameter_shape(name));
        // PEFT wraps the module once for each tensor.
        let inner = match (first, second) {
            (Some(_), Some(_)) => ".base_layer",
            _ => "",
        };
        let mut attached = [None, None];
        let places = [(first, inner), (second, "")]
            .into_iter()
            .zip(sizes.matrices());
        for (place, ((shape, wrapper), (inputs, outputs))) in places.enumerate() {
            let Some(shape) = shape else { continue };
            let rows = shape.rank * sizes.count;
            let part = |factor: &str, size: [i64; 2]| Part {
                name: format!("{PREFIX}{name}{wrapper}.{factor}.weight"),
                size: size.to_vec(),
                decay: true,
                device,
            };
            let mut matrix = |factor: &str, size: [i64; 2], start: Start| {
                self.register(&part(factor, size), parameters, || start.tensor(size))
            };
            let a = matrix("lora_A", [rows, inputs], Start::Uniform)?;
            let b = matrix("lora_B", [outputs, rows], Start::Zeros)?;
            self.parameters.push(names[place].clone());
            attached[place] = Some(ExpertLora {
                a,
                b,
                count: sizes.count,
                scaling: shape.scaling,
                compute: self.compute,
                alternating: sizes.alternating && place == 0,
            });
        }
        Ok(attached)
    }

    /// Whether there is one for the layer `part` (`up_proj.weight`) of the experts `name`.
    pub(crate) fn adapts_expert(&self, name: &str, part: &str) -> bool {
        let [gate_up, down] = TENSORS.map(|tensor| format!("{name}.{tensor}"));
        let tensor = match part.starts_with("down_proj") {
            true => down,
            false => gate_up,
        };
        self.matcher.parameter_shape(&tensor).is_some()
    }
}

/// Low-rank changes to the matrices of all experts of a layer that are one tensor.
#[derive(Debug)]
pub struct ExpertLora {
    /// `[rank · experts, inputs]`
    pub(super) a: Tensor,
    /// `[outputs, rank · experts]`
    pub(super) b: Tensor,
    pub(super) count: i64,
    /// `alpha / rank`, or `alpha / √rank`.
    pub(super) scaling: f64,
    /// The type of its products, if that of the experts is the same; otherwise they are in fp32.
    pub(super) compute: Kind,
    /// Whether rows of `B` of two matrices take turns.
    pub(super) alternating: bool,
}

impl ExpertLora {
    /// The rank.
    pub(crate) fn rank(&self) -> i64 {
        self.a.size().first().map_or(0, |rows| rows / self.count)
    }

    /// What it is scaled by.
    pub(crate) fn scaling(&self) -> f64 {
        self.scaling
    }

    /// `A` and `B` of each expert, `[experts, rank, inputs]` and `[experts, outputs, rank]`; of gate and up, the outputs
    /// of gate come first.
    ///
    /// # Errors
    /// If memory runs out.
    pub(crate) fn factors(&self, kind: Kind) -> Result<[Tensor; 2], Error> {
        let (count, rank) = (self.count, self.rank());
        let (a, b) = (to_kind(&self.a, kind)?, to_kind(&self.b, kind)?);
        let b = match self.alternating {
            false => b.f_view([-1, rank, count])?.f_permute([2, 0, 1])?,
            true => b
                .f_view([-1, 2, rank, count])?
                .f_permute([3, 1, 0, 2])?
                .f_flatten(1, 2)?,
        };
        Ok([a.f_view([count, rank, -1])?, b.f_contiguous()?])
    }

    /// `base`, the products of `rows` with the experts' matrices, with the change to them. The rows of expert *e* are from
    /// `bounds[e]` to `bounds[e + 1]`.
    ///
    /// # Errors
    /// If `bounds` are not those of `rows`, or memory runs out.
    pub(crate) fn forward(
        &self,
        base: Tensor,
        rows: &Tensor,
        bounds: &[i64],
    ) -> Result<Tensor, Error> {
        if are_off() {
            return Ok(base);
        }
        let compute = base.kind();
        let kind = match self.compute == compute {
            true => compute,
            false => Kind::Float,
        };
        let [a, b] = self.factors(kind)?;
        let counts: Vec<i64> = bounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let groups = to_kind(rows, kind)?.f_split_with_sizes(&counts, 0)?;
        let experts = a.f_unbind(0)?.into_iter().zip(b.f_unbind(0)?);
        let mut changes = Vec::with_capacity(groups.len());
        for (rows, (a, b)) in groups.iter().zip(experts) {
            if rows.size2()?.0 == 0 {
                continue;
            }
            let low = rows.f_linear(&a, None::<&Tensor>)?;
            let low = match self.scaling == 1.0 {
                true => low,
                false => low.f_mul_scalar(self.scaling)?,
            };
            changes.push(low.f_linear(&b, None::<&Tensor>)?);
        }
        if changes.is_empty() {
            return Ok(base);
        }
        let change = Tensor::f_cat(&changes, 0)?;
        to_kind(&to_kind(&base, kind)?.f_add(&change)?, compute)
    }

    /// The change to the matrix of expert `number`, `[outputs, inputs]` in fp32; of gate and up, that to gate comes first.
    ///
    /// # Errors
    /// If there is no such expert, or memory runs out.
    pub(crate) fn change(&self, number: i64) -> Result<Tensor, Error> {
        let _no_grad = tch::no_grad_guard();
        let [a, b] = self.factors(Kind::Float)?;
        let product = b.f_get(number)?.f_matmul(&a.f_get(number)?)?;
        Ok(product.f_mul_scalar(self.scaling)?)
    }

    /// A second handle to the same tensors.
    pub(crate) fn shallow_clone(&self) -> Self {
        Self {
            a: self.a.shallow_clone(),
            b: self.b.shallow_clone(),
            ..*self
        }
    }
}
