//! Using a video model: sampling videos, and encoding and decoding on their own.

mod output;
mod pictures;
mod sheet;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use models::diffusion::lora::{Expert, LoraFile, LoraForm};
pub use models::diffusion::parts::schedule::Scheduler;
use models::diffusion::parts::t5::TEXT_ROWS;
use models::diffusion::wan::autoencoder::{Autoencoder, FRAMES_PER_LATENT, Tiling};
pub use models::diffusion::wan::model::{PartPaths, TransformerOptions, WanModel};
use models::diffusion::wan::pipeline::{Conditions, Experts, ImageCondition, Sampling, sample};
use models::diffusion::wan::transformer::Transformer;
use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use tch::{Device, Kind, Tensor};

pub use self::output::Output;
pub(crate) use self::sheet::ContactSheet;
use crate::Error;

/// A LoRA file and its strength.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// The file, or a PEFT folder.
    pub path: PathBuf,
    /// Multiplier of its change.
    pub strength: f64,
}

impl std::str::FromStr for Lora {
    type Err = String;

    /// `FILE` or `FILE:STRENGTH`.
    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.rsplit_once(':');
        let (path, strength) = match split.map(|(path, number)| (path, number.parse::<f64>())) {
            Some((path, Ok(strength))) if strength.is_finite() => (path, strength),
            Some((_, Ok(strength))) => return Err(format!("a strength of {strength}")),
            _ => (text, 1.0),
        };
        match path.is_empty() {
            true => Err("must be FILE or FILE:STRENGTH".into()),
            false => Ok(Self {
                path: path.into(),
                strength,
            }),
        }
    }
}

/// What to generate.
#[derive(Debug)]
pub struct Request {
    /// The prompt.
    pub prompt: String,
    /// The negative prompt.
    pub negative_prompt: String,
    /// Width in pixels.
    pub width: Option<i64>,
    /// Height in pixels.
    pub height: Option<i64>,
    /// Number of frames: 4 n + 1.
    pub num_frames: Option<i64>,
    /// Frames per second.
    pub fps: Option<u32>,
    /// Number of steps of the solver.
    pub num_inference_steps: usize,
    /// Guidance scale.
    pub guidance_scale: f64,
    /// The same for the low-noise expert.
    pub guidance_scale_2: Option<f64>,
    /// Replaces that of the model's scheduler.
    pub flow_shift: Option<f64>,
    /// Replaces the model's.
    pub scheduler: Option<Scheduler>,
    /// Replaces the model's; `Some(None)` uses only the first transformer.
    pub boundary_ratio: Option<Option<f64>>,
    /// Seed of the noise.
    pub seed: u64,
    /// The first frame of the video.
    pub image: Option<PathBuf>,
    /// For the high-noise or only transformer.
    pub loras: Vec<Lora>,
    /// For the low-noise expert.
    pub loras_2: Vec<Lora>,
    /// The noise, instead of drawing it from the seed.
    pub latents: Option<PathBuf>,
    /// Where to write the latents.
    pub save_latents: Option<PathBuf>,
    /// Where to write the video.
    pub output: Option<PathBuf>,
}

/// The result.
#[derive(Debug, serde::Serialize)]
pub struct Made {
    /// Width in pixels.
    pub width: i64,
    /// Height in pixels.
    pub height: i64,
    /// Number of frames.
    pub frames: i64,
    /// Frames per second.
    pub fps: u32,
    /// Number of steps of the solver.
    pub steps: usize,
    /// Seed of the noise, if it was drawn.
    pub seed: Option<u64>,
    /// File of the video.
    pub output: Option<PathBuf>,
    /// File of the latents.
    pub latents: Option<PathBuf>,
}

/// Samples a video. `on_step` is called after each step with the number done and the total.
///
/// # Errors
/// If the request does not fit the model, a file cannot be read or written, or memory runs out.
pub fn generate(
    model: &WanModel,
    request: &Request,
    options: TransformerOptions,
    on_step: &mut dyn FnMut(usize, usize),
) -> Result<Made, Error> {
    crate::device::choose_products(options.device)?;
    let _guard = tch::no_grad_guard();
    let plan = Plan::new(model, request)?;
    if model.may_lack_an_expert() {
        tracing::warn!(
            "`{}` is used at all levels of noise, as Wan 2.1 14B: an expert of Wan 2.2 A14B looks alike, and needs \
             the other one, `--transformer-2`",
            model.path.display()
        );
    }
    if request.output.is_none() && request.save_latents.is_none() {
        return Err(Error::Data(
            "say what to write: `--output`, `--save-latents`, or both".into(),
        ));
    }
    if let Some(path) = &request.save_latents {
        output::expect_new(path)?;
    }
    let output = request
        .output
        .as_deref()
        .map(|path| Output::choose(path, plan.frames))
        .transpose()?;
    let noise = noise(model, request, &plan)?.to_device(options.device);
    let loras = |list: &[Lora], expert| -> Result<Vec<(LoraFile, f64)>, Error> {
        let read = |lora: &Lora| Ok((LoraFile::read(&lora.path, Some(expert))?, lora.strength));
        list.iter().map(read).collect()
    };
    // Read now, so that errors are reported before the long part.
    let both = [
        loras(&request.loras, Expert::High)?,
        loras(&request.loras_2, Expert::Low)?,
    ];
    let texts = [
        Some(&request.prompt),
        plan.sampling
            .is_guided()
            .then_some(&request.negative_prompt),
    ];
    let texts = encode_texts(
        model,
        &texts.into_iter().flatten().collect::<Vec<_>>(),
        options,
    )?;
    let padded = |rows: &Tensor| -> Result<Tensor, Error> {
        let rest = TEXT_ROWS - rows.size()[0];
        let rows = rows
            .f_constant_pad_nd([0, 0, 0, rest])
            .map_err(models::Error::from)?;
        Ok(rows.unsqueeze(0))
    };
    let conditions = Conditions {
        text: padded(&texts[0])?,
        negative: texts.get(1).map(padded).transpose()?,
        image: request
            .image
            .as_deref()
            .map(|path| condition(model, path, &plan, options.device))
            .transpose()?,
    };
    let mut experts = LazyExperts {
        model,
        options,
        loras: both.map(Some),
        current: None,
    };
    let steps = plan.sampling.steps;
    let latents = sample(
        &mut experts,
        &noise,
        &conditions,
        &plan.sampling,
        &mut |step| on_step(step, steps),
    )?;
    drop(experts);
    let latents = latents.to_device(Device::Cpu).contiguous();
    if let Some(path) = &request.save_latents {
        write_tensors(path, &[("latents".to_owned(), &latents)])?;
    }
    if let Some(output) = &output {
        let autoencoder = model.autoencoder(options.device)?;
        let mut writer = output.writer(plan.width, plan.height, plan.fps)?;
        decode(&autoencoder, &latents, &plan, &mut |picture| {
            writer.push(picture)
        })?;
        writer.finish()?;
    }
    Ok(Made {
        width: plan.width,
        height: plan.height,
        frames: plan.frames,
        fps: plan.fps,
        steps,
        seed: request.latents.is_none().then_some(request.seed),
        output: request.output.clone(),
        latents: request.save_latents.clone(),
    })
}

/// Decodes latents `[1, channels, frames, height, width]` to frames of RGB bytes.
pub(crate) fn decode(
    autoencoder: &Autoencoder,
    latents: &Tensor,
    plan: &Plan,
    take: &mut dyn FnMut(Vec<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    let latents = latents.squeeze_dim(0);
    let (_, frames, height, width) = latents.size4().map_err(models::Error::from)?;
    let mut decoding = autoencoder.decoding(height, width, tiling(plan))?;
    for frame in 0..frames {
        let pixels = decoding.push(&latents.select(1, frame))?;
        for picture in pictures::bytes(&pixels)? {
            take(picture)?;
        }
    }
    Ok(())
}

/// Sizes and settings, checked against the model.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) width: i64,
    pub(crate) height: i64,
    pub(crate) frames: i64,
    pub(crate) fps: u32,
    pub(crate) sampling: Sampling,
}

impl Plan {
    pub(crate) fn new(model: &WanModel, request: &Request) -> Result<Self, Error> {
        let is_5b = model.expand_timesteps;
        let (width, height, frames, fps) = if is_5b {
            (1280, 704, 121, 24)
        } else {
            (832, 480, 81, 16)
        };
        let width = request.width.unwrap_or(width);
        let height = request.height.unwrap_or(height);
        let frames = request.num_frames.unwrap_or(frames);
        let [_, rows, columns] = model.transformer.patch_size;
        let step = model.autoencoder.scale_factor_spatial;
        for (name, size, step) in [
            ("--width", width, step * columns),
            ("--height", height, step * rows),
        ] {
            if size < step || size % step != 0 {
                let (below, above) = ((size / step).max(1) * step, (size / step + 1) * step);
                return Err(Error::Data(format!(
                    "`{name} {size}`: this model needs multiples of {step}, such as {below} or {above}"
                )));
            }
        }
        if frames < 1 || (frames - 1) % FRAMES_PER_LATENT != 0 {
            let below = (frames.max(1) - 1) / FRAMES_PER_LATENT * FRAMES_PER_LATENT + 1;
            return Err(Error::Data(format!(
                "`--num-frames {frames}`: this model needs 4 n + 1 frames, such as {below} or {}",
                below + FRAMES_PER_LATENT
            )));
        }
        let usage = |text: &str| Err(Error::Data(text.into()));
        let (solver, shift) = model.scheduler()?;
        let boundary_ratio = match request.boundary_ratio {
            Some(given) => given,
            None if model.has_low_noise() && model.boundary_ratio.is_none() => {
                return Err(Error::Data(format!(
                    "`{}` has two transformers and says no `boundary_ratio`: give `--boundary-ratio` (0.875 for text \
                     to video, 0.9 for image to video)",
                    model.path.display()
                )));
            }
            None => model.boundary_ratio,
        };
        match (boundary_ratio, model.has_low_noise()) {
            (Some(_), false) => {
                return usage("`--boundary-ratio`: this model has one transformer; give `none`");
            }
            (None, _) if request.guidance_scale_2.is_some() => {
                return usage(
                    "`--guidance-scale-2` is for the low-noise expert, which is not used",
                );
            }
            (None, _) if !request.loras_2.is_empty() => {
                return usage(
                    "`--lora-2` is for the low-noise expert, which is not used; use `--lora`",
                );
            }
            _ => {}
        }
        match (&request.image, model.needs_image(), model.expand_timesteps) {
            (None, true, _) => {
                return usage("this is an image-to-video model: give an image with `--image`");
            }
            (Some(_), false, false) => {
                return usage("`--image`: this is a text-to-video model");
            }
            _ => {}
        }
        let sampling = Sampling {
            scheduler: request.scheduler.unwrap_or(solver),
            steps: request.num_inference_steps,
            flow_shift: request.flow_shift.unwrap_or(shift),
            guidance_scale: request.guidance_scale,
            guidance_scale_2: request.guidance_scale_2,
            boundary_ratio,
        };
        Ok(Self {
            width,
            height,
            frames,
            fps: request.fps.unwrap_or(fps),
            sampling,
        })
    }

    /// `[1, channels, frames, height, width]`
    pub(crate) fn shape(&self, model: &WanModel) -> [i64; 5] {
        let step = model.autoencoder.scale_factor_spatial;
        let frames = (self.frames - 1) / FRAMES_PER_LATENT + 1;
        [
            1,
            model.autoencoder.z_dim,
            frames,
            self.height / step,
            self.width / step,
        ]
    }
}

/// Tiles for large pictures, which would otherwise take gigabytes.
fn tiling(plan: &Plan) -> Option<Tiling> {
    (plan.width * plan.height > 1280 * 720).then_some(Tiling {
        size: (512, 512),
        stride: (384, 384),
    })
}

/// The noise from the file, or drawn from the seed like PyTorch does on the CPU.
fn noise(model: &WanModel, request: &Request, plan: &Plan) -> Result<Tensor, Error> {
    let shape = plan.shape(model);
    let Some(path) = &request.latents else {
        tch::manual_seed(request.seed as i64);
        return Ok(Tensor::randn(shape, (Kind::Float, Device::Cpu)));
    };
    let file = SafetensorsFile::open(path)?;
    let noise = file.read("latents", Kind::Float)?;
    match noise.size() == shape {
        true => Ok(noise),
        false => Err(Error::Data(format!(
            "`{}`: `latents` has the shape {:?}, but a video of this size needs {shape:?}",
            path.display(),
            noise.size()
        ))),
    }
}

/// The embedding of each text, `[tokens, width]` fp32; the encoder is unloaded afterwards.
fn encode_texts(
    model: &WanModel,
    texts: &[&String],
    options: TransformerOptions,
) -> Result<Vec<Tensor>, Error> {
    let tokenizer = model.tokenizer()?;
    let encoder = model.text_encoder(options.device, options.compute)?;
    let encode = |text: &&String| Ok(encoder.encode(&tokenizer.tokens(text)?)?);
    texts.iter().map(encode).collect()
}

/// The image at `path` as a condition for the model.
pub(crate) fn condition(
    model: &WanModel,
    path: &Path,
    plan: &Plan,
    device: Device,
) -> Result<ImageCondition, Error> {
    let picture = pictures::picture(path, plan.width, plan.height)?;
    let autoencoder = model.autoencoder(device)?;
    Ok(match model.expand_timesteps {
        true => ImageCondition::first_frame(&autoencoder, &picture, tiling(plan))?,
        false => ImageCondition::channels(&autoencoder, &picture, plan.frames, tiling(plan))?,
    })
}

/// Experts that are loaded on demand, one at a time.
struct LazyExperts<'a> {
    model: &'a WanModel,
    options: TransformerOptions,
    /// LoRAs of the high-noise and the low-noise expert, until they are read.
    loras: [Option<Vec<(LoraFile, f64)>>; 2],
    current: Option<(Expert, Transformer)>,
}

impl Experts for LazyExperts<'_> {
    fn transformer(&mut self, expert: Expert) -> Result<&Transformer, models::Error> {
        if self.current.as_ref().is_none_or(|(of, _)| *of != expert) {
            self.current = None;
            let loras = self.loras[usize::from(expert == Expert::Low)]
                .take()
                .unwrap_or_default();
            let read = self.model.transformer(expert, loras, self.options)?;
            self.current = Some((expert, read));
        }
        match &self.current {
            Some((_, transformer)) => Ok(transformer),
            None => unreachable!("it was read just now"),
        }
    }
}

/// Converts the LoRA at `from` to another format, in a new file.
///
/// # Errors
/// If it cannot be read, the format cannot represent it, or `to` exists.
pub fn convert_lora(
    from: &Path,
    to: &Path,
    form: LoraForm,
    expert: Option<Expert>,
) -> Result<usize, Error> {
    output::expect_new(to)?;
    let lora = LoraFile::read(from, expert)?;
    lora.write(to, form)?;
    Ok(lora.modules.len())
}

/// What to encode, or to decode.
#[derive(Debug)]
pub enum Coding {
    /// Encode texts to `text_0…` `[length, width]`.
    Texts(Vec<String>),
    /// Encode pictures and videos to `latents_0…` `[channels, frames, height, width]`.
    Media(Vec<PathBuf>),
    /// Decode every tensor in a file, `[channels, frames, height, width]` optionally with a batch dimension
    /// of one, to `pixels_0…` `[frames, height, width, 3]` from 0 to 1.
    Latents(PathBuf),
}

/// Encodes or decodes into a new file; returns the names and shapes of its tensors.
///
/// # Errors
/// If a file cannot be read or written or does not fit the model, or memory runs out.
pub fn code(
    model: &WanModel,
    what: &Coding,
    output: &Path,
    options: TransformerOptions,
) -> Result<Vec<(String, Vec<i64>)>, Error> {
    crate::device::choose_products(options.device)?;
    let _guard = tch::no_grad_guard();
    output::expect_new(output)?;
    let mut tensors = Vec::new();
    match what {
        Coding::Texts(texts) => {
            let encoded = encode_texts(model, &texts.iter().collect::<Vec<_>>(), options)?;
            tensors.extend(encoded.into_iter().map(|rows| ("text", rows)));
        }
        Coding::Media(files) => {
            let autoencoder = model.autoencoder(options.device)?;
            for path in files {
                let pixels = pictures::video(path)?;
                let latents = autoencoder.encode(&pixels, None);
                let latents = latents
                    .map_err(|error| Error::Data(format!("`{}`: {error}", path.display())))?;
                tensors.push(("latents", latents));
            }
        }
        Coding::Latents(path) => {
            let autoencoder = model.autoencoder(options.device)?;
            let file = SafetensorsFile::open(path)?;
            for name in file.names() {
                let latents = file.read(&name, Kind::Float)?;
                let latents = match latents.size().as_slice() {
                    [1, _, _, _, _] => latents.squeeze_dim(0),
                    _ => latents,
                };
                let pixels = autoencoder.decode(&latents, None);
                let pixels = pixels.map_err(|error| {
                    Error::Data(format!("`{}`: `{name}`: {error}", path.display()))
                })?;
                tensors.push(("pixels", (pixels.permute([0, 2, 3, 1]) + 1.0) / 2.0));
            }
        }
    }
    let named: Vec<(String, Tensor)> = tensors
        .into_iter()
        .enumerate()
        .map(|(index, (kind, tensor))| {
            (
                format!("{kind}_{index}"),
                tensor.to_device(Device::Cpu).contiguous(),
            )
        })
        .collect();
    let list: Vec<_> = named
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    write_tensors(output, &list)?;
    Ok(named
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor.size()))
        .collect())
}
