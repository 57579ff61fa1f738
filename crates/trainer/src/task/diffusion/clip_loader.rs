//! Loads encoded clips on a separate thread, ahead of the training step.

use std::sync::Arc;

use models::formats::{SafetensorsFile, TensorSource};
use models::diffusion::parts::t5::TEXT_ROWS;
use placement::prefetch::{Activity, BoxError, Prefetcher};
use placement::{FieldPath, TensorTree};
use tch::{Device, Kind, Tensor};

use super::super::clip_order::{ClipOrder, Position};
use super::super::epochs::Epochs;
use crate::Error;
use crate::media::Clip;

/// Batches that are read ahead.
const AHEAD: usize = 2;

/// One encoded clip, or several of the same shape, on the host.
#[derive(Debug)]
pub(super) struct Encoded {
    /// `[rows, channels, frames, height, width]`.
    pub(super) latents: Tensor,
    /// `[rows, tokens, width]`, with as many tokens as the model reads.
    pub(super) text: Tensor,
    /// The first-frame condition of an image-to-video model, like `latents` but with other channels.
    pub(super) condition: Option<Tensor>,
    /// Number of transformer tokens of the clips.
    pub(super) tokens: u64,
}

impl TensorTree for Encoded {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        Ok(Self {
            latents: self.latents.try_map(&path.field("latents"), map)?,
            text: self.text.try_map(&path.field("text"), map)?,
            condition: self.condition.try_map(&path.field("condition"), map)?,
            tokens: self.tokens,
        })
    }
}

/// A source of encoded clips.
#[derive(Debug, Clone)]
pub(super) struct ClipSource {
    clips: Arc<[Clip]>,
    with_condition: bool,
}

impl ClipSource {
    /// `clips`, with or without the conditions that an image-to-video model needs.
    pub(super) fn new(clips: &[Clip], with_condition: bool) -> Self {
        Self {
            clips: clips.into(),
            with_condition,
        }
    }

    /// The clip with this index, as a batch of one row.
    pub(super) fn read(&self, number: usize) -> Result<Encoded, Error> {
        let clip = &self.clips[number];
        let file = SafetensorsFile::open(&clip.latents)?;
        let row = |name: &str| -> Result<Tensor, Error> {
            Ok(file.read(name, Kind::Float)?.f_unsqueeze(0)?)
        };
        let text = SafetensorsFile::open(&clip.text)?.read("text", Kind::Float)?;
        let missing = TEXT_ROWS - text.size()[0];
        Ok(Encoded {
            latents: row("latents")?,
            text: text.f_constant_pad_nd([0, 0, 0, missing])?.f_unsqueeze(0)?,
            condition: match self.with_condition {
                true => Some(row("condition")?),
                false => None,
            },
            tokens: clip.tokens,
        })
    }

    /// Several clips of one shape, as one batch.
    fn batch(&self, numbers: &[usize], doing: &Activity) -> Result<Encoded, BoxError> {
        let clips = numbers.iter().map(|number| {
            let name = &self.clips[*number].name;
            doing.set(format!("`{name}` is still being read"));
            self.read(*number)
                .map_err(|error| format!("`{name}` cannot be read: {error}").into())
        });
        let clips = clips.collect::<Result<Vec<_>, BoxError>>()?;
        let together = |part: fn(&Encoded) -> Option<&Tensor>| -> Result<Tensor, BoxError> {
            let rows: Vec<_> = clips.iter().filter_map(part).collect();
            Ok(Tensor::f_cat(&rows, 0)?)
        };
        Ok(Encoded {
            latents: together(|clip| Some(&clip.latents))?,
            text: together(|clip| Some(&clip.text))?,
            condition: match self.with_condition {
                true => Some(together(|clip| clip.condition.as_ref())?),
                false => None,
            },
            tokens: clips.iter().map(|clip| clip.tokens).sum(),
        })
    }
}

/// Batches of clips in order, read ahead.
pub(super) struct ClipLoader {
    source: ClipSource,
    order: Arc<ClipOrder>,
    pin_for: Device,
    /// Number of batches taken.
    taken: u64,
    /// Created with the first batch, and after a jump.
    ahead: Option<Prefetcher<Encoded>>,
}

impl ClipLoader {
    /// Starts with the first batch, for `device`.
    pub(super) fn new(source: ClipSource, order: ClipOrder, device: Device) -> Self {
        Self {
            source,
            order: Arc::new(order),
            pin_for: device,
            taken: 0,
            ahead: None,
        }
    }

    /// The next batch.
    pub(super) fn next(&mut self) -> Result<Encoded, Error> {
        let ahead = match &mut self.ahead {
            Some(ahead) => ahead,
            none => {
                let (source, order) = (self.source.clone(), Arc::clone(&self.order));
                let make =
                    move |number, doing: &Activity| source.batch(&order.samples_of(number), doing);
                let begun = Prefetcher::new(self.taken, AHEAD, self.pin_for, make);
                none.insert(begun.map_err(|error| {
                    Error::Data(format!("cannot start a thread that reads clips: {error}"))
                })?)
            }
        };
        let ended = || Error::Data("the order of clips has ended".into());
        let batch = ahead.next().ok_or_else(ended)?;
        let batch = batch.map_err(|error| Error::Data(error.to_string()))?;
        self.taken += 1;
        Ok(batch)
    }

    /// The current position.
    pub(super) fn state(&self) -> Position {
        self.order.position(self.taken)
    }

    /// Continues from a position.
    pub(super) fn restore(&mut self, position: Position) {
        let batches = self.order.batches_until(position);
        if batches != self.taken {
            self.ahead = None;
            self.taken = batches;
        }
    }
}

impl Epochs for ClipLoader {
    fn batches_in(&self, _: u64) -> u64 {
        self.order.batches_per_epoch()
    }

    fn position(&self) -> (u64, u64) {
        self.order.place_of(self.taken)
    }
}
