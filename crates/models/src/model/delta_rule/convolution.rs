//! A causal convolution of each channel with its own weights, and SiLU. The backward pass keeps its input alone.

use tch::{Tensor, no_grad};

use super::sums_of;
use crate::Error;
use crate::tensor::copied;

/// `silu(Σ_s w_s x_(t−s))` for `input` `[batch, length, channels]`, in its type. The last column of `weight`
/// (`[channels, taps]`) belongs to the token itself. With the tokens' `positions` within texts that share a row
/// (`[batch, length]`), nothing comes from the text before.
///
/// # Errors
/// If shapes do not match or memory runs out.
pub(crate) fn convolved(
    input: &Tensor,
    weight: &Tensor,
    positions: Option<&Tensor>,
) -> Result<Tensor, Error> {
    let output = no_grad(|| Taps::new(input, weight, None, positions)?.output())?;
    let kept: Vec<&Tensor> = positions.into_iter().collect();
    let backward = |saved: &[Tensor]| gradients(saved).map_err(Error::into_torch);
    let inputs = [input, weight];
    Ok(torch_ext::differentiable(
        &inputs, &kept, &output, backward,
    )?)
}

/// The same for tokens that continue a text whose last inputs were `before` (`[batch, taps − 1, channels]`; `None` before
/// its first token); and the last inputs now. Without gradients.
///
/// # Errors
/// As [`convolved`].
pub(crate) fn convolved_after(
    input: &Tensor,
    weight: &Tensor,
    before: Option<&Tensor>,
) -> Result<(Tensor, Tensor), Error> {
    no_grad(|| {
        let taps = Taps::new(input, weight, before, None)?;
        let last = taps.inputs.f_narrow(1, taps.length, taps.count - 1)?;
        Ok((taps.output()?, copied(&last.f_to_kind(input.kind())?)?))
    })
}

fn gradients(saved: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let (input, weight, positions, gradient) = match saved {
        [input, weight, gradient] => (input, weight, None, gradient),
        [input, weight, positions, gradient] => (input, weight, Some(positions), gradient),
        _ => return Err(Error::Internal("a convolution without its inputs".into())),
    };
    let taps = Taps::new(input, weight, None, positions)?;
    let sums = taps.sums()?;
    let gate = sums.f_sigmoid()?;
    // The derivative of x · σ(x).
    let slope = gate
        .f_neg()?
        .f_add_scalar(1.0)?
        .f_mul(&sums)?
        .f_add_scalar(1.0)?
        .f_mul(&gate)?;
    let of_sums = gradient.f_to_kind(sums.kind())?.f_mul(&slope)?;
    let (of_inputs, mut of_weight) = (taps.inputs.f_zeros_like()?, Vec::new());
    for tap in 0..taps.count {
        let of_tap = taps.seen(&of_sums, tap)?;
        let _ = of_inputs
            .f_narrow(1, tap, taps.length)?
            .f_add_(&of_tap.f_mul(&taps.weight(tap)?)?)?;
        let products = of_tap.f_mul(&taps.input(tap)?)?;
        of_weight.push(products.f_sum_dim_intlist([0, 1].as_slice(), false, products.kind())?);
    }
    let of_input = of_inputs.f_narrow(1, taps.count - 1, taps.length)?;
    Ok(vec![
        of_input.f_to_kind(input.kind())?,
        Tensor::f_stack(&of_weight, 1)?.f_to_kind(weight.kind())?,
    ])
}

/// What a convolution multiplies.
struct Taps<'a> {
    /// `[batch, taps − 1 + length, channels]`
    inputs: Tensor,
    weights: Tensor,
    positions: Option<&'a Tensor>,
    length: i64,
    count: i64,
    kind: tch::Kind,
}

impl<'a> Taps<'a> {
    fn new(
        input: &Tensor,
        weight: &Tensor,
        before: Option<&Tensor>,
        positions: Option<&'a Tensor>,
    ) -> Result<Self, Error> {
        let kind = sums_of(input);
        let (length, count) = (input.size3()?.1, weight.size2()?.1);
        let inputs = input.f_to_kind(kind)?;
        let inputs = match before {
            Some(before) => Tensor::f_cat(&[before.f_to_kind(kind)?, inputs], 1)?,
            None => inputs.f_constant_pad_nd([0, 0, count - 1, 0])?,
        };
        Ok(Self {
            inputs,
            weights: weight.f_to_kind(kind)?,
            positions,
            length,
            count,
            kind: input.kind(),
        })
    }

    /// What each token gets by a tap: itself by the last one.
    fn input(&self, tap: i64) -> Result<Tensor, Error> {
        Ok(self.inputs.f_narrow(1, tap, self.length)?)
    }

    fn weight(&self, tap: i64) -> Result<Tensor, Error> {
        Ok(self.weights.f_select(1, tap)?)
    }

    /// `rows`, of tokens to whose text this tap does not reach back: zero.
    fn seen(&self, rows: &Tensor, tap: i64) -> Result<Tensor, Error> {
        let back = self.count - 1 - tap;
        match self.positions.filter(|_| back > 0) {
            None => Ok(rows.shallow_clone()),
            Some(positions) => Ok(rows.f_mul(&positions.f_ge(back)?.f_unsqueeze(-1)?)?),
        }
    }

    /// What SiLU is applied to.
    fn sums(&self) -> Result<Tensor, Error> {
        let mut sums = self.inputs.f_narrow(1, 0, self.length)?.f_zeros_like()?;
        for tap in 0..self.count {
            let seen = self.seen(&self.input(tap)?, tap)?;
            sums = sums.f_addcmul_(&seen, &self.weight(tap)?)?;
        }
        Ok(sums)
    }

    fn output(&self) -> Result<Tensor, Error> {
        Ok(self.sums()?.f_silu()?.f_to_kind(self.kind)?)
    }
}
