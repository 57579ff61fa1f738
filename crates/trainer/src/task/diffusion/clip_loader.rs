//! Loads encoded clips on a separate thread, ahead of the training step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::diffusion::{Conditions, Diffusion};
use models::formats::{SafetensorsFile, TensorSource};
use placement::prefetch::{Activity, BoxError, Prefetcher};
use placement::{FieldPath, TensorTree};
use tch::{Device, Kind, Tensor};

use super::super::clip_order::{ClipOrder, Position};
use super::super::epochs::Epochs;
use crate::Error;
use crate::media::Clip;

/// Batches that are read ahead.
const AHEAD: usize = 2;

/// One encoded clip on the host, as it lies in the cache.
pub(super) struct EncodedClip {
    /// `[channels, frames, height, width]`
    latents: Tensor,
    conditions: Conditions,
    tokens: u64,
    is_regular: bool,
    /// As that of [`Clip`].
    empty: Option<PathBuf>,
}

/// Encoded clips of the same shape on the host.
#[derive(Debug)]
pub(super) struct Encoded {
    /// `[rows, channels, frames, height, width]`.
    pub(super) latents: Tensor,
    /// As the model reads them.
    pub(super) conditions: Conditions,
    /// Those of each clip, from which `conditions` were made.
    pub(super) rows: Vec<Conditions>,
    /// Number of the denoiser's tokens of the clips.
    pub(super) tokens: u64,
    /// Of each clip, whether it is for regularisation.
    pub(super) regular: Vec<bool>,
    /// Of each clip, the file of the empty text if it has one of its own.
    pub(super) empty: Vec<Option<PathBuf>>,
}

impl TensorTree for Encoded {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        Ok(Self {
            latents: self.latents.try_map(&path.field("latents"), map)?,
            conditions: self
                .conditions
                .map(|name, tensor| map(&path.field(name), tensor))?,
            rows: self.rows,
            tokens: self.tokens,
            regular: self.regular,
            empty: self.empty,
        })
    }
}

/// A source of encoded clips.
#[derive(Debug, Clone)]
pub(super) struct ClipSource {
    clips: Arc<[Clip]>,
    model: Arc<dyn Diffusion>,
}

impl ClipSource {
    /// `clips` of `model`.
    pub(super) fn new(clips: &[Clip], model: &Arc<dyn Diffusion>) -> Self {
        Self {
            clips: clips.into(),
            model: Arc::clone(model),
        }
    }

    /// The clip with this index, as a batch of one row.
    ///
    /// # Errors
    /// If one of its files is missing or damaged.
    pub(super) fn batch_of(&self, number: usize) -> Result<Encoded, Error> {
        let clip = &self.clips[number];
        self.together(vec![Self::read(clip, &clip.text)?])
    }

    /// So many rows of the clip of the most tokens, with the longest text of all.
    ///
    /// # Errors
    /// If there is no clip, or a file is missing or damaged.
    pub(super) fn largest(&self, rows: u32) -> Result<Encoded, Error> {
        let length = |clip: &&Clip| std::fs::metadata(&clip.text).map_or(0, |file| file.len());
        let clip = self.clips.iter().max_by_key(|clip| clip.tokens);
        let (Some(clip), Some(text)) = (clip, self.clips.iter().max_by_key(length)) else {
            return Err(Error::Internal("no clips".into()));
        };
        let rows = (0..rows).map(|_| Self::read(clip, &text.text));
        self.together(rows.collect::<Result<_, Error>>()?)
    }

    /// `clip` with this text.
    fn read(clip: &Clip, text: &Path) -> Result<EncodedClip, Error> {
        let file = SafetensorsFile::open(&clip.latents)?;
        let mut conditions = Conditions::read(&SafetensorsFile::open(text)?, &[])?;
        conditions.extend(Conditions::read(&file, &["latents"])?);
        Ok(EncodedClip {
            latents: file.read("latents", Kind::Float)?,
            conditions,
            tokens: clip.tokens,
            is_regular: clip.is_regular,
            empty: clip.empty.clone(),
        })
    }

    fn together(&self, clips: Vec<EncodedClip>) -> Result<Encoded, Error> {
        let latents: Vec<_> = clips.iter().map(|clip| &clip.latents).collect();
        let latents = Tensor::f_stack(&latents, 0)?;
        let tokens = clips.iter().map(|clip| clip.tokens).sum();
        let regular = clips.iter().map(|clip| clip.is_regular).collect();
        let empty = clips.iter().map(|clip| clip.empty.clone()).collect();
        let rows: Vec<_> = clips.into_iter().map(|clip| clip.conditions).collect();
        Ok(Encoded {
            latents,
            conditions: self.model.collate(&rows)?,
            rows,
            tokens,
            regular,
            empty,
        })
    }

    /// Several clips of one shape, as one batch of the pass with this number.
    fn batch(&self, numbers: &[usize], pass: u64, doing: &Activity) -> Result<Encoded, BoxError> {
        let clips = numbers.iter().map(|number| {
            let clip = &self.clips[*number];
            let name = &clip.name;
            doing.set(format!("`{name}` is still being read"));
            let order = pass.checked_rem(clip.orders.len() as u64);
            let text = order.map_or(&clip.text, |order| &clip.orders[order as usize]);
            Self::read(clip, text)
                .map_err(|error| format!("`{name}` cannot be read: {error}").into())
        });
        let clips = clips.collect::<Result<Vec<_>, BoxError>>()?;
        Ok(self.together(clips)?)
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
                let make = move |number, doing: &Activity| {
                    let (pass, _) = order.place_of(number);
                    source.batch(&order.samples_of(number), pass, doing)
                };
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
