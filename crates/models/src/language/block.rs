//! A block: mixer and feed-forward layer, each with a residual connection; and what all blocks of a pass share.

use tch::{Kind, Tensor};

use super::DecoderConfig;
use super::attention::{Attention, LayerCache};
use super::delta::{Delta, Texts};
use super::feed_forward::FeedForward;
use super::norm::Norm;
use crate::Error;
use crate::model::layers::Positions;
use crate::model::{Builder, Initial, PackedTexts};
use crate::tensor::BaseMap;

/// The positions of a pass, for blocks that see the whole text and for those with a window.
#[derive(Debug)]
pub(super) struct Views {
    pub(super) whole: Positions,
    pub(super) local: Option<Positions>,
    /// For blocks with a delta rule, the texts that share a row; `None` if none do.
    pub(super) texts: Option<Texts>,
    /// One for each token that counts for the balance of routers, and zero for others, `[batch · length]`; `None`
    /// where it is not learned.
    pub(super) counted: Option<Tensor>,
}

impl Views {
    /// These for other positions.
    pub(super) fn map(
        &self,
        each: impl Fn(&Positions) -> Result<Positions, Error>,
    ) -> Result<Self, Error> {
        Ok(Self {
            whole: each(&self.whole)?,
            local: self.local.as_ref().map(each).transpose()?,
            texts: None,
            counted: None,
        })
    }

    /// These for rows that pack several texts: `positions` (`[batch, length]`) restart at 0 with each.
    pub(super) fn packed(&self, positions: &Tensor, kind: Kind) -> Result<Self, Error> {
        let packed = PackedTexts::new(positions)?;
        Ok(Self {
            texts: Some(Texts::new(positions)?),
            ..self.map(|view| view.packed(positions, &packed, kind))?
        })
    }
}

/// `tensor` multiplied by `factor`.
pub(super) fn scaled(tensor: Tensor, factor: f64) -> Result<Tensor, Error> {
    match factor == 1.0 {
        true => Ok(tensor),
        false => Ok(tensor.f_mul_scalar(factor)?),
    }
}

/// How tokens learn of those before them.
#[derive(Debug)]
enum Mixer {
    Attention(Box<Attention>),
    Delta(Box<Delta>),
}

/// A block.
#[derive(Debug)]
pub(super) struct Layer {
    is_local: bool,
    /// What is added to the residual stream is multiplied by this.
    residual_scale: f64,
    /// Before and after attention, before and after the feed-forward layer.
    norms: [Option<Norm>; 4],
    mixer: Mixer,
    feed_forward: FeedForward,
}

impl Layer {
    /// Builds block `index`.
    pub(super) fn new(
        config: &DecoderConfig,
        index: usize,
        initial: Initial,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norm = |place: usize, builder: &mut Builder| match config.family.norms[place] {
            Some(part) => Norm::new(config, &name(part), config.hidden_size, builder).map(Some),
            None => Ok(None),
        };
        // In the order in which they compute, which is that of the trained parameters.
        let before_attention = norm(0, builder)?;
        let mixer = match config.delta_in(index) {
            Some(delta) => {
                let name = name("linear_attn");
                Mixer::Delta(Box::new(Delta::new(
                    config, delta, &name, initial, builder,
                )?))
            }
            None => {
                let name = name("self_attn");
                Mixer::Attention(Box::new(Attention::new(
                    config,
                    (index, &name),
                    initial,
                    builder,
                )?))
            }
        };
        let (after_attention, before_mlp) = (norm(1, builder)?, norm(2, builder)?);
        let feed_forward = FeedForward::new(config, (index, &name("mlp")), initial, builder)?;
        Ok(Self {
            is_local: config.is_local(index),
            residual_scale: config.residual_scale,
            norms: [
                before_attention,
                after_attention,
                before_mlp,
                norm(3, builder)?,
            ],
            mixer,
            feed_forward,
        })
    }

    /// `[batch, length, hidden]` to the same shape. With a cache, the input continues the cached sequence.
    pub(super) fn run(
        &self,
        stream: &Tensor,
        views: &Views,
        cache: Option<&mut LayerCache>,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        Ok(self.run_routed(stream, views, cache, dropout)?.0)
    }

    /// The same, and what its router adds to the balance of all, if it has one and that is learned.
    fn run_routed(
        &self,
        stream: &Tensor,
        views: &Views,
        cache: Option<&mut LayerCache>,
        dropout: bool,
    ) -> Result<(Tensor, Option<Tensor>), Error> {
        let positions = match &views.local {
            Some(local) if self.is_local => local,
            _ => &views.whole,
        };
        let norm = |place: usize, input: Tensor| match &self.norms[place] {
            Some(norm) => norm.forward(&input),
            None => Ok(input),
        };
        let input = norm(0, stream.shallow_clone())?;
        let attended = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(&input, positions, cache, dropout)?,
            Mixer::Delta(delta) => delta.forward(&input, views.texts.as_ref(), cache, dropout)?,
        };
        let stream = stream.f_add(&scaled(norm(1, attended)?, self.residual_scale)?)?;
        let input = norm(2, stream.shallow_clone())?;
        let counted = views.counted.as_ref();
        let (output, routed) = self.feed_forward.forward(&input, counted, dropout)?;
        let stream = stream.f_add(&scaled(norm(3, output)?, self.residual_scale)?)?;
        Ok((stream, routed))
    }
}

impl crate::model::Layer for Layer {
    type Shared = Views;

    fn share(shared: &Views) -> Views {
        Views {
            whole: shared.whole.shallow_clone(),
            local: shared.local.as_ref().map(Positions::shallow_clone),
            texts: shared.texts.as_ref().map(Texts::shallow_clone),
            counted: shared.counted.as_ref().map(Tensor::shallow_clone),
        }
    }

    fn forward(&self, inputs: &[Tensor], shared: &Views, dropout: bool) -> Result<Tensor, Error> {
        let [stream] = inputs else {
            return Err(Error::Internal("a decoder's block takes one input".into()));
        };
        self.run(stream, shared, None, dropout)
    }

    fn outputs(
        &self,
        inputs: &[Tensor],
        shared: &Views,
        dropout: bool,
    ) -> Result<Vec<Tensor>, Error> {
        let [stream, sums] = inputs else {
            return Ok(vec![self.forward(inputs, shared, dropout)?]);
        };
        let (stream, routed) = self.run_routed(stream, shared, None, dropout)?;
        let sums = match routed {
            Some(routed) => sums.f_add(&routed)?,
            None => sums.shallow_clone(),
        };
        Ok(vec![stream, sums])
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        let norm = |place: usize, map: BaseMap<'_>| match &self.norms[place] {
            Some(norm) => norm.with_base(map).map(Some),
            None => Ok(None),
        };
        let before_attention = norm(0, map)?;
        let mixer = match &self.mixer {
            Mixer::Attention(attention) => Mixer::Attention(Box::new(attention.with_base(map)?)),
            Mixer::Delta(delta) => Mixer::Delta(Box::new(delta.with_base(map)?)),
        };
        let (after_attention, before_mlp) = (norm(1, map)?, norm(2, map)?);
        let feed_forward = self.feed_forward.with_base(map)?;
        Ok(Self {
            is_local: self.is_local,
            residual_scale: self.residual_scale,
            norms: [before_attention, after_attention, before_mlp, norm(3, map)?],
            mixer,
            feed_forward,
        })
    }
}
