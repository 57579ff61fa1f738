//! Fine-tuning a published language model, by an adapter or as a whole.

use std::path::Path;

use placement::Placer;
use placement::plan::Memory;
use placement::stream::StreamReport;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::base_model::BaseModel;
use super::held_out::in_batches;
use super::loss::{mean_cross_entropy, summed_cross_entropy};
use super::{Batch, Evaluation, Sample, Task};
use crate::Error;
use crate::adapters::{Attached, PeftAdapter, merge, write_peft};
use crate::config::{Config, SampleConfig};
use crate::data::{BlockOrder, OrderState, SplitMix64, cache_folder, text_path};
use crate::estimate::{self, DecoderUse, Footprint};
use crate::examples::{Encoder, Example, TokenFile, records};
use crate::inference::{SamplingSettings, continue_tokens};
use crate::memory_plan::MemoryPlan;
use crate::model::{Decoder, Parameters, Pass};
use crate::observer::Observer;
use crate::text::thousands;
use crate::weights::{LazyTensor, Pretrained, locate, write_safetensors};

/// Target of a token that is not learned.
const IGNORED: i64 = -100;
/// Rotary tables and caches for samples reach at least this far, if the model does.
const SAMPLE_CONTEXT: i64 = 4096;

/// A published model and what it learns.
pub struct FineTune {
    model: Decoder,
    pretrained: Pretrained,
    encoder: Encoder,
    adapter: Option<Attached>,
    parameters: Parameters,
    /// Bytes of the model in memory, the adapter left out.
    base_bytes: u64,
    plan: Option<MemoryPlan>,
    data: TokenFile,
    data_description: String,
    /// Tokens before this are trained on, the others held out.
    cut: u64,
    order: BlockOrder,
    context: i64,
    block_size: usize,
    batch_size: usize,
    eval_batch_size: usize,
    checkpoint: bool,
    /// Whether the model is exported with the adapter in it too.
    save_merged: bool,
    usage: DecoderUse,
    seed: u64,
    name_or_path: String,
    sample_config: SampleConfig,
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
        observer.preparing("opening the model");
        let observer = std::cell::RefCell::new(observer);
        let path = locate(Path::new(name_or_path), &|done, all| {
            let text = format!("converting the model, once: tensor {done} of {all}");
            observer.borrow_mut().preparing(&text);
        })?;
        let observer = observer.into_inner();
        let pretrained = Pretrained::open(&path)?;
        let encoder = Encoder::new(&pretrained)?;
        observer.preparing("reading and tokenising the data");
        let block_size = config.data.block_size as usize;
        let (data, cut, data_description) = load_data(config, &encoder, observer)?;

        observer.preparing("loading the model");
        let limit = pretrained.config.max_position_embeddings;
        let context = limit.min(SAMPLE_CONTEXT).max(block_size as i64);
        let BaseModel {
            model,
            adapter,
            parameters,
            usage,
            base_bytes,
            plan,
        } = BaseModel::load(config, &pretrained, context, placer, memory)?;
        let train = &config.train;
        let batch_size = train.per_device_train_batch_size;
        Ok(Self {
            model,
            pretrained,
            encoder,
            adapter,
            parameters,
            base_bytes,
            plan,
            order: BlockOrder::new(config.seed, cut as usize, block_size),
            data,
            data_description,
            cut,
            context,
            block_size,
            batch_size: batch_size as usize,
            eval_batch_size: train.per_device_eval_batch_size.unwrap_or(batch_size) as usize,
            checkpoint: train.gradient_checkpointing,
            save_merged: config.adapter.as_ref().is_some_and(|a| a.save_merged),
            usage,
            seed: config.seed,
            name_or_path: name_or_path.to_owned(),
            sample_config: config.sample.clone(),
        })
    }

    /// Inputs `[blocks, block_size]`, the token after each, and how many of those are learned.
    fn batch(&self, starts: &[u64]) -> Result<(Batch, u64), Error> {
        let length = self.block_size;
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        let mut learned_count = 0;
        for start in starts {
            let block = self.data.block(*start, length + 1)?;
            let Example {
                tokens: ids,
                learned,
            } = block;
            tokens.extend(ids[..length].iter().map(|id| i64::from(*id)));
            for (id, learned) in ids[1..].iter().zip(&learned[1..]) {
                learned_count += u64::from(*learned);
                targets.push(if *learned { i64::from(*id) } else { IGNORED });
            }
        }
        let shape = [starts.len() as i64, length as i64];
        let tensor = |numbers: &[i64]| Tensor::f_from_slice(numbers)?.f_view(shape);
        let tensors = vec![("tokens", tensor(&tokens)?), ("targets", tensor(&targets)?)];
        Ok((
            Batch::new(tensors, (starts.len() * length) as u64),
            learned_count,
        ))
    }

    /// Starts of the held-out blocks: all of them, or `limit` spread evenly over the data.
    fn held_out_starts(&self, limit: Option<u64>) -> (Vec<u64>, bool) {
        let block = self.block_size as u64;
        let count = (self.data.tokens() - self.cut - 1) / block;
        let take = limit.map_or(count, |limit| count.min(limit));
        let starts = (0..take).map(|index| self.cut + index * count / take * block);
        (starts.collect(), take == count)
    }
}

/// Everything in tokens, where the held-out part begins, and a line about it.
fn load_data(
    config: &Config,
    encoder: &Encoder,
    observer: &mut dyn Observer,
) -> Result<(TokenFile, u64, String), Error> {
    let path = text_path(&config.data)?;
    let mut shown = 0;
    let mut told = |records: u64, tokens: u64| {
        if tokens >= shown + 1_000_000 {
            shown = tokens;
            let (tokens, records) = (thousands(tokens), thousands(records));
            observer.preparing(&format!("tokenising: {tokens} tokens of {records} texts"));
        }
    };
    let data = TokenFile::temporary(
        &cache_folder().join("tokens"),
        records(&path)?,
        encoder,
        &mut told,
    )?;
    let (tokens, block) = (data.tokens(), u64::from(config.data.block_size));
    let held_out = (tokens as f64 * config.data.validation_fraction) as u64;
    let cut = tokens - held_out;
    if held_out <= block || cut <= block || cut > u64::from(u32::MAX) {
        return Err(Error::Data(format!(
            "`{}` has {} tokens, {} of them held out; each part needs more than one block of \
             `data.block_size` {block}, and at most 4 billion tokens can be trained on",
            path.display(),
            thousands(tokens),
            thousands(held_out),
        )));
    }
    let description = format!(
        "{}, {} training and {} held-out tokens",
        config
            .data
            .dataset
            .map_or_else(|| path.display().to_string(), |_| "shakespeare".into()),
        thousands(cut),
        thousands(held_out),
    );
    Ok((data, cut, description))
}

impl Task for FineTune {
    fn description(&self) -> String {
        let trained = thousands(self.parameters.count());
        match &self.adapter {
            None => format!("{}, all {trained} parameters trained", self.name_or_path),
            Some(adapter) => format!(
                "{} with a {} of rank {} on {} layers, {trained} parameters trained",
                self.name_or_path,
                if adapter.config.dora { "DoRA" } else { "LoRA" },
                adapter.config.rank,
                adapter.modules.len(),
            ),
        }
    }

    fn data_description(&self) -> String {
        self.data_description.clone()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn footprint(&self) -> Footprint {
        let shape = &self.pretrained.config;
        estimate::decoder(shape, &self.parameters, self.base_bytes, &self.usage)
    }

    fn memory_plan(&self) -> Option<&MemoryPlan> {
        self.plan.as_ref()
    }

    fn streamed(&self) -> Option<StreamReport> {
        self.model.streamed()
    }

    fn starts_trained(&self) -> bool {
        true
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        let starts: Vec<u64> = (0..self.batch_size)
            .map(|_| self.order.next_start() as u64)
            .collect();
        Ok(self.batch(&starts)?.0)
    }

    fn weight(&self, batch: &Batch) -> Result<f64, Error> {
        let learned = batch.get("targets")?.f_ne(IGNORED)?;
        Ok(f64::try_from(&learned.f_sum(Kind::Double)?)?)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let pass = Pass::Train {
            checkpoint: self.checkpoint,
        };
        let hidden = self.model.hidden(batch.get("tokens")?, pass)?;
        mean_cross_entropy(&self.model, &hidden, batch.get("targets")?)
    }

    fn evaluate(&self, limit: Option<u64>, placer: &mut Placer) -> Result<Evaluation, Error> {
        let _no_grad = tch::no_grad_guard();
        let (starts, complete) = self.held_out_starts(limit);
        let (mut nats, mut tokens) = (0.0, 0);
        in_batches(&starts, self.eval_batch_size, |starts| {
            let (batch, learned) = self.batch(starts)?;
            let batch = placer.batch(batch)?;
            let hidden = self.model.hidden(batch.get("tokens")?, Pass::Evaluate)?;
            let sum = summed_cross_entropy(&self.model, &hidden, batch.get("targets")?)?;
            nats += f64::try_from(&sum)?;
            tokens += learned;
            Ok(())
        })?;
        if tokens == 0 {
            return Err(Error::Data(
                "the held-out part of the data has no token that is learned: hold more out with \
                 `data.validation_fraction`, or give more data"
                    .into(),
            ));
        }
        Ok(Evaluation {
            loss: nats / tokens as f64,
            nats_per_byte: None,
            samples: starts.len() as u64,
            complete,
        })
    }

    fn sample(&self, step: u64, placer: &mut Placer) -> Result<Vec<Sample>, Error> {
        let config = &self.sample_config;
        let settings = SamplingSettings {
            max_new_tokens: config.max_new_tokens as usize,
            temperature: config.temperature,
            top_p: config.top_p,
        };
        let mut samples = Vec::new();
        for (index, prompt) in config.prompts.iter().enumerate() {
            let generated = continue_tokens(
                &self.model,
                (placer.device(), self.context),
                (
                    self.encoder.tokenizer(),
                    &self.pretrained.config.eos_token_ids,
                ),
                &self.encoder.tokens(prompt, true)?,
                settings,
                &mut SplitMix64::new(&[self.seed, step, index as u64]),
                &mut |_| {},
            )?;
            samples.push(Sample {
                prompt: prompt.clone(),
                text: generated.text,
            });
        }
        Ok(samples)
    }

    fn data_state(&self) -> Result<Value, Error> {
        Ok(json!({
            "fingerprint": self.data.fingerprint(),
            "block_size": self.block_size,
            "seed": self.seed,
            "order": self.order.state(),
        }))
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        for (key, ours) in [
            ("fingerprint", json!(self.data.fingerprint())),
            ("block_size", json!(self.block_size)),
            ("seed", json!(self.seed)),
        ] {
            if state[key] != ours {
                return Err(Error::Data(format!(
                    "the data differ from those of the checkpoint: `{key}` was {}, and is {ours}",
                    state[key]
                )));
            }
        }
        let order: OrderState = serde_json::from_value(state["order"].clone())
            .map_err(|error| Error::Data(format!("the checkpoint's data position: {error}")))?;
        self.order.restore(order);
        Ok(())
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        if let Some(adapter) = &self.adapter {
            write_peft(folder, adapter, &self.parameters, &self.name_or_path)?;
            if self.save_merged {
                let adapter = PeftAdapter::open(folder)?;
                let kind = self.model.compute();
                merge(
                    &self.pretrained,
                    adapter,
                    &folder.with_file_name("merged"),
                    kind,
                )?;
            }
            return Ok(());
        }
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let tensors = self
            .parameters
            .iter()
            .map(|parameter| (parameter.name.clone(), LazyTensor::ready(&parameter.tensor)));
        let metadata = [("format".to_owned(), "pt".to_owned())].into();
        write_safetensors(&folder.join("model.safetensors"), tensors, metadata)?;
        Ok(self.pretrained.write_companions(folder, Kind::Float)?)
    }

    fn export_name(&self) -> &'static str {
        match self.adapter {
            Some(_) => "adapter",
            None => "model",
        }
    }
}
