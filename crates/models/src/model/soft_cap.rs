//! Soft caps of scores (Gemma 2), which no kernel of libtorch knows.

use tch::{Kind, Tensor};

use super::layers::seen;
use crate::Error;
use crate::tensor::to_kind;

/// Number of queries whose scores are made at once: of those that come later, none is seen.
pub(super) const QUERIES: i64 = 512;

/// Attention whose scores are `cap` times the tanh of their share of it. `mask` is added, or says what is seen; without one,
/// each query sees the keys up to its own, of which the last query has the last.
pub(crate) fn capped_attention(
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scale: Option<f64>,
    cap: f64,
) -> Result<Tensor, Error> {
    let (batch, heads, length, width) = query.size4()?;
    let (_, shared, keys, _) = key.size4()?;
    let scale = scale.unwrap_or(1.0 / (width as f64).sqrt());
    // Query heads that share keys are rows of one product.
    let together = heads / shared;
    let part = |start: i64| -> Result<Tensor, Error> {
        let rows = QUERIES.min(length - start);
        let before = keys - length + start;
        let (mask, count) = match mask {
            Some(mask) => (mask.f_narrow(-2, start, rows)?, keys),
            None => (seen((rows, before), None, query.device())?, before + rows),
        };
        let part = query.f_narrow(2, start, rows)?.f_mul_scalar(scale / cap)?;
        let part = part.f_reshape([batch, shared, together * rows, width])?;
        let scores = part
            .f_matmul(&key.f_narrow(2, 0, count)?.f_transpose(2, 3)?)?
            .f_tanh()?
            .f_mul_scalar(cap)?
            .f_view([batch, heads, rows, count])?;
        let scores = match mask.kind() {
            Kind::Bool => scores.f_masked_fill(&mask.f_logical_not()?, f64::NEG_INFINITY)?,
            _ => scores.f_add(&mask)?,
        };
        let weights = to_kind(&scores.f_softmax(-1, Kind::Float)?, query.kind())?;
        Ok(weights
            .f_view([batch, shared, together * rows, count])?
            .f_matmul(&value.f_narrow(2, 0, count)?)?
            .f_view([batch, heads, rows, width])?)
    };
    let parts: Result<Vec<_>, _> = (0..length).step_by(QUERIES as usize).map(part).collect();
    Ok(Tensor::f_cat(&parts?, 2)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::model::attention_kernel::{PackedTexts, Scoring, Sight, Special, causal_attention};

    /// Written as transformers does, over all keys at once, for whole rows, windows, several texts, and the last tokens of a
    /// cached text.
    #[test]
    fn scores_have_a_soft_cap() {
        let (length, cap, scale) = (QUERIES + 90, 1.5, 0.7);
        for (shared, kind, bound) in [(2, Kind::Float, 1e-5), (4, Kind::BFloat16, 3e-2)] {
            let random = |heads| {
                let random = Tensor::randn([1, heads, length, 6], (Kind::Float, Device::Cpu));
                random.to_kind(kind).set_requires_grad(true)
            };
            let inputs = [random(4), random(shared), random(shared)];
            let [query, key, value] = inputs.each_ref();
            let weights = Tensor::randn([1, 4, length, 6], (Kind::Float, Device::Cpu));
            let gradients = |output: &Tensor| {
                let loss = (output.to_kind(Kind::Float) * &weights).sum(Kind::Float);
                Tensor::run_backward(&[loss], &inputs, false, false)
            };
            let near = |ours: &Tensor, theirs: &Tensor| {
                let difference = (ours.to_kind(Kind::Float) - theirs.to_kind(Kind::Float)).abs();
                let size = f64::try_from(theirs.to_kind(Kind::Float).abs().max()).unwrap();
                f64::try_from(difference.max()).unwrap() <= bound * size
            };
            let spread = |tensor: &Tensor| {
                let each = tensor.to_kind(Kind::Float);
                each.repeat_interleave_self_int(4 / shared, 1, None)
            };
            let places = |lengths: &[i64]| {
                let each = lengths
                    .iter()
                    .map(|length| Tensor::arange(*length, (Kind::Int64, Device::Cpu)));
                Tensor::cat(&each.collect::<Vec<_>>(), 0).unsqueeze(0)
            };
            let texts = [100, length - 100];
            for (window, packed) in [
                (None, false),
                (Some(70), false),
                (Some(300), true),
                (None, true),
            ] {
                let visible = seen((length, 0), window, Device::Cpu).unwrap();
                let mut sight = Sight {
                    window,
                    ..Sight::default()
                };
                if packed {
                    sight.texts = Some(PackedTexts::new(&places(&texts)).unwrap());
                    let _ = visible
                        .narrow(0, texts[0], texts[1])
                        .narrow(1, 0, texts[0])
                        .fill_(0);
                }
                let scores = query
                    .to_kind(Kind::Float)
                    .matmul(&spread(key).transpose(2, 3))
                    * scale;
                let scores = (scores / cap).tanh() * cap;
                let scores = scores.masked_fill(&visible.logical_not(), f64::NEG_INFINITY);
                let theirs = scores.softmax(-1, Kind::Float).matmul(&spread(value));
                let scoring = Scoring {
                    scale: Some(scale),
                    special: Some(Special::Cap(cap)),
                };
                let ours = causal_attention([query, key, value], &sight, scoring).unwrap();
                let place = format!("{kind:?}, {window:?}, {packed}");
                assert!(near(&ours, &theirs), "{place}");
                for (ours, theirs) in gradients(&ours).iter().zip(gradients(&theirs)) {
                    assert!(near(ours, &theirs), "{place}, gradients");
                }
                let last = query.narrow(2, length - 3, 3);
                let visible = visible.narrow(0, length - 3, 3);
                let ours = capped_attention([&last, key, value], Some(&visible), Some(scale), cap);
                assert!(
                    near(&ours.unwrap(), &theirs.narrow(2, length - 3, 3)),
                    "{place}, cached"
                );
            }
        }
    }
}
