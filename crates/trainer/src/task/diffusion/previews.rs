//! Previews: videos for the config's prompts during training, with the current LoRAs.
//!
//! All prompts take their steps with one expert before the other is loaded, so that the experts swap places
//! once per round; then the autoencoder decodes the results.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use models::diffusion::sampling::{Guided, SamplingState};
use models::diffusion::{
    Conditions, Denoiser, Diffusion, Expert as Which, Framing, Part, PartPaths, index_of,
};
use models::formats::SafetensorsFile;
use placement::Placer;
use tch::{Device, Kind, Tensor};

use super::DiffusionTask;
use super::expert::{frozen, streaming};
use super::plan::{OF_PREVIEWS, component};
use crate::Error;
use crate::config::{Config, Preview};
use crate::events::Sample;
use crate::media::{Prompt, boundary, control_area};
use crate::media_sampling::{
    ContactSheet, Output, Plan, Request, autoencoder, condition, control_latents, decode,
};
use crate::single_file;
use crate::task::Share;

/// What to generate, with everything that does not change between rounds.
pub(super) struct Previews {
    /// What draws them.
    model: Arc<dyn Diffusion>,
    /// Whether its transformer is loaded for each round, and not the one that is trained.
    is_loaded: bool,
    list: Vec<Prepared>,
    /// Files of the texts: prompt and negative prompt of each preview.
    texts: Vec<PathBuf>,
}

struct Prepared {
    preview: Preview,
    plan: Plan,
    /// Those of its size and its first frame, without a batch dimension.
    image: Conditions,
}

impl Previews {
    /// The previews configured in `config`, if any; encodes images now.
    pub(super) fn open(
        config: &Config,
        trained: &Arc<dyn Diffusion>,
        device: Device,
    ) -> Result<Option<Self>, Error> {
        let previews = config.previews().map_err(Error::Data)?;
        if previews.is_empty() {
            return Ok(None);
        }
        let other = loaded_for_each_round(config, trained)?;
        let is_loaded = other.is_some();
        let model = other.as_ref().unwrap_or(trained);
        let boundary = model
            .has_low_noise()
            .then(|| boundary(&**model, config))
            .transpose()?;
        let _no_grad = tch::no_grad_guard();
        let prepared = previews.into_iter().enumerate().map(|(index, preview)| {
            let prepare = || {
                let plan = Plan::new(&**model, &request(&preview, boundary))?;
                let size = Framing::whole((plan.width, plan.height));
                let mut image = model.framing_conditions(size)?;
                if let Some(path) = preview.image.as_deref() {
                    image.extend(condition(&**model, path, &plan, device)?);
                }
                let controls = model.controls().filter(|_| !preview.controls.is_empty());
                if let Some(rule) = controls {
                    let area = control_area(&config.data, rule);
                    image.extend(control_latents(&**model, &preview.controls, area, device)?);
                }
                Ok((plan, image))
            };
            let (plan, image) = prepare().map_err(|error| match error {
                Error::Data(reason) => Error::Data(format!("`sample.prompts[{index}]`: {reason}")),
                other => other,
            })?;
            Ok(Prepared {
                preview,
                plan,
                image,
            })
        });
        Ok(Some(Self {
            list: prepared.collect::<Result<_, Error>>()?,
            model: Arc::clone(model),
            is_loaded,
            texts: Vec::new(),
        }))
    }

    /// The model whose transformer is loaded for each round, if it is not the trained one that draws.
    pub(super) fn other(&self) -> Option<&Arc<dyn Diffusion>> {
        self.is_loaded.then_some(&self.model)
    }

    /// The texts that they need, two each.
    pub(super) fn texts(&self) -> Vec<Prompt> {
        let texts = self.list.iter().flat_map(|prepared| {
            let Preview {
                prompt,
                negative_prompt,
                controls,
                ..
            } = &prepared.preview;
            [prompt, negative_prompt].map(|text| Prompt {
                text: text.clone(),
                controls: controls.clone(),
            })
        });
        texts.collect()
    }

    /// Sets the files with the encodings of [`Previews::texts`].
    pub(super) fn set_texts(&mut self, files: Vec<PathBuf>) {
        self.texts = files;
    }

    /// Generates the previews of a share and writes them to `folder`, which is created; each comes with its number.
    pub(super) fn make(
        &self,
        task: &DiffusionTask,
        share: Share,
        folder: &Path,
        placer: &mut Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        let list: Vec<(usize, &Prepared)> = self
            .list
            .iter()
            .enumerate()
            .filter(|(index, _)| share.has(*index))
            .collect();
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let _no_grad = tch::no_grad_guard();
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let mut conditions = Vec::new();
        let texts: Vec<_> = self.texts.chunks(2).collect();
        for (index, prepared) in &list {
            let files = texts.get(*index).copied().unwrap_or_default();
            let mut encoded = files
                .iter()
                .map(|file| self.conditions(file, prepared, placer));
            let mut next = || encoded.next().transpose();
            conditions.push(Guided {
                positive: next()?
                    .ok_or_else(|| Error::Internal("a prompt without a text".into()))?,
                negative: next()?,
            });
        }
        let mut videos = Vec::new();
        for ((_, prepared), conditions) in list.iter().zip(&conditions) {
            let options = (Kind::Float, Device::Cpu);
            tch::manual_seed(prepared.preview.seed as i64);
            let noise = Tensor::f_randn(prepared.plan.shape(&*self.model), options)?;
            let noise = placer.batch(noise)?;
            videos.push(SamplingState::new(
                &noise,
                conditions,
                &prepared.plan.sampling,
            )?);
        }
        for expert in [Which::High, Which::Low] {
            self.steps_of(expert, &mut videos, task, placer)?;
        }
        // The autoencoder replaces the experts.
        task.load_expert(None, placer)?;
        let codec = autoencoder(&*self.model, placer.device())?;
        let mut samples = Vec::new();
        for ((index, prepared), video) in list.into_iter().zip(videos) {
            let Prepared { preview, plan, .. } = prepared;
            let latents = video.finish()?;
            let output = Output::preview(folder, index, plan.frames);
            let mut sheet = ContactSheet::new(plan);
            let mut writer = output.writer(plan.width, plan.height, plan.fps)?;
            decode(&*codec, &latents, plan, &mut |picture| {
                sheet.push(&picture)?;
                writer.push(picture)
            })?;
            writer.finish()?;
            let mut files = vec![output.file_name()];
            if plan.frames > 1 {
                files.push(format!("{index}-frames.png"));
                sheet.save(&folder.join(&files[1]))?;
            }
            let sample = Sample {
                prompt: preview.prompt.clone(),
                text: described(plan, preview.seed),
                files,
            };
            samples.push((index, sample));
        }
        Ok(samples)
    }

    /// Takes one expert's steps for every video.
    fn steps_of(
        &self,
        expert: Which,
        videos: &mut [SamplingState<'_>],
        task: &DiffusionTask,
        placer: &mut Placer,
    ) -> Result<(), Error> {
        if !videos.iter().any(|video| video.expert() == Some(expert)) {
            return Ok(());
        }
        if self.is_loaded {
            let model = self.loaded(task, placer)?;
            return finish(expert, videos, &*model);
        }
        let is_it = |other: &super::Expert| other.which.unwrap_or(Which::High) == expert;
        let trained = task.experts.iter().position(is_it);
        task.load_expert(trained, placer)?;
        let loaded: Box<dyn Denoiser>;
        let model = match trained {
            Some(number) => &*task.experts[number].model,
            // This run does not train it.
            None => {
                let plan = task.plan.as_ref();
                let blocks =
                    plan.map(|plan| streaming(&task.config, plan, component(Some(expert)), placer));
                let blocks = blocks.transpose()?.flatten();
                let (config, model) = (&task.config, (&*task.model, expert));
                loaded = frozen(config, model, None, blocks, task.compute, placer)?;
                &*loaded
            }
        };
        finish(expert, videos, model)
    }

    /// The transformer that draws, with the LoRA as it is now; the trained one makes room for it.
    fn loaded(
        &self,
        task: &DiffusionTask,
        placer: &mut Placer,
    ) -> Result<Box<dyn Denoiser>, Error> {
        task.load_expert(None, placer)?;
        let plan = task.plan.as_ref();
        let blocks = plan.map(|plan| streaming(&task.config, plan, OF_PREVIEWS, placer));
        let blocks = blocks.transpose()?.flatten();
        let lora = task.experts[0].lora_file(self.model.arch())?;
        let model = (&*self.model, Which::High);
        frozen(&task.config, model, lora, blocks, task.compute, placer)
    }

    /// A text with the preview's first frame, as input of the model.
    fn conditions(
        &self,
        text: &Path,
        prepared: &Prepared,
        placer: &mut Placer,
    ) -> Result<Conditions, Error> {
        let mut conditions = Conditions::read(&SafetensorsFile::open(text)?, &[])?;
        conditions.extend(prepared.image.shallow_clone());
        let batch = self.model.collate(&[conditions])?;
        // The first frame is where it was encoded.
        batch.map(|_, tensor| match tensor.device() {
            Device::Cpu => Ok(placer.batch(tensor)?),
            _ => Ok(tensor),
        })
    }
}

/// Takes one expert's steps for every video.
fn finish(
    expert: Which,
    videos: &mut [SamplingState<'_>],
    model: &dyn Denoiser,
) -> Result<(), Error> {
    for video in videos {
        while video.expert() == Some(expert) {
            video.step(model)?;
        }
    }
    Ok(())
}

/// The model whose transformer is loaded for each round of previews, if it is not the trained one that draws.
pub(super) fn loaded_for_each_round(
    config: &Config,
    trained: &Arc<dyn Diffusion>,
) -> Result<Option<Arc<dyn Diffusion>>, Error> {
    match (&config.sample.transformer, &config.model.training_adapter) {
        (Some(path), _) => with_transformer(config, trained, path).map(Some),
        (None, Some(_)) => Ok(Some(Arc::clone(trained))),
        (None, None) => Ok(None),
    }
}

/// The model that is trained, with the transformer at `path`, or the model in that folder.
fn with_transformer(
    config: &Config,
    trained: &Arc<dyn Diffusion>,
    path: &Path,
) -> Result<Arc<dyn Diffusion>, Error> {
    let (mut parts, mut model) = (config.model.parts(), trained.path().to_owned());
    if index_of(path).is_some() {
        (parts, model) = (PartPaths::default(), path.to_owned());
    } else if model.is_dir() {
        parts.transformer = Some(path.to_owned());
    } else {
        // Those that were found for the one that is trained.
        let found = |part| trained.part(part);
        parts.vae = found(Part::Autoencoder);
        parts.text_encoder = found(Part::TextEncoder(0));
        parts.text_encoder_2 = found(Part::TextEncoder(1));
        model = path.to_owned();
    }
    let other = single_file::open(&model, &parts, &mut |_| ())?;
    let (theirs, ours) = (other.arch().title, trained.arch().title);
    if other.arch().name != trained.arch().name || other.geometry() != trained.geometry() {
        return Err(Error::Data(format!(
            "`sample.transformer`: `{}` is a transformer of {theirs}, and {ours} is trained with other latents",
            path.display()
        )));
    }
    Ok(other.into())
}

fn request(preview: &Preview, boundary: Option<f64>) -> Request {
    Request {
        prompt: preview.prompt.clone(),
        negative_prompt: Some(preview.negative_prompt.clone()),
        width: Some(preview.width.into()),
        height: Some(preview.height.into()),
        num_frames: Some(preview.num_frames.into()),
        fps: None,
        num_inference_steps: preview.num_inference_steps as usize,
        guidance_scale: preview.guidance_scale,
        guidance_scale_2: preview.guidance_scale_2,
        flow_shift: preview.flow_shift,
        scheduler: None,
        boundary_ratio: Some(boundary),
        seed: preview.seed,
        image: preview.image.clone(),
        controls: preview.controls.clone(),
        control_area: None,
        loras: Vec::new(),
        loras_2: Vec::new(),
        checkpoint: None,
        latents: None,
        save_latents: None,
        output: None,
    }
}

/// The size, seed and settings of what was made, for people.
fn described(plan: &Plan, seed: u64) -> String {
    let frames = match plan.frames {
        1 => String::new(),
        frames => format!("{frames} frames, "),
    };
    let Plan {
        width,
        height,
        sampling,
        ..
    } = plan;
    let (steps, guidance) = (sampling.steps, sampling.guidance_scale);
    format!("{width} × {height} pixels, {frames}seed {seed}, {steps} steps, guidance {guidance}")
}
