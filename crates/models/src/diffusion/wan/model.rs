//! A complete model: a diffusers folder, or single files as used by ComfyUI.

use std::path::{Path, PathBuf};

use tch::{Device, Tensor};

use super::ARCH;
use super::index::{self, class_of};
use super::names::{TEXT_ENCODER, TRANSFORMER};
use super::transformer::{Transformer, TransformerConfig};
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::causal_kl::{self, Autoencoder, AutoencoderConfig, FRAMES_PER_LATENT};
use crate::diffusion::parts::codec::MediaCodec;
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::parts::t5::{self, Family, TEXT_ROWS, TextEncoderConfig};
use crate::diffusion::parts::tiles::Tiling;
use crate::diffusion::parts::unigram::TextTokenizer;
use crate::diffusion::{
    Arch, Conditions, Defaults, Denoiser, Diffusion, Doubt, Expert, FIRST_FRAME, FirstFrame,
    Geometry, Part, PartPaths, TEXT, TextEncoder, Tokenizer,
};
use crate::json::Object;
use crate::model::Builder;

const INDEX: &str = "model_index.json";

/// What videos are generated from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pipeline {
    /// Text.
    Text,
    /// Text and a first frame.
    Image,
}

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct WanModel {
    /// The folder, or the transformer's file.
    path: PathBuf,
    /// What it generates videos from.
    pipeline: Pipeline,
    /// Where the low-noise expert takes over, as a fraction of the highest timestep, if the model sets it.
    boundary_ratio: Option<f64>,
    /// Whether a given first frame replaces the first latents and has its own timestep (TI2V-5B).
    pub(super) expand_timesteps: bool,
    /// Dimensions of the transformers.
    pub(super) transformer: TransformerConfig,
    /// Dimensions of the autoencoder.
    autoencoder: AutoencoderConfig,
    transformers: (PathBuf, Option<PathBuf>),
    vae: PathBuf,
    text_encoder: PathBuf,
    tokenizer: PathBuf,
    /// The scheduler's config, if the model is a folder.
    scheduler: Option<PathBuf>,
}

impl WanModel {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
    /// (high-noise) transformer, and `parts` names the others.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        match path.is_dir() {
            true => Self::of_folder(path, parts),
            false => Self::of_files(path, parts),
        }
    }

    fn of_folder(folder: &Path, parts: &PartPaths) -> Result<Self, Error> {
        let index = Object::read(&folder.join(INDEX))?;
        let class = index.text("_class_name")?.unwrap_or("none");
        let pipeline = match class {
            "WanPipeline" => Pipeline::Text,
            "WanImageToVideoPipeline" => Pipeline::Image,
            _ => {
                let reason = format!(
                    "is {class:?}: only \"WanPipeline\" and \"WanImageToVideoPipeline\" are supported"
                );
                return Err(index.error("_class_name", reason));
            }
        };
        index::check(&index)?;
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| folder.join(name))
        };
        let low_noise = folder.join("transformer_2");
        let unused = index.has("transformer_2") && class_of(&index, "transformer_2").is_none();
        let low_noise = match &parts.transformer_2 {
            Some(given) => Some(given.clone()),
            None => (low_noise.is_dir() && !unused).then_some(low_noise),
        };
        let boundary_ratio = match index.get("boundary_ratio") {
            None => None,
            Some(_) => Some(index.positive("boundary_ratio", None)?),
        };
        if boundary_ratio.is_some() && low_noise.is_none() {
            let reason = "is set, but there is no folder `transformer_2`";
            return Err(index.error("boundary_ratio", reason));
        }
        let transformer = part(&parts.transformer, "transformer");
        let vae = part(&parts.vae, "vae");
        let scheduler = folder.join("scheduler/scheduler_config.json");
        // Only sampling needs it, but what it says of noise holds for training too.
        if scheduler.exists() {
            Scheduler::read(&scheduler)?;
            let file = Object::read(&scheduler)?;
            let (here, there) = (class_of(&index, "scheduler"), file.text("_class_name")?);
            if here.is_some() && here != there {
                let (here, there) = (here.unwrap_or_default(), there.unwrap_or_default());
                let reason =
                    format!("is {here:?}, but its `scheduler_config.json` is of {there:?}");
                return Err(index.error("scheduler", reason));
            }
        }
        Ok(Self {
            path: folder.to_owned(),
            pipeline,
            boundary_ratio,
            expand_timesteps: index.flag("expand_timesteps", false)?,
            transformer: transformer_config(&transformer)?,
            autoencoder: autoencoder_config(&vae)?,
            transformers: (transformer, low_noise),
            vae,
            text_encoder: part(&parts.text_encoder, "text_encoder"),
            tokenizer: part(&parts.tokenizer, "tokenizer"),
            scheduler: Some(scheduler),
        })
    }

    fn of_files(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer {
            let reason = format!(
                "is a transformer, and so is `{}`: give only one of them",
                other.display()
            );
            return Err(Error::file(path, reason));
        }
        let transformer = transformer_config(path)?;
        let part = |given: &Option<PathBuf>, name: &str| {
            let missing = || {
                let reason = format!(
                    "is the transformer of a video model alone: name its {name}, a single file or a folder of \
                     diffusers, too"
                );
                Error::file(path, reason)
            };
            given.clone().ok_or_else(missing)
        };
        let vae = part(&parts.vae, "autoencoder (`vae`)")?;
        let text_encoder = part(&parts.text_encoder, "text encoder (`text_encoder`)")?;
        let tokenizer = match &parts.tokenizer {
            Some(given) => given.clone(),
            None => text_encoder.clone(),
        };
        let autoencoder = autoencoder_config(&vae)?;
        if autoencoder.z_dim != transformer.out_channels {
            let reason = format!(
                "has latents of {} channels, and the transformer in `{}` has {}: it is the autoencoder of another \
                 model of Wan",
                autoencoder.z_dim,
                path.display(),
                transformer.out_channels
            );
            return Err(Error::file(&vae, reason));
        }
        let pipeline = match transformer.in_channels > transformer.out_channels {
            true => Pipeline::Image,
            false => Pipeline::Text,
        };
        // Files lack these settings; take those of the published folders.
        Ok(Self {
            path: path.to_owned(),
            pipeline,
            boundary_ratio: parts.transformer_2.as_ref().map(|_| match pipeline {
                Pipeline::Text => 0.875,
                Pipeline::Image => 0.9,
            }),
            expand_timesteps: autoencoder.z_dim == Z_DIM_2_2,
            transformer,
            autoencoder,
            transformers: (path.to_owned(), parts.transformer_2.clone()),
            vae,
            text_encoder,
            tokenizer,
            scheduler: None,
        })
    }

    /// Solver and shift of its scheduler; for single files, those of the published folders.
    fn scheduler(&self) -> Result<(Scheduler, f64), Error> {
        match &self.scheduler {
            Some(path) => Scheduler::read(path),
            None => Ok((
                Scheduler::UniPc,
                if self.expand_timesteps { 5.0 } else { 3.0 },
            )),
        }
    }

    /// Dimensions of a transformer.
    fn transformer_config(&self, expert: Expert) -> Result<TransformerConfig, Error> {
        let (high, low) = &self.transformers;
        transformer_config(match (expert, low) {
            (Expert::Low, Some(low)) => low,
            _ => high,
        })
    }

    /// Dimensions of the text encoder.
    fn text_encoder_config(&self) -> Result<TextEncoderConfig, Error> {
        match config_of(&self.text_encoder, "UMT5EncoderModel") {
            Some(config) => TextEncoderConfig::read(&config, Family::Umt5),
            None => {
                TextEncoderConfig::of_shapes(&self.weights(Part::TextEncoder(0))?, Family::Umt5)
            }
        }
    }

    /// Fails if the transformer's input does not match its pipeline.
    fn check_inputs(
        &self,
        shape: &TransformerConfig,
        first_frame: Option<bool>,
    ) -> Result<(), Error> {
        let invalid = |reason: String| Err(Error::Invalid(reason));
        let path = self.path.display();
        let needed = match self.pipeline {
            Pipeline::Text => shape.out_channels,
            Pipeline::Image if self.expand_timesteps => {
                return invalid(format!(
                    "`{path}` is an image-to-video pipeline of Wan 2.2 5B, whose transformer is that of \
                     text-to-video: set `_class_name` of its `model_index.json` to `WanPipeline`, and \
                     `data.image_to_video: true` to train it on given first frames"
                ));
            }
            Pipeline::Image => 2 * shape.out_channels + 4,
        };
        if shape.in_channels != needed {
            return invalid(format!(
                "the transformer in `{path}` has {} input channels, but this pipeline provides {needed}",
                shape.in_channels
            ));
        }
        if first_frame.is_some() && !self.expand_timesteps {
            return invalid(
                "`data.image_to_video` is for Wan 2.2 5B (`expand_timesteps`): image-to-video models of 14B \
                 are trained so without it, and text-to-video models cannot be"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Diffusion for WanModel {
    fn arch(&self) -> &'static Arch {
        &ARCH
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            channels: self.autoencoder.z_dim,
            pixels: self.autoencoder.scale_factor_spatial,
            patch: self.transformer.patch_size[1],
            frames: Some(FRAMES_PER_LATENT),
            fps: if self.expand_timesteps { 24 } else { 16 },
        }
    }

    fn defaults(&self) -> Result<Defaults, Error> {
        let (scheduler, shift) = self.scheduler()?;
        let (size, frames) = match self.expand_timesteps {
            true => ((1280, 704), 121),
            false => ((832, 480), 81),
        };
        Ok(Defaults {
            size,
            frames,
            scheduler,
            shift,
        })
    }

    fn part(&self, part: Part) -> Option<PathBuf> {
        match part {
            Part::Denoiser(Expert::High) => Some(self.transformers.0.clone()),
            Part::Denoiser(Expert::Low) => self.transformers.1.clone(),
            Part::Autoencoder => Some(self.vae.clone()),
            Part::TextEncoder(number) => (number == 0).then(|| self.text_encoder.clone()),
        }
    }

    fn names(&self, part: Part) -> PartNames {
        match part {
            Part::Denoiser(_) => TRANSFORMER,
            Part::Autoencoder => causal_kl::NAMES,
            Part::TextEncoder(_) => TEXT_ENCODER,
        }
    }

    fn boundary(&self) -> Option<f64> {
        self.boundary_ratio
    }

    /// A single file of Wan 2.2 A14B looks like Wan 2.1 14B.
    fn doubt(&self) -> Option<Doubt> {
        let is_14b = self.transformer.width() == 5120 && self.transformer.num_layers == 40;
        if !is_14b || self.has_low_noise() || self.path.is_dir() {
            return None;
        }
        let path = self.path.display();
        Some(Doubt {
            training: format!(
                "`{path}` is the one transformer of Wan 2.1 14B or one of the two of Wan 2.2 A14B, which look alike in a \
                 single file: name the expert of low noise as `model.transformer_2`, or say which levels of noise \
                 this one learns, `train.min_sigma` and `train.max_sigma` (0 and 1 for Wan 2.1; above or below 0.875 \
                 for an expert, 0.9 for image to video)"
            ),
            sampling: format!(
                "`{path}` is used at all levels of noise, as Wan 2.1 14B: an expert of Wan 2.2 A14B looks alike, and \
                 needs the other one, `--transformer-2`"
            ),
        })
    }

    fn check_training(&self, experts: &[Expert], first_frame: Option<bool>) -> Result<(), Error> {
        let mut first = None;
        for expert in experts {
            let shape = self.transformer_config(*expert)?;
            self.check_inputs(&shape, first_frame)?;
            if *first.get_or_insert_with(|| shape.clone()) != shape {
                return Err(Error::Invalid(format!(
                    "the two transformers in `{}` have different dimensions",
                    self.path.display()
                )));
            }
        }
        Ok(())
    }

    fn denoiser(
        &self,
        expert: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        let config = self.transformer_config(expert)?;
        Ok(Box::new(Transformer::new(&config, device, builder)?))
    }

    fn autoencoder(
        &self,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn MediaCodec>, Error> {
        let codec = Autoencoder::new(&self.autoencoder, device, builder)?;
        Ok(Box::new(codec))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        Ok(Box::new(TextTokenizer::open(&self.tokenizer)?))
    }

    fn text_encoder(
        &self,
        _number: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let config = self.text_encoder_config()?;
        Ok(Box::new(t5::TextEncoder::new(&config, device, builder)?))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.text_encoder_config()?.d_model)
    }

    fn first_frame(&self) -> FirstFrame {
        // Input channels beside the latents are for it.
        let has_channels = self.transformer.in_channels > self.transformer.out_channels;
        match (has_channels, self.expand_timesteps) {
            (true, _) => FirstFrame::Required,
            (false, true) => FirstFrame::Optional,
            (false, false) => FirstFrame::Never,
        }
    }

    fn first_frame_conditions(
        &self,
        codec: &dyn MediaCodec,
        picture: &Tensor,
        frames: i64,
        tiling: Option<Tiling>,
    ) -> Result<Conditions, Error> {
        if self.expand_timesteps {
            let latents = codec.encode(picture, tiling)?;
            return Ok(Conditions::of(FIRST_FRAME, latents));
        }
        let channels = first_frame_channels(codec, picture, frames, tiling)?;
        Ok(Conditions::of(CONDITION, channels))
    }

    /// Texts are padded with zeros, which the transformer attends to.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        padded(rows)
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.contains("time_embedder")
    }
}

/// The conditions of a batch, whose texts are padded with zeros to [`TEXT_ROWS`].
fn padded(rows: &[Conditions]) -> Result<Conditions, Error> {
    let padded = rows.iter().map(|row| {
        row.shallow_clone().map(|name, tensor| match name {
            TEXT => {
                let missing = TEXT_ROWS - tensor.size()[0];
                Ok(tensor.f_constant_pad_nd([0, 0, 0, missing])?)
            }
            _ => Ok(tensor),
        })
    });
    Conditions::stacked(&padded.collect::<Result<Vec<_>, Error>>()?)
}

/// Channels beside the latents: a mask of the known frames, and the latents of a video that is grey after the first
/// one.
pub(super) const CONDITION: &str = "condition";

/// The channels `[4 + channels, frames, height, width]` for a video of `frames` frames that starts with `picture`
/// `[1, 3, height, width]`, with values from −1 to 1.
pub(super) fn first_frame_channels(
    codec: &dyn MediaCodec,
    picture: &Tensor,
    frames: i64,
    tiling: Option<Tiling>,
) -> Result<Tensor, Error> {
    let (_, _, height, width) = picture.size4()?;
    let mut encoding = codec.encoding(height, width, tiling)?;
    let mut latents = encoding.push(picture)?;
    let grey = picture.f_zeros_like()?;
    for _ in 1..frames {
        latents.extend(encoding.push(&grey)?);
    }
    encoding.finish()?;
    let latents = Tensor::f_stack(&latents, 1)?;
    let (_, count, height, width) = latents.size4()?;
    let options = (latents.kind(), latents.device());
    let mut known = Tensor::f_zeros([FRAMES_PER_LATENT, count, height, width], options)?;
    let _ = known.f_narrow(1, 0, 1)?.f_fill_(1.0)?;
    known = Tensor::f_cat(&[known, latents], 0)?;
    Ok(known)
}

/// Latent channels of Wan 2.2 5B.
const Z_DIM_2_2: i64 = 48;

/// The `config.json` of a part: in its folder, or beside a single file if it is for this class.
fn config_of(part: &Path, class: &str) -> Option<PathBuf> {
    if part.is_dir() {
        return Some(part.join("config.json"));
    }
    let beside = part.parent()?.join("config.json");
    let object = Object::read(&beside).ok()?;
    let named = object.text("_class_name").ok().flatten();
    let listed = object
        .get("architectures")
        .and_then(|list| list.get(0)?.as_str());
    (named == Some(class) || listed == Some(class)).then_some(beside)
}

fn transformer_config(path: &Path) -> Result<TransformerConfig, Error> {
    match config_of(path, "WanTransformer3DModel") {
        Some(config) => TransformerConfig::read(&config),
        None => TransformerConfig::of_shapes(&PartFile::open(&TRANSFORMER, path)?),
    }
}

fn autoencoder_config(path: &Path) -> Result<AutoencoderConfig, Error> {
    match config_of(path, "AutoencoderKLWan") {
        Some(config) => AutoencoderConfig::read(&config),
        None => AutoencoderConfig::of_shapes(&PartFile::open(&causal_kl::NAMES, path)?),
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn texts_of_a_batch_are_padded_with_zeros() {
        let rows = [2, 5].map(|length| {
            let ones = Tensor::ones([length, 3], (Kind::Float, Device::Cpu));
            Conditions::of(TEXT, ones)
        });
        let batch = padded(&rows).unwrap();
        let text = batch.get(TEXT).unwrap();
        assert_eq!(text.size(), [2, TEXT_ROWS, 3]);
        for (row, length) in [(0, 2), (1, 5)] {
            let text = text.get(row);
            let sum = |from, count| {
                f64::try_from(text.narrow(0, from, count).abs().sum(Kind::Float)).unwrap()
            };
            assert_eq!(sum(0, length), 3.0 * length as f64);
            assert_eq!(sum(length, TEXT_ROWS - length), 0.0);
        }
    }
}
