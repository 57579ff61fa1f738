//! Trains an adapter on a diffusion model, all of its weights, or a model from scratch, on encoded pictures and clips.
//!
//! Latents are noised and predicted as the model's [`Objective`](models::diffusion::Objective) says; the loss is the
//! mean squared error of the prediction.

mod clip_loader;
mod expert;
mod imagined;
mod lora_file;
mod model;
mod opened;
mod plan;
mod previews;
mod share;
mod weights;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use models::Parameters;
use models::diffusion::{Conditions, Diffusion, Expert as Which, Part};
use models::formats::{SafetensorsFile, TensorSource};
use models::model::Pass;
use placement::Placer;
use placement::plan::Memory;
use placement::swap::SwapReport;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use torch_ext::fake::PassMemory;

use self::clip_loader::{ClipLoader, ClipSource, Encoded as EncodedClips};
use self::expert::{Expert, ExpertPlacement, streaming};
pub(crate) use self::imagined::Imagined;
pub(crate) use self::model::write_model;
use self::model::{Denoiser, TrainedWeights};
use self::opened::opened;
use self::plan::{
    PlannedExperts, component, expect_room, has_offloaded_modules, measured, working,
};
use self::previews::Previews;
use self::weights::{means, squares};
use super::clip_order::{ClipOrder, Position, repeats};
use super::{
    AlternatingGroup, Batch, Epochs, EvaluationSums, Makes, Share, Task, Usable, steps_of,
};
use crate::Error;
use crate::config::Config;
use crate::estimate::Footprint;
use crate::events::Sample;
use crate::media::{Clip, Encoded, LOSS_MASK, ShownMedia, VideoData, masked_means, shown_media};
use crate::memory_plan::MemoryPlan;
use crate::observer::Observer;
use crate::pass_size::{PassSize, room};
use crate::text::thousands;

/// The name of the weights of a batch's clips, `[rows]`, where they differ.
const LOSS_WEIGHT: &str = "loss_weight";

/// Default number of consecutive steps of each of two experts.
const STEPS_PER_EXPERT: u64 = 10;

/// A diffusion model, what is trained of it, and the clips.
pub struct DiffusionTask {
    /// The trained experts, the high-noise expert first.
    experts: Vec<Expert>,
    residency: RefCell<ExpertPlacement>,
    /// The expert that is trained in this step.
    turn: usize,
    /// Of all experts.
    parameters: Parameters,
    model: Arc<dyn Diffusion>,
    data: VideoData,
    previews: Option<Previews>,
    pass_size: Option<PassSize>,
    /// The memory plan of a frozen model.
    plan: Option<MemoryPlan>,
    /// What a pass of the first expert needs.
    pass: PassMemory,
    clips: ClipLoader,
    /// The held-out clips.
    held_out: ClipSource,
    config: Config,
    compute: Kind,
}

impl DiffusionTask {
    /// Opens the model at `path` and the data for `config`, after encoding what is not in the cache. With
    /// `adapter`, there is one for each trained expert; without, all weights are trained, and with `model.from_config` they are
    /// initialised randomly, and of those at `path` only the config is read. `memory` is the budget for the plan.
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
        let (model, parts) = opened(config, path, observer)?;
        let mut previews = Previews::open(config, &model, placer.device())?;
        let texts = previews.as_ref().map_or(Vec::new(), Previews::texts);
        let mut data = VideoData::prepare(config, &*model, &texts, placer, observer)?;
        if let Some(previews) = &mut previews {
            previews.set_texts(std::mem::take(&mut data.texts));
        }
        let compute = config.train.bf16.kind(placer.device());
        let device = placer.device();
        let source = ClipSource::new(&data.training, &model);
        let largest = |rows: u32| source.largest(rows);
        let first = parts.first().and_then(|part| part.expert);
        let machine = (compute, device);
        let (pass_size, plan) = match &config.adapter {
            None => {
                let size = PassSize::choose(config, room(config, memory), |config| {
                    let measured = measured(config, &model, &largest, first, machine, &[])?;
                    Ok(Some(working(config, measured, parts.len())))
                })?;
                (size, None)
            }
            Some(_) => {
                let trained: Vec<_> = parts.iter().map(|part| part.expert).collect();
                let other = previews.as_ref().and_then(Previews::other);
                let shown = (previews.is_some(), other);
                let planned =
                    PlannedExperts::new(config, &model, &largest, machine, &trained, shown)?;
                let size = planned.pass_size(memory)?;
                let plan = planned.plan(memory, PassSize::rows(size.as_ref(), config))?;
                (size, Some(plan))
            }
        };
        let of_passes = &config.in_passes_of(PassSize::rows(pass_size.as_ref(), config));
        let streamed = plan.as_ref().map(|plan| plan.streamed_of(component(first)));
        let streamed = streamed.unwrap_or_default();
        let measured = measured(of_passes, &model, &largest, first, machine, &streamed)?;
        let pass = measured.pass;
        if config.adapter.is_none() {
            expect_room(of_passes, measured, parts.len(), memory)?;
        }
        let mut residency = ExpertPlacement::new(config, plan.as_ref().map(|plan| &plan.plan))?;
        tch::manual_seed(config.seed as i64);
        let (mut experts, mut parameters) = (Vec::new(), Parameters::default());
        for part in &parts {
            observer.preparing(match config.model.from_config {
                Some(true) => "building the transformer",
                _ => "loading the transformer",
            });
            // Make room for the next one.
            residency.enter(&experts, Some(experts.len()), placer)?;
            let expert = match &plan {
                Some(plan) => {
                    let blocks = streaming(config, plan, component(part.expert), placer)?;
                    Expert::open(config, &*model, part, blocks, compute, placer)?
                }
                None => Expert::whole(config, &*model, part, compute, placer)?,
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
        let rows = config.train.batch() as usize;
        let asked = config.data.num_repeats;
        let asked = |clip: &Clip| (asked.unwrap_or(clip.repeats), clip.is_regular);
        let repeats = repeats(&data.training.iter().map(asked).collect::<Vec<_>>());
        let shapes = data
            .training
            .iter()
            .map(|clip| (clip.shape, clip.controls.clone()));
        let order = ClipOrder::new(config.seed, shapes.zip(repeats), rows);
        let clips = ClipLoader::new(source, order, placer.device());
        if let Some(steps) = Self::steps_per_expert(config, &experts) {
            let train = &config.train;
            let batches = train.batches().into();
            let of_epochs = || steps_of(&clips, train.num_train_epochs.unwrap_or(1.0), batches);
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
            clips,
            held_out: ClipSource::new(&data.held_out, &model),
            model,
            data,
            previews,
            pass_size,
            plan,
            pass,
            config: config.clone(),
            compute,
        })
    }

    /// Whether the model itself is trained.
    fn is_whole(&self) -> bool {
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
        let mut conditions = clips.conditions;
        if dropped.contains(&true) {
            let mut rows = clips.rows;
            let places = rows.iter_mut().zip(&clips.empty).zip(dropped);
            for ((row, empty), _) in places.filter(|(_, dropped)| **dropped) {
                let empty = empty.as_ref().unwrap_or(&self.data.empty);
                row.extend(Conditions::read(&SafetensorsFile::open(empty)?, &[])?);
            }
            conditions = self.model.collate(&rows)?;
        }
        let mut tensors = vec![
            ("noise".to_owned(), noise),
            ("latents".to_owned(), clips.latents),
            ("sigma".to_owned(), sigma.shallow_clone()),
        ];
        let prior = self.config.train.prior_loss_weight as f32;
        if self.config.data.reg_data_dir.is_some() && prior != 1.0 {
            let weights = clips.regular.iter();
            let weights = weights.map(|is_regular| if *is_regular { prior } else { 1.0 });
            let weights = Tensor::f_from_slice(&weights.collect::<Vec<_>>())?;
            tensors.push((LOSS_WEIGHT.to_owned(), weights));
        }
        let conditions = conditions.iter();
        tensors.extend(conditions.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())));
        Ok(Batch::new(tensors, clips.tokens))
    }

    /// The mean squared error of each clip of a batch, `[rows]`; batch and expert are on the device.
    fn losses(&self, expert: &Expert, batch: &Batch, pass: Pass) -> Result<Tensor, Error> {
        let media = [
            batch.get("latents")?,
            batch.get("noise")?,
            batch.get("sigma")?,
        ];
        let mut conditions = Conditions::default();
        for (name, tensor) in batch.iter() {
            if !["latents", "noise", "sigma", LOSS_MASK, LOSS_WEIGHT].contains(&name) {
                conditions.insert(name, tensor.shallow_clone());
            }
        }
        let of = (&*self.model, &*expert.model);
        let squares = squares(&self.config, of, media, conditions, pass)?;
        match batch.find(LOSS_MASK) {
            Some(masks) => {
                let least = self.config.data.mask_min_value.unwrap_or(0.0);
                masked_means(&squares, masks, least)
            }
            None => means(&squares),
        }
    }
}

/// The media of a run on the model in `path`; loads no weights.
pub(crate) fn show_media(
    config: &Config,
    path: &Path,
    count: usize,
    observer: &mut dyn Observer,
) -> Result<ShownMedia, Error> {
    let media = crate::locate::text_path(&config.data)?;
    let (model, _) = opened(config, path, observer)?;
    shown_media(config, &media, &*model, count)
}

/// Only encodes the data of a run on the model in `path`.
pub(crate) fn encode_data(
    config: &Config,
    path: &Path,
    placer: &mut Placer,
    observer: &mut dyn Observer,
) -> Result<Encoded, Error> {
    let (model, _) = opened(config, path, observer)?;
    let previews = Previews::open(config, &model, placer.device())?;
    let texts = previews.map_or(Vec::new(), |previews| previews.texts());
    let data = VideoData::prepare(config, &*model, &texts, placer, observer)?;
    Ok(Encoded {
        folder: data.folder,
        clips: data.training.len(),
        held_out: data.held_out.len(),
        encoded_clips: data.encoded.0,
        encoded_captions: data.encoded.1,
    })
}

impl Task for DiffusionTask {
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
            return format!(
                "{parameters} parameters, {}, {}, all trained at noise levels from {ranges}",
                first.model.description(),
                match self.compute {
                    Kind::BFloat16 => "bf16",
                    _ => "fp32",
                },
            );
        };
        format!(
            "{}{which}, with a {} of rank {} on {} layers{}, {parameters} parameters trained at levels of noise \
             from {ranges}",
            self.model.path().display(),
            lora.adapter.name(),
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
        let what = data.media_words();
        format!(
            "{}: {} {what} to train on, {} held out ({} {what} and {} captions encoded now)",
            data.path.as_deref().unwrap_or(Path::new("")).display(),
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
        // The other experts may be offloaded.
        let on_device = |plan: &MemoryPlan| {
            let phases = plan.plan.phases.iter().take(self.experts.len());
            let most = phases.map(|phase| phase.resident + phase.ring).max();
            most.unwrap_or_default().0
        };
        let base = self.plan.as_ref().map_or(0, on_device);
        Footprint::new(base + self.parameters.count() * 4, self.pass)
    }

    fn pass_size(&self) -> Option<&PassSize> {
        self.pass_size.as_ref()
    }

    /// If the config requests one, or the experts swap places on the device.
    fn memory_plan(&self) -> Option<&MemoryPlan> {
        let asked = self.config.model.offload_options().is_some();
        let plan = self.plan.as_ref();
        plan.filter(|plan| asked || has_offloaded_modules(&plan.plan))
    }

    fn streamed(&self) -> Option<SwapReport> {
        let lists = self.experts[0].model.lists();
        lists.into_iter().find_map(|list| list.report())
    }

    fn starts_trained(&self) -> bool {
        self.config.model.from_config != Some(true)
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
        let mut losses = self.losses(expert, batch, pass)?;
        let objective = self.model.objective();
        if let Some(weights) =
            weights::weights(&self.config.train, &objective, batch.get("sigma")?)?
        {
            losses = losses.f_mul(&weights)?;
        }
        if let Some(weights) = batch.find(LOSS_WEIGHT) {
            losses = losses.f_mul(weights)?;
        }
        Ok(losses.f_mean(Kind::Float)?)
    }

    fn evaluates(&self) -> bool {
        !self.data.held_out.is_empty()
    }

    /// Of each expert, at its own noise levels.
    fn evaluate(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error> {
        self.measure_share(limit, share, placer)
    }

    fn sample(
        &self,
        step: u64,
        share: Share,
        folder: &Path,
        placer: &mut Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        self.samples_of(step, share, folder, placer)
    }

    fn data_state(&self) -> Result<Value, Error> {
        let clips: Vec<Value> = self
            .data
            .training
            .iter()
            .map(|clip| {
                let text = clip.text.file_stem().map(|key| key.to_string_lossy());
                match clip.repeats {
                    1 => json!([clip.key, text]),
                    repeats => json!([clip.key, text, repeats]),
                }
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
                let part = |part| self.model.part(part).unwrap_or_default();
                return Err(Error::Data(format!(
                    "the clips and captions differ from those of the checkpoint: `{key}` was {} and is now {}. They were \
                     encoded by the autoencoder `{}` and the text encoder `{}`: name others by `model.vae` and \
                     `model.text_encoder`",
                    state[key],
                    now[key],
                    part(Part::Autoencoder).display(),
                    part(Part::TextEncoder(0)).display()
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
        if let Some(adapter) = &self.config.model.training_adapter {
            let file = lora_file::weights(adapter)?;
            identity["training_adapter"] = json!(models::pretrained::fingerprint(&file)?);
        }
        Ok(identity)
    }

    /// Writes the LoRAs in the format for other programs, and in PEFT's format, from which training can
    /// continue; with two experts, the latter in a folder each.
    fn export_adapter(&self, folder: &Path) -> Result<bool, Error> {
        if self.is_whole() {
            return Ok(false);
        }
        for expert in &self.experts {
            let peft = match self.experts.len() {
                1 => folder.to_owned(),
                _ => folder.join(expert.name()),
            };
            expert.export(&self.config, &*self.model, folder, &peft)?;
        }
        Ok(true)
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        match self.is_whole() {
            true => {
                let model = &*self.model;
                let all = self.experts.iter();
                let all: Vec<_> = all
                    .map(|expert| (expert.which, TrainedWeights::of(model, expert)))
                    .collect();
                let all = all
                    .iter()
                    .map(|(which, weights)| (*which, weights as &dyn TensorSource));
                let all: Vec<Denoiser<'_>> = all.collect();
                write_model(self.config.model.parts(), model, &all, folder, None)
            }
            false => self.export_adapter(folder).map(drop),
        }
    }

    fn usable(&self) -> Option<Usable<'_>> {
        Some(Usable {
            architecture: self.model.arch().name,
            makes: Makes::of(self.model.as_ref()),
            gguf: false,
            is_part: false,
        })
    }

    fn export_name(&self) -> &'static str {
        match self.is_whole() {
            true => "model",
            false => "adapter",
        }
    }
}
