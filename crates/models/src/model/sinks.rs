//! Sinks: a learned score of each head that takes a part of the attention and gives nothing.

use tch::{Kind, Tensor};

use crate::Error;

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

    /// What `attend` makes of as many queries as keys, with an added `mask` or causally: the first query sees nothing else.
    pub(super) fn square(
        &self,
        [query, key, value]: [&Tensor; 3],
        mask: Option<&Tensor>,
        attend: impl FnOnce([&Tensor; 3], Option<&Tensor>, Option<f64>) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let (_, _, length, width) = query.size4()?;
        let [query, key, value] = self.wider(query, key, value)?;
        let query = query.f_constant_pad_nd([0, 0, 1, 0])?;
        let mask = mask.map(|mask| mask.f_constant_pad_nd([1, 0, 1, 0]));
        let mask = mask.transpose()?;
        let mixed = attend([&query, &key, &value], mask.as_ref(), Some(self.scale))?;
        Ok(mixed.f_narrow(2, 1, length)?.f_narrow(3, 0, width)?)
    }

    /// What `attend` makes of queries and keys whose `mask` is added, or says what is seen.
    pub(super) fn beside(
        &self,
        [query, key, value]: [&Tensor; 3],
        mask: &Tensor,
        attend: impl FnOnce([&Tensor; 3], Option<&Tensor>, Option<f64>) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let width = query.size4()?.3;
        let [query, key, value] = self.wider(query, key, value)?;
        let mask = match mask.kind() {
            Kind::Bool => mask
                .f_logical_not()?
                .f_constant_pad_nd([1, 0])?
                .f_logical_not()?,
            _ => mask.f_constant_pad_nd([1, 0])?,
        };
        let mixed = attend([&query, &key, &value], Some(&mask), Some(self.scale))?;
        Ok(mixed.f_narrow(3, 0, width)?)
    }

    /// Attention of fewer queries than keys. `mask` has what each sees, `[queries, keys]`; all without one.
    pub(crate) fn attention(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let grouped = key.size()[1] != query.size()[1];
        let attend = |[query, key, value]: [&Tensor; 3], mask: Option<&Tensor>, scale| {
            let mixed = Tensor::f_scaled_dot_product_attention(
                query, key, value, mask, 0.0, false, scale, grouped,
            )?;
            Ok(mixed)
        };
        match mask {
            Some(mask) => self.beside([query, key, value], mask, attend),
            None => {
                let width = query.size4()?.3;
                let [query, key, value] = self.wider(query, key, value)?;
                let mixed = attend([&query, &key, &value], None, Some(self.scale))?;
                Ok(mixed.f_narrow(3, 0, width)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::model::attention_kernel::{Scoring, Sight, Special, causal_attention};

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
            let scoring = Scoring {
                scale: None,
                special: Some(Special::Sinks(&own)),
            };
            let float = |tensor: &Tensor| tensor.to_kind(Kind::Float);
            let near = |ours: &Tensor, theirs: &Tensor| {
                let difference = (float(ours) - float(theirs)).abs().max();
                let size = f64::try_from(float(theirs).abs().max()).unwrap();
                f64::try_from(difference).unwrap() <= bound * size
            };
            let sight = |window| Sight::new((window, None), 9, (kind, Device::Cpu)).unwrap();
            for (sight, seen) in [(sight(None), &seen), (sight(Some(3)), &windowed)] {
                let ours = causal_attention([&query, &key, &value], &sight, scoring).unwrap();
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
            let all = causal_attention([&query, &key, &value], &sight(None), scoring);
            let all = all.unwrap();
            assert!(near(&one, &all.narrow(2, 8, 1)), "{kind:?}");
        }
    }
}
