//! The gated delta rule (Yang et al., 2024): a layer that remembers a text in a matrix for each head.
//!
//! ```text
//! S ← e^g · S;   S += k ⊗ β (v − Sᵀ k);   o = Sᵀ q / √width        q, k of length one; g ≤ 0
//! ```
//!
//! Computed in chunks of tokens (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024): all
//! products within chunks at once, then the states from chunk to chunk. γ is the sum of g since the start of the chunk:
//!
//! ```text
//! D_ij = e^(γi − γj), j ≤ i          L = 1 + tril(βK Kᵀ ∘ D, −1)
//! U = L⁻¹ βV                         W = L⁻¹ (βK ∘ e^γ)
//! V' = U − W S                       O = (Q ∘ e^γ) S + (Q Kᵀ ∘ D) V'
//! S ← e^γend S + (K ∘ e^(γend − γ))ᵀ V'
//! ```
//!
//! A text that begins within a row begins with S = 0: decays that cross its start are zero. The triangle is solved by
//! substitution: products of its powers would be exact for random keys only. Of all this, the backward pass keeps the
//! inputs and the states between chunks, and makes the rest again.

mod chunks;
mod convolution;
#[cfg(test)]
mod tests;

use tch::{Kind, Tensor, no_grad};

use crate::Error;
use chunks::Chunks;
pub(crate) use convolution::{convolved, convolved_after};

/// Tokens of a chunk.
const CHUNK: i64 = 64;

/// What the rule is applied to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule<'a> {
    /// `[batch, length, key heads, key width]`; its length does not matter.
    pub(crate) query: &'a Tensor,
    /// As queries. Each head serves as many neighbouring heads of values.
    pub(crate) key: &'a Tensor,
    /// `[batch, length, heads, value width]`
    pub(crate) value: &'a Tensor,
    /// g: `[batch, length, heads]`, not above zero.
    pub(crate) decay: &'a Tensor,
    /// β: `[batch, length, heads]`
    pub(crate) rate: &'a Tensor,
}

impl Rule<'_> {
    fn inputs(&self) -> [&Tensor; 5] {
        [self.query, self.key, self.value, self.decay, self.rate]
    }

    /// The outputs, `[batch, length, heads, value width]` in fp32. `texts` numbers the texts that share a row from
    /// one (`[batch, length]`); without it, each row is one.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub(crate) fn apply(&self, texts: Option<&Tensor>) -> Result<Tensor, Error> {
        let (output, states) = no_grad(|| -> Result<_, Error> {
            let (mut outputs, mut states) = (Vec::new(), Vec::new());
            for share in self.shares()? {
                let passed = Chunks::new(share.rule(), texts)?.forward(None)?;
                outputs.push(passed.output);
                states.push(passed.states);
            }
            Ok((joined(outputs)?, joined(states)?))
        })?;
        let kept: Vec<&Tensor> = std::iter::once(&states).chain(texts).collect();
        let backward = |saved: &[Tensor]| gradients(saved).map_err(Error::into_torch);
        let inputs = self.inputs();
        Ok(torch_ext::differentiable(
            &inputs, &kept, &output, backward,
        )?)
    }

    /// The outputs for tokens that continue a text whose state is `state` (`[batch, heads, key width, value width]`;
    /// `None` before its first token), and the state after them. Without gradients.
    ///
    /// # Errors
    /// As [`Rule::apply`].
    pub(crate) fn after(&self, state: Option<&Tensor>) -> Result<(Tensor, Tensor), Error> {
        no_grad(|| {
            let passed = Chunks::new(*self, None)?.forward(state)?;
            Ok((passed.output, passed.last))
        })
    }

    /// The rule for some heads of keys at a time, with the heads of values that they serve.
    fn shares(&self) -> Result<Vec<Share>, Error> {
        let (batch, length, heads, _) = self.value.size4()?;
        let keys = self.key.size4()?.2;
        let each = heads / keys;
        let most = (AT_A_TIME / (batch * length * each).max(1)).clamp(1, keys.max(1));
        let share = |start: i64| -> Result<Share, Error> {
            let count = most.min(keys - start);
            let part = |tensor: &Tensor, each: i64| tensor.f_narrow(2, start * each, count * each);
            Ok(Share {
                heads: (start * each, count * each),
                inputs: [
                    part(self.query, 1)?,
                    part(self.key, 1)?,
                    part(self.value, each)?,
                    part(self.decay, each)?,
                    part(self.rate, each)?,
                ],
            })
        };
        let starts = (0..keys).step_by(usize::try_from(most).unwrap_or(1));
        starts.map(share).collect()
    }
}

/// Tokens times heads that are computed at a time: what a pass makes on its way takes up to 18 KB for each, in a model with
/// heads 128 wide.
const AT_A_TIME: i64 = 1 << 15;

/// The inputs of some heads.
struct Share {
    /// The first head of values, and how many there are.
    heads: (i64, i64),
    inputs: [Tensor; 5],
}

impl Share {
    fn rule(&self) -> Rule<'_> {
        let [query, key, value, decay, rate] = &self.inputs;
        Rule {
            query,
            key,
            value,
            decay,
            rate,
        }
    }
}

/// Tensors of shares as one: heads are the third dimension.
fn joined(mut parts: Vec<Tensor>) -> Result<Tensor, Error> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Ok(Tensor::f_cat(&parts, 2)?),
    }
}

/// The gradients of a rule's inputs, for those, the states, the numbers of texts if there are some, and the gradient of
/// the output.
fn gradients(saved: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let [query, key, value, decay, rate, states, rest @ ..] = saved else {
        return Err(Error::Internal("a delta rule without its inputs".into()));
    };
    let (texts, gradient) = match rest {
        [gradient] => (None, gradient),
        [texts, gradient] => (Some(texts), gradient),
        _ => return Err(Error::Internal("a delta rule without a gradient".into())),
    };
    let rule = Rule {
        query,
        key,
        value,
        decay,
        rate,
    };
    let mut parts: [Vec<Tensor>; 5] = Default::default();
    for share in rule.shares()? {
        let (start, count) = share.heads;
        let of = |tensor: &Tensor| tensor.f_narrow(2, start, count);
        let chunks = Chunks::new(share.rule(), texts)?;
        let gradients = chunks.backward(&of(states)?, &of(gradient)?)?;
        for ((parts, gradient), input) in parts.iter_mut().zip(gradients).zip(rule.inputs()) {
            parts.push(gradient.f_to_kind(input.kind())?);
        }
    }
    parts.into_iter().map(joined).collect()
}

/// The type in which sums are made: fp32, or fp64 for inputs in it.
fn sums_of(input: &Tensor) -> Kind {
    match input.kind() {
        Kind::Double => Kind::Double,
        _ => Kind::Float,
    }
}
