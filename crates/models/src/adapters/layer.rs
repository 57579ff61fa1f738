//! One layer's adapter: what it adds to the layer's output.

use std::cell::Cell;

use tch::{Kind, Tensor};

use super::change::Change;
use crate::Error;
use crate::tensor::{BaseMap, to_kind};
use crate::weight::Weight;

thread_local! {
    /// How many [`AdaptersOff`] there are.
    static OFF: Cell<u32> = const { Cell::new(0) };
}

/// While it exists, models on this thread compute as if they had no adapters, as in PEFT's `disable_adapter`. Biases and
/// modules that are trained in full stay as they are.
#[derive(Debug)]
#[must_use = "adapters are on again when it is dropped"]
pub struct AdaptersOff(());

impl AdaptersOff {
    /// Turns them off.
    #[expect(clippy::new_without_default, reason = "it is a guard")]
    pub fn new() -> Self {
        OFF.with(|off| off.set(off.get() + 1));
        Self(())
    }
}

impl Drop for AdaptersOff {
    fn drop(&mut self) {
        OFF.with(|off| off.set(off.get() - 1));
    }
}

pub(super) fn are_off() -> bool {
    OFF.with(|off| off.get() > 0)
}

/// A change beside a frozen weight `W`, scaled; with DoRA also the magnitude of each row.
#[derive(Debug)]
pub struct LoraLayer {
    /// What is added to the weight: `B·A`, if it is a LoRA.
    pub change: Change,
    /// `alpha / rank`, or `alpha / √rank`.
    pub scaling: f64,
    /// Dropout probability of the input in training.
    pub dropout: f64,
    /// The type of its products, if that of the layer is the same; otherwise they are in fp32, as its matrices always are.
    pub compute: Kind,
    /// Set for DoRA.
    pub dora: Option<Dora>,
}

/// The additional state of DoRA.
#[derive(Debug)]
pub struct Dora {
    /// `[outputs]`: the trained norm of each row of the adapted weight.
    pub magnitude: Tensor,
    /// `[outputs]`: the squared norm of each row of `W`, a constant.
    pub base_squares: Tensor,
}

impl LoraLayer {
    /// The output with the adapted weight, `x · (W + scaling · change)ᵀ + bias`: `[…, inputs]` to `[…,
    /// outputs]`, in the type of `base`'s product, which is also that of `bias`.
    pub fn forward(
        &self,
        input: &Tensor,
        base: (&Weight, Kind),
        bias: Option<&Tensor>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        if are_off() {
            return base.0.product(input, bias, base.1);
        }
        let size = input.size();
        let [outputs, inputs] = self.change.size();
        let rows = input.f_reshape([-1, inputs])?;
        let kind = self.kind(base.1);
        let dropped = match dropout && self.dropout > 0.0 {
            true => Some(to_kind(&rows, kind)?.f_dropout(self.dropout, true)?),
            false => None,
        };
        let result = match &self.dora {
            None => self.plain(&rows, dropped.as_ref(), base, bias)?,
            Some(dora) => self.dora(dora, &rows, dropped.as_ref(), base, bias)?,
        };
        let mut size = size;
        if let Some(last) = size.last_mut() {
            *last = outputs;
        }
        Ok(to_kind(&result, base.1)?.f_view(size.as_slice())?)
    }

    /// The adapted embedding of `tokens`. `rows` (fp32) is their lookup in the frozen weight (`base`: the
    /// weight and the type of its products); this adapter is that of the transposed weight. The row of the
    /// token `padding` learns nothing. As in PEFT, there is no dropout.
    pub(crate) fn embed(
        &self,
        rows: &Tensor,
        (weight, compute): (&Tensor, Kind),
        tokens: &Tensor,
        padding: i64,
    ) -> Result<Tensor, Error> {
        if are_off() {
            return Ok(rows.shallow_clone());
        }
        let (a, b) = self.factors()?;
        let low = Tensor::f_embedding(&a.f_tr()?, tokens, padding, false, false)?;
        let change = low.f_matmul(&b.f_tr()?)?.f_mul_scalar(self.scaling)?;
        let whole = rows.f_add(&change)?;
        match &self.dora {
            None => Ok(whole),
            Some(dora) => {
                let norm = self.row_norms(dora, &Weight::Dense(weight.f_tr()?), compute)?;
                Ok(whole.f_mul(&dora.magnitude.f_div(&norm)?)?)
            }
        }
    }

    fn plain(
        &self,
        rows: &Tensor,
        dropped: Option<&Tensor>,
        (weight, compute): (&Weight, Kind),
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let kind = self.kind(compute);
        let rows = &match kind == compute {
            // One copy for both products.
            true => to_kind(rows, kind)?,
            false => rows.shallow_clone(),
        };
        let base = weight.product(rows, bias, compute)?;
        let adapted = dropped.unwrap_or(rows);
        // The product is not shared, and its backward pass does not need it, so the change is added in place.
        let mut base = to_kind(&base, kind)?;
        match &self.change {
            Change::Lora { a, b } => {
                let low = self.low(a, adapted, kind)?;
                Ok(base.f_addmm_(&low, &to_kind(b, kind)?.f_tr()?)?)
            }
            change => Ok(base.f_add_(&change.apply(adapted, self.scaling, kind)?)?),
        }
    }

    /// The matrices of a LoRA: no other change is that of an embedding.
    fn factors(&self) -> Result<(&Tensor, &Tensor), Error> {
        match &self.change {
            Change::Lora { a, b } => Ok((a, b)),
            _ => Err(Error::Internal("only a LoRA has two matrices".into())),
        }
    }

    /// The type of its products, where those of the layer are in `compute`.
    pub(crate) fn kind(&self, compute: Kind) -> Kind {
        match self.compute == compute && self.dora.is_none() {
            true => compute,
            false => Kind::Float,
        }
    }

    /// The scaled input of `B`: `[rows, rank]` in the type `kind`.
    fn low(&self, a: &Tensor, rows: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        let low = to_kind(rows, kind)?.f_linear(&to_kind(a, kind)?, None::<&Tensor>)?;
        match self.scaling == 1.0 {
            true => Ok(low),
            false => Ok(low.f_mul_scalar(self.scaling)?),
        }
    }

    /// As PEFT computes it: `m/‖W + s·B·A‖` scales the rows, with the norm detached from the graph; with
    /// dropout, the base product is kept unscaled by it.
    fn dora(
        &self,
        dora: &Dora,
        rows: &Tensor,
        dropped: Option<&Tensor>,
        (weight, compute): (&Weight, Kind),
        bias: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let norm = self.row_norms(dora, weight, compute)?;
        let scale = dora.magnitude.f_div(&norm)?;
        let product = |rows: &Tensor| -> Result<Tensor, Error> {
            to_kind(&weight.product(rows, None, compute)?, Kind::Float)
        };
        let change = |rows: &Tensor| self.change.apply(rows, self.scaling, Kind::Float);
        let result = match dropped {
            None => product(rows)?.f_add(&change(rows)?)?.f_mul(&scale)?,
            Some(dropped) => {
                let turned = product(dropped)?.f_mul(&scale.f_sub_scalar(1.0)?)?;
                let changed = change(dropped)?.f_mul(&scale)?;
                product(rows)?.f_add(&turned)?.f_add(&changed)?
            }
        };
        match bias {
            Some(bias) => Ok(result.f_add(&to_kind(bias, Kind::Float)?)?),
            None => Ok(result),
        }
    }

    /// `[outputs]`: the norm of each row of `W + s·B·A`, without a gradient.
    ///
    /// Expanded as `‖w‖² + 2s·(W·Aᵀ)·b + s²·b·(A·Aᵀ)·b` for each row `w` of `W` and `b` of `B`, so that no
    /// matrix of the size of `W` is needed.
    fn row_norms(&self, dora: &Dora, weight: &Weight, compute: Kind) -> Result<Tensor, Error> {
        let _no_grad = tch::no_grad_guard();
        let ((a, b), s) = (self.factors()?, self.scaling);
        let (a, b) = (a.detach(), b.detach());
        let weight = to_kind(&weight.dense(compute)?, Kind::Float)?;
        let crossed = weight.f_linear(&a, None::<&Tensor>)?;
        let crossed = crossed.f_mul(&b)?.f_mul_scalar(2.0 * s)?;
        let square = b
            .f_matmul(&a.f_matmul(&a.f_tr()?)?)?
            .f_mul(&b)?
            .f_mul_scalar(s * s)?;
        let both = crossed
            .f_add(&square)?
            .f_sum_dim_intlist(1, false, Kind::Float)?;
        Ok(both
            .f_add(&dora.base_squares)?
            .f_clamp_min(f64::from(f32::MIN_POSITIVE))?
            .f_sqrt()?)
    }

    /// The merged weight, `[outputs, inputs]` in fp32.
    pub fn merged(&self, weight: &Tensor) -> Result<Tensor, Error> {
        let _no_grad = tch::no_grad_guard();
        let magnitude = self.dora.as_ref().map(|dora| &dora.magnitude);
        self.change.merged(weight, self.scaling, magnitude)
    }

    /// The same adapter on another base (see [`BaseMap`]).
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let dora = |dora: &Dora| -> Result<Dora, Error> {
            Ok(Dora {
                magnitude: dora.magnitude.shallow_clone(),
                base_squares: map(&dora.base_squares)?,
            })
        };
        Ok(Self {
            change: self.change.shallow_clone(),
            dora: self.dora.as_ref().map(dora).transpose()?,
            ..*self
        })
    }
}

impl Dora {
    /// The squared norms of the rows of `weight` (`[outputs, inputs]`), as `[outputs]`.
    pub(crate) fn squares(weight: &Weight) -> Result<Tensor, Error> {
        let _no_grad = tch::no_grad_guard();
        Ok(weight
            .dense(Kind::Float)?
            .f_square()?
            .f_sum_dim_intlist(1, false, Kind::Float)?)
    }
}
