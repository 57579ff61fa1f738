//! Per-layer embeddings: a second embedding of each token, with a part for each block.
//!
//! ```text
//! token ─▶ row of a table ─▶ × scale ─────────────────┐
//! embedding ─▶ projection ─▶ norm of each part ─▶ + ──┴─▶ ÷ √2 ─▶ a part for each block
//!
//! residual stream ─▶ gate ─▶ activation ─▶ × part ─▶ projection ─▶ norm ─▶ + residual stream
//! ```
//!
//! The table of a small model is as large as its blocks together, and a batch needs few of its rows. Unless it is trained,
//! it stays in host memory, and only these rows are copied.

use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use super::block::scaled;
use super::decoder::rounded;
use super::norm::Norm;
use super::{Activation, DecoderConfig};
use crate::Error;
use crate::json::Object;
use crate::model::layers::Linear;
use crate::model::{Builder, Initial};
use crate::tensor::{BaseMap, frozen_bytes, to_kind};

/// The keys of a `config.json` about them.
pub(super) const KEYS: &[&str] = &[WIDTH, VOCABULARY];
const WIDTH: &str = "hidden_size_per_layer_input";
const VOCABULARY: &str = "vocab_size_per_layer_input";

/// Their dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerInputs {
    /// Width of the part of one block.
    pub width: i64,
    /// Number of tokens in the table.
    pub vocabulary: i64,
}

impl PerLayerInputs {
    /// Reads them; a width of zero or null means that there are none.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub(super) fn read(object: &Object) -> Result<Option<Self>, Error> {
        let is_null = object.has(WIDTH) && object.get(WIDTH).is_none();
        let width = match is_null {
            true => 0,
            false => object.integer(WIDTH, Some(256), 0..=1 << 20)?,
        };
        let vocabulary = object.integer(VOCABULARY, Some(262_144), 1..=1 << 24)?;
        Ok((width > 0).then_some(Self { width, vocabulary }))
    }

    /// Adds the keys that [`PerLayerInputs::read`] reads.
    pub(super) fn write(of: Option<Self>, keys: &mut Map<String, Value>) {
        keys.insert(WIDTH.into(), of.map_or(0, |of| of.width).into());
        if let Some(of) = of {
            keys.insert(VOCABULARY.into(), of.vocabulary.into());
        }
    }
}

/// What makes the parts of all blocks.
#[derive(Debug)]
pub(super) struct PerLayer {
    /// `[vocabulary, blocks · width]`
    table: Tensor,
    /// What its rows are multiplied by.
    scale: f64,
    /// The token whose row learns nothing.
    padding: i64,
    projection: Linear,
    /// What the projection's outputs are multiplied by.
    projection_scale: f64,
    norm: Norm,
    width: i64,
    device: Device,
}

impl PerLayer {
    /// Builds them, for tokens and blocks on `device`.
    pub(super) fn new(
        config: &DecoderConfig,
        PerLayerInputs { width, vocabulary }: PerLayerInputs,
        (device, padding): (Device, i64),
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let hidden = config.hidden_size;
        let all = config.num_hidden_layers * width;
        let table =
            builder.host_embedding("model.embed_tokens_per_layer", &[vocabulary, all], initial)?;
        let projection = "model.per_layer_model_projection";
        Ok(Self {
            scale: rounded((width as f64).sqrt(), table.kind())?,
            table,
            padding,
            projection: builder.linear(projection, (hidden, all), false, initial)?,
            projection_scale: (hidden as f64).powf(-0.5),
            norm: Norm::new(config, "model.per_layer_projection_norm", width, builder)?,
            width,
            device,
        })
    }

    /// The part of each block, `[batch, length, width]` in the type of matrix products, for tokens `[batch, length]` and their embeddings.
    pub(super) fn parts(
        &self,
        tokens: &Tensor,
        embedded: &Tensor,
        dropout: bool,
    ) -> Result<Vec<Tensor>, Error> {
        let (batch, length, _) = embedded.size3()?;
        let split = [batch, length, -1, self.width];
        let tokens = tokens.f_to_device(self.table.device())?;
        let rows = Tensor::f_embedding(&self.table, &tokens, self.padding, false, false)?;
        let rows = to_kind(&rows.f_to_device(self.device)?, Kind::Float)?;
        let rows = scaled(rows, self.scale)?.f_view(split)?;
        let projected = self.projection.forward(embedded, dropout)?;
        let projected = to_kind(&projected, Kind::Float)?.f_mul_scalar(self.projection_scale)?;
        let both = self.norm.forward(&projected.f_view(split)?)?.f_add(&rows)?;
        let parts = both.f_mul_scalar(std::f64::consts::FRAC_1_SQRT_2)?;
        Ok(to_kind(&parts, self.projection.compute)?.f_unbind(2)?)
    }

    /// Bytes of what is frozen and on the device.
    pub(super) fn bytes(&self) -> Result<u64, Error> {
        let mut bytes = frozen_bytes(self.norm.weight());
        self.projection.weight.map(&mut |tensor| {
            bytes += frozen_bytes(tensor);
            crate::tensor::shared(tensor)
        })?;
        Ok(bytes)
    }
}

/// What a block does with its part.
#[derive(Debug)]
pub(super) struct PerLayerInput {
    gate: Linear,
    projection: Linear,
    norm: Norm,
    activation: Activation,
}

impl PerLayerInput {
    /// Builds the layers of the block called `block`.
    pub(super) fn new(
        config: &DecoderConfig,
        PerLayerInputs { width, .. }: PerLayerInputs,
        block: &str,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let hidden = config.hidden_size;
        let mut linear = |suffix: &str, shape| {
            builder.linear(&format!("{block}.{suffix}"), shape, false, initial)
        };
        Ok(Self {
            gate: linear("per_layer_input_gate", (hidden, width))?,
            projection: linear("per_layer_projection", (width, hidden))?,
            norm: Norm::new(
                config,
                &format!("{block}.post_per_layer_input_norm"),
                hidden,
                builder,
            )?,
            activation: config.activation,
        })
    }

    /// What is added to the residual stream.
    pub(super) fn forward(
        &self,
        stream: &Tensor,
        part: &Tensor,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let gate = self.gate.forward(stream, dropout)?;
        let part = to_kind(part, gate.kind())?;
        let open = self.activation.gated(&gate, &part)?;
        self.norm.forward(&self.projection.forward(&open, dropout)?)
    }

    /// The same layers on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            gate: self.gate.with_base(map)?,
            projection: self.projection.with_base(map)?,
            norm: self.norm.with_base(map)?,
            activation: self.activation,
        })
    }
}
