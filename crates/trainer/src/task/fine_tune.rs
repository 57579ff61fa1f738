//! Fine-tuning a published language model, by an adapter or as a whole.

use std::path::Path;

use placement::Placer;
use placement::plan::Memory;
use placement::swap::SwapReport;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::base_model::BaseModel;
use super::fine_tune_data::{FineTuneData, Question};
use super::held_out::in_batches;
use super::preference::{Outcome, Preference, Set};
use super::sequences::{IGNORED, Sequences};
use super::shown::ShownData;
use super::{
    Batch, Epochs, EvaluationSums, Makes, Measures, Reference, Share, Task, Usable, divided,
};
use crate::Error;
use crate::config::{Config, SampleConfig};
use crate::data::SplitMix64;
use crate::estimate::Footprint;
use crate::events::Sample;
use crate::hub::{ModelKind, locate_model};
use crate::inference::{SamplingSettings, continue_tokens, ends_of_answers};
use crate::memory_plan::MemoryPlan;
use crate::observer::{NoObserver, Observer};
use crate::pass_size::PassSize;
use crate::text::thousands;
use models::Parameters;
use models::adapters::{Attached, Naming, PeftAdapter, adapter_config, write_peft};
use models::formats::LazyTensor;
use models::language::{Decoder, attention_path};
use models::loss::{smoothed_cross_entropy, summed_cross_entropy};
use models::model::{AttentionPath, Pass};
use models::pretrained::{Pretrained, fingerprint, merge, write_weights};
use models::text::{Conversation, Encoder, Message};

/// Rotary tables and caches for samples reach at least this far, if the model does.
const SAMPLE_CONTEXT: i64 = 4096;
/// The most tokens of a sample before the first step.
const FIRST_SAMPLE: usize = 32;

/// A published model and what it learns.
pub struct FineTune {
    model: Decoder,
    pretrained: Pretrained,
    encoder: Encoder,
    adapter: Option<Attached>,
    parameters: Parameters,
    footprint: Footprint,
    pass_size: Option<PassSize>,
    plan: Option<MemoryPlan>,
    data: FineTuneData,
    /// Set if it learns from preferences.
    preference: Option<Preference>,
    attention: AttentionPath,
    context: i64,
    eval_batch_size: usize,
    checkpoint: bool,
    /// Whether the model is exported with the adapter in it too.
    save_merged: bool,
    seed: u64,
    name_or_path: String,
    /// What the data are read by again when a run goes on with the date of its first day.
    config: Config,
}

impl FineTune {
    /// The model and the data that `config` names, under `memory` where the config asks for a
    /// plan.
    ///
    /// # Errors
    /// When a file is missing, damaged or not known here, the adapter does not fit, the data
    /// are too short, or there is no plan, or memory runs out.
    pub fn open(
        config: &Config,
        name_or_path: &str,
        placer: &mut Placer,
        memory: Memory,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let (pretrained, encoder, data) = Self::prepare(config, name_or_path, observer)?;
        observer.preparing("loading the model");
        let limit = pretrained.config.max_position_embeddings;
        let longest = data.longest() as i64;
        if longest > limit {
            tracing::warn!(
                "rows have up to {longest} tokens, and the model was made for {limit} \
                 (`max_position_embeddings`): a `data.block_size` up to there is what it knows"
            );
        }
        let context = limit.min(SAMPLE_CONTEXT).max(longest);
        let preference = Preference::new(config, data.training.rows().unwrap_or_default());
        let train = &config.train;
        let rows = vec![data.training.longest_row(); train.batch() as usize];
        let batch = placer.batch(batch_of(&data, preference.as_ref(), &rows)?)?;
        let compute = train.bf16.kind(placer.device());
        // Before memory is measured: to find the kernel, some are tried on numbers.
        let attention = attention_path(
            &pretrained.config,
            (placer.device(), compute),
            (longest, data.training.packed()),
        )?;
        let loss = |model: &Decoder, rows: u32| {
            let batch = batch.narrow(0, rows.into())?;
            let pass = Pass::Train {
                checkpoint: train.gradient_checkpointing,
            };
            match &preference {
                Some(preference) => Ok(preference.outcome(model, &batch, pass)?.loss),
                None => loss_of_tokens(model, &batch, train.label_smoothing_factor, pass),
            }
        };
        let BaseModel {
            model,
            adapter,
            parameters,
            footprint,
            pass_size,
            plan,
        } = BaseModel::load(config, &pretrained, (context, &loss), placer, memory)?;
        let rows = PassSize::rows(pass_size.as_ref(), config);
        Ok(Self {
            attention,
            model,
            pretrained,
            encoder,
            adapter,
            parameters,
            footprint,
            pass_size,
            plan,
            data,
            preference,
            context,
            eval_batch_size: train.per_device_eval_batch_size.unwrap_or(rows) as usize,
            checkpoint: train.gradient_checkpointing,
            save_merged: config.adapter.as_ref().is_some_and(|a| a.save_merged),
            seed: config.seed,
            name_or_path: name_or_path.to_owned(),
            config: config.clone(),
        })
    }

    /// Model, tokenizer and data, without the model's weights.
    fn prepare(
        config: &Config,
        name_or_path: &str,
        observer: &mut dyn Observer,
    ) -> Result<(Pretrained, Encoder, FineTuneData), Error> {
        observer.preparing("opening the model");
        let path = locate_model(Path::new(name_or_path), ModelKind::Text, &mut |text| {
            observer.preparing(text);
        })?;
        let pretrained = Pretrained::open(&path)?;
        let encoder = Encoder::new(&pretrained)?;
        observer.preparing("reading and tokenising the data");
        let data = FineTuneData::load(config, &encoder, observer)?;
        Ok((pretrained, encoder, data))
    }

    /// The first `count` rows of the data in the order of training, as text; loads no weights.
    ///
    /// # Errors
    /// As [`FineTune::open`].
    pub(crate) fn show_data(
        config: &Config,
        name_or_path: &str,
        count: u64,
        observer: &mut dyn Observer,
    ) -> Result<ShownData, Error> {
        let (_, encoder, data) = Self::prepare(config, name_or_path, observer)?;
        data.shown(count, &encoder)
    }

    /// What the head reads of a batch.
    fn hidden(&self, batch: &Batch, pass: Pass) -> Result<Tensor, Error> {
        let tokens = batch.get("tokens")?;
        Ok(match batch.find("positions") {
            Some(positions) => self.model.hidden_packed(tokens, positions, pass)?,
            None => self.model.hidden(tokens, pass)?,
        })
    }

    /// The prompts of samples and their tokens: where the model learns from chats, in its template. If the config names
    /// none, the question of a record.
    fn prompts(&self) -> Result<Vec<(String, Vec<u32>)>, Error> {
        let asked = |conversation: &Conversation| -> Result<Vec<u32>, Error> {
            let template = self.encoder.template();
            let template = template.ok_or_else(|| Error::Internal("no chat template".into()))?;
            let text = template.render(conversation, true);
            let text = text.map_err(|error| Error::Data(format!("a sample's prompt: {error}")))?;
            Ok(self.encoder.tokens(&text, false)?)
        };
        let given = &self.config.sample.prompts;
        let question = match &self.data.question {
            Some(Question::Chat(conversation)) => {
                let last = conversation.messages.last();
                let text = last.and_then(|turn| turn.fields().get("content")?.as_str());
                Some((text.unwrap_or_default().to_owned(), asked(conversation)?))
            }
            Some(Question::Prompt(prompt)) => {
                Some((prompt.clone(), self.encoder.tokens(prompt, true)?))
            }
            None => None,
        };
        let leaves_room = |(_, tokens): &(_, Vec<u32>)| 2 * tokens.len() as i64 <= self.context;
        if let Some(question) = question.filter(leaves_room)
            && *given == SampleConfig::default().prompts
        {
            return Ok(vec![question]);
        }
        let of_given = |prompt: &String| {
            let tokens = match &self.data.question {
                Some(Question::Chat(_)) => {
                    asked(&Conversation::new(vec![Message::new("user", prompt)]))?
                }
                _ => self.encoder.tokens(prompt, true)?,
            };
            Ok((prompt.clone(), tokens))
        };
        given.iter().map(of_given).collect()
    }
}

impl Reference for FineTune {
    fn numbers(&self) -> usize {
        let held_out = self.data.held_out.as_ref().and_then(Sequences::rows);
        let training = self.data.training.rows();
        2 * (training.unwrap_or_default() + held_out.unwrap_or_default()) as usize
    }

    fn compute(
        &self,
        share: Share,
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f64>, Error> {
        let Some(preference) = &self.preference else {
            return Ok(Vec::new());
        };
        let sets = [Some(&self.data.training), self.data.held_out.as_ref()];
        let share = (share, self.eval_batch_size);
        preference.precompute(&self.model, sets, share, placer, observer)
    }

    fn set(&mut self, numbers: &[f64]) -> Result<(), Error> {
        let rows = self.numbers() as u64 / 2;
        match &mut self.preference {
            Some(preference) => preference.set_reference(numbers, rows),
            None => Ok(()),
        }
    }
}

impl Task for FineTune {
    fn attention(&self) -> Option<&str> {
        Some(&self.attention.words)
    }

    fn description(&self) -> String {
        let trained = thousands(self.parameters.count());
        match &self.adapter {
            None => format!("{}, all {trained} parameters trained", self.name_or_path),
            Some(adapter) => {
                let whole = match adapter.saved_modules.len() {
                    0 => String::new(),
                    1 => format!(", `{}` trained in full", adapter.saved_modules[0]),
                    count => format!(", {count} modules trained in full"),
                };
                format!(
                    "{} with a {} of rank {} on {} layers{whole}, {trained} parameters trained",
                    self.name_or_path,
                    adapter.name(),
                    adapter.config.rank,
                    adapter.modules.len() + adapter.parameters.len(),
                )
            }
        }
    }

    fn data_description(&self) -> String {
        self.data.description.clone()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn pass_size(&self) -> Option<&PassSize> {
        self.pass_size.as_ref()
    }

    fn memory_plan(&self) -> Option<&MemoryPlan> {
        self.plan.as_ref()
    }

    fn streamed(&self) -> Option<SwapReport> {
        self.model.streamed()
    }

    fn starts_trained(&self) -> bool {
        true
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        let rows = self.data.blocks.next_starts().into_iter();
        let rows: Vec<u64> = rows.map(|row| row as u64).collect();
        batch_of(&self.data, self.preference.as_ref(), &rows)
    }

    fn micro_batches(&self, batch: Batch, rows: i64) -> Result<Vec<(Batch, f64)>, Error> {
        match &self.preference {
            Some(preference) if preference.is_indivisible() => Ok(vec![(batch, 1.0)]),
            _ => divided(batch, rows, &|batch| self.loss_weight(batch)),
        }
    }

    fn measures(&self) -> Option<&dyn Measures> {
        let preference = self.preference.as_ref()?;
        Some(preference)
    }

    fn reference(&mut self) -> Option<&mut dyn Reference> {
        let preference = self.preference.as_ref();
        preference
            .is_some_and(Preference::precomputes)
            .then_some(self)
    }

    fn epochs(&self) -> Option<&dyn Epochs> {
        Some(&self.data.blocks)
    }

    fn loss_weight(&self, batch: &Batch) -> Result<f64, Error> {
        if self.preference.is_some() {
            return Ok(batch.rows()? as f64);
        }
        let learned = batch.get("targets")?.f_ne(IGNORED)?;
        Ok(f64::try_from(&learned.f_sum(Kind::Double)?)?)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let pass = Pass::Train {
            checkpoint: self.checkpoint,
        };
        if let Some(preference) = &self.preference {
            return preference.loss(&self.model, batch, pass);
        }
        let smoothing = self.config.train.label_smoothing_factor;
        loss_of_tokens(&self.model, batch, smoothing, pass)
    }

    fn evaluates(&self) -> bool {
        self.data.held_out.is_some()
    }

    fn evaluate(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error> {
        let _no_grad = tch::no_grad_guard();
        let Some(held_out) = &self.data.held_out else {
            return Err(Error::Internal("nothing is held out".into()));
        };
        if let Some(preference) = &self.preference {
            let (rows, complete) = held_out.measured(limit);
            let mut sums = EvaluationSums {
                measures: vec![0.0; preference.count()],
                samples: rows.len() as u64,
                complete,
                ..EvaluationSums::default()
            };
            in_batches(&share.part(&rows), self.eval_batch_size, |rows| {
                let batch = preference.batch(held_out, Set::HeldOut, rows)?;
                let batch = placer.batch(batch)?;
                let Outcome { loss, sums: found } =
                    preference.outcome(&self.model, &batch, Pass::Evaluate)?;
                sums.loss += f64::try_from(&loss)? * rows.len() as f64;
                sums.units += rows.len() as u64;
                let found = Vec::<f64>::try_from(&found)?;
                for (sum, one) in sums.measures.iter_mut().zip(found) {
                    *sum += one;
                }
                Ok(())
            })?;
            return Ok(sums);
        }
        let (mut rows, mut complete) = held_out.measured(limit);
        // Of all shares: what of them is learned is known without the model.
        let learns = |rows: &[_]| -> Result<bool, Error> {
            for row in rows {
                if held_out.batch(std::slice::from_ref(row))?.1 > 0 {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        if !learns(&rows)? {
            (rows, complete) = held_out.measured(None);
            if !learns(&rows)? {
                return Err(Error::Data(
                    "the held-out part of the data has no token that is learned: hold more out with \
                     `data.validation_fraction`, give other data with `data.eval_dataset`, or set \
                     `data.validation_fraction: 0` to hold nothing out"
                        .into(),
                ));
            }
        }
        let (mut loss, mut units) = (0.0, 0);
        in_batches(&share.part(&rows), self.eval_batch_size, |rows| {
            let (batch, learned) = held_out.batch(rows)?;
            let batch = placer.batch(batch)?;
            let hidden = self.hidden(&batch, Pass::Evaluate)?;
            let sum =
                summed_cross_entropy(&self.model, &hidden, batch.get("targets")?, Pass::Evaluate)?;
            loss += f64::try_from(&sum)?;
            units += learned;
            Ok(())
        })?;
        Ok(EvaluationSums {
            loss,
            units,
            samples: rows.len() as u64,
            complete,
            ..EvaluationSums::default()
        })
    }

    fn sample(
        &self,
        step: u64,
        share: Share,
        _: &Path,
        placer: &mut Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        let config = &self.config.sample;
        let length = config.max_new_tokens as usize;
        let settings = SamplingSettings {
            max_new_tokens: match step {
                0 => length.min(FIRST_SAMPLE),
                _ => length,
            },
            temperature: config.temperature,
            top_p: config.top_p,
        };
        let config = &self.pretrained.config;
        let ends = match &self.data.question {
            Some(Question::Chat(_)) => ends_of_answers(config, &self.encoder),
            _ => config.eos_token_ids.clone(),
        };
        let mut samples = Vec::new();
        let prompts = self.prompts()?.into_iter().enumerate();
        for (index, (prompt, tokens)) in prompts.filter(|(index, _)| share.has(*index)) {
            let generated = continue_tokens(
                &self.model,
                (placer.device(), self.context),
                (self.encoder.tokenizer(), &ends),
                &tokens,
                settings,
                &mut SplitMix64::new(&[self.seed, step, index as u64]),
                &mut |_| {},
            )?;
            let sample = Sample {
                prompt,
                text: generated.text,
                files: Vec::new(),
            };
            samples.push((index, sample));
        }
        Ok(samples)
    }

    fn data_state(&self) -> Result<Value, Error> {
        Ok(self.data.blocks.state())
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        // A template that writes the date wrote that of the run's first day.
        let began = state["moment"].as_str();
        if let Some(began) =
            began.filter(|began| self.encoder.moment().is_some_and(|now| now != *began))
        {
            self.encoder.set_moment(began)?;
            let reloaded = FineTuneData::load(&self.config, &self.encoder, &mut NoObserver)?;
            self.data = reloaded;
        }
        self.data.blocks.restore(state)
    }

    fn usable(&self) -> Option<Usable<'_>> {
        let family = self.pretrained.config.family;
        Some(Usable {
            architecture: family.model_type,
            makes: Makes::of_language(&self.pretrained),
            gguf: family.is_in_gguf(),
            is_part: self.pretrained.is_part,
        })
    }

    fn identity(&self) -> Result<Value, Error> {
        let mut identity = json!({
            "model": self.pretrained.config.to_json(),
            "weights": fingerprint(self.pretrained.tensors.as_ref())?,
        });
        if let Some(adapter) = &self.adapter {
            let mut config = adapter_config(adapter, &self.name_or_path, Naming::ALONE);
            if let Some(keys) = config.as_object_mut() {
                // Where the model is, and what may change.
                keys.retain(|key, _| key != "base_model_name_or_path" && key != "lora_dropout");
                let layers = [&adapter.modules[..], &adapter.parameters].concat();
                keys.insert("layers".into(), json!(layers));
            }
            identity["adapter"] = config;
        }
        Ok(identity)
    }

    fn export_adapter(&self, folder: &Path) -> Result<bool, Error> {
        let Some(adapter) = &self.adapter else {
            return Ok(false);
        };
        let base = (self.name_or_path.as_str(), self.pretrained.naming());
        write_peft(folder, adapter, &self.parameters, base)?;
        Ok(true)
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        if self.export_adapter(folder)? {
            if self.save_merged {
                let adapter = (PeftAdapter::open(folder)?, 1.0);
                let kind = self.model.compute();
                let target = folder.with_file_name("merged");
                merge(&self.pretrained, &[adapter], &target, kind)?;
            }
            return Ok(());
        }
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let whole = self.parameters.whole();
        let tensors = whole
            .into_iter()
            .map(|(name, tensor)| (name, LazyTensor::ready(tensor)));
        let file = folder.join("model.safetensors");
        write_weights(&file, &self.pretrained.config, tensors.collect(), None)?;
        Ok(self
            .pretrained
            .write_companions(&self.pretrained.config, folder, Kind::Float)?)
    }

    fn export_name(&self) -> &'static str {
        match self.adapter {
            Some(_) => "adapter",
            None => "model",
        }
    }
}

/// A batch of these rows of the training data.
fn batch_of(
    data: &FineTuneData,
    preference: Option<&Preference>,
    rows: &[u64],
) -> Result<Batch, Error> {
    match preference {
        Some(preference) => preference.batch(&data.training, Set::Training, rows),
        None => Ok(data.training.batch(rows)?.0),
    }
}

/// The mean loss of the tokens that are learned, and what the model learns besides.
pub(super) fn loss_of_tokens(
    model: &Decoder,
    batch: &Batch,
    smoothing: f64,
    pass: Pass,
) -> Result<Tensor, Error> {
    let places = (batch.find("positions"), batch.find("real"));
    let (hidden, balance) = model.learned(batch.get("tokens")?, places, pass)?;
    let targets = batch.get("targets")?;
    let loss = smoothed_cross_entropy(model, &hidden, targets, smoothing, pass)?;
    match balance {
        Some(balance) => Ok(loss.f_add(&balance)?),
        None => Ok(loss),
    }
}
