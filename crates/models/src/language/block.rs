//! A block: mixer and feed-forward layer, each with a residual connection; and what all blocks of a pass share.

use tch::{Kind, Tensor};

use super::DecoderConfig;
use super::attention::{Attention, KeysValues, LayerCache};
use super::delta::{Delta, Texts};
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::per_layer::PerLayerInput;
use crate::Error;
use crate::model::layers::Positions;
use crate::model::{Builder, Initial, PackedTexts};
use crate::tensor::{BaseMap, map_frozen};

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
    /// Of the keys and values that blocks handed on, which pair it uses.
    takes: Option<usize>,
    /// Whether it hands on its own.
    hands_on: bool,
    per_layer: Option<PerLayerInput>,
    /// `[1]`: what the residual stream is multiplied by at the end.
    scalar: Option<Tensor>,
}

/// What a block gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// The residual stream.
    pub(super) stream: &'a Tensor,
    /// The keys and values that earlier blocks handed on.
    pub(super) handed_on: &'a [KeysValues],
    /// Its part of the per-layer embeddings, if there are any.
    pub(super) part: Option<&'a Tensor>,
}

/// What a block gives.
#[derive(Debug)]
pub(super) struct Outputs {
    /// The residual stream.
    pub(super) stream: Tensor,
    /// What its router adds to the balance of all, if it has one and that is learned.
    routed: Option<Tensor>,
    /// The keys and values that it hands on.
    pub(super) handed_on: Option<KeysValues>,
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
        let block = format!("model.layers.{index}");
        let feed_forward = FeedForward::new(config, (index, &block), initial, builder)?;
        let after_mlp = norm(3, builder)?;
        // The blocks whose keys and values others use, in order.
        let mut givers: Vec<usize> = (0..config.num_hidden_layers as usize)
            .filter_map(|other| config.takes_from(other))
            .collect();
        givers.sort_unstable();
        givers.dedup();
        let takes = config.takes_from(index);
        Ok(Self {
            is_local: config.is_local(index),
            residual_scale: config.residual_scale,
            norms: [before_attention, after_attention, before_mlp, after_mlp],
            mixer,
            feed_forward,
            takes: givers.iter().position(|giver| Some(*giver) == takes),
            hands_on: givers.contains(&index),
            per_layer: match config.per_layer {
                Some(inputs) => Some(PerLayerInput::new(
                    config, inputs, &block, initial, builder,
                )?),
                None => None,
            },
            scalar: match config.layer_scalar {
                true => Some(builder.constant(&name("layer_scalar"), &[1], Initial::Ones)?),
                false => None,
            },
        })
    }

    /// `[batch, length, hidden]` to the same shape. With a cache, the input continues the cached sequence.
    pub(super) fn run(
        &self,
        inputs: Inputs<'_>,
        views: &Views,
        cache: Option<&mut LayerCache>,
        dropout: bool,
    ) -> Result<Outputs, Error> {
        let stream = inputs.stream;
        let positions = match &views.local {
            Some(local) if self.is_local => local,
            _ => &views.whole,
        };
        // The stream with a change, which may have a norm of its own; and the norm of that for what takes it as `kind`.
        let added = |place: usize, stream: &Tensor, change: Tensor| match &self.norms[place] {
            Some(norm) if self.residual_scale == 1.0 => norm.added(stream, &change),
            Some(norm) => {
                let change = scaled(norm.forward(&change)?, self.residual_scale)?;
                Ok(stream.f_add(&change)?)
            }
            None => Ok(stream.f_add(&scaled(change, self.residual_scale)?)?),
        };
        let of_attention = match &self.mixer {
            Mixer::Attention(attention) => attention.input_kind(),
            Mixer::Delta(_) => None,
        };
        let input = match &self.norms[0] {
            Some(norm) => {
                let [input, _] = norm.of_sum(stream, None, of_attention)?;
                input
            }
            None => stream.shallow_clone(),
        };
        let (attended, used) = match &self.mixer {
            Mixer::Attention(attention) => {
                let taken = self.takes.and_then(|place| inputs.handed_on.get(place));
                let (attended, used) =
                    attention.forward(&input, positions, (cache, taken), dropout)?;
                (attended, Some(used))
            }
            Mixer::Delta(delta) => {
                let texts = views.texts.as_ref();
                (delta.forward(&input, texts, cache, dropout)?, None)
            }
        };
        let [input, stream] = match (&self.norms[1], &self.norms[2]) {
            (None, Some(norm)) => {
                let change = scaled(attended, self.residual_scale)?;
                norm.of_sum(stream, Some(&change), self.feed_forward.input_kind())?
            }
            (_, norm) => {
                let stream = added(1, stream, attended)?;
                match norm {
                    Some(norm) => norm.of_sum(&stream, None, self.feed_forward.input_kind())?,
                    None => [stream.shallow_clone(), stream],
                }
            }
        };
        let counted = views.counted.as_ref();
        let (output, routed) = (self.feed_forward).forward((&input, &stream), counted, dropout)?;
        let mut stream = added(3, &stream, output)?;
        if let Some(layer) = &self.per_layer {
            let part = inputs.part;
            let part = part.ok_or_else(|| Error::Internal("a block without its part".into()))?;
            stream = stream.f_add(&layer.forward(&stream, part, dropout)?)?;
        }
        if let Some(scalar) = &self.scalar {
            stream = stream.f_mul(scalar)?;
        }
        Ok(Outputs {
            stream,
            routed,
            handed_on: used.filter(|_| self.hands_on),
        })
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
        Ok(self.outputs(inputs, shared, dropout)?.swap_remove(0))
    }

    /// The residual stream, the sums of the routers' balance if that is learned, and the keys and values that blocks handed on so far;
    /// after them an input has the block's part of the per-layer embeddings.
    fn outputs(
        &self,
        inputs: &[Tensor],
        shared: &Views,
        dropout: bool,
    ) -> Result<Vec<Tensor>, Error> {
        let wrong = || Error::Internal("a decoder's block with other inputs".into());
        let (stream, rest) = inputs.split_first().ok_or_else(wrong)?;
        let (part, rest) = match &self.per_layer {
            Some(_) => rest
                .split_last()
                .ok_or_else(wrong)
                .map(|(own, rest)| (Some(own), rest))?,
            None => (None, rest),
        };
        let (sums, rest) = rest
            .split_at_checked(shared.counted.iter().len())
            .ok_or_else(wrong)?;
        let pairs = rest.chunks_exact(2);
        let handed_on: Vec<KeysValues> = pairs
            .map(|pair| [pair[0].shallow_clone(), pair[1].shallow_clone()])
            .collect();
        let inputs = Inputs {
            stream,
            handed_on: &handed_on,
            part,
        };
        let given = self.run(inputs, shared, None, dropout)?;
        let mut outputs = vec![given.stream];
        for sums in sums {
            outputs.push(match &given.routed {
                Some(routed) => sums.f_add(routed)?,
                None => sums.shallow_clone(),
            });
        }
        outputs.extend(rest.iter().map(Tensor::shallow_clone));
        outputs.extend(given.handed_on.into_iter().flatten());
        Ok(outputs)
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
            norms: [before_attention, after_attention, before_mlp, norm(3, map)?],
            mixer,
            feed_forward,
            per_layer: match &self.per_layer {
                Some(layer) => Some(layer.with_base(map)?),
                None => None,
            },
            scalar: match &self.scalar {
                Some(scalar) => Some(map_frozen(scalar, map)?),
                None => None,
            },
            ..*self
        })
    }
}
