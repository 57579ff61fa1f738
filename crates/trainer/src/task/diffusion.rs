//! Trains a LoRA on a Wan transformer, or a transformer from scratch, on encoded clips, by flow matching.
//!
//! At noise level σ a clip is (1 − σ) · clean + σ · noise, the model's timestep is 1000 σ, and the loss is
//! the mean squared error between its output and the velocity noise − clean.

mod clip_loader;
mod expert;
mod lora_file;
mod memory;
mod model;
mod plan;
mod previews;
mod share;

use std::cell::RefCell;
use std::path::Path;

use models::Parameters;
use models::diffusion::lora::Expert as Which;
use models::diffusion::parts::t5::TEXT_ROWS;
use models::diffusion::wan::model::{Pipeline, WanModel};
use models::diffusion::wan::transformer::Timesteps;
use models::formats::{SafetensorsFile, TensorSource};
use models::model::Pass;
use placement::Placer;
use placement::plan::Memory;
use placement::swap::SwapReport;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use self::clip_loader::{ClipLoader, ClipSource, Encoded as EncodedClips};
use self::expert::{Expert, ExpertPlacement, streaming};
use self::memory::{Trainable, Usage};
use self::model::{shape, write_model};
use self::plan::{PlannedExperts, component, has_offloaded_modules};
use self::previews::Previews;
use super::clip_order::{ClipOrder, Position};
use super::{AlternatingGroup, Batch, Epochs, EvaluationSums, Share, Task, steps_of};
use crate::Error;
use crate::config::Config;
use crate::estimate::Footprint;
use crate::events::{Evaluation, Sample};
use crate::media::{Encoded, ShownMedia, VideoData, fresh_step, shown_media, trained_parts};
use crate::memory_plan::MemoryPlan;
use crate::observer::Observer;
use crate::text::thousands;

/// Default number of consecutive steps of each of two experts.
const STEPS_PER_EXPERT: u64 = 10;

/// A video model, what is trained of it, and the clips.
pub struct WanVideo {
    /// The trained experts, the high-noise expert first.
    experts: Vec<Expert>,
    residency: RefCell<ExpertPlacement>,
    /// The expert that is trained in this step.
    turn: usize,
    /// Of all experts.
    parameters: Parameters,
    model: WanModel,
    data: VideoData,
    previews: Option<Previews>,
    /// The memory plan of a frozen model.
    plan: Option<MemoryPlan>,
    clips: ClipLoader,
    /// The held-out clips.
    held_out: ClipSource,
    config: Config,
    compute: Kind,
    device: Device,
}

impl WanVideo {
    /// Opens the model at `path` and the data for `config`, after encoding what is not in the cache. With
    /// `adapter`, there is a LoRA for each trained expert; without, weights are initialised randomly, and
    /// those at `path`, if any, are ignored. `memory` is the budget for the plan.
    ///
    /// # Errors
    /// If a file is missing, damaged or not supported, the adapter does not match, media or captions cannot
    /// be used, or memory runs out.
    pub fn open(
        config: &Config,
        path: &Path,
        placer: &mut Placer,
        memory: Memory,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let model = WanModel::open(path, &config.model.parts())?;
        let parts = trained_parts(&model, config)?;
        let shape = shape(config, &model)?;
        let mut previews = Previews::open(config, &model, placer.device())?;
        let texts = previews.as_ref().map_or(Vec::new(), Previews::texts);
        let patch = shape.patch_size[1];
        let mut data = VideoData::prepare(config, &model, patch, &texts, placer, observer)?;
        if let Some(previews) = &mut previews {
            previews.set_texts(std::mem::take(&mut data.texts));
        }
        let compute = match config.train.bf16.on(placer.device()) {
            true => Kind::BFloat16,
            false => Kind::Float,
        };
        let device = placer.device();
        let plan = match &config.adapter {
            None => None,
            Some(_) => {
                let trained: Vec<_> = parts.iter().map(|part| part.expert).collect();
                let machine = (compute, device);
                let of = (&model, &shape);
                let shown = previews.is_some();
                let planned = PlannedExperts::new(config, of, &data, machine, &trained, shown)?;
                Some(planned.plan(memory)?)
            }
        };
        let mut residency = ExpertPlacement::new(config, plan.as_ref().map(|plan| &plan.plan))?;
        tch::manual_seed(config.seed as i64);
        let (mut experts, mut parameters) = (Vec::new(), Parameters::default());
        for part in &parts {
            observer.preparing(match config.adapter {
                Some(_) => "loading the transformer",
                None => "building the transformer",
            });
            // Make room for the next one.
            residency.enter(&experts, Some(experts.len()), placer)?;
            let expert = match &plan {
                Some(plan) => {
                    let blocks = streaming(config, plan, part.expert, placer)?;
                    Expert::open(config, &model, part, blocks, compute, placer)?
                }
                None => Expert::fresh(config, part, compute, placer)?,
            };
            let prefix = match parts.len() {
                1 => String::new(),
                _ => format!("{}.", expert.name()),
            };
            parameters.extend(&prefix, &expert.parameters);
            experts.push(expert);
            residency.forget();
        }
        residency.enter(&experts, Some(0), placer)?;
        let shapes: Vec<_> = data.training.iter().map(|clip| clip.shape).collect();
        let rows = config.train.per_device_train_batch_size as usize;
        let repeats = config.data.num_repeats.unwrap_or(1) as usize;
        let order = ClipOrder::new(config.seed, &shapes, rows, repeats);
        let with_condition = model.pipeline == Pipeline::Image;
        let source = ClipSource::new(&data.training, with_condition);
        let clips = ClipLoader::new(source, order, placer.device());
        if let Some(steps) = Self::steps_per_expert(config, &experts) {
            let train = &config.train;
            let passes = train.gradient_accumulation_steps.into();
            let of_epochs = || steps_of(&clips, train.num_train_epochs.unwrap_or(1.0), passes);
            let all = train.steps().unwrap_or_else(of_epochs);
            if all <= steps {
                tracing::warn!(
                    "the run of {all} steps is over before the expert of low noise learns anything: lower \
                     `train.steps_per_expert` ({steps})"
                );
            }
        }
        Ok(Self {
            experts,
            residency: RefCell::new(residency),
            turn: 0,
            parameters,
            model,
            clips,
            held_out: ClipSource::new(&data.held_out, with_condition),
            data,
            previews,
            plan,
            config: config.clone(),
            compute,
            device,
        })
    }

    /// Whether the model itself is trained, from scratch.
    fn is_fresh(&self) -> bool {
        self.experts.iter().all(|expert| expert.lora.is_none())
    }

    /// Consecutive steps of each expert, if there are several.
    fn steps_per_expert(config: &Config, experts: &[Expert]) -> Option<u64> {
        let steps = config.train.steps_per_expert.unwrap_or(STEPS_PER_EXPERT);
        (experts.len() > 1).then_some(steps)
    }

    /// Moves that expert to the device.
    fn load_expert(&self, number: Option<usize>, placer: &mut Placer) -> Result<(), Error> {
        self.residency
            .borrow_mut()
            .enter(&self.experts, number, placer)
    }

    /// Noisy clips at the given levels, without their text where that is dropped.
    fn batch(&self, clips: EncodedClips, dropped: &[bool], sigma: &Tensor) -> Result<Batch, Error> {
        let noise = clips.latents.f_randn_like()?;
        if dropped.contains(&true) {
            let empty = SafetensorsFile::open(&self.data.empty)?.read("text", Kind::Float)?;
            let missing = TEXT_ROWS - empty.size()[0];
            let empty = empty.f_constant_pad_nd([0, 0, 0, missing])?;
            for (row, _) in dropped.iter().enumerate().filter(|(_, dropped)| **dropped) {
                clips.text.f_get(row as i64)?.f_copy_(&empty)?;
            }
        }
        let mut tensors = vec![
            ("noise", noise),
            ("latents", clips.latents),
            ("sigma", sigma.shallow_clone()),
            ("text", clips.text),
        ];
        tensors.extend(clips.condition.map(|condition| ("condition", condition)));
        Ok(Batch::new(tensors, clips.tokens))
    }

    /// The mean squared error of each clip of a batch, `[rows]`; batch and expert are on the device.
    fn losses(&self, expert: &Expert, batch: &Batch, pass: Pass) -> Result<Tensor, Error> {
        let (clean, noise) = (batch.get("latents")?, batch.get("noise")?);
        let sigma = batch.get("sigma")?.f_to_kind(Kind::Float)?;
        let level = sigma.f_view([-1, 1, 1, 1, 1])?;
        let kept = level.f_neg()?.f_add_scalar(1.0)?;
        let mut noisy = clean.f_mul(&kept)?.f_add(&noise.f_mul(&level)?)?;
        let time = sigma.f_mul_scalar(1000.0)?;
        let frames = clean.size()[2];
        let given = self.config.data.image_to_video == Some(true) && frames > 1;
        let times = match given {
            false => Timesteps::Uniform(time),
            true => {
                let first = clean.f_narrow(2, 0, 1)?;
                let rest = noisy.f_narrow(2, 1, frames - 1)?;
                noisy = Tensor::f_cat(&[first, rest], 2)?;
                Timesteps::FirstFrame {
                    first: time.f_zeros_like()?,
                    others: time,
                }
            }
        };
        let input = match batch.find("condition") {
            Some(condition) => Tensor::f_cat(&[&noisy, condition], 1)?,
            None => noisy,
        };
        let velocity = expert
            .model
            .velocity(&input, &times, batch.get("text")?, pass)?;
        let mut apart = velocity.f_sub(&noise.f_sub(clean)?)?;
        if given {
            apart = apart.f_narrow(2, 1, frames - 1)?;
        }
        Ok(apart
            .f_square()?
            .f_mean_dim([1, 2, 3, 4].as_slice(), false, Kind::Float)?)
    }
}

/// The media of a run on the model in `path` or on one trained from scratch; loads no weights.
pub(crate) fn show_media(
    config: &Config,
    path: Option<&Path>,
    count: usize,
) -> Result<ShownMedia, Error> {
    let media = crate::locate::text_path(&config.data)?;
    let Some(path) = path else {
        return shown_media(config, &media, fresh_step(config), false, count);
    };
    let model = WanModel::open(path, &config.model.parts())?;
    let patch = shape(config, &model)?.patch_size[1];
    let step = (model.autoencoder.scale_factor_spatial * patch) as u32;
    shown_media(config, &media, step, model.expand_timesteps, count)
}

/// Only encodes the data of a run on the model in `path`.
pub(crate) fn encode_data(
    config: &Config,
    path: &Path,
    placer: &mut Placer,
    observer: &mut dyn Observer,
) -> Result<Encoded, Error> {
    let model = WanModel::open(path, &config.model.parts())?;
    let shape = shape(config, &model)?;
    let previews = Previews::open(config, &model, placer.device())?;
    let texts = previews.map_or(Vec::new(), |previews| previews.texts());
    let patch = shape.patch_size[1];
    let data = VideoData::prepare(config, &model, patch, &texts, placer, observer)?;
    Ok(Encoded {
        folder: data.folder,
        clips: data.training.len(),
        held_out: data.held_out.len(),
        encoded_clips: data.encoded.0,
        encoded_captions: data.encoded.1,
    })
}

impl Task for WanVideo {
    fn description(&self) -> String {
        let first = &self.experts[0];
        let which = match (self.experts.len(), first.which) {
            (1, None) => "",
            (1, Some(Which::High)) => ", the high-noise expert",
            (1, Some(Which::Low)) => ", the low-noise expert",
            _ => ", both experts in turn",
        };
        let ranges = self.experts.iter();
        let ranges = ranges.map(|expert| format!("{} to {}", expert.range.0, expert.range.1));
        let ranges = ranges.collect::<Vec<_>>().join(" and from ");
        let parameters = thousands(self.parameters.count());
        let Some(lora) = &first.lora else {
            let shape = first.model.config();
            return format!(
                "{parameters} parameters, {} layers of width {}, {}, all trained at noise levels from {ranges}",
                shape.num_layers,
                shape.width(),
                match self.compute {
                    Kind::BFloat16 => "bf16",
                    _ => "fp32",
                },
            );
        };
        format!(
            "{}{which}, with a LoRA of rank {} on {} layers{}, {parameters} parameters trained at levels of noise \
             from {ranges}",
            self.model.path.display(),
            lora.adapter.config.rank,
            lora.adapter.modules.len(),
            if self.experts.len() > 1 {
                " of each"
            } else {
                ""
            },
        )
    }

    fn data_description(&self) -> String {
        let data = &self.config.data;
        let path = data.path.as_deref().unwrap_or(Path::new(""));
        let name = data.dataset.map(|set| set.name().to_owned());
        format!(
            "{}: {} clips to train on, {} held out ({} clips and {} captions encoded now)",
            name.unwrap_or_else(|| path.display().to_string()),
            self.data.training.len(),
            self.data.held_out.len(),
            self.data.encoded.0,
            self.data.encoded.1,
        )
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn turns(&self) -> Vec<AlternatingGroup> {
        if self.experts.len() == 1 {
            return Vec::new();
        }
        let mut end = 0;
        let turns = self.experts.iter().map(|expert| {
            let start = end;
            end += expert.parameters.iter().len();
            AlternatingGroup {
                name: expert.name(),
                parameters: start..end,
            }
        });
        turns.collect()
    }

    fn begin_step(&mut self, steps: u64, placer: &mut Placer) -> Result<usize, Error> {
        let per_expert = Self::steps_per_expert(&self.config, &self.experts);
        self.turn = per_expert.map_or(0, |own| steps / own % self.experts.len() as u64) as usize;
        self.load_expert(Some(self.turn), placer)?;
        Ok(self.turn)
    }

    fn footprint(&self) -> Footprint {
        let shape = self.experts[0].model.config();
        // The other experts may be offloaded.
        let on_device = |plan: &MemoryPlan| {
            let phases = plan.plan.phases.iter().take(self.experts.len());
            let most = phases.map(|phase| phase.resident + phase.ring).max();
            most.unwrap_or_default().0
        };
        let base = self.plan.as_ref().map_or(0, on_device);
        let first = component(self.experts[0].which);
        let streamed = self.plan.as_ref().map(|plan| plan.streamed_of(first));
        let learns = Trainable::of(&self.experts[0].parameters, shape);
        let machine = (self.compute, self.device);
        let streamed = streamed.unwrap_or_default();
        let usage = Usage::new(&self.config, &self.data, machine, learns, streamed);
        Footprint {
            weights: base + self.parameters.count() * 4,
            ..usage.footprint(shape)
        }
    }

    /// If the config requests one, or the experts swap places on the device.
    fn memory_plan(&self) -> Option<&MemoryPlan> {
        let asked = self.config.model.offload_options().is_some();
        let plan = self.plan.as_ref();
        plan.filter(|plan| asked || has_offloaded_modules(&plan.plan))
    }

    fn streamed(&self) -> Option<SwapReport> {
        self.experts[0].model.streamed()
    }

    fn starts_trained(&self) -> bool {
        !self.is_fresh()
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        let clips = self.clips.next()?;
        // The loop has seeded the generator for this step.
        let options = (Kind::Double, Device::Cpu);
        let drawn = Tensor::f_rand([2, clips.latents.size()[0]], options)?;
        let uniform = Vec::<f64>::try_from(&drawn.f_select(0, 0)?)?;
        let density = &self.experts[self.turn].density;
        let sigma = uniform.into_iter().map(|u| density.sigma(u));
        let sigma = Tensor::f_from_slice(&sigma.collect::<Result<Vec<_>, _>>()?)?;
        let share = self.config.data.caption_dropout.unwrap_or(0.0);
        let dropped = Vec::<f64>::try_from(&drawn.f_select(0, 1)?)?.into_iter();
        let dropped: Vec<bool> = dropped.map(|u| u < share).collect();
        let sigma = sigma.f_to_kind(Kind::Float)?;
        self.batch(clips, &dropped, &sigma)
    }

    fn epochs(&self) -> Option<&dyn Epochs> {
        Some(&self.clips)
    }

    /// Every clip has the same weight.
    fn loss_weight(&self, batch: &Batch) -> Result<f64, Error> {
        Ok(batch.rows()? as f64)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let pass = Pass::Train {
            checkpoint: self.config.train.gradient_checkpointing,
        };
        let expert = &self.experts[self.turn];
        Ok(self.losses(expert, batch, pass)?.f_mean(Kind::Float)?)
    }

    fn evaluates(&self) -> bool {
        !self.data.held_out.is_empty()
    }

    /// The mean over the experts, each at its own noise levels.
    fn evaluate(&self, limit: Option<u64>, placer: &mut Placer) -> Result<Evaluation, Error> {
        Ok(self.measure_share(limit, Share::WHOLE, placer)?.mean())
    }

    fn evaluate_share(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<Option<EvaluationSums>, Error> {
        self.measure_share(limit, share, placer).map(Some)
    }

    fn sample(&self, step: u64, folder: &Path, placer: &mut Placer) -> Result<Vec<Sample>, Error> {
        let samples = self.samples_of(step, Share::WHOLE, folder, placer)?;
        Ok(samples.into_iter().map(|(_, sample)| sample).collect())
    }

    fn sample_share(
        &self,
        step: u64,
        share: Share,
        folder: &Path,
        placer: &mut Placer,
    ) -> Result<Option<Vec<(usize, Sample)>>, Error> {
        self.samples_of(step, share, folder, placer).map(Some)
    }

    fn data_state(&self) -> Result<Value, Error> {
        let clips: Vec<Value> = self
            .data
            .training
            .iter()
            .map(|clip| {
                json!([
                    clip.key,
                    clip.text.file_stem().map(|key| key.to_string_lossy())
                ])
            })
            .collect();
        let text = json!(clips).to_string();
        Ok(json!({
            "clips": clips.len(),
            "content": format!("{:08x}", crc32c::crc32c(text.as_bytes())),
            "order": self.clips.state(),
        }))
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        let now = self.data_state()?;
        for key in ["clips", "content"] {
            if state[key] != now[key] {
                return Err(Error::Data(format!(
                    "the clips and captions differ from those of the checkpoint: `{key}` was {} and is now {}",
                    state[key], now[key]
                )));
            }
        }
        let position: Position = serde_json::from_value(state["order"].clone())
            .map_err(|error| Error::Data(format!("the checkpoint's data position: {error}")))?;
        self.clips.restore(position);
        Ok(())
    }

    fn identity(&self) -> Result<Value, Error> {
        let mut identity = json!({ "adapter": self.experts[0].adapter_identity() });
        for (expert, key) in self.experts.iter().zip(["transformer", "transformer_2"]) {
            identity[key] = json!(expert.fingerprint);
        }
        Ok(identity)
    }

    /// Writes the LoRAs in the format for other programs, and in PEFT's format, from which training can
    /// continue; with two experts, the latter in a folder each.
    fn export_adapter(&self, folder: &Path) -> Result<bool, Error> {
        if self.is_fresh() {
            return Ok(false);
        }
        for expert in &self.experts {
            let peft = match self.experts.len() {
                1 => folder.to_owned(),
                _ => folder.join(expert.name()),
            };
            expert.export(&self.config, &self.model, folder, &peft)?;
        }
        Ok(true)
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        match self.is_fresh() {
            true => write_model(&self.model.path, folder, &self.parameters),
            false => self.export_adapter(folder).map(drop),
        }
    }

    fn architecture(&self) -> Option<&str> {
        Some("wan")
    }

    fn export_name(&self) -> &'static str {
        match self.is_fresh() {
            true => "model",
            false => "adapter",
        }
    }
}
