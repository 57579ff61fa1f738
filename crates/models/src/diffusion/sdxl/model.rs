//! A complete model: a diffusers folder, or a checkpoint with all parts in one file.

use std::path::{Path, PathBuf};

use tch::{Device, Tensor};

use super::text::{TOKENS, WithText};
use super::unet::{SIZES, Unet, UnetConfig};
use super::{ARCH, names};
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::clip::{self, ClipConfig, ClipText, ClipTokenizer, Taken};
use crate::diffusion::parts::codec::MediaCodec;
use crate::diffusion::parts::joined::Joined;
use crate::diffusion::parts::kl::{self, KlAutoencoder, KlConfig};
use crate::diffusion::parts::places::{check, config_at, refuse_second};
use crate::diffusion::parts::schedule::{Scheduler, Spacing};
use crate::diffusion::{
    Arch, Conditions, Defaults, Denoiser, Diffusion, Expert, Framing, Geometry, Objective, Part,
    PartPaths, Prediction, TEXT, TextEncoder, Tokenizer,
};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::json::Object;
use crate::model::Builder;

/// The numbers of a picture's size, `[6]`: height and width that it had, rows and columns that were cut off at the top
/// and at the left, height and width that it has.
pub(super) const SIZES_OF_PICTURE: &str = "time_ids";

/// Latents that the sides of pictures are multiples of in training, so that every stage halves them evenly.
const BUCKET: i64 = 8;

/// The scale and the shift of latents, where no config says them.
const FACTORS: (f64, f64) = (0.13025, 0.0);

/// The betas of all models, where no config says them.
const BETAS: (f64, f64) = (0.00085, 0.012);

/// Tensors in a checkpoint that mark a model of velocities, and one whose last step is noise alone.
const MARKS: [&str; 2] = ["v_pred", "ztsnr"];

/// The token that the second encoder's texts are filled up with, where no file says it.
const SECOND_PADDING: &str = "!";

/// The classes of a folder's parts; older folders name the tokenizer's other implementation.
const CLASSES: [(&str, &[&str]); 7] = [
    ("unet", &["UNet2DConditionModel"]),
    ("vae", &["AutoencoderKL"]),
    ("scheduler", &["EulerDiscreteScheduler"]),
    ("text_encoder", &["CLIPTextModel"]),
    ("text_encoder_2", &["CLIPTextModelWithProjection"]),
    ("tokenizer", &["CLIPTokenizer", "CLIPTokenizerFast"]),
    ("tokenizer_2", &["CLIPTokenizer", "CLIPTokenizerFast"]),
];

/// The key of `model_index.json` that says whether zeros take the place of a negative prompt.
const ZEROS: &str = "force_zeros_for_empty_prompt";

/// Keys of `model_index.json` that are known; all but the first have no effect here: parts that pictures are not made
/// with, and watermarks.
const KEYS: [&str; 5] = [
    ZEROS,
    "image_encoder",
    "feature_extractor",
    "add_watermarker",
    "requires_aesthetics_score",
];

/// A model whose parts are loaded on demand.
#[derive(Debug, Clone)]
pub struct Sdxl {
    path: PathBuf,
    unet: UnetConfig,
    autoencoder: KlConfig,
    texts: [ClipConfig; 2],
    parts: Parts,
    scheduler: Scheduler,
    objective: Objective,
    /// Whether zeros take the place of a negative prompt that is not given.
    zeros_without_prompt: bool,
    /// Whether the text encoders are part of the denoiser.
    is_told_tokens: bool,
}

/// Where the parts are.
#[derive(Debug, Clone)]
struct Parts {
    unet: PathBuf,
    vae: PathBuf,
    texts: [PathBuf; 2],
    tokenizers: [PathBuf; 2],
    /// Whether the second encoder's texts are filled up with [`SECOND_PADDING`] whatever its tokenizer's files say.
    is_second_padding_known: bool,
}

impl Sdxl {
    /// Reads the configs of the diffusers folder at `path`, or the shapes of the checkpoint `path`; `parts` names those
    /// that are elsewhere.
    ///
    /// # Errors
    /// If a file is missing or damaged, or its content is not supported.
    pub fn open(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        refuse_second(&ARCH, parts)?;
        let is_folder = path.is_dir();
        let (mut zeros_without_prompt, mut trained) = (false, None);
        let places = match is_folder {
            false => Parts::of_checkpoint(path, parts)?,
            true => {
                let index = Object::read(&path.join("model_index.json"))?;
                check(&index, &CLASSES, &KEYS)?;
                zeros_without_prompt = index.flag(ZEROS, true)?;
                trained = Some(Spacing::read(
                    &path.join("scheduler/scheduler_config.json"),
                )?);
                Parts::of_folder(path, parts)
            }
        };
        let (scheduler, objective) = match trained {
            Some(trained) => trained,
            None => objective_of(&places.unet)?,
        };
        let text = |number: usize, names: &PartNames| {
            let of_shapes = |file: &PartFile| ClipConfig::of_shapes(file);
            config_at(&places.texts[number], names, ClipConfig::read, of_shapes)
        };
        let texts = [text(0, &clip::TRANSFORMERS)?, text(1, &clip::OPEN_CLIP)?];
        let pooled = texts[1].projection_dim;
        let model = Self {
            path: path.to_owned(),
            unet: config_at(&places.unet, &names::UNET, UnetConfig::read, |file| {
                UnetConfig::of_shapes(file, pooled)
            })?,
            autoencoder: config_at(&places.vae, &kl::NAMES, KlConfig::read, |file| {
                KlConfig::of_shapes(file, FACTORS)
            })?,
            texts,
            parts: places,
            scheduler,
            objective,
            zeros_without_prompt,
            is_told_tokens: false,
        };
        model.check_parts()?;
        Ok(model)
    }

    /// Builds the text encoder `number` from weights whose names begin with `prefix`.
    fn encoder(
        &self,
        prefix: &str,
        number: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<ClipText, Error> {
        // The vector is that of the second one.
        let taken = [Taken::States, Taken::StatesAndVector];
        ClipText::new(prefix, &self.texts[number], taken[number], device, builder)
    }

    /// Fails if the parts are those of different models.
    fn check_parts(&self) -> Result<(), Error> {
        let (unet, vae, [first, second]) = (&self.unet, &self.autoencoder, &self.texts);
        let place = self.parts.unet.display();
        if vae.latent_channels != unet.in_channels {
            let reason = format!(
                "has latents of {} channels, and the UNet in `{place}` takes {}",
                vae.latent_channels, unet.in_channels
            );
            return Err(Error::file(&self.parts.vae, reason));
        }
        let widths = first.hidden_size + second.hidden_size;
        let positions = [first, second].map(|text| text.max_position_embeddings);
        if widths != unet.cross_attention_dim
            || second.projection_dim != unet.pooled()
            || positions[0] != positions[1]
        {
            let reason = format!(
                "has {} positions, a width of {} and a vector of {}, beside a text encoder of {} positions and a width of {}; \
                 the UNet in `{place}` takes as many of both, together a width of {}, and a vector of {}",
                positions[1],
                second.hidden_size,
                second.projection_dim,
                positions[0],
                first.hidden_size,
                unet.cross_attention_dim,
                unet.pooled()
            );
            return Err(Error::file(&self.parts.texts[1], reason));
        }
        Ok(())
    }
}

impl Parts {
    fn of_folder(folder: &Path, parts: &PartPaths) -> Self {
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| folder.join(name))
        };
        Self {
            unet: part(&parts.transformer, "unet"),
            vae: part(&parts.vae, "vae"),
            texts: [
                part(&parts.text_encoder, "text_encoder"),
                part(&parts.text_encoder_2, "text_encoder_2"),
            ],
            tokenizers: [
                part(&parts.tokenizer, "tokenizer"),
                part(&parts.tokenizer, "tokenizer_2"),
            ],
            is_second_padding_known: parts.tokenizer.is_some(),
        }
    }

    /// The checkpoint `path`, with what is named beside it.
    fn of_checkpoint(path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        for (other, name) in [
            (&parts.transformer, "`transformer`"),
            (&parts.text_encoder, "`text_encoder`"),
            (&parts.text_encoder_2, "`text_encoder_2`"),
        ] {
            if let Some(other) = other {
                let reason = format!(
                    "is a whole checkpoint, which has its own: remove {name} (`{}`)",
                    other.display()
                );
                return Err(Error::file(path, reason));
            }
        }
        for names in [&clip::TRANSFORMERS, &clip::OPEN_CLIP] {
            let file = PartFile::open(names, path)?;
            if file.shape("embeddings.token_embedding.weight").is_none() {
                let reason = "has no text encoders (`conditioner.embedders.…`): take a whole checkpoint, or a folder of \
                              diffusers with this file as its `transformer`";
                return Err(Error::file(path, reason));
            }
        }
        let tokenizer = parts.tokenizer.clone().ok_or_else(|| {
            let reason = "is a checkpoint, which has no tokenizer: name CLIP's, too (`tokenizer`, a folder with `vocab.json` \
                          and `merges.txt`, or `tokenizer.json`)";
            Error::file(path, reason)
        })?;
        Ok(Self {
            unet: path.to_owned(),
            vae: parts.vae.clone().unwrap_or_else(|| path.to_owned()),
            texts: [path.to_owned(), path.to_owned()],
            tokenizers: [tokenizer.clone(), tokenizer],
            is_second_padding_known: true,
        })
    }
}

/// How the model in a checkpoint was noised, as its marks say.
fn objective_of(path: &Path) -> Result<(Scheduler, Objective), Error> {
    let file = SafetensorsFile::open(path)?;
    let [predicts_v, ends_in_noise] = MARKS.map(|mark| file.shape(mark).is_some());
    let prediction = match predicts_v {
        true => Prediction::V,
        false => Prediction::Epsilon,
    };
    let objective = Objective::scaled_linear(BETAS.0, BETAS.1, prediction);
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let seems_v = ["vpred", "v-pred", "v_pred"]
        .iter()
        .any(|part| name.contains(part));
    if !predicts_v && seems_v {
        tracing::warn!(
            "`{}` is named like a model that predicts velocities, but has no tensor `{}`, so that it is taken for one that \
             predicts noise. If that is wrong, name a folder of diffusers whose scheduler says it, with this file as its \
             `transformer`",
            path.display(),
            MARKS[0]
        );
    }
    match (predicts_v, ends_in_noise) {
        (false, true) => {
            let reason = format!(
                "has a tensor `{}` but no `{}`: from noise alone nothing can be learned but velocities",
                MARKS[1], MARKS[0]
            );
            Err(Error::file(path, reason))
        }
        (_, true) => Ok((
            Scheduler::Discrete(Spacing::Trailing),
            objective.ending_in_noise(),
        )),
        (_, false) => Ok((Scheduler::Discrete(Spacing::Leading(1)), objective)),
    }
}

/// Cuts a text into the tokens of both encoders.
#[derive(Debug)]
struct Tokenizers([ClipTokenizer; 2], usize);

impl Tokenizer for Tokenizers {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        self.0
            .iter()
            .map(|tokenizer| tokenizer.tokens(text))
            .collect()
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        let counts = self.0.iter().map(|tokenizer| tokenizer.count(text));
        let counts = counts.collect::<Result<Vec<_>, _>>()?;
        Ok((counts.into_iter().max().unwrap_or(0), self.1))
    }
}

impl Diffusion for Sdxl {
    fn arch(&self) -> &'static Arch {
        &ARCH
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            channels: self.unet.in_channels,
            pixels: self.autoencoder.pixels_per_latent(),
            patch: 1,
            frames: None,
            fps: 1,
        }
    }

    fn bucket_step(&self) -> i64 {
        BUCKET * self.autoencoder.pixels_per_latent()
    }

    fn defaults(&self) -> Result<Defaults, Error> {
        Ok(Defaults {
            size: (1024, 1024),
            frames: 1,
            scheduler: self.scheduler,
            shift: 1.0,
        })
    }

    fn objective(&self) -> Objective {
        self.objective.clone()
    }

    fn part(&self, part: Part) -> Option<PathBuf> {
        let parts = &self.parts;
        match part {
            Part::Denoiser(Expert::High) => Some(parts.unet.clone()),
            Part::Denoiser(Expert::Low) => None,
            Part::Autoencoder => Some(parts.vae.clone()),
            Part::TextEncoder(_) if self.is_told_tokens => None,
            Part::TextEncoder(number) => parts.texts.get(number).cloned(),
        }
    }

    fn names(&self, part: Part) -> PartNames {
        match part {
            Part::Denoiser(_) => names::UNET,
            Part::Autoencoder => kl::NAMES,
            Part::TextEncoder(0) => clip::TRANSFORMERS,
            Part::TextEncoder(_) => clip::OPEN_CLIP,
        }
    }

    fn denoiser(
        &self,
        _: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        let unet = Unet::new(&self.unet, device, builder)?;
        if !self.is_told_tokens {
            return Ok(Box::new(unet));
        }
        let mut encoder =
            |number: usize| self.encoder(names::ENCODERS[number], number, device, builder);
        let encoders = [encoder(0)?, encoder(1)?];
        Ok(Box::new(WithText { unet, encoders }))
    }

    fn weights(&self, part: Part) -> Result<PartFile, Error> {
        let open = |part: Part, path: &Path| PartFile::open(&self.names(part), path);
        let parts = &self.parts;
        match part {
            Part::Denoiser(_) if self.is_told_tokens => {
                let mut files = vec![("", open(part, &parts.unet)?)];
                for (number, prefix) in names::ENCODERS.into_iter().enumerate() {
                    let file = open(Part::TextEncoder(number), &parts.texts[number])?;
                    files.push((prefix, file));
                }
                PartFile::of(&PartNames::DIFFUSERS, Box::new(Joined::new(files)))
            }
            _ => {
                let path = self.part(part);
                let path =
                    path.ok_or_else(|| Error::Internal(format!("a model without {part:?}")))?;
                open(part, &path)
            }
        }
    }

    fn with_text(&self) -> Option<Box<dyn Diffusion>> {
        Some(Box::new(Self {
            is_told_tokens: true,
            ..self.clone()
        }))
    }

    fn of_tokens(&self, tokens: &[Vec<u32>]) -> Result<Conditions, Error> {
        let mut conditions = Conditions::default();
        if self.is_told_tokens {
            for (name, ids) in TOKENS.iter().zip(tokens) {
                let ids: Vec<f32> = ids.iter().map(|id| *id as f32).collect();
                conditions.insert(name, Tensor::f_from_slice(&ids)?);
            }
        }
        Ok(conditions)
    }

    fn autoencoder(
        &self,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn MediaCodec>, Error> {
        let codec = KlAutoencoder::new(&self.autoencoder, device, builder)?;
        Ok(Box::new(codec))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        let length = self.texts[0].max_position_embeddings as usize;
        let [first, second] = &self.parts.tokenizers;
        let padding = self.parts.is_second_padding_known.then_some(SECOND_PADDING);
        let both = [
            ClipTokenizer::open(first, None, length)?,
            ClipTokenizer::open(second, padding, length)?,
        ];
        Ok(Box::new(Tokenizers(both, length)))
    }

    fn text_encoder(
        &self,
        number: usize,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        Ok(Box::new(self.encoder(
            "",
            number.min(1),
            device,
            builder,
        )?))
    }

    fn text_width(&self) -> Result<i64, Error> {
        Ok(self.unet.cross_attention_dim)
    }

    fn framing_conditions(&self, framing: Framing) -> Result<Conditions, Error> {
        let Framing {
            original,
            corner,
            size,
        } = framing;
        let numbers = [original.1, original.0, corner.1, corner.0, size.1, size.0];
        debug_assert_eq!(numbers.len() as i64, SIZES);
        let numbers = numbers.map(|number| number as f32);
        Ok(Conditions::of(
            SIZES_OF_PICTURE,
            Tensor::f_from_slice(&numbers)?,
        ))
    }

    fn without_prompt(&self, prompt: &Conditions) -> Result<Option<Conditions>, Error> {
        if !self.zeros_without_prompt {
            return Ok(None);
        }
        let (names, value) = match self.is_told_tokens {
            true => (TOKENS, -1.0),
            false => ([TEXT, clip::POOLED], 0.0),
        };
        let mut zeros = Conditions::default();
        for name in names {
            zeros.insert(name, prompt.get(name)?.f_full_like(value)?);
        }
        Ok(Some(zeros))
    }

    fn stays_fp32(&self, name: &str) -> bool {
        name.starts_with("time_embedding.") || name.starts_with("add_embedding.")
    }
}
