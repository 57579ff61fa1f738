//! Krea 2's transformer: noisy latents, a time and the states of a text to a velocity.
//!
//! ```text
//! latents ─▶ patches ─▶ linear ──────────────────────────────────────────────────┐
//!                                                                                ├─▶ [text, picture] ─▶ blocks ─▶ norm
//! states ─▶ blocks across states ─▶ one state ─▶ blocks across tokens ─▶ linear ─┘                                  │
//! time ───▶ sines ─▶ linear ─▶ scales, shifts and gates of all blocks, to which each adds a table          velocity ◀┘
//! ```
//!
//! Norms multiply by one plus their weight. The text is at position zero; what fills up shorter texts is not seen.

mod config;
mod layers;

use tch::{Device, Kind, Tensor};

pub use config::{Dimensions, TransformerConfig};

use self::layers::{Block, Shared, VECTORS, modulated};
use crate::Error;
use crate::diffusion::krea2::names::{BLOCKS, LAYERWISE, REFINER};
use crate::diffusion::parts::double::vectors;
use crate::diffusion::parts::picture::{check_texts, grid, patched, seen, unpatched};
use crate::diffusion::parts::rotary::Rotary;
use crate::diffusion::parts::time::TimeEmbedding;
use crate::diffusion::{BlockNames, Conditions, Denoiser, TEXT};
use crate::model::layers::{Linear, RmsNorm};
use crate::model::{BlockList, Blocks, Builder, Initial, Pass};
use crate::tensor::to_kind;

/// Latents per token, in each direction.
pub(super) const PATCH: i64 = 2;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Transformer {
    config: TransformerConfig,
    picture: Linear,
    time: TimeEmbedding,
    /// Makes the vectors of all blocks from the time.
    modulation: Linear,
    layerwise: Blocks<Block>,
    /// Makes one state of those of a token.
    projector: Linear,
    refiner: Blocks<Block>,
    text_norm: RmsNorm,
    text: [Linear; 2],
    blocks: Blocks<Block>,
    /// `[2, width]`: added to the time for scale and shift of the last norm.
    last_table: Tensor,
    last_norm: RmsNorm,
    output: Linear,
    device: Device,
}

impl Transformer {
    /// Builds the model on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn new(
        config: &TransformerConfig,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let (own, width, epsilon) = (&config.dimensions, config.width(), config.norm_eps);
        let initial = Initial::Normal(0.02);
        let mut linear = |name: &str, sizes| builder.linear(name, sizes, true, initial);
        let picture = linear("img_in", (own.in_channels, width))?;
        let modulation = linear("time_mod_proj", (width, VECTORS * width))?;
        let states = own.text_hidden_dim;
        let text = [
            linear("txt_in.linear_1", (states, width))?,
            linear("txt_in.linear_2", (width, width))?,
        ];
        let output = linear("final_layer.linear", (width, own.in_channels))?;
        let widths = [own.timestep_embed_dim, width, width];
        let blocks = |list: &BlockNames, count: i64, builder: &mut Builder| {
            let is_modulated = list.name == BLOCKS.name;
            let sizes = config.sizes(!is_modulated);
            let blocks = (list.name, usize::try_from(count).unwrap_or(0));
            Blocks::new(blocks, device, builder, |index, builder| {
                let name = format!("{}.{index}", list.name);
                Block::new(sizes, &name, is_modulated, builder)
            })
        };
        let model = Self {
            picture,
            time: TimeEmbedding::new("time_embed", widths, true, builder)?.with_gelu(),
            modulation,
            projector: builder.unquantized(
                "text_fusion.projector",
                (own.num_text_layers, 1),
                false,
                initial,
            )?,
            text_norm: builder.norm_plus_one("txt_in.norm", states, epsilon)?,
            text,
            last_table: builder.kept("final_layer.scale_shift_table", &[2, width], initial)?,
            last_norm: builder.norm_plus_one("final_layer.norm", width, epsilon)?,
            output,
            layerwise: blocks(&LAYERWISE, own.num_layerwise_text_blocks, builder)?,
            refiner: blocks(&REFINER, own.num_refiner_text_blocks, builder)?,
            blocks: blocks(&BLOCKS, own.num_layers, builder)?,
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The text in the width of the blocks: of states side by side, `[batch, words, states · width]`, of which as many
    /// words count as `tokens` says.
    fn fused(&self, text: &Tensor, tokens: &[i64], pass: Pass) -> Result<Tensor, Error> {
        let (batch, words, _) = text.size3()?;
        let own = &self.config.dimensions;
        let (states, width) = (own.num_text_layers, own.text_hidden_dim);
        let rows =
            to_kind(text, self.text[0].compute)?.f_reshape([batch * words, states, width])?;
        let rows = self
            .layerwise
            .forward(rows, &[], &Shared::default(), pass)?;
        let rows = rows.f_reshape([batch, words, states, width])?;
        let dropout = pass != Pass::Evaluate;
        let stream = self.projector.forward(&rows.f_transpose(2, 3)?, dropout)?;
        let shared = Shared {
            rotary: None,
            seen: seen(tokens, (words, 0), self.device)?,
        };
        let stream = self
            .refiner
            .forward(stream.f_squeeze_dim(3)?, &[], &shared, pass)?;
        let normed = modulated(&self.text_norm, &stream, None)?;
        let inner = self.text[0].forward(&normed, dropout)?.f_gelu("tanh")?;
        self.text[1].forward(&inner, dropout)
    }
}

impl Denoiser for Transformer {
    fn predict(
        &self,
        noisy: &Tensor,
        times: &Tensor,
        conditions: &Conditions,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let (dropout, config) = (pass != Pass::Evaluate, &self.config);
        let grid = grid(noisy, config.channels(), PATCH)?;
        let (text, tokens) = (conditions.get(TEXT)?, conditions.text_tokens()?);
        check_texts(text, (noisy.size()[0], config.text_width()), Some(&tokens))?;
        let (words, pictured) = (text.size3()?.1, grid.0 * grid.1);
        let times = times.f_to_device(self.device)?.f_to_kind(Kind::Float)?;
        let time = self.time.forward(&times)?;
        let of_all = self.modulation.forward(&time.f_gelu("tanh")?, dropout)?;
        let (axes, theta) = (config.axes_dims_rope, config.rope_theta);
        let rotary = Rotary::behind_text((words, grid), axes, theta, self.device)?;
        let shared = Shared {
            rotary: Some(rotary),
            seen: seen(&tokens, (words, pictured), self.device)?,
        };
        let text = self.fused(text, &tokens, pass)?;
        let picture = self.picture.forward(&patched(noisy, PATCH)?, dropout)?;
        let stream = Tensor::f_cat(&[text, picture], 1)?;
        let others = [to_kind(&of_all, Kind::Float)?];
        let stream = self.blocks.forward(stream, &others, &shared, pass)?;
        let picture = stream.f_narrow(1, words, pictured)?;
        let own = time
            .f_repeat([1, 2])?
            .f_add(&self.last_table.f_reshape([-1])?)?;
        let [scale, shift] = vectors(&own)?;
        let normed = modulated(&self.last_norm, &picture, Some((&scale, &shift)))?;
        let made = to_kind(&self.output.forward(&normed, dropout)?, Kind::Float)?;
        unpatched(&made, grid, PATCH)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.layerwise, &self.refiner, &self.blocks]
    }

    fn description(&self) -> String {
        let (own, width) = (&self.config.dimensions, self.config.width());
        let of_text = own.num_layerwise_text_blocks + own.num_refiner_text_blocks;
        format!(
            "{} blocks of width {width}, and {of_text} for the text",
            own.num_layers
        )
    }
}
