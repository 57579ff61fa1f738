//! The blocks of the transformer: of the text alone, and of text and picture.
//!
//! With bf16 compute, matrix products and attention run in bf16. Norms, modulation and residual sums are computed in
//! fp32, and the residual stream is rounded after each.

use tch::Tensor;

use crate::Error;
use crate::diffusion::krea2::names::BLOCKS;
use crate::diffusion::parts::double::{gated, linear, mixed, normed, vectors};
use crate::diffusion::parts::rotary::Rotary;
use crate::fused::RowNorm;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial, Layer};
use crate::tensor::{BaseMap, map_frozen, to_kind};

/// Input that the blocks of a list share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Positions; `None` in the blocks for the text.
    pub(super) rotary: Option<Rotary>,
    /// Which tokens are seen, `[batch, 1, 1, tokens]`; `None` for all.
    pub(super) seen: Option<Tensor>,
}

/// Of a kind of block: its width, that inside the feed-forward layer, its heads of queries and of keys, and what is added to
/// mean squares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) width: i64,
    pub(super) inner: i64,
    pub(super) heads: [i64; 2],
    pub(super) epsilon: f64,
}

/// Vectors by which a block modulates its stream: scale, shift and gate for attention and feed-forward layer.
pub(super) const VECTORS: i64 = 6;

/// Attention, whose heads of queries share keys and values and whose output passes a gate, and a gated feed-forward layer.
#[derive(Debug)]
pub(super) struct Block {
    /// `[6, width]`: added to what all blocks are modulated by; `None` in the blocks for the text, which are not.
    table: Option<Tensor>,
    /// Of queries and keys, per head; before attention and feed-forward layer.
    norms: [RmsNorm; 4],
    /// Queries, keys, values, gate and output of attention; gate, up and down of the feed-forward layer.
    linear: [Linear; 8],
}

/// As many results as there must be.
fn all<U, const N: usize>(items: impl Iterator<Item = Result<U, Error>>) -> Result<[U; N], Error> {
    let made = items.collect::<Result<Vec<_>, _>>()?;
    made.try_into()
        .map_err(|_| Error::Internal(format!("not {N} parts of a block")))
}

impl Block {
    pub(super) fn new(
        sizes: Sizes,
        block: &str,
        is_modulated: bool,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let [queries, keys] = sizes.heads;
        let (w, i, h) = (sizes.width, sizes.inner, sizes.width / queries);
        let k = keys * h;
        // As the names are ordered.
        let (inputs, outputs) = ([w, w, w, w, w, w, w, i], [w, k, k, w, w, i, i, w]);
        let shapes = BLOCKS.linear.iter().zip(inputs.into_iter().zip(outputs));
        let norms = BLOCKS.others.iter().zip([h, h, w, w]);
        let name = |part: &str| format!("{block}.{part}");
        let table = name("scale_shift_table");
        Ok(Self {
            linear: all(
                shapes.map(|((part, _), sizes)| linear(&name(part), sizes, false, builder))
            )?,
            norms: all(norms.map(|((part, _), width)| {
                builder.norm_plus_one(&name(part), width, sizes.epsilon)
            }))?,
            table: match is_modulated {
                true => Some(builder.kept(&table, &[VECTORS, w], Initial::Normal(0.02))?),
                false => None,
            },
        })
    }

    /// `[batch, tokens, width]` to the same shape.
    fn attended(&self, input: Tensor, shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let [query, key, value, gate, output, ..] = &self.linear;
        let input = Linear::shared_input(input, &[query, key, value, gate])?;
        let (batch, tokens, _) = input.size3()?;
        let head = self.norms[0].weight.numel() as i64;
        let rows = |layer: &Linear| -> Result<Tensor, Error> {
            let rows = layer.forward(&input, dropout)?;
            Ok(rows.f_reshape([batch, tokens, -1, head])?)
        };
        let turned = |layer: &Linear, norm: usize| -> Result<Tensor, Error> {
            let rows = normed(&self.norms[norm], &rows(layer)?)?;
            match &shared.rotary {
                Some(rotary) => rotary.rotated(&rows),
                None => Ok(rows),
            }
        };
        let query = turned(query, 0)?;
        // Each head of keys and values once for each head of queries.
        let spread = |rows: Tensor| -> Result<Tensor, Error> {
            let group = query.size()[2] / rows.size()[2];
            let spread = rows
                .f_unsqueeze(3)?
                .f_expand([-1, -1, -1, group, -1], false)?;
            Ok(spread.f_reshape(query.size())?)
        };
        let (key, value) = (spread(turned(key, 1)?)?, spread(rows(value)?)?);
        let gate = gate.forward(&input, dropout)?.f_sigmoid()?;
        drop(input);
        let mixed = mixed([query, key, value], shared.seen.as_ref())?;
        output.forward(&mixed.f_mul(&gate)?, dropout)
    }
}

/// The stream after `norm`, modulated by vectors `[batch, 1, width]` if there are some, in the stream's type.
pub(super) fn modulated(
    norm: &RmsNorm,
    stream: &Tensor,
    vectors: Option<(&Tensor, &Tensor)>,
) -> Result<Tensor, Error> {
    let factor = vectors
        .map(|(scale, _)| scale.f_add_scalar(1.0))
        .transpose()?;
    if let Some(weight) = norm.weight_of_kernel()? {
        let fused = RowNorm {
            factor: factor.as_ref(),
            shift: vectors.map(|(_, shift)| shift),
            ..RowNorm::new(stream, Some(&weight), norm.epsilon, stream.kind())
        };
        if let Some([changed, _]) = fused.by_kernel()? {
            return Ok(changed);
        }
    }
    let normed = norm.forward(stream)?;
    let changed = match (factor, vectors) {
        (Some(factor), Some((_, shift))) => normed.f_mul(&factor)?.f_add(shift)?,
        _ => normed,
    };
    to_kind(&changed, stream.kind())
}

impl Layer for Block {
    type Shared = Shared;

    fn share(shared: &Shared) -> Shared {
        Shared {
            rotary: shared.rotary.as_ref().map(Rotary::shallow_clone),
            seen: shared.seen.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// Inputs: the residual stream `[batch, tokens, width]`, and the vectors of all blocks, `[batch, 6 · width]` fp32, if
    /// the block is modulated.
    fn forward(&self, inputs: &[Tensor], shared: &Shared, dropout: bool) -> Result<Tensor, Error> {
        let (stream, own) = match (inputs, &self.table) {
            ([stream], None) => (stream, None),
            ([stream, of_all], Some(table)) => {
                let own = of_all.f_add(&table.f_reshape([-1])?)?;
                (stream, Some(vectors::<{ VECTORS as usize }>(&own)?))
            }
            _ => {
                return Err(Error::Internal(
                    "a block takes the stream, and vectors if it is modulated".into(),
                ));
            }
        };
        let modulation = |at: usize| own.as_ref().map(|own| (&own[at], &own[at + 1]));
        let sum = |stream: &Tensor, gate: usize, change: Tensor| match &own {
            Some(own) => gated(stream, &own[gate], change),
            None => Ok(stream.f_add(&to_kind(&change, stream.kind())?)?),
        };
        let input = modulated(&self.norms[2], stream, modulation(0))?;
        let change = self.attended(input, shared, dropout)?;
        let stream = sum(stream, 2, change)?;
        let input = modulated(&self.norms[3], &stream, modulation(3))?;
        let [.., to_gate, up, down] = &self.linear;
        let input = Linear::shared_input(input, &[to_gate, up])?;
        let opened = to_gate.forward(&input, dropout)?.f_silu()?;
        let inner = opened.f_mul(&up.forward(&input, dropout)?)?;
        drop((input, opened));
        let change = down.forward(&inner, dropout)?;
        drop(inner);
        sum(&stream, 5, change)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            table: match &self.table {
                Some(table) => Some(map_frozen(table, map)?),
                None => None,
            },
            norms: all(self.norms.iter().map(|norm| norm.with_base(map)))?,
            linear: all(self.linear.iter().map(|layer| layer.with_base(map)))?,
        })
    }
}
