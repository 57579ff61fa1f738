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
fn attention_materialises_scores(device: Device, kind: Kind, length: i64) -> bool {
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
}
