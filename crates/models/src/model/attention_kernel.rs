//! Causal self-attention, with the kernel that is fastest for the case.
//!
//! libtorch's `scaled_dot_product_attention` is the right choice almost everywhere. But on the CPU its kernel
//! does not use the matrix instructions for bfloat16 that ordinary matrix products use, which matters for
//! short sequences: forward and backward of a `[16, 4, 256, 64]` batch took 21.9 ms, and 7.4 ms written as
//! two batched products and a softmax (Zen 5, two cores, libtorch 2.13). So short bfloat16 sequences on the
//! CPU use the latter; longer ones would lose the gain to the score matrix.

use tch::{Device, Kind, Tensor};

use crate::Error;

/// Longest sequence for which the score matrix is materialised.
const MAX_EXPLICIT_LENGTH: i64 = 512;

/// Attention of queries `[batch, heads, length, width]` over keys and values of the same length, which may
/// have fewer heads, each shared by a group of query heads. `mask`, `[batch, 1, length, length]`, is added to
/// the scores and must also hide later tokens; without one, attention is causal. Scores are multiplied by
/// `scale`, or by one over the root of the width.
pub(crate) fn causal_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    mask: Option<&Tensor>,
    scale: Option<f64>,
) -> Result<Tensor, Error> {
    let (_, heads, length, _) = query.size4()?;
    let grouped = key.size()[1] != heads;
    if attention_materialises_scores(query.device(), query.kind(), length) {
        return explicit_attention(query, key, value, mask, scale);
    }
    let causal = mask.is_none();
    Ok(Tensor::f_scaled_dot_product_attention(
        query, key, value, mask, 0.0, causal, scale, grouped,
    )?)
}

/// Whether attention over `length` tokens materialises the score matrix, which is then kept for the backward
/// pass.
pub fn attention_materialises_scores(device: Device, kind: Kind, length: i64) -> bool {
    device == Device::Cpu && kind == Kind::BFloat16 && length <= MAX_EXPLICIT_LENGTH
}

/// `softmax(query @ keyᵀ · scale + mask) @ value`, in three kernels.
fn explicit_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    mask: Option<&Tensor>,
    scale: Option<f64>,
) -> Result<Tensor, Error> {
    let (batch, heads, length, width) = query.size4()?;
    let key_value_heads = key.size()[1];
    let groups = heads / key_value_heads;
    let flat = |tensor: &Tensor, heads: i64| tensor.f_reshape([batch * heads, length, width]);
    let shared = |tensor: &Tensor| -> Result<Tensor, Error> {
        if groups == 1 {
            return Ok(flat(tensor, heads)?);
        }
        let spread = [batch, key_value_heads, groups, length, width];
        Ok(flat(
            &tensor.f_unsqueeze(2)?.f_expand(spread, false)?,
            heads,
        )?)
    };
    let mask = match mask {
        Some(mask) => {
            let each = mask.f_expand([batch, heads, length, length], false)?;
            each.f_reshape([batch * heads, length, length])?
        }
        None => Tensor::f_full(
            [length, length],
            f64::NEG_INFINITY,
            (query.kind(), query.device()),
        )?
        .f_triu(1)?,
    };
    let keys = shared(key)?.f_transpose(1, 2)?;
    let scale = scale.unwrap_or(1.0 / (width as f64).sqrt());
    let scores = mask.f_baddbmm(&flat(query, heads)?, &keys, 1.0, scale)?;
    let weights = scores.f_softmax(-1, scores.kind())?;
    Ok(weights
        .f_bmm(&shared(value)?)?
        .f_view([batch, heads, length, width])?)
}

/// Scores of nothing, one for each query head, that take a part of the attention (gpt-oss). No kernel of libtorch knows
/// them. They become those of one more key before the others, whose value is zero: queries and keys are wider by the
/// number of query heads that share a key, of which each query sees its own.
pub(crate) struct Sinks<'a> {
    /// `[heads]`
    scores: &'a Tensor,
    scale: f64,
}

impl<'a> Sinks<'a> {
    /// With these `scores`, where others are multiplied by `scale`, or by one over the root of the `width`.
    pub(crate) fn new(scores: &'a Tensor, scale: Option<f64>, width: i64) -> Self {
        Self {
            scores,
            scale: scale.unwrap_or(1.0 / (width as f64).sqrt()),
        }
    }

    /// Queries, keys and values with them.
    fn wider(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3], Error> {
        let (batch, heads, length, width) = query.size4()?;
        let (shared, kind) = (key.size()[1], query.kind());
        let each = heads / shared;
        let own = Tensor::f_eye(each, (kind, query.device()))?
            .f_repeat([shared, 1])?
            .f_view([1, heads, 1, each])?
            .f_expand([batch, heads, length, each], false)?;
        let sink = self
            .scores
            .f_div_scalar(self.scale)?
            .f_to_kind(kind)?
            .f_view([1, shared, 1, each])?
            .f_constant_pad_nd([width, 0])?
            .f_expand([batch, shared, 1, width + each], false)?;
        Ok([
            Tensor::f_cat(&[query, &own], -1)?,
            Tensor::f_cat(&[sink, key.f_constant_pad_nd([0, each])?], 2)?,
            value.f_constant_pad_nd([0, each, 1, 0])?,
        ])
    }

    /// Like [`causal_attention`].
    pub(crate) fn causal_attention(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let (_, _, length, width) = query.size4()?;
        let [query, key, value] = self.wider(query, key, value)?;
        // As many queries as keys: the first one sees nothing else.
        let query = query.f_constant_pad_nd([0, 0, 1, 0])?;
        let mask = match mask {
            Some(mask) => Some(mask.f_constant_pad_nd([1, 0, 1, 0])?),
            None => None,
        };
        let scale = Some(self.scale);
        let mixed = causal_attention(&query, &key, &value, mask.as_ref(), scale)?;
        Ok(mixed.f_narrow(2, 1, length)?.f_narrow(3, 0, width)?)
    }

    /// Attention of fewer queries than keys. `mask` has what each sees, `[queries, keys]`; all without one.
    pub(crate) fn attention(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let (_, heads, _, width) = query.size4()?;
        let grouped = key.size()[1] != heads;
        let [query, key, value] = self.wider(query, key, value)?;
        let mask = match mask {
            Some(mask) => Some(mask.f_logical_not()?.f_constant_pad_nd([1, 0])?),
            None => None,
        };
        let mask = mask.map(|hidden| hidden.f_logical_not()).transpose()?;
        let scale = Some(self.scale);
        let mixed = Tensor::f_scaled_dot_product_attention(
            &query,
            &key,
            &value,
            mask.as_ref(),
            0.0,
            false,
            scale,
            grouped,
        )?;
        Ok(mixed.f_narrow(3, 0, width)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layers::{Positions, Rope};

    #[test]
    fn both_ways_agree_in_values_and_gradients() {
        for key_value_heads in [4, 2, 1] {
            let options = (Kind::Float, Device::Cpu);
            let random = |heads| {
                Tensor::randn([2, 9, heads, 6], options)
                    .transpose(1, 2)
                    .set_requires_grad(true)
            };
            let (query, key, value) = (random(4), random(key_value_heads), random(key_value_heads));
            let inputs = [&query, &key, &value];
            let weights = Tensor::randn([2, 4, 9, 6], options);
            let run = |output: &Tensor| {
                let loss = (output * &weights).sum(Kind::Float);
                Tensor::run_backward(&[loss], &inputs, false, false)
            };
            // The first 4 tokens and the ones after them do not attend to each other.
            let row = Tensor::from_slice(&[0i64, 1, 2, 3, 0, 1, 2, 3, 4]);
            let positions = Tensor::stack(&[&row, &row], 0);
            let rope = Rope::new(&[1.0; 3], 1.0, 9, Device::Cpu).unwrap();
            let whole = Positions {
                rope,
                long: None,
                window: None,
                mask: None,
            };
            let packed = whole.packed(&positions, Kind::Float).unwrap();
            for (mask, scale) in [
                (None, None),
                (packed.mask.as_ref(), None),
                (packed.mask.as_ref(), Some(0.7)),
            ] {
                let kernel = causal_attention(&query, &key, &value, mask, scale).unwrap();
                let written = explicit_attention(&query, &key, &value, mask, scale).unwrap();
                assert!(kernel.allclose(&written, 1e-5, 1e-6, false));
                for (left, right) in run(&kernel).iter().zip(run(&written)) {
                    assert!(
                        left.allclose(&right, 1e-4, 1e-5, false),
                        "{key_value_heads}"
                    );
                }
                if mask.is_some() {
                    let part = |tensor: &Tensor| tensor.narrow(2, 4, 5);
                    let (query, key, value) = (part(&query), part(&key), part(&value));
                    let alone = causal_attention(&query, &key, &value, None, scale);
                    assert!(part(&kernel).allclose(&alone.unwrap(), 1e-6, 1e-6, false));
                }
            }
        }
    }

    /// Written as transformers does: one more score for each query, whose weight is dropped.
    #[test]
    fn sinks_are_scores_of_nothing() {
        for (key_value_heads, kind, bound) in [(2, Kind::Float, 1e-5), (4, Kind::BFloat16, 3e-2)] {
            let random = |shape: &[i64]| {
                let random = Tensor::randn(shape, (Kind::Float, Device::Cpu));
                random.to_kind(kind).set_requires_grad(true)
            };
            let query = random(&[2, 4, 9, 6]);
            let (key, value) = (
                random(&[2, key_value_heads, 9, 6]),
                random(&[2, key_value_heads, 9, 6]),
            );
            let sinks = Tensor::randn([4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
            let inputs = [&query, &key, &value, &sinks];
            let weights = Tensor::randn([2, 4, 9, 6], (Kind::Float, Device::Cpu));
            let run = |output: &Tensor| {
                let loss = (output.to_kind(Kind::Float) * &weights).sum(Kind::Float);
                Tensor::run_backward(&[loss], &inputs, false, false)
            };
            // A window of three.
            let seen = Tensor::ones([9, 9], (Kind::Bool, Device::Cpu)).tril(0);
            let windowed = seen.triu(-2);
            let added = |seen: &Tensor| {
                let zeros = Tensor::zeros([9, 9], (kind, Device::Cpu));
                zeros.masked_fill(&seen.logical_not(), f64::NEG_INFINITY)
            };
            let own = Sinks::new(&sinks, None, 6);
            let float = |tensor: &Tensor| tensor.to_kind(Kind::Float);
            let near = |ours: &Tensor, theirs: &Tensor| {
                let difference = (float(ours) - float(theirs)).abs().max();
                let size = f64::try_from(float(theirs).abs().max()).unwrap();
                f64::try_from(difference).unwrap() <= bound * size
            };
            for (mask, seen) in [
                (None, &seen),
                (Some(added(&windowed).view([1, 1, 9, 9])), &windowed),
            ] {
                let ours = own
                    .causal_attention(&query, &key, &value, mask.as_ref())
                    .unwrap();
                let spread = |tensor: &Tensor| {
                    float(tensor).repeat_interleave_self_int(4 / key_value_heads, 1, None)
                };
                let scores = float(&query).matmul(&spread(&key).transpose(2, 3)) / 6f64.sqrt();
                let scores = scores + float(&added(seen));
                let sink = sinks.view([1, 4, 1, 1]).expand([2, 4, 9, 1], false);
                let shares = Tensor::cat(&[scores, sink], -1).softmax(-1, Kind::Float);
                let theirs = shares.narrow(3, 0, 9).matmul(&spread(&value));
                assert!(near(&ours, &theirs), "{kind:?}");
                for (place, (ours, theirs)) in run(&ours).iter().zip(run(&theirs)).enumerate() {
                    assert!(near(ours, &theirs), "{kind:?}, gradient {place}");
                }
                // The last three as if the others were cached.
                let last = query.narrow(2, 6, 3);
                let mask = seen.narrow(0, 6, 3);
                let cached = own.attention(&last, &key, &value, Some(&mask)).unwrap();
                assert!(near(&cached, &theirs.narrow(2, 6, 3)), "{kind:?}");
            }
            let one = own
                .attention(&query.narrow(2, 8, 1), &key, &value, None)
                .unwrap();
            let all = own.causal_attention(&query, &key, &value, None).unwrap();
            assert!(near(&one, &all.narrow(2, 8, 1)), "{kind:?}");
        }
    }
}
