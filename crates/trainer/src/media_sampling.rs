//! Using a diffusion model: sampling pictures and videos, and encoding and decoding on their own.

mod conditions;
mod experts;
mod output;
mod pictures;
mod sheet;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::parts::codec::MediaCodec;
pub use models::diffusion::parts::schedule::Scheduler;
use models::diffusion::parts::tiles::Tiling;
use models::diffusion::sampling::{Guided, Sampling, sample};
use models::diffusion::{Conditions, Controls, FirstFrame, Framing, load_autoencoder};
pub use models::diffusion::{DenoiserOptions, Diffusion, Expert, PartPaths, is_at};
use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use placement::{Placer, Policy};
use tch::{Device, Kind, Tensor};

use self::conditions::{check_controls, encode_texts};
pub(crate) use self::conditions::{condition, control_latents};
use self::experts::LazyExperts;
pub use self::output::Output;
pub(crate) use self::output::expect_new;
pub(crate) use self::sheet::ContactSheet;
use crate::Error;
pub use crate::single_file::open;

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

/// The guidance scale if nothing says another.
const GUIDANCE: f64 = 5.0;

/// What to generate.
#[derive(Debug)]
pub struct Request {
    /// The prompt.
    pub prompt: String,
    /// The negative prompt; `None` for what the model takes in its place, mostly the empty text.
    pub negative_prompt: Option<String>,
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
    /// Guidance scale; `None` for what the model is told, or 5.
    pub guidance_scale: Option<f64>,
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
    /// Control pictures, for models that change pictures.
    pub controls: Vec<PathBuf>,
    /// The area at which they are encoded; `None` for the model's.
    pub control_area: Option<u32>,
    /// For the high-noise or only transformer.
    pub loras: Vec<Lora>,
    /// For the low-noise expert.
    pub loras_2: Vec<Lora>,
    /// A checkpoint of a run without an adapter, with whose weights those of the denoiser are replaced.
    pub checkpoint: Option<PathBuf>,
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
    model: &dyn Diffusion,
    request: &Request,
    options: DenoiserOptions,
    on_step: &mut dyn FnMut(usize, usize),
) -> Result<Made, Error> {
    crate::device::choose_products(options.device)?;
    let _guard = tch::no_grad_guard();
    let plan = Plan::new(model, request)?;
    if let Some(doubt) = model.doubt() {
        tracing::warn!("{}", doubt.sampling);
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
        let read = |lora: &Lora| {
            let file = LoraFile::read(&lora.path, model.arch(), Some(expert))?;
            Ok((file, lora.strength))
        };
        list.iter().map(read).collect()
    };
    // Read now, so that errors are reported before the long part.
    let both = [
        loras(&request.loras, Expert::High)?,
        loras(&request.loras_2, Expert::Low)?,
    ];
    // Text encoders are changed where they are part of the denoiser.
    let changes_text = both
        .iter()
        .flatten()
        .any(|(lora, _)| lora.text_layers().next().is_some());
    let told = model.with_text().filter(|_| changes_text);
    let model = told.as_deref().unwrap_or(model);
    let negative = request.negative_prompt.clone().unwrap_or_default();
    let texts = match plan.sampling.is_guided() {
        true => vec![&request.prompt, &negative],
        false => vec![&request.prompt],
    };
    let mut texts = encode_texts(model, &texts, &request.controls, options)?;
    if let ([prompt, negative], None) = (&mut texts[..], &request.negative_prompt)
        && let Some(other) = model.without_prompt(prompt)?
    {
        *negative = other;
    }
    let mut image = model.framing_conditions(Framing::whole((plan.width, plan.height)))?;
    if let Some(path) = request.image.as_deref() {
        image.extend(condition(model, path, &plan, options.device)?);
    }
    if let Some(rule) = model.controls().filter(|_| !request.controls.is_empty()) {
        let area = request.control_area.unwrap_or(rule.area);
        image.extend(control_latents(
            model,
            &request.controls,
            area,
            options.device,
        )?);
    }
    let mut texts = texts
        .into_iter()
        .map(|mut text| -> Result<Conditions, Error> {
            text.extend(image.shallow_clone());
            let batch = model.collate(&[text])?;
            batch.map(|_, tensor| {
                let moved = tensor.f_to_device(options.device);
                moved.map_err(|error| models::Error::from(error).into())
            })
        });
    let mut next = || texts.next().transpose();
    let conditions = Guided {
        positive: next()?.ok_or_else(|| Error::Internal("a prompt without a text".into()))?,
        negative: next()?,
    };
    let mut experts = LazyExperts {
        model,
        options,
        loras: both.map(Some),
        checkpoint: request.checkpoint.as_deref(),
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
        let autoencoder = autoencoder(model, options.device)?;
        let mut writer = output.writer(plan.width, plan.height, plan.fps)?;
        decode(&*autoencoder, &latents, &plan, &mut |picture| {
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
    autoencoder: &dyn MediaCodec,
    latents: &Tensor,
    plan: &Plan,
    take: &mut dyn FnMut(Vec<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    let latents = latents.squeeze_dim(0);
    let (_, frames, height, width) = latents.size4().map_err(models::Error::from)?;
    let mut decoding = autoencoder.decoding(height, width, plan.tiling())?;
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
    /// Whether the model makes pictures alone.
    is_of_pictures: bool,
}

impl Plan {
    /// Tiles where all at once would take gigabytes. The autoencoders of pictures see all of one at once, so that
    /// theirs are as large as can be.
    fn tiling(&self) -> Option<Tiling> {
        let (most, side) = match self.is_of_pictures {
            true => (1024 * 1024, 1024),
            false => (1280 * 720, 512),
        };
        (self.width * self.height > most).then_some(Tiling {
            size: (side, side),
            stride: (side / 4 * 3, side / 4 * 3),
        })
    }

    pub(crate) fn new(model: &dyn Diffusion, request: &Request) -> Result<Self, Error> {
        let (geometry, defaults) = (model.geometry(), model.defaults()?);
        check_controls(model, request)?;
        let sized = |rule: Controls| Some((rule, rule.sizing(&request.controls)?));
        let size = match model.controls().and_then(sized) {
            // Like the pipeline.
            Some((rule, path)) => {
                let size = rule.size(rule.area, pictures::size(path)?);
                (size.0.into(), size.1.into())
            }
            None => defaults.size,
        };
        let width = request.width.unwrap_or(size.0);
        let height = request.height.unwrap_or(size.1);
        let frames = request.num_frames.unwrap_or(defaults.frames);
        let step = geometry.step();
        for (name, size) in [("--width", width), ("--height", height)] {
            if size < step || size % step != 0 {
                let (below, above) = ((size / step).max(1) * step, (size / step + 1) * step);
                return Err(Error::Data(format!(
                    "`{name} {size}`: this model needs multiples of {step}, such as {below} or {above}"
                )));
            }
        }
        let whole = geometry.whole_frames(frames);
        match geometry.frames {
            _ if frames == whole => {}
            Some(per) => {
                let above = whole + per;
                return Err(Error::Data(format!(
                    "`--num-frames {frames}`: this model needs {per} n + 1 frames, such as {whole} or {above}"
                )));
            }
            None => {
                return Err(Error::Data(format!(
                    "`--num-frames {frames}`: this model makes pictures, of one frame"
                )));
            }
        }
        let usage = |text: &str| Err(Error::Data(text.into()));
        let boundary_ratio = match request.boundary_ratio {
            Some(given) => given,
            None if model.has_low_noise() && model.boundary().is_none() => {
                return Err(Error::Data(format!(
                    "`{}` has two transformers and says no `boundary_ratio`: give `--boundary-ratio` (0.875 for text \
                     to video, 0.9 for image to video)",
                    model.path().display()
                )));
            }
            None => model.boundary(),
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
        match (&request.image, model.first_frame()) {
            (None, FirstFrame::Required) => {
                return usage("this is an image-to-video model: give an image with `--image`");
            }
            (Some(_), FirstFrame::Never) => {
                return usage("`--image`: this model makes pictures or videos of texts alone");
            }
            _ => {}
        }
        let guidance_scale = match (model.guidance(), request.guidance_scale) {
            (Some(told), scale) => {
                let negative = request.negative_prompt.as_deref();
                if negative.is_some_and(|text| !text.is_empty()) {
                    tracing::warn!(
                        "this model is told the guidance: a negative prompt does nothing"
                    );
                }
                scale.unwrap_or(told)
            }
            (None, scale) if model.is_distilled() => {
                if let Some(scale) = scale.filter(|scale| *scale > 1.0) {
                    tracing::warn!(
                        "this model is distilled: it takes no negative prompt, and a guidance scale of {scale} does nothing"
                    );
                }
                1.0
            }
            (None, scale) => scale.unwrap_or(GUIDANCE),
        };
        let sampling = Sampling {
            objective: model.objective(),
            scheduler: defaults.scheduler.or_asked(request.scheduler),
            steps: request.num_inference_steps,
            flow_shift: match request.flow_shift {
                Some(shift) => shift,
                None => {
                    let grid = geometry.latents(width, height, frames);
                    let tokens = grid[2] * (height / step) * (width / step);
                    model.shift(tokens, request.num_inference_steps)?
                }
            },
            guidance_scale,
            is_guidance_told: model.guidance().is_some(),
            guidance_scale_2: request.guidance_scale_2,
            boundary_ratio,
        };
        Ok(Self {
            width,
            height,
            frames,
            fps: request.fps.unwrap_or(geometry.fps),
            sampling,
            is_of_pictures: geometry.frames.is_none(),
        })
    }

    /// `[1, channels, frames, height, width]`
    pub(crate) fn shape(&self, model: &dyn Diffusion) -> [i64; 5] {
        model
            .geometry()
            .latents(self.width, self.height, self.frames)
    }
}

/// The noise from the file, or drawn from the seed like PyTorch does on the CPU.
fn noise(model: &dyn Diffusion, request: &Request, plan: &Plan) -> Result<Tensor, Error> {
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

/// The autoencoder in fp32.
pub(crate) fn autoencoder(
    model: &dyn Diffusion,
    device: Device,
) -> Result<Box<dyn MediaCodec>, Error> {
    let mut placer = Placer::new(device, Policy::default()).map_err(models::Error::from)?;
    Ok(load_autoencoder(model, Kind::Float, &mut placer)?)
}

/// Converts the LoRA at `from` to another format, in a new file.
///
/// # Errors
/// If it cannot be read, the format cannot represent it, or `to` exists.
pub fn convert_lora(
    from: &Path,
    to: &Path,
    form: Option<LoraForm>,
    expert: Option<Expert>,
) -> Result<usize, Error> {
    expect_new(to)?;
    let lora = LoraFile::read_any(from, expert)?;
    match form {
        Some(form) => drop(lora.write(to, form)?),
        None => lora.write_peft(to)?,
    }
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
    model: &dyn Diffusion,
    what: &Coding,
    output: &Path,
    options: DenoiserOptions,
) -> Result<Vec<(String, Vec<i64>)>, Error> {
    crate::device::choose_products(options.device)?;
    let _guard = tch::no_grad_guard();
    output::expect_new(output)?;
    let mut tensors = Vec::new();
    match what {
        Coding::Texts(texts) => {
            let encoded = encode_texts(model, &texts.iter().collect::<Vec<_>>(), &[], options)?;
            for (index, text) in encoded.iter().enumerate() {
                let named = text
                    .iter()
                    .map(|(name, rows)| (format!("{name}_{index}"), rows.shallow_clone()));
                tensors.extend(named);
            }
        }
        Coding::Media(files) => {
            let autoencoder = autoencoder(model, options.device)?;
            for (index, path) in files.iter().enumerate() {
                let pixels = pictures::video(path)?;
                let latents = autoencoder.encode(&pixels, None);
                let latents = latents
                    .map_err(|error| Error::Data(format!("`{}`: {error}", path.display())))?;
                tensors.push((format!("latents_{index}"), latents));
            }
        }
        Coding::Latents(path) => {
            let autoencoder = autoencoder(model, options.device)?;
            let file = SafetensorsFile::open(path)?;
            for (index, name) in file.names().into_iter().enumerate() {
                let latents = file.read(&name, Kind::Float)?;
                let latents = match latents.size().as_slice() {
                    [1, _, _, _, _] => latents.squeeze_dim(0),
                    _ => latents,
                };
                let pixels = autoencoder.decode(&latents, None);
                let pixels = pixels.map_err(|error| {
                    Error::Data(format!("`{}`: `{name}`: {error}", path.display()))
                })?;
                let pixels = (pixels.permute([0, 2, 3, 1]) + 1.0) / 2.0;
                tensors.push((format!("pixels_{index}"), pixels));
            }
        }
    }
    let named: Vec<(String, Tensor)> = tensors
        .into_iter()
        .map(|(name, tensor)| (name, tensor.to_device(Device::Cpu).contiguous()))
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
