//! SDXL's UNet: noisy latents, a step and a text to the noise or the velocity in them.
//!
//! ```text
//! latents ─▶ stage ─▶ half ─▶ stage ─▶ half ─▶ stage ─▶ middle ─▶ stage ─▶ double ─▶ stage ─▶ double ─▶ stage ─▶ noise
//!              │                │                │                  ▲                  ▲                  ▲
//!              └────────────────┼────────────────┼──────────────────┼──────────────────┼──────────────────┘
//!                               └────────────────┼──────────────────┼──────────────────┘
//!                                                └──────────────────┘
//! ```
//!
//! A stage is residual blocks, each of which is told the step, and behind each a transformer, in whose blocks the pixels
//! see each other and the text. Those blocks are most of the weights, and what is adapted and streamed. With bf16 compute
//! everything is computed in it but the embedding of step and sizes; norms sum in fp32.

mod config;
mod layers;

use tch::{Device, Kind, Tensor};

pub use config::UnetConfig;

pub(super) use self::config::SIZES;

use self::layers::{Residual, Transformer};
use super::model::SIZES_OF_PICTURE;
use super::names::LAYERS;
use crate::Error;
use crate::diffusion::parts::clip::POOLED;
use crate::diffusion::parts::conv::{Conv, GroupNorm};
use crate::diffusion::parts::time::{TimeEmbedding, sinusoids};
use crate::diffusion::{Conditions, Denoiser, TEXT};
use crate::model::{BlockList, Blocks, Builder, Pass};
use crate::tensor::to_kind;

/// The model. Its trainable tensors are in the [`Parameters`](crate::Parameters) it was built with.
#[derive(Debug)]
pub struct Unet {
    config: UnetConfig,
    time: TimeEmbedding,
    sizes: TimeEmbedding,
    input: Conv,
    down: Vec<Stage>,
    middle: Stage,
    up: Vec<Stage>,
    norm: GroupNorm,
    output: Conv,
    compute: Kind,
    device: Device,
}

/// Residual blocks, each with a transformer behind it if the stage has any, and the convolution that changes the size.
#[derive(Debug, Default)]
struct Stage {
    layers: Vec<(Blocks<Residual>, Option<Transformer>)>,
    resample: Option<Conv>,
}

/// What all blocks are told.
struct Told {
    /// Of step and sizes, behind its activation, `[batch, width]`.
    time: Tensor,
    /// `[batch, tokens, width]`
    text: Tensor,
}

impl Unet {
    /// Builds the model on `device`.
    ///
    /// # Errors
    /// If a weight is missing, or memory runs out.
    pub fn new(config: &UnetConfig, device: Device, builder: &mut Builder) -> Result<Self, Error> {
        let widths = &config.block_out_channels;
        let (first, time) = (widths[0], config.time());
        let mut embedder =
            |name: &str, inputs: i64| TimeEmbedding::new(name, [inputs, time, time], true, builder);
        let sizes = config.projection_class_embeddings_input_dim;
        let (time, sizes) = (
            embedder("time_embedding", first)?,
            embedder("add_embedding", sizes)?,
        );
        let input = Conv::new("conv_in", (config.in_channels, first), 3, builder)?;
        // Channels of what is kept for the way up.
        let (mut kept, mut channels) = (vec![first], first);
        let (mut down, mut up) = (Vec::new(), Vec::new());
        for (number, width) in widths.iter().copied().enumerate() {
            let name = format!("down_blocks.{number}");
            let mut stage = Stage::default();
            for layer in 0..LAYERS {
                stage.add(
                    &name,
                    layer,
                    (channels, width),
                    (config, number),
                    device,
                    builder,
                )?;
                channels = width;
                kept.push(channels);
            }
            if number + 1 < widths.len() {
                let name = format!("{name}.downsamplers.0.conv");
                stage.resample = Some(Conv::new(&name, (width, width), 3, builder)?);
                kept.push(channels);
            }
            down.push(stage);
        }
        let mut middle = Stage::default();
        let last = widths.len() - 1;
        middle.add(
            "mid_block",
            0,
            (channels, channels),
            (config, last),
            device,
            builder,
        )?;
        let second = Residual::new("mid_block.resnets.1", (channels, channels), config, builder)?;
        middle.layers.push((Blocks::resident(second), None));
        for (number, width) in widths.iter().copied().rev().enumerate() {
            let name = format!("up_blocks.{number}");
            let mut stage = Stage::default();
            for layer in 0..=LAYERS {
                let inputs = channels + kept.pop().unwrap_or(0);
                let of = (config, last - number);
                stage.add(&name, layer, (inputs, width), of, device, builder)?;
                channels = width;
            }
            if number < last {
                let name = format!("{name}.upsamplers.0.conv");
                stage.resample = Some(Conv::new(&name, (width, width), 3, builder)?);
            }
            up.push(stage);
        }
        let grouped = (config.norm_num_groups, config.norm_eps);
        let model = Self {
            time,
            sizes,
            input,
            down,
            middle,
            up,
            norm: GroupNorm::new("conv_norm_out", first, grouped, builder)?,
            output: Conv::new("conv_out", (first, config.in_channels), 3, builder)?,
            compute: builder.compute(),
            config: config.clone(),
            device,
        };
        builder.finish_blocks()?;
        Ok(model)
    }

    /// The embedding of steps `[batch]`, texts' vectors and pictures' sizes, behind the activation that all blocks begin
    /// with.
    fn told_time(&self, steps: &Tensor, pooled: &Tensor, sizes: &Tensor) -> Result<Tensor, Error> {
        let fp32 = |tensor: &Tensor| -> Result<Tensor, Error> {
            Ok(tensor.f_to_device(self.device)?.f_to_kind(Kind::Float)?)
        };
        let steps = self.time.forward(&fp32(steps)?)?;
        let sizes = sinusoids(&fp32(sizes)?, self.config.addition_time_embed_dim)?;
        let sizes = Tensor::f_cat(&[fp32(pooled)?, sizes.f_flatten(1, 2)?], 1)?;
        let sum = steps.f_add(&self.sizes.of_rows(&sizes)?)?;
        to_kind(&sum.f_silu()?, self.compute)
    }

    /// The prediction for noisy `latents` `[batch, channels, height, width]` at `steps` `[batch]`: the same shape in fp32.
    /// `pooled` is `[batch, width]`, `sizes` `[batch, 6]`.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn forward(
        &self,
        latents: &Tensor,
        steps: &Tensor,
        (text, pooled, sizes): (&Tensor, &Tensor, &Tensor),
        pass: Pass,
    ) -> Result<Tensor, Error> {
        self.check(latents, text, pooled, sizes)?;
        let told = Told {
            time: self.told_time(steps, pooled, sizes)?,
            text: to_kind(&text.f_to_device(self.device)?, self.compute)?,
        };
        let latents = to_kind(&latents.f_to_device(self.device)?, self.compute)?;
        let mut stream = self.input.same_size(&latents)?;
        let mut kept = vec![stream.shallow_clone()];
        for stage in &self.down {
            for layer in &stage.layers {
                stream = Stage::layer(layer, stream, &told, pass)?;
                kept.push(stream.shallow_clone());
            }
            if let Some(resample) = &stage.resample {
                stream = resample.halved(&stream)?;
                kept.push(stream.shallow_clone());
            }
        }
        for layer in &self.middle.layers {
            stream = Stage::layer(layer, stream, &told, pass)?;
        }
        for stage in &self.up {
            for layer in &stage.layers {
                let before = kept.pop();
                let before = before.ok_or_else(|| Error::Internal("nothing is kept".into()))?;
                stream = Tensor::f_cat(&[stream, before], 1)?;
                stream = Stage::layer(layer, stream, &told, pass)?;
            }
            if let (Some(resample), Some(before)) = (&stage.resample, kept.last()) {
                // Twice the size, or one less if that was rounded up.
                let (_, _, height, width) = before.size4()?;
                let larger = stream.f_upsample_nearest2d([height, width], None, None)?;
                stream = resample.same_size(&larger)?;
            }
        }
        let stream = self.norm.forward(&stream)?.f_silu()?;
        to_kind(&self.output.same_size(&stream)?, Kind::Float)
    }

    fn check(
        &self,
        latents: &Tensor,
        text: &Tensor,
        pooled: &Tensor,
        sizes: &Tensor,
    ) -> Result<(), Error> {
        let config = &self.config;
        let (batch, channels, height, width) = latents.size4()?;
        let fits = channels == config.in_channels
            && height > 0
            && width > 0
            && matches!(text.size()[..], [rows, _, width] if (rows, width) == (batch, config.cross_attention_dim))
            && pooled.size() == [batch, config.pooled()]
            && sizes.size() == [batch, SIZES];
        match fits {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "latents {:?} with a text {:?}, its vector {:?} and sizes {:?}: this model takes {} channels, texts of width \
                 {}, vectors of width {} and {SIZES} sizes",
                latents.size(),
                text.size(),
                pooled.size(),
                sizes.size(),
                config.in_channels,
                config.cross_attention_dim,
                config.pooled()
            ))),
        }
    }
}

impl Stage {
    /// Builds the residual block `layer` of the stage `name`, and the transformer behind it if a stage of this number has
    /// one.
    fn add(
        &mut self,
        name: &str,
        layer: usize,
        (inputs, outputs): (i64, i64),
        (config, number): (&UnetConfig, usize),
        device: Device,
        builder: &mut Builder,
    ) -> Result<(), Error> {
        let residual = format!("{name}.resnets.{layer}");
        let residual = Residual::new(&residual, (inputs, outputs), config, builder)?;
        let transformer = match config.transformer_layers_per_block[number] {
            0 => None,
            _ => {
                let name = format!("{name}.attentions.{layer}");
                Some(Transformer::new(&name, (config, number), device, builder)?)
            }
        };
        self.layers.push((Blocks::resident(residual), transformer));
        Ok(())
    }

    /// The stream after a layer.
    fn layer(
        (residual, transformer): &(Blocks<Residual>, Option<Transformer>),
        stream: Tensor,
        told: &Told,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        // Nothing is learned before the first adapter, so that nothing needs to be kept or computed again.
        let learned = stream.requires_grad() || told.time.requires_grad();
        let own = if learned { pass } else { Pass::Evaluate };
        let others = [told.time.shallow_clone()];
        let stream = residual.forward(stream, &others, &(), own)?;
        match transformer {
            Some(transformer) => transformer.forward(stream, &told.text, pass),
            None => Ok(stream),
        }
    }
}

impl Denoiser for Unet {
    fn predict(
        &self,
        noisy: &Tensor,
        times: &Tensor,
        conditions: &Conditions,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let told = (
            conditions.get(TEXT)?,
            conditions.get(POOLED)?,
            conditions.get(SIZES_OF_PICTURE)?,
        );
        let frames = noisy.size5()?.2;
        if frames != 1 {
            return Err(Error::Invalid(format!(
                "latents of {frames} frames: this model makes pictures"
            )));
        }
        let made = self.forward(&noisy.f_squeeze_dim(2)?, times, told, pass)?;
        Ok(made.f_unsqueeze(2)?)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        let stages = self.down.iter().chain([&self.middle]).chain(&self.up);
        let layers = stages.flat_map(|stage| &stage.layers);
        let lists = layers.flat_map(|(residual, transformer)| {
            let blocks = transformer
                .as_ref()
                .map(|transformer| transformer.blocks() as &dyn BlockList);
            [Some(residual as &dyn BlockList), blocks]
        });
        lists.flatten().collect()
    }

    fn description(&self) -> String {
        let config = &self.config;
        let list = |numbers: &[i64]| -> String {
            let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
            numbers.join(", ")
        };
        format!(
            "a UNet of {} channels with transformers of {} blocks",
            list(&config.block_out_channels),
            list(&config.transformer_layers_per_block)
        )
    }
}
