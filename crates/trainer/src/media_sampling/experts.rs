//! The denoisers of a request.

use std::path::Path;

use models::diffusion::files::PartFile;
use models::diffusion::lora::LoraFile;
use models::diffusion::sampling::Experts;
use models::diffusion::{Denoiser, DenoiserOptions, Diffusion, Expert, Part, load_denoiser};
use models::formats::TensorSource;
use placement::{Placer, Policy};

use crate::Error;
use crate::checkpoint::{CheckpointWeights, Unread};

/// Denoisers that are loaded on demand, one at a time.
pub(super) struct LazyExperts<'a> {
    pub(super) model: &'a dyn Diffusion,
    pub(super) options: DenoiserOptions,
    /// LoRAs of the high-noise and the low-noise expert, until they are read.
    pub(super) loras: [Option<Vec<(LoraFile, f64)>>; 2],
    pub(super) checkpoint: Option<&'a Path>,
    pub(super) current: Option<(Expert, Box<dyn Denoiser>)>,
}

impl LazyExperts<'_> {
    /// The weights of a denoiser, and what of the checkpoint's it has not read yet.
    fn weights(&self, expert: Expert) -> Result<(PartFile, Option<Unread>), Error> {
        let part = Part::Denoiser(expert);
        let Some(checkpoint) = self.checkpoint else {
            return Ok((self.model.weights(part)?, None));
        };
        // A model that is trained from random weights has no others.
        let base = self.model.weights(part).ok();
        let base = base.map(|file| Box::new(file) as Box<dyn TensorSource>);
        match CheckpointWeights::open(checkpoint, expert, base)? {
            Some(weights) => {
                let unread = weights.unread();
                let file = PartFile::of(&self.model.names(part), Box::new(weights))?;
                Ok((file, Some(unread)))
            }
            None => Ok((self.model.weights(part)?, None)),
        }
    }

    fn load(&mut self, expert: Expert) -> Result<Box<dyn Denoiser>, Error> {
        let loras = self.loras[usize::from(expert == Expert::Low)].take();
        let loras = loras.unwrap_or_default();
        let (weights, unread) = self.weights(expert)?;
        let mut placer =
            Placer::new(self.options.device, Policy::default()).map_err(models::Error::from)?;
        let (model, options) = (self.model, self.options);
        let read = load_denoiser(model, expert, weights, loras, options, &mut placer)?;
        unread.map_or(Ok(()), |unread| unread.expect_none())?;
        Ok(read)
    }
}

impl Experts for LazyExperts<'_> {
    fn denoiser(&mut self, expert: Expert) -> Result<&dyn Denoiser, models::Error> {
        if self.current.as_ref().is_none_or(|(of, _)| *of != expert) {
            self.current = None;
            let read = self.load(expert).map_err(|error| match error {
                Error::Model(error) => error,
                other => models::Error::Invalid(other.to_string()),
            })?;
            self.current = Some((expert, read));
        }
        match &self.current {
            Some((_, denoiser)) => Ok(&**denoiser),
            None => unreachable!("it was read just now"),
        }
    }
}
