//! Causal self-attention, by calls that need no mask wherever what a token sees can be said without one: kernels that
//! keep no scores refuse masks on many GPUs, or heads that share keys and values, and scores then take memory and
//! time with the square of the length.
//!
//! | a row is | how it is computed |
//! |---|---|
//! | one text | one causal call |
//! | several texts, or has a window | one call of variable-length flash attention, where [`mod@super::attention_path`] found it right |
//! | several texts | otherwise a causal call for each |
//! | a text longer than the window | otherwise blocks of as many tokens as the window, each with the block before it |
//! | of scores with a soft cap | matrix products, in blocks of queries, each with the keys that it sees |
//! | anything else | a mask; and where only kernels without groups take it, keys and values are repeated for each head |
//!
//! libtorch's `scaled_dot_product_attention` is the right choice almost everywhere. But on the CPU its kernel
//! does not use the matrix instructions for bfloat16 that ordinary matrix products use, which matters for
//! short sequences: forward and backward of a `[16, 4, 256, 64]` batch took 21.9 ms, and 7.4 ms written as
//! two batched products and a softmax (Zen 5, two cores, libtorch 2.13). So short bfloat16 sequences on the
//! CPU use the latter, with a mask; longer ones would lose the gain to the score matrix.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::attention_path::{self, Heads};
use super::layers::{hidden, seen};
use super::sinks::Sinks;
use super::soft_cap::capped_attention;
use crate::Error;

/// Longest sequence for which the score matrix is materialised.
pub(super) const MAX_EXPLICIT_LENGTH: i64 = 512;

/// How scores are made.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scoring<'a> {
    /// What they are multiplied by, if not by one over the root of the width.
    pub(crate) scale: Option<f64>,
    /// What no kernel of libtorch knows.
    pub(crate) special: Option<Special<'a>>,
}

/// What some models do with scores.
#[derive(Clone, Copy)]
pub(crate) enum Special<'a> {
    /// Some are of nothing.
    Sinks(&'a Sinks<'a>),
    /// They are between this number and its negative: the number times the tanh of their share of it.
    Cap(f64),
}

/// What a token sees of those before it.
#[derive(Debug, Default)]
pub struct Sight {
    /// Number of tokens, itself included; `None` for all.
    pub window: Option<i64>,
    /// The texts that share rows without seeing each other; `None` if a row is one text.
    pub texts: Option<PackedTexts>,
    /// Instead of both: added to the scores, `[batch or 1, 1, length, length]`.
    pub mask: Option<Tensor>,
}

impl Sight {
    /// What tokens of rows of `length` see of those within the `window`, or of the `texts`, which are the rows'.
    ///
    /// # Errors
    /// If memory runs out.
    pub(crate) fn new(
        (window, texts): (Option<i64>, Option<PackedTexts>),
        length: i64,
        (kind, device): (Kind, Device),
    ) -> Result<Self, Error> {
        let is_plain = texts.is_none() && window.is_none_or(|window| window >= length);
        let mask = match writes_scores_down(device, kind, length) && !is_plain {
            false => None,
            true => {
                let earlier = seen((length, 0), window, device)?.f_unsqueeze(0)?;
                let seen = match &texts {
                    Some(texts) => texts.same(length)?.f_logical_and(&earlier)?,
                    None => earlier,
                };
                Some(hidden(&seen, kind)?)
            }
        };
        Ok(Self {
            window,
            texts,
            mask,
        })
    }

    /// A second handle to the same.
    pub(crate) fn shallow_clone(&self) -> Self {
        Self {
            window: self.window,
            texts: self.texts.as_ref().map(PackedTexts::shallow_clone),
            mask: self.mask.as_ref().map(Tensor::shallow_clone),
        }
    }
}

/// Texts that share rows without seeing each other.
#[derive(Debug)]
pub struct PackedTexts {
    /// The length of each, row by row.
    lengths: Arc<[i64]>,
    /// Where each begins if the rows stand one after the other, and where the last one ends: int32, on the device.
    bounds: Tensor,
}

impl PackedTexts {
    /// Those whose tokens have these positions, integers `[batch, length]`: each 0 starts one, and so does each row.
    ///
    /// # Errors
    /// If memory runs out.
    pub(crate) fn new(positions: &Tensor) -> Result<Self, Error> {
        let length = positions.size2()?.1;
        let places = positions.f_to_device(Device::Cpu)?.f_reshape([-1])?;
        let places = Vec::<i64>::try_from(&places.f_to_kind(Kind::Int64)?)?;
        let starts = (0i64..).zip(places);
        let starts = starts.filter(|(at, place)| *place == 0 || at % length == 0);
        let starts: Vec<i64> = starts.map(|(at, _)| at).collect();
        Self::from_starts(&starts, positions.numel() as i64, positions.device())
    }

    /// Those that begin there, of so many tokens.
    fn from_starts(starts: &[i64], tokens: i64, device: Device) -> Result<Self, Error> {
        let bounds: Vec<i64> = starts.iter().copied().chain([tokens]).collect();
        Ok(Self {
            lengths: bounds.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            bounds: Tensor::f_from_slice(&bounds)?
                .f_to_kind(Kind::Int)?
                .f_to_device(device)?,
        })
    }

    /// `batch` rows of `length` tokens, each a text.
    fn rows(batch: i64, length: i64, device: Device) -> Result<Self, Error> {
        let starts: Vec<i64> = (0..batch).map(|row| row * length).collect();
        Self::from_starts(&starts, batch * length, device)
    }

    fn longest(&self) -> i64 {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// For each token of rows of `length`, the last position of its text, `[batch, length]`.
    ///
    /// # Errors
    /// If memory runs out.
    pub(crate) fn last(&self, length: i64) -> Result<Tensor, Error> {
        let each = |length: &i64| std::iter::repeat_n(length - 1, *length as usize);
        let last: Vec<i64> = self.lengths.iter().flat_map(each).collect();
        Ok(Tensor::f_from_slice(&last)?
            .f_view([-1, length])?
            .f_to_device(self.bounds.device())?)
    }

    /// Which tokens of rows of `length` are of the same text: booleans `[batch, length, length]`.
    fn same(&self, length: i64) -> Result<Tensor, Error> {
        let numbers = (0i64..).zip(self.lengths.iter());
        let numbers =
            numbers.flat_map(|(number, length)| std::iter::repeat_n(number, *length as usize));
        let numbers: Vec<i64> = numbers.collect();
        let numbers = Tensor::f_from_slice(&numbers)?
            .f_view([-1, length])?
            .f_to_device(self.bounds.device())?;
        Ok(numbers
            .f_unsqueeze(2)?
            .f_eq_tensor(&numbers.f_unsqueeze(1)?)?)
    }

    /// A second handle to the same.
    pub(crate) fn shallow_clone(&self) -> Self {
        Self {
            lengths: Arc::clone(&self.lengths),
            bounds: self.bounds.shallow_clone(),
        }
    }
}

/// Attention of queries `[batch, heads, length, width]` over keys and values of the same length, which may
/// have fewer heads, each shared by a group of query heads. Each token sees itself and what `sight` lets it see
/// of those before it.
pub(crate) fn causal_attention(
    [query, key, value]: [&Tensor; 3],
    sight: &Sight,
    scoring: Scoring<'_>,
) -> Result<Tensor, Error> {
    let (batch, _, length, width) = query.size4()?;
    let device = query.device();
    if writes_scores_down(device, query.kind(), length) {
        let mask = sight.mask.as_ref();
        return match scoring.special {
            None => explicit_attention([query, key, value], mask, scoring.scale),
            Some(Special::Sinks(sinks)) => {
                sinks.square([query, key, value], mask, explicit_attention)
            }
            Some(Special::Cap(_)) => kernel([query, key, value], mask, scoring),
        };
    }
    if sight.mask.is_some() {
        return kernel([query, key, value], sight.mask.as_ref(), scoring);
    }
    let longest = sight.texts.as_ref().map_or(length, PackedTexts::longest);
    let window = sight.window.filter(|window| *window < longest);
    if sight.texts.is_none() && window.is_none() {
        return kernel([query, key, value], None, scoring);
    }
    if scoring.special.is_none()
        && attention_path::takes_texts(Heads::of(query, key)?, window.is_some())?
    {
        let texts = match &sight.texts {
            Some(texts) => texts.shallow_clone(),
            None => PackedTexts::rows(batch, length, device)?,
        };
        let scale = scoring.scale.unwrap_or(1.0 / (width as f64).sqrt());
        return in_a_line([query, key, value], |inputs| {
            let [query, key, value] = inputs.each_ref();
            let texts = (&texts.bounds, texts.longest());
            Ok(torch_ext::flash_texts(
                [query, key, value],
                texts,
                window,
                scale,
            )?)
        });
    }
    match &sight.texts {
        None => windowed([query, key, value], window, scoring),
        Some(texts) => in_a_line([query, key, value], |inputs| {
            each_text(inputs, &texts.lengths, window, scoring)
        }),
    }
}

/// Whether attention over `length` tokens is written as products of matrices, with scores that are kept for the
/// backward pass.
pub(super) fn writes_scores_down(device: Device, kind: Kind, length: i64) -> bool {
    device == Device::Cpu && kind == Kind::BFloat16 && length <= MAX_EXPLICIT_LENGTH
}

/// Calls `attend` with rows that stand one after the other, `[tokens, heads, width]`, which returns the same; takes and gives
/// `[batch, heads, length, width]`.
fn in_a_line(
    inputs: [&Tensor; 3],
    attend: impl FnOnce([Tensor; 3]) -> Result<Tensor, Error>,
) -> Result<Tensor, Error> {
    let (batch, heads, length, width) = inputs[0].size4()?;
    let line = |tensor: &Tensor| -> Result<Tensor, Error> {
        let heads = tensor.size4()?.1;
        let rows = tensor.f_transpose(1, 2)?;
        Ok(rows.f_reshape([batch * length, heads, width])?)
    };
    let [query, key, value] = inputs;
    let output = attend([line(query)?, line(key)?, line(value)?])?;
    Ok(output
        .f_view([batch, length, heads, width])?
        .f_transpose(1, 2)?)
}

/// Attention within each of the texts that have these `lengths`, one after the other: all `[tokens, heads, width]`.
fn each_text(
    inputs: [Tensor; 3],
    lengths: &[i64],
    window: Option<i64>,
    scoring: Scoring<'_>,
) -> Result<Tensor, Error> {
    // Unlike narrowing, whose gradients are as long as the line for each text.
    let [query, key, value] = inputs.map(|tensor| tensor.f_split_with_sizes(lengths, 0));
    let mut outputs = Vec::with_capacity(lengths.len());
    for ((query, key), value) in query?.iter().zip(&key?).zip(&value?) {
        let row = |tensor: &Tensor| tensor.f_transpose(0, 1)?.f_unsqueeze(0);
        let inputs = [&row(query)?, &row(key)?, &row(value)?];
        let output = windowed(inputs, window, scoring)?;
        outputs.push(output.f_squeeze_dim(0)?.f_transpose(0, 1)?);
    }
    Ok(Tensor::f_cat(&outputs, 0)?)
}

/// Causal attention within a window: blocks of as many tokens as it has, over the keys of that block and of the one before.
fn windowed(
    [query, key, value]: [&Tensor; 3],
    window: Option<i64>,
    scoring: Scoring<'_>,
) -> Result<Tensor, Error> {
    let (batch, heads, length, width) = query.size4()?;
    let Some(window) = window.filter(|window| *window < length) else {
        return kernel([query, key, value], None, scoring);
    };
    // Nothing stands before the first block.
    let first = |tensor: &Tensor| tensor.f_narrow(2, 0, window);
    let inputs = [&first(query)?, &first(key)?, &first(value)?];
    let first = kernel(inputs, None, scoring)?;
    let others = (length - 1) / window;
    let missing = (others + 1) * window - length;
    let filled = |tensor: &Tensor| match missing {
        0 => Ok(tensor.shallow_clone()),
        _ => tensor.f_constant_pad_nd([0, 0, 0, missing]),
    };
    let queries = filled(query)?
        .f_narrow(2, window, others * window)?
        .f_reshape([batch, heads, others, window, width])?
        .f_transpose(1, 2)?
        .f_reshape([batch * others, heads, window, width])?;
    let pairs = |tensor: &Tensor| -> Result<Tensor, Error> {
        let heads = tensor.size4()?.1;
        let pairs = filled(tensor)?.f_unfold(2, 2 * window, window)?;
        Ok(pairs.f_permute([0, 2, 1, 4, 3])?.f_reshape([
            batch * others,
            heads,
            2 * window,
            width,
        ])?)
    };
    let seen = seen((window, window), Some(window), query.device())?;
    let inputs = [&queries, &pairs(key)?, &pairs(value)?];
    let rest = kernel(inputs, Some(&seen), scoring)?
        .f_view([batch, others, heads, window, width])?
        .f_transpose(1, 2)?
        .f_reshape([batch, heads, others * window, width])?
        .f_narrow(2, 0, length - window)?;
    Ok(Tensor::f_cat(&[first, rest], 2)?)
}

/// Attention, causal or with a mask: libtorch's, or with scores that it does not know.
fn kernel(
    inputs: [&Tensor; 3],
    mask: Option<&Tensor>,
    scoring: Scoring<'_>,
) -> Result<Tensor, Error> {
    match (scoring.special, mask) {
        (None, _) => plain(inputs, mask, scoring.scale),
        (Some(Special::Sinks(sinks)), None) => sinks.square(inputs, None, plain),
        (Some(Special::Sinks(sinks)), Some(mask)) => sinks.beside(inputs, mask, plain),
        (Some(Special::Cap(cap)), _) => capped_attention(inputs, mask, scoring.scale, cap),
    }
}

/// libtorch's attention: causal, or with a mask. Keys and values are repeated for each head where the alternative is a
/// kernel that writes the scores down.
fn plain(
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scale: Option<f64>,
) -> Result<Tensor, Error> {
    let causal = mask.is_none();
    let groups = query.size()[1] / key.size()[1].max(1);
    if groups > 1 && query.device() != Device::Cpu {
        let choice =
            Tensor::f_internal_fused_sdp_choice(query, key, value, mask, 0.0, causal, scale, true)?;
        if choice == attention_path::WRITTEN_DOWN {
            let (key, value) = (repeated(key, groups)?, repeated(value, groups)?);
            return Ok(Tensor::f_scaled_dot_product_attention(
                query, &key, &value, mask, 0.0, causal, scale, false,
            )?);
        }
    }
    Ok(Tensor::f_scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        0.0,
        causal,
        scale,
        groups > 1,
    )?)
}

/// `[batch, heads, length, width]` with each head `groups` times.
fn repeated(tensor: &Tensor, groups: i64) -> Result<Tensor, Error> {
    let (batch, heads, length, width) = tensor.size4()?;
    Ok(tensor
        .f_unsqueeze(2)?
        .f_expand([batch, heads, groups, length, width], false)?
        .f_reshape([batch, heads * groups, length, width])?)
}

/// `softmax(query @ keyᵀ · scale + mask) @ value`, in three kernels.
pub(super) fn explicit_attention(
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scale: Option<f64>,
) -> Result<Tensor, Error> {
    let (batch, heads, length, width) = query.size4()?;
    let groups = heads / key.size()[1];
    let flat = |tensor: &Tensor| tensor.f_reshape([batch * heads, length, width]);
    let shared = |tensor: &Tensor| -> Result<Tensor, Error> {
        match groups {
            1 => Ok(flat(tensor)?),
            _ => Ok(flat(&repeated(tensor, groups)?)?),
        }
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
    let scores = mask.f_baddbmm(&flat(query)?, &keys, 1.0, scale)?;
    let weights = scores.f_softmax(-1, scores.kind())?;
    Ok(weights
        .f_bmm(&shared(value)?)?
        .f_view([batch, heads, length, width])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions of texts of these lengths, one row.
    fn positions(lengths: &[i64]) -> Tensor {
        let places: Vec<i64> = lengths.iter().flat_map(|length| 0..*length).collect();
        Tensor::from_slice(&places)
    }

    /// What `sight` lets tokens see, as a mask.
    fn mask(sight: &Sight, length: i64) -> Tensor {
        let earlier = seen((length, 0), sight.window, Device::Cpu).unwrap();
        let seen = match &sight.texts {
            Some(texts) => texts.same(length).unwrap().logical_and(&earlier),
            None => earlier.unsqueeze(0),
        };
        hidden(&seen, Kind::Float).unwrap()
    }

    /// Two rows of 23 tokens, whole or of several texts, with windows that divide them and that do not, and heads in groups:
    /// values and gradients are those of a mask.
    #[test]
    fn every_way_to_do_without_a_mask_is_the_mask() {
        let rows = [[9, 1, 13].as_slice(), &[4, 19]].map(positions);
        let packed = Tensor::stack(&rows, 0);
        for key_value_heads in [4, 2, 1] {
            let options = (Kind::Float, Device::Cpu);
            let random = |heads| {
                Tensor::randn([2, 23, heads, 6], options)
                    .transpose(1, 2)
                    .set_requires_grad(true)
            };
            let (query, key, value) = (random(4), random(key_value_heads), random(key_value_heads));
            let inputs = [&query, &key, &value];
            let weights = Tensor::randn([2, 4, 23, 6], options);
            let gradients = |output: &Tensor| {
                let loss = (output * &weights).sum(Kind::Float);
                Tensor::run_backward(&[loss], &inputs, false, false)
            };
            for window in [None, Some(1), Some(4), Some(12), Some(22), Some(23)] {
                for (texts, scale) in [(false, None), (true, None), (true, Some(0.7))] {
                    let sight = Sight {
                        window,
                        texts: texts.then(|| PackedTexts::new(&packed).unwrap()),
                        mask: None,
                    };
                    let scoring = Scoring {
                        scale,
                        special: None,
                    };
                    let ours = causal_attention([&query, &key, &value], &sight, scoring).unwrap();
                    let mask = mask(&sight, 23);
                    let written =
                        explicit_attention([&query, &key, &value], Some(&mask), scale).unwrap();
                    let place = format!("{key_value_heads} heads, {window:?}, {texts}");
                    assert!(ours.allclose(&written, 1e-5, 1e-6, false), "{place}");
                    for (left, right) in gradients(&ours).iter().zip(gradients(&written)) {
                        assert!(left.allclose(&right, 1e-4, 1e-5, false), "{place}");
                    }
                }
            }
        }
    }

    /// What variable-length flash is given is what it needs: here, its place is taken by calls for each text.
    #[test]
    fn rows_in_a_line_are_the_rows() {
        let options = (Kind::Float, Device::Cpu);
        let [query, key, value] = [4, 2, 2].map(|heads| Tensor::randn([3, heads, 8, 6], options));
        let texts = PackedTexts::rows(3, 8, Device::Cpu).unwrap();
        assert_eq!(texts.longest(), 8);
        assert_eq!(texts.bounds.kind(), Kind::Int);
        assert_eq!(Vec::<i64>::try_from(&texts.bounds).unwrap(), [0, 8, 16, 24]);
        for window in [None, Some(3)] {
            let line = in_a_line([&query, &key, &value], |inputs| {
                assert_eq!(inputs[1].size(), [24, 2, 6]);
                each_text(inputs, &texts.lengths, window, Scoring::default())
            });
            let sight = Sight {
                window,
                ..Sight::default()
            };
            let scoring = Scoring::default();
            let rows = causal_attention([&query, &key, &value], &sight, scoring).unwrap();
            assert!(line.unwrap().allclose(&rows, 1e-5, 1e-6, false));
        }
    }

    #[test]
    fn texts_are_found_by_their_positions() {
        let packed = Tensor::stack(&[positions(&[3, 1, 2]), positions(&[6])], 0);
        let texts = PackedTexts::new(&packed).unwrap();
        assert_eq!(texts.lengths[..], [3, 1, 2, 6]);
        let last = Vec::<i64>::try_from(&texts.last(6).unwrap().view([-1])).unwrap();
        assert_eq!(last, [2, 2, 2, 0, 1, 1, 5, 5, 5, 5, 5, 5]);
    }

    /// Short rows in bfloat16 keep their scores on the CPU, and a mask is made for them alone.
    #[test]
    fn only_short_rows_get_a_mask() {
        let sight = |kind, length| {
            let texts = PackedTexts::rows(1, length, Device::Cpu).unwrap();
            Sight::new((None, Some(texts)), length, (kind, Device::Cpu)).unwrap()
        };
        assert!(sight(Kind::BFloat16, MAX_EXPLICIT_LENGTH).mask.is_some());
        assert!(
            sight(Kind::BFloat16, MAX_EXPLICIT_LENGTH + 1)
                .mask
                .is_none()
        );
        assert!(sight(Kind::Float, 8).mask.is_none());
    }
}
