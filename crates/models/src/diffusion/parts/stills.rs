//! What models of pictures share that are one transformer, one autoencoder and one or two text encoders.

use std::path::PathBuf;

use tch::Device;

use super::causal_kl::{self, Autoencoder, AutoencoderConfig};
use super::codec::MediaCodec;
use super::decoder;
use super::kl::{self, KlAutoencoder, KlConfig};
use super::places::{Places, config_at};
use super::schedule::Scheduler;
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::{Arch, Defaults, Geometry, Part};
use crate::language::DecoderConfig;
use crate::model::Builder;

/// The text encoders of a model.
pub(crate) trait Texts {
    /// Names of the weights of each.
    const NAMES: &'static [PartNames];
}

impl Texts for DecoderConfig {
    const NAMES: &'static [PartNames] = &[decoder::NAMES];
}

/// The parts of such a model but the transformer, and how it is sampled if the user says nothing. A model holds it as
/// `stills`, and `answered_by_stills!()` in its `Diffusion`.
#[derive(Debug, Clone)]
pub(crate) struct Stills<T = DecoderConfig> {
    pub(crate) arch: &'static Arch,
    /// The folder, or the transformer's file.
    pub(crate) path: PathBuf,
    pub(crate) parts: Places,
    pub(crate) vae: Vae,
    pub(crate) text: T,
    /// Latents per token, in each direction.
    pub(crate) patch: i64,
    pub(crate) scheduler: Scheduler,
    /// Of the levels of a picture of [`SIZE`].
    pub(crate) shift: f64,
}

/// An autoencoder.
#[derive(Debug, Clone)]
pub(crate) enum Vae {
    /// Of pictures.
    Kl(KlConfig),
    /// Of videos, or of their family.
    Causal(AutoencoderConfig),
}

/// Width and height of a picture if the user says nothing.
pub(crate) const SIZE: i64 = 1024;

impl Vae {
    /// A KL autoencoder; a single file does not have the two `factors` of latents.
    pub(crate) fn kl(parts: &Places, factors: (f64, f64)) -> Result<Self, Error> {
        let of_shapes = |file: &PartFile| KlConfig::of_shapes(file, factors);
        config_at(&parts.vae, &kl::NAMES, KlConfig::read, of_shapes).map(Self::Kl)
    }

    /// A causal one.
    pub(crate) fn causal(parts: &Places) -> Result<Self, Error> {
        let of_shapes = |file: &PartFile| AutoencoderConfig::of_shapes(file);
        let read = AutoencoderConfig::read;
        config_at(&parts.vae, &causal_kl::NAMES, read, of_shapes).map(Self::Causal)
    }

    /// Channels of its latents.
    pub(crate) fn channels(&self) -> i64 {
        match self {
            Self::Kl(config) => config.channels(),
            Self::Causal(config) => config.z_dim,
        }
    }

    fn pixels(&self) -> i64 {
        match self {
            Self::Kl(config) => config.pixels_per_latent(),
            Self::Causal(config) => config.scale_factor_spatial,
        }
    }
}

impl<T: Texts> Stills<T> {
    /// Fails if the transformer takes another number of latent `channels` than the autoencoder has.
    pub(crate) fn check_channels(&self, channels: i64) -> Result<(), Error> {
        let found = self.vae.channels();
        if found == channels {
            return Ok(());
        }
        let transformer = self.parts.transformer.display();
        let reason = format!(
            "has latents of {found} channels, and the transformer in `{transformer}` takes {channels}"
        );
        Err(Error::file(&self.parts.vae, reason))
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            channels: self.vae.channels(),
            pixels: self.vae.pixels(),
            patch: self.patch,
            frames: None,
            fps: 1,
        }
    }

    /// Tokens of a picture of [`SIZE`].
    pub(crate) fn tokens(&self) -> i64 {
        (SIZE / self.geometry().step()).pow(2)
    }

    pub(crate) fn defaults(&self) -> Defaults {
        Defaults {
            size: (SIZE, SIZE),
            frames: 1,
            scheduler: self.scheduler,
            shift: self.shift,
        }
    }

    pub(crate) fn names(&self, part: Part) -> PartNames {
        match (part, &self.vae) {
            (Part::Denoiser(_), _) => self.arch.denoiser,
            (Part::Autoencoder, Vae::Kl(_)) => kl::NAMES,
            (Part::Autoencoder, Vae::Causal(_)) => causal_kl::NAMES,
            (Part::TextEncoder(number), _) => T::NAMES[number.min(T::NAMES.len() - 1)],
        }
    }

    pub(crate) fn autoencoder(
        &self,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn MediaCodec>, Error> {
        Ok(match &self.vae {
            Vae::Kl(config) => Box::new(KlAutoencoder::new(config, device, builder)?),
            Vae::Causal(config) => Box::new(Autoencoder::new(config, device, builder)?),
        })
    }
}

/// What a `Diffusion` is asked and its field `stills` answers.
macro_rules! answered_by_stills {
    () => {
        fn arch(&self) -> &'static $crate::diffusion::Arch {
            self.stills.arch
        }

        fn path(&self) -> &std::path::Path {
            &self.stills.path
        }

        fn geometry(&self) -> $crate::diffusion::Geometry {
            self.stills.geometry()
        }

        fn defaults(&self) -> Result<$crate::diffusion::Defaults, $crate::Error> {
            Ok(self.stills.defaults())
        }

        fn part(&self, part: $crate::diffusion::Part) -> Option<std::path::PathBuf> {
            self.stills.parts.part(part)
        }

        fn names(&self, part: $crate::diffusion::Part) -> $crate::diffusion::files::PartNames {
            self.stills.names(part)
        }

        fn autoencoder(
            &self,
            device: tch::Device,
            builder: &mut $crate::model::Builder,
        ) -> Result<Box<dyn $crate::diffusion::parts::codec::MediaCodec>, $crate::Error> {
            self.stills.autoencoder(device, builder)
        }
    };
}

pub(crate) use answered_by_stills;
