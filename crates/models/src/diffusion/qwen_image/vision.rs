//! The text encoder's tower for pictures: what its language model sees of a picture, and how the picture is prepared.
//!
//! ```text
//! picture ─▶ patches ─▶ linear ─▶ ┌ norm ─▶ attention ─▶ + ─▶ norm ─▶ feed-forward ─▶ + ┐ ─▶ norm ─▶ 4 in 1 ─▶ states
//!                                 └──────────────────── × depth ───────────────────────┘
//! ```
//!
//! Four neighbours become one state. In most blocks, patches see those of their window alone; patches are ordered by
//! windows, and states put back into rows at the end.

mod config;
mod pixels;

use tch::{Device, Kind, Tensor};

pub(super) use self::config::VisionConfig;
pub(super) use self::pixels::Pixels;
use crate::Error;
use crate::diffusion::parts::double::linear;
use crate::diffusion::parts::rotary::Rotary;
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{Builder, Initial};
use crate::tensor::to_kind;

/// Pixels of a patch along each side.
const PATCH: i64 = 14;

/// Patches that become one state, along each side.
pub(super) const MERGED: i64 = 2;

/// Frames of a patch: a picture is shown twice.
const FRAMES: i64 = 2;

/// Added to mean squares.
const EPSILON: f64 = 1e-6;

/// Names of the tower's weights begin with this.
const NAME: &str = "visual";

/// The tower.
#[derive(Debug)]
pub(super) struct Tower {
    config: VisionConfig,
    /// `[width, colours · frames · rows · columns]`
    patches: Tensor,
    blocks: Vec<Block>,
    norm: RmsNorm,
    merger: [Linear; 2],
    compute: Kind,
    device: Device,
}

#[derive(Debug)]
struct Block {
    norms: [RmsNorm; 2],
    /// Queries, keys and values, one after the other.
    inputs: Linear,
    output: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// The order of a picture's patches, in which those of a window follow each other.
struct Windows {
    /// Of each place, the four patches there in the order of [`Pixels::patches`].
    places: Vec<i64>,
    /// The number of patches of each window.
    lengths: Vec<i64>,
}

impl Windows {
    /// For so many rows and columns of places, in windows of `side` × `side`.
    fn new((rows, columns): (i64, i64), side: i64) -> Self {
        let (mut places, mut lengths) = (Vec::new(), Vec::new());
        for top in (0..rows).step_by(side as usize) {
            for left in (0..columns).step_by(side as usize) {
                let before = places.len();
                for row in top..(top + side).min(rows) {
                    places.extend((left..(left + side).min(columns)).map(|c| row * columns + c));
                }
                lengths.push((places.len() - before) as i64 * MERGED * MERGED);
            }
        }
        Self { places, lengths }
    }

    /// Where each place is in this order.
    fn backwards(&self) -> Vec<i64> {
        let mut backwards = vec![0; self.places.len()];
        for (index, place) in self.places.iter().enumerate() {
            backwards[*place as usize] = index as i64;
        }
        backwards
    }

    /// The index, the row and the column of each patch.
    fn patches(&self, columns: i64) -> [Vec<i64>; 3] {
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for place in &self.places {
            for part in 0..MERGED * MERGED {
                all[0].push(place * MERGED * MERGED + part);
                all[1].push(place / columns * MERGED + part / MERGED);
                all[2].push(place % columns * MERGED + part % MERGED);
            }
        }
        all
    }
}

impl Tower {
    /// Builds the tower on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub(super) fn new(
        config: &VisionConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let width = config.hidden_size;
        let name = format!("{NAME}.patch_embed.proj.weight");
        let shape = [width, 3, FRAMES, PATCH, PATCH];
        let patches = builder.matrix(&name, &shape, Initial::Normal(0.02), true)?;
        let blocks = (0..config.depth).map(|index| Block::new(config, index, builder));
        let blocks = blocks.collect::<Result<_, _>>()?;
        let all = width * MERGED * MERGED;
        let name = |part: &str| format!("{NAME}.merger.{part}");
        Ok(Self {
            patches: patches.f_reshape([width, -1])?,
            blocks,
            norm: builder.norm(&name("ln_q"), width, EPSILON)?,
            merger: [
                linear(&name("mlp.0"), (all, all), true, builder)?,
                linear(&name("mlp.2"), (all, config.out_hidden_size), true, builder)?,
            ],
            compute: builder.compute(),
            config: config.clone(),
            device,
        })
    }

    /// The states of a picture, `[places, width]`, of its patches as [`Pixels::patches`] makes them, which are in so many
    /// rows and columns of places.
    ///
    /// # Errors
    /// If memory runs out.
    pub(super) fn states(
        &self,
        patches: &Tensor,
        (rows, columns): (i64, i64),
    ) -> Result<Tensor, Error> {
        let side = self.config.window_size / PATCH / MERGED;
        let windows = Windows::new((rows, columns), side);
        let index =
            |list: &[i64]| Ok::<_, Error>(Tensor::f_from_slice(list)?.f_to_device(self.device)?);
        let [order, row, column] = windows.patches(columns);
        let turned = self.config.hidden_size / self.config.num_heads / 2;
        let axis = |at: &[i64]| -> Result<_, Error> {
            let at = Tensor::f_from_slice(at)?.f_unsqueeze(0)?;
            Ok((at, turned, self.config.rope_theta))
        };
        let rotary = Rotary::of_halves(&[axis(&row)?, axis(&column)?], self.device)?;
        let patches = patches
            .f_to_device(self.device)?
            .f_index_select(0, &index(&order)?)?;
        let patches = to_kind(&patches, self.compute)?;
        let none = None::<&Tensor>;
        let embedded = patches.f_linear(&to_kind(&self.patches, self.compute)?, none)?;
        let mut stream = embedded.f_unsqueeze(0)?;
        let whole = [order.len() as i64];
        for (number, block) in self.blocks.iter().enumerate() {
            let sees_all = self.config.fullatt_block_indexes.contains(&(number as i64));
            let lengths = if sees_all {
                &whole[..]
            } else {
                &windows.lengths
            };
            stream = block.forward(&stream, (&rotary, lengths), &self.config)?;
        }
        let normed = to_kind(&self.norm.forward(&stream)?, self.compute)?;
        let places = normed.f_reshape([rows * columns, -1])?;
        let inner = self.merger[0].forward(&places, false)?.f_gelu("none")?;
        let states = self.merger[1].forward(&inner, false)?;
        Ok(states.f_index_select(0, &index(&windows.backwards())?)?)
    }
}

impl Block {
    fn new(config: &VisionConfig, index: i64, builder: &mut Builder) -> Result<Self, Error> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let name = |part: &str| format!("{NAME}.blocks.{index}.{part}");
        Ok(Self {
            norms: [
                builder.norm(&name("norm1"), width, EPSILON)?,
                builder.norm(&name("norm2"), width, EPSILON)?,
            ],
            inputs: linear(&name("attn.qkv"), (width, 3 * width), true, builder)?,
            output: linear(&name("attn.proj"), (width, width), true, builder)?,
            gate: linear(&name("mlp.gate_proj"), (width, inner), true, builder)?,
            up: linear(&name("mlp.up_proj"), (width, inner), true, builder)?,
            down: linear(&name("mlp.down_proj"), (inner, width), true, builder)?,
        })
    }

    /// The stream `[1, patches, width]` after this block, in which so many patches after one another see each other.
    fn forward(
        &self,
        stream: &Tensor,
        (rotary, lengths): (&Rotary, &[i64]),
        config: &VisionConfig,
    ) -> Result<Tensor, Error> {
        let normed = to_kind(&self.norms[0].forward(stream)?, stream.kind())?;
        let (_, tokens, width) = stream.size3()?;
        let all = self.inputs.forward(&normed, false)?;
        let all = all.f_view([1, tokens, 3, config.num_heads, -1])?;
        let part = |index| all.f_select(2, index);
        let heads = [
            rotary.rotated(&part(0)?)?,
            rotary.rotated(&part(1)?)?,
            part(2)?,
        ];
        let mut start = 0;
        let mut mixed = Vec::new();
        for length in lengths {
            let of_window = |part: &Tensor| part.f_narrow(1, start, *length)?.f_transpose(1, 2);
            let [query, key, value] = &heads;
            let none = None::<&Tensor>;
            mixed.push(Tensor::f_scaled_dot_product_attention(
                &of_window(query)?,
                &of_window(key)?,
                &of_window(value)?,
                none,
                0.0,
                false,
                None,
                false,
            )?);
            start += length;
        }
        let mixed = Tensor::f_cat(&mixed, 2)?.f_transpose(1, 2)?;
        let mixed = mixed.f_reshape([1, tokens, width])?;
        let stream = stream.f_add(&self.output.forward(&mixed, false)?)?;
        let normed = to_kind(&self.norms[1].forward(&stream)?, stream.kind())?;
        let inner = self.gate.forward(&normed, false)?.f_silu()?;
        let inner = inner.f_mul(&self.up.forward(&normed, false)?)?;
        Ok(stream.f_add(&self.down.forward(&inner, false)?)?)
    }
}
