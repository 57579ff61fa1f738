//! The layers of decoder models.
//!
//! With bf16 compute, matrix products and attention run in bfloat16, while norms, the residual stream, the
//! adapters and the loss stay in fp32. This is what PyTorch's autocast does, but written out, so that it is
//! the same on every device.

use tch::{Device, Kind, Tensor};

use super::attention_kernel::{PackedTexts, Sight};
use crate::Error;
use crate::adapters::LoraLayer;
use crate::fused::{self, Angles, RowNorm};
use crate::tensor::{BaseMap, bytes, map_frozen, to_kind};
use crate::weight::Weight;

/// `x @ weightᵀ + bias`, plus the adapter's contribution.
#[derive(Debug)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: Weight,
    /// `[outputs]`
    pub bias: Option<Tensor>,
    /// The type of the product.
    pub compute: Kind,
    /// The trained low-rank change to the weight.
    pub adapter: Option<LoraLayer>,
}

impl Linear {
    /// `[…, inputs]` to `[…, outputs]`, in the layer's compute type. `dropout` enables the adapter's dropout.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn forward(&self, input: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let bias = match &self.bias {
            Some(bias) => Some(to_kind(bias, self.compute)?),
            None => None,
        };
        match &self.adapter {
            None => self.weight.product(input, bias.as_ref(), self.compute),
            Some(adapter) => {
                let base = (&self.weight, self.compute);
                adapter.forward(input, base, bias.as_ref(), dropout)
            }
        }
    }

    /// The input of several layers, in the type that their adapters need, if they have some: each would otherwise make and
    /// keep a copy of its own.
    pub(crate) fn shared_input(input: Tensor, layers: &[&Self]) -> Result<Tensor, Error> {
        match Self::shared_kind(layers) {
            Some(kind) => to_kind(&input, kind),
            None => Ok(input),
        }
    }

    /// The type in which the adapters of `layers` take their input: fp32 if one of them does; `None` without any.
    pub(crate) fn shared_kind(layers: &[&Self]) -> Option<Kind> {
        let kinds = layers.iter().filter_map(|layer| {
            let adapter = layer.adapter.as_ref()?;
            Some(adapter.kind(layer.compute))
        });
        kinds.reduce(|one, other| if one == other { one } else { Kind::Float })
    }

    /// The type in which `layers` convert their input at first; `None` without any.
    pub(crate) fn input_kind(layers: &[&Self]) -> Option<Kind> {
        let compute = || layers.first().map(|layer| layer.compute);
        Self::shared_kind(layers).or_else(compute)
    }

    /// The same layer on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: self.weight.map(map)?,
            bias: match &self.bias {
                Some(bias) => Some(map_frozen(bias, map)?),
                None => None,
            },
            compute: self.compute,
            adapter: match &self.adapter {
                Some(adapter) => Some(adapter.with_base(map)?),
                None => None,
            },
        })
    }
}

/// A token embedding, plus the adapter's contribution.
#[derive(Debug)]
pub struct Embedding {
    /// `[vocabulary, hidden]`
    pub weight: Tensor,
    /// The type of matrix products.
    pub compute: Kind,
    /// The low-rank change to the transposed weight: its `A` is `[rank, vocabulary]`.
    pub adapter: Option<LoraLayer>,
    /// The token whose row learns nothing from being looked up, as in transformers; −1 for none.
    pub padding: i64,
}

impl Embedding {
    /// Tokens `[batch, length]` to `[batch, length, hidden]` fp32.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, or memory runs out.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor, Error> {
        let rows = Tensor::f_embedding(&self.weight, tokens, self.padding, false, false)?;
        let rows = to_kind(&rows, Kind::Float)?;
        match &self.adapter {
            None => Ok(rows),
            Some(adapter) => {
                adapter.embed(&rows, (&self.weight, self.compute), tokens, self.padding)
            }
        }
    }
}

/// Root-mean-square normalisation over the last dimension, in fp32.
#[derive(Debug)]
pub struct RmsNorm {
    /// `[width]`
    pub weight: Tensor,
    /// Added to the mean square.
    pub epsilon: f64,
    /// Whether the weight is a difference to one.
    pub plus_one: bool,
}

impl RmsNorm {
    /// Normalises over the last dimension; same shape, in fp32.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = to_kind(input, Kind::Float)?;
        let width = self.weight.numel() as i64;
        Ok(input.f_rms_norm([width], Some(&self.whole_weight()?), self.epsilon)?)
    }

    /// What is multiplied by.
    pub(crate) fn whole_weight(&self) -> Result<Tensor, Error> {
        match self.plus_one {
            true => Ok(self.weight.f_add_scalar(1.0)?),
            false => Ok(self.weight.shallow_clone()),
        }
    }

    /// The same for a kernel of our own, if one may compute: it has no gradient for a weight that learns. What is computed again
    /// is asked the same, so that this does not hang on whether gradients are recorded.
    pub(crate) fn weight_of_kernel(&self) -> Result<Option<Tensor>, Error> {
        let may = fused::may_be_on(self.weight.device()) && !self.weight.requires_grad();
        may.then(|| self.whole_weight()).transpose()
    }

    /// Normalises over the last dimension, in the type of `input`.
    pub(crate) fn in_its_type(&self, input: &Tensor) -> Result<Tensor, Error> {
        if let Some(weight) = self.weight_of_kernel()? {
            let norm = RowNorm::new(input, Some(&weight), self.epsilon, input.kind());
            if let Some([output, _]) = norm.by_kernel()? {
                return Ok(output);
            }
        }
        to_kind(&self.forward(input)?, input.kind())
    }

    /// The same norm on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: map_frozen(&self.weight, map)?,
            ..*self
        })
    }
}

/// Normalisation to mean zero and variance one over the last dimension, with a weight and a bias.
#[derive(Debug)]
pub struct LayerNorm {
    /// `[width]`
    pub weight: Tensor,
    /// `[width]`
    pub bias: Tensor,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Normalises over the last dimension; same shape, in the same type.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let own = |tensor: &Tensor| to_kind(tensor, input.kind());
        let width = self.weight.numel() as i64;
        let (weight, bias) = (own(&self.weight)?, own(&self.bias)?);
        Ok(input.f_layer_norm([width], Some(&weight), Some(&bias), self.epsilon, true)?)
    }

    /// The same norm on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: map_frozen(&self.weight, map)?,
            bias: map_frozen(&self.bias, map)?,
            epsilon: self.epsilon,
        })
    }
}

/// Positions of a pass's tokens, and which of them see each other.
#[derive(Debug)]
pub struct Positions {
    /// The rotations.
    pub rope: Rope,
    /// The rotations of texts of more tokens than this, if theirs are others.
    pub long: Option<(i64, Rope)>,
    /// What a token sees of those before it.
    pub sight: Sight,
}

impl Positions {
    /// Positions of rows of `length` tokens, each a text or with `start` tokens before them. `kind` is the type of
    /// the scores.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn of_length(&self, (start, length): (i64, i64), kind: Kind) -> Result<Self, Error> {
        let rope = match &self.long {
            Some((most, rope)) if start + length > *most => rope,
            _ => &self.rope,
        };
        let rope = match start {
            // Once for all blocks; a token that continues a text needs one row of them.
            0 => rope.until(length, kind)?,
            _ => rope.shallow_clone(),
        };
        Ok(Self {
            rope,
            long: None,
            sight: Sight::new((self.sight.window, None), length, (kind, self.device()))?,
        })
    }

    /// Positions of a row of `length` tokens that begins with a text of `text` tokens. The others fill it up: they see
    /// what they would see of the text, but neither each other nor themselves. `kind` is the type of the scores.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn filled(&self, text: i64, length: i64, kind: Kind) -> Result<Self, Error> {
        let (device, window) = (self.device(), self.sight.window);
        let is_text = Tensor::f_arange(length, (Kind::Int64, device))?.f_lt(text)?;
        let seen = seen((length, 0), window, device)?.f_logical_and(&is_text)?;
        Ok(Self {
            sight: Sight {
                window,
                texts: None,
                mask: Some(hidden(&seen.f_unsqueeze(0)?, kind)?),
            },
            ..self.of_length((0, length), kind)?
        })
    }

    /// Positions of one text whose tokens have several of them: see [`Rope::in_sections`]. `kind` is the type of the
    /// scores.
    ///
    /// # Errors
    /// As [`Rope::in_sections`].
    pub fn in_sections(
        &self,
        positions: &Tensor,
        sections: &[i64],
        kind: Kind,
    ) -> Result<Self, Error> {
        let length = positions.size2()?.1;
        Ok(Self {
            rope: self
                .rope
                .in_sections(positions, sections)?
                .until(length, kind)?,
            ..self.of_length((0, length), kind)?
        })
    }

    /// Positions of rows that pack several `texts`, which do not attend to each other: `positions` (`[batch,
    /// length]`) restart at 0 with each text. `kind` is the type of the scores.
    ///
    /// # Errors
    /// If a position is beyond the tables, or memory runs out.
    pub fn packed(
        &self,
        positions: &Tensor,
        texts: &PackedTexts,
        kind: Kind,
    ) -> Result<Self, Error> {
        let length = positions.size2()?.1;
        let rope = self.rope.at(positions)?;
        let rope = match &self.long {
            None => rope,
            Some((most, long)) => {
                let is_long = texts.last(length)?.f_ge(*most)?;
                long.at(positions)?.where_else(&is_long, &rope)?
            }
        };
        let seen = (self.sight.window, Some(texts.shallow_clone()));
        Ok(Self {
            rope: rope.until(length, kind)?,
            long: None,
            sight: Sight::new(seen, length, (kind, self.device()))?,
        })
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> u64 {
        self.rope.bytes() + self.long.as_ref().map_or(0, |(_, rope)| rope.bytes())
    }

    /// A second handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let long = self.long.as_ref();
        Self {
            rope: self.rope.shallow_clone(),
            long: long.map(|(most, rope)| (*most, rope.shallow_clone())),
            sight: self.sight.shallow_clone(),
        }
    }

    fn device(&self) -> Device {
        self.rope.cos.device()
    }
}

/// Which tokens each of `length` new ones after the first `start` sees: itself and those before it, as many as
/// the window has. Booleans `[length, start + length]`.
///
/// # Errors
/// If memory runs out.
pub(crate) fn seen(
    (length, start): (i64, i64),
    window: Option<i64>,
    device: Device,
) -> Result<Tensor, Error> {
    let earlier = Tensor::f_ones([length, start + length], (Kind::Bool, device))?.f_tril(start)?;
    match window {
        Some(window) => Ok(earlier.f_triu(start + 1 - window)?),
        None => Ok(earlier),
    }
}

/// The mask that is added to scores, `[batch, 1, length, length]`, for what is `seen`.
pub(super) fn hidden(seen: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    Ok(Tensor::f_zeros(seen.size(), (kind, seen.device()))?
        .f_masked_fill(&seen.f_logical_not()?, f64::NEG_INFINITY)?
        .f_unsqueeze(1)?)
}

/// Rotary position embedding in the half-rotation layout of transformers:
/// dimension `i` is paired with `i + width/2`, where `width` is that of the head or of its part that is rotated.
#[derive(Debug)]
pub struct Rope {
    /// `[…, positions, width]`: the angles' cosines, both halves alike.
    cos: Tensor,
    /// `[…, positions, width]`: the angles' sines, negated in the first half.
    sin: Tensor,
    /// `[…, positions, 1]`: what queries are multiplied by, if by anything.
    growth: Option<Tensor>,
}

impl Rope {
    /// Tables for `positions` positions, from the angle per position of each pair; sines and cosines are
    /// multiplied by `factor`.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(
        frequencies: &[f64],
        factor: f64,
        positions: i64,
        device: tch::Device,
    ) -> Result<Self, Error> {
        let frequencies = Tensor::f_from_slice(frequencies)?.f_to_device(device)?;
        let options = (Kind::Double, device);
        let angles = Tensor::f_arange(positions, options)?.f_outer(&frequencies)?;
        let cos = angles.f_cos()?.f_mul_scalar(factor)?;
        let sin = angles.f_sin()?.f_mul_scalar(factor)?;
        let negated = sin.f_neg()?;
        Ok(Self {
            cos: Tensor::f_cat(&[&cos, &cos], -1)?.f_to_kind(Kind::Float)?,
            sin: Tensor::f_cat(&[&negated, &sin], -1)?.f_to_kind(Kind::Float)?,
            growth: None,
        })
    }

    /// The same rotations of queries that are multiplied by 1 + `rate` · ln(1 + ⌊position / `context`⌋).
    ///
    /// # Errors
    /// If memory runs out.
    pub fn growing(self, rate: f64, context: f64) -> Result<Self, Error> {
        let positions = self.cos.size()[0];
        let times = Tensor::f_arange(positions, (Kind::Double, self.cos.device()))?
            .f_div_scalar(context)?
            .f_floor()?;
        let growth = times.f_log1p()?.f_mul_scalar(rate)?.f_add_scalar(1.0)?;
        Ok(Self {
            growth: Some(growth.f_unsqueeze(1)?.f_to_kind(Kind::Float)?),
            ..self
        })
    }

    /// The angles of `length` tokens of which the first is at the position `start`, in the type of tables.
    ///
    /// # Errors
    /// If `start + length` is beyond the tables.
    pub(crate) fn angles(&self, start: i64, length: i64) -> Result<Angles, Error> {
        let half = self.cos.size().last().copied().unwrap_or(0) / 2;
        let of = |table: &Tensor, first: i64| -> Result<Tensor, Error> {
            let table = table
                .f_narrow(-2, start, length)?
                .f_narrow(-1, first, half)?;
            Ok(match table.dim() {
                2 => table.f_unsqueeze(0)?,
                _ => table.f_squeeze_dim(1)?,
            })
        };
        Ok(Angles {
            cosines: of(&self.cos, 0)?,
            sines: of(&self.sin, half)?,
            by_halves: true,
        })
    }

    /// Whether queries grow with their position.
    pub(crate) fn grows(&self) -> bool {
        self.growth.is_some()
    }

    /// Like [`Rope::forward`], for queries.
    ///
    /// # Errors
    /// As [`Rope::forward`].
    pub fn queries(&self, input: &Tensor, start: i64) -> Result<Tensor, Error> {
        let rotated = self.forward(input, start)?;
        let Some(growth) = &self.growth else {
            return Ok(rotated);
        };
        let (_, _, length, _) = rotated.size4()?;
        let growth = to_kind(&growth.f_narrow(-2, start, length)?, rotated.kind())?;
        Ok(rotated.f_mul(&growth)?)
    }

    /// Rotates `[batch, heads, length, width]`, whose first position is `start`.
    ///
    /// # Errors
    /// If `start + length` is beyond the tables.
    pub fn forward(&self, input: &Tensor, start: i64) -> Result<Tensor, Error> {
        let (_, _, length, whole) = input.size4()?;
        let width = self.cos.size().last().copied().unwrap_or(whole);
        let part = match whole == width {
            true => input.shallow_clone(),
            false => input.f_narrow(-1, 0, width)?,
        };
        let table = |table: &Tensor| -> Result<Tensor, Error> {
            to_kind(&table.f_narrow(-2, start, length)?, input.kind())
        };
        let swapped = part.f_roll([width / 2], [-1])?;
        let rotated =
            (part.f_mul(&table(&self.cos)?)?).f_add(&swapped.f_mul(&table(&self.sin)?)?)?;
        match whole - width {
            0 => Ok(rotated),
            rest => Ok(Tensor::f_cat(
                &[rotated, input.f_narrow(-1, width, rest)?],
                -1,
            )?),
        }
    }

    /// These tables where `condition` (`[batch, length]`) holds, and the `other` ones where it does not; both of
    /// [`Rope::at`].
    fn where_else(&self, condition: &Tensor, other: &Self) -> Result<Self, Error> {
        let condition = condition.f_unsqueeze(1)?.f_unsqueeze(3)?;
        let choose = |ours: &Tensor, theirs: &Tensor| ours.f_where_self(&condition, theirs);
        Ok(Self {
            cos: choose(&self.cos, &other.cos)?,
            sin: choose(&self.sin, &other.sin)?,
            growth: match (&self.growth, &other.growth) {
                (Some(ours), Some(theirs)) => Some(choose(ours, theirs)?),
                _ => None,
            },
        })
    }

    /// The tables for tokens at these positions, integers `[batch, length]`.
    ///
    /// # Errors
    /// If a position is beyond the tables, or memory runs out.
    pub fn at(&self, positions: &Tensor) -> Result<Self, Error> {
        let rows = |table: &Tensor| -> Result<Tensor, Error> {
            Ok(Tensor::f_embedding(table, positions, -1, false, false)?.f_unsqueeze(1)?)
        };
        Ok(Self {
            cos: rows(&self.cos)?,
            sin: rows(&self.sin)?,
            growth: self.growth.as_ref().map(rows).transpose()?,
        })
    }

    /// The tables for tokens with several positions each, integers `[kinds, length]`: so many frequencies after one
    /// another as `sections` lists turn by the first, the second, …, and again by the first.
    ///
    /// # Errors
    /// If a position is beyond the tables, or memory runs out.
    pub fn in_sections(&self, positions: &Tensor, sections: &[i64]) -> Result<Self, Error> {
        let kinds = positions.size2()?.0;
        let half = self.cos.size().last().copied().unwrap_or(0) / 2;
        let mixed = |table: &Tensor| -> Result<Tensor, Error> {
            let mut parts = Vec::new();
            for start in [0, half] {
                let mut column = start;
                for (index, width) in sections.iter().enumerate() {
                    let part = table.f_narrow(-1, column, *width)?;
                    let rows = positions.f_select(0, index as i64 % kinds)?;
                    parts.push(part.f_index_select(0, &rows)?);
                    column += width;
                }
            }
            Ok(Tensor::f_cat(&parts, -1)?)
        };
        Ok(Self {
            cos: mixed(&self.cos)?,
            sin: mixed(&self.sin)?,
            growth: None,
        })
    }

    /// The tables of the first `positions`, in the type of what is rotated.
    fn until(&self, positions: i64, kind: Kind) -> Result<Self, Error> {
        let part = |table: &Tensor| to_kind(&table.f_narrow(-2, 0, positions)?, kind);
        Ok(Self {
            cos: part(&self.cos)?,
            sin: part(&self.sin)?,
            growth: self.growth.as_ref().map(part).transpose()?,
        })
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> u64 {
        bytes(&self.cos) + bytes(&self.sin) + self.growth.as_ref().map_or(0, bytes)
    }

    /// Another handle to the same tables.
    pub fn shallow_clone(&self) -> Self {
        Self {
            cos: self.cos.shallow_clone(),
            sin: self.sin.shallow_clone(),
            growth: self.growth.as_ref().map(Tensor::shallow_clone),
        }
    }
}
