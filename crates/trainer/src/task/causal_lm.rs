//! Language modelling: predict each next token of a text.

use std::path::Path;

use placement::Placer;
use placement::plan::Memory;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::blocks::{TrainingBlocks, held_out_starts};
use super::held_out::in_batches;
use super::sequences::Part;
use super::shown::{self, ShownData};
use super::{Batch, Epochs, EvaluationSums, Makes, Share, Task, Usable};
use crate::Error;
use crate::config::{Config, ModelConfig, SampleConfig};
use crate::data::{BlockOrder, SplitMix64, TextData};
use crate::estimate::{self, Footprint};
use crate::events::Sample;
use crate::pass_size::{PassSize, room};
use models::Parameters;
use models::formats::write_tensors;
use models::language::{Decoder, DecoderConfig, DecoderOptions, attention_path};
use models::model::{AttentionPath, Base, Builder, MetaWeights, Pass, RandomWeights};

/// A decoder and the text it learns.
pub struct CausalLm {
    model: Decoder,
    parameters: Parameters,
    data: TextData,
    blocks: TrainingBlocks,
    block_size: usize,
    eval_batch_size: usize,
    seed: u64,
    footprint: Footprint,
    pass_size: Option<PassSize>,
    /// What the model computes.
    shape: DecoderConfig,
    initializer_range: f64,
    attention: AttentionPath,
    sample_config: SampleConfig,
}

impl CausalLm {
    /// A fresh model for `data`, to be trained within `memory` where that decides how.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn from_scratch(
        config: &Config,
        data: TextData,
        placer: &mut Placer,
        memory: Memory,
    ) -> Result<Self, Error> {
        let block_size = config.data.block_size as usize;
        let compute = config.train.bf16.kind(placer.device());
        let shape = decoder_config(&config.model, &data, block_size)?;
        let options = DecoderOptions {
            positions: block_size as i64,
            initializer_range: config.model.initializer_range,
            device: placer.device(),
        };
        // Before memory is measured: to find the kernel, some are tried on numbers.
        let attention = attention_path(
            &shape,
            (placer.device(), compute),
            (block_size as i64, false),
        )?;
        let measured = |config: &Config| {
            let mut source = MetaWeights::new(None, (Kind::Float, options.device));
            let mut parameters = Parameters::default();
            let build = || {
                let mut builder =
                    Builder::new(&mut source, &mut parameters, compute, Base::Trained);
                Ok(Decoder::new(&shape, options, &mut builder)?)
            };
            let pass = estimate::measured(options.device, build, |model: &Decoder| {
                let size = [i64::from(config.train.batch()), block_size as i64];
                let tokens = Tensor::f_zeros(size, (Kind::Int64, options.device))?;
                loss(model, &tokens, &tokens)
            });
            (pass, parameters)
        };
        let pass_size = PassSize::choose(config, room(config, memory), |config| {
            let (pass, parameters) = measured(config);
            estimate::peak_of(config, pass, &parameters).map(Some)
        })?;
        let rows = PassSize::rows(pass_size.as_ref(), config);
        let (pass, _) = measured(&config.in_passes_of(rows));
        let mut parameters = Parameters::default();
        let mut source = RandomWeights::new(config.seed, placer);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, Base::Trained);
        let model = Decoder::new(&shape, options, &mut builder)?;
        let train = &config.train;
        Ok(Self {
            footprint: Footprint::new(model.bytes()? + parameters.count() * 4, pass),
            pass_size,
            model,
            parameters,
            blocks: TrainingBlocks::new(
                BlockOrder::new(config.seed, data.training.len(), block_size),
                train,
                json!({
                    "fingerprint": data.fingerprint,
                    "block_size": block_size,
                    "seed": config.seed,
                }),
            ),
            data,
            block_size,
            eval_batch_size: train.per_device_eval_batch_size.unwrap_or(rows) as usize,
            seed: config.seed,
            attention,
            shape,
            initializer_range: config.model.initializer_range,
            sample_config: config.sample.clone(),
        })
    }

    /// The first `count` blocks of `data` in the order of training, as text.
    ///
    /// # Errors
    /// When tokens have no text.
    pub(crate) fn show_data(
        config: &Config,
        data: &TextData,
        count: u64,
    ) -> Result<ShownData, Error> {
        let length = config.data.block_size as usize;
        let order = BlockOrder::new(config.seed, data.training.len(), length);
        let blocks = TrainingBlocks::new(order, &config.train, Value::Null);
        let decode = |ids: &[u32]| {
            let ids: Vec<u16> = ids.iter().map(|id| *id as u16).collect();
            data.tokenizer.decode(&ids)
        };
        let row = |start: u64| {
            // With the token after the last, which is learned, too.
            let tokens = &data.training[start as usize..=start as usize + length];
            let part = Part {
                name: None,
                tokens: tokens.iter().map(|id| u32::from(*id)).collect(),
                learned: (0..tokens.len()).map(|place| place > 0).collect(),
                before: start,
                after: (data.training.len() - tokens.len()) as u64 - start,
            };
            shown::row(&[part], &decode)
        };
        Ok(ShownData {
            rows: blocks
                .first_starts(count)
                .map(row)
                .collect::<Result<_, _>>()?,
            rows_in_epoch: blocks.blocks_in_epoch(),
            data: data.description.clone(),
            whole_examples: false,
            truncated: 0,
            left_out: 0,
        })
    }

    /// Inputs `[blocks, block_size]` and the token after each, from `tokens`.
    fn batch(&self, tokens: &[u16], starts: &[usize]) -> Result<Batch, Error> {
        let length = self.block_size;
        let gather = |shift: usize| -> Result<Tensor, Error> {
            let block = |start: &usize| &tokens[start + shift..start + shift + length];
            let flat: Vec<i64> = starts
                .iter()
                .flat_map(block)
                .map(|token| i64::from(*token))
                .collect();
            Ok(Tensor::f_from_slice(&flat)?.f_view([starts.len() as i64, length as i64])?)
        };
        let units = (starts.len() * length) as u64;
        Ok(Batch::new(
            vec![("tokens", gather(0)?), ("targets", gather(1)?)],
            units,
        ))
    }

    fn continue_prompt(
        &self,
        prompt: &str,
        random: &mut SplitMix64,
        placer: &mut Placer,
    ) -> Result<String, Error> {
        let mut tokens = vec![self.data.tokenizer.end_of_text()];
        tokens.extend(self.data.tokenizer.encode(prompt)?);
        let prompt_length = tokens.len();
        for _ in 0..self.sample_config.max_new_tokens {
            let window = &tokens[tokens.len().saturating_sub(self.block_size)..];
            let window: Vec<i64> = window.iter().map(|token| i64::from(*token)).collect();
            let input = Tensor::f_from_slice(&window)?.f_unsqueeze(0)?;
            let batch = placer.batch(Batch::new(vec![("tokens", input)], 0))?;
            let logits = self.model.logits(batch.get("tokens")?, Pass::Evaluate)?;
            let last = logits
                .f_select(1, -1)?
                .f_squeeze()?
                .f_to_device(tch::Device::Cpu)?;
            let sample = &self.sample_config;
            let token =
                crate::sampling::pick(&last, sample.temperature, sample.top_p, random)? as u16;
            if token == self.data.tokenizer.end_of_text() {
                break;
            }
            tokens.push(token);
        }
        self.data.tokenizer.decode(&tokens[prompt_length..])
    }
}

impl Task for CausalLm {
    fn attention(&self) -> Option<&str> {
        Some(&self.attention.words)
    }

    fn description(&self) -> String {
        format!(
            "{} parameters, {} layers of width {}, {} tokens of context, {}",
            crate::text::thousands(self.parameters.count()),
            self.shape.num_hidden_layers,
            self.shape.hidden_size,
            self.block_size,
            if self.model.compute() == Kind::BFloat16 {
                "bf16"
            } else {
                "fp32"
            },
        )
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

    fn next_batch(&mut self) -> Result<Batch, Error> {
        let starts = self.blocks.next_starts();
        self.batch(&self.data.training, &starts)
    }

    fn epochs(&self) -> Option<&dyn Epochs> {
        Some(&self.blocks)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        loss(&self.model, batch.get("tokens")?, batch.get("targets")?)
    }

    fn evaluates(&self) -> bool {
        !self.data.held_out.is_empty()
    }

    fn evaluate(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error> {
        let _no_grad = tch::no_grad_guard();
        let held_out = &self.data.held_out;
        let (starts, complete) = held_out_starts(held_out.len() as u64, self.block_size, limit);
        let starts: Vec<usize> = starts.into_iter().map(|start| start as usize).collect();
        let (mut loss, mut units, mut bytes) = (0.0, 0u64, 0u64);
        in_batches(&share.part(&starts), self.eval_batch_size, |starts| {
            let batch = placer.batch(self.batch(held_out, starts)?)?;
            loss += f64::try_from(&self.loss(&batch)?)? * batch.units as f64;
            units += batch.units;
            let lengths = self.data.tokenizer.byte_lengths();
            for start in starts {
                let targets = &held_out[start + 1..=start + self.block_size];
                bytes += targets
                    .iter()
                    .map(|t| u64::from(lengths[usize::from(*t)]))
                    .sum::<u64>();
            }
            Ok(())
        })?;
        Ok(EvaluationSums {
            loss,
            units,
            bytes: Some(bytes),
            samples: starts.len() as u64,
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
        let _no_grad = tch::no_grad_guard();
        let mut samples = Vec::new();
        let prompts = self.sample_config.prompts.iter().enumerate();
        for (index, prompt) in prompts.filter(|(index, _)| share.has(*index)) {
            let mut random = SplitMix64::new(&[self.seed, step, index as u64]);
            let text = self.continue_prompt(prompt, &mut random, placer)?;
            let sample = Sample {
                prompt: prompt.clone(),
                text,
                files: Vec::new(),
            };
            samples.push((index, sample));
        }
        Ok(samples)
    }

    fn data_state(&self) -> Result<Value, Error> {
        Ok(self.blocks.state())
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        self.blocks.restore(state)
    }

    fn usable(&self) -> Option<Usable<'_>> {
        Some(Usable {
            architecture: self.shape.family.model_type,
            makes: Makes::Text,
            gguf: self.shape.family.is_in_gguf(),
            is_part: false,
        })
    }

    fn identity(&self) -> Result<Value, Error> {
        Ok(json!({ "model": self.shape.to_json() }))
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        write_tensors(&folder.join("model.safetensors"), &self.parameters.named())?;
        self.export_companions(folder)
    }

    fn export_companions(&self, folder: &Path) -> Result<(), Error> {
        self.data.tokenizer.save(&folder.join("tokenizer.json"))?;
        let mut config = self.shape.to_json();
        config["initializer_range"] = json!(self.initializer_range);
        config["dtype"] = json!("float32");
        let path = folder.join("config.json");
        std::fs::write(&path, format!("{config:#}\n"))
            .map_err(|error| Error::io("write", &path, error))
    }
}

/// Mean nats per token.
fn loss(model: &Decoder, tokens: &Tensor, targets: &Tensor) -> Result<Tensor, Error> {
    let logits = model.logits(tokens, Pass::Train { checkpoint: false })?;
    let vocabulary = logits.size().last().copied().unwrap_or(0);
    let logits = logits.f_view([-1, vocabulary])?;
    let targets = targets.f_view([-1])?;
    Ok(logits.f_cross_entropy_loss(&targets, None::<&Tensor>, tch::Reduction::Mean, -100, 0.0)?)
}

/// The whole shape of the model that a config describes.
///
/// # Errors
/// If its family does not allow it.
fn decoder_config(
    model: &ModelConfig,
    data: &TextData,
    block_size: usize,
) -> Result<DecoderConfig, Error> {
    let end_of_text = data.tokenizer.end_of_text();
    let keys = json!({
        "model_type": model.model_type,
        "vocab_size": data.tokenizer.vocab_size(),
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads(),
        "head_dim": model.head_dim(),
        "max_position_embeddings": block_size,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_word_embeddings,
        // Every token learns, whatever the family's class takes for padding.
        "pad_token_id": null,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
    });
    Ok(DecoderConfig::from_json(Path::new("model"), keys)?)
}

#[cfg(test)]
mod tests {
    use placement::{Bytes, Policy};

    use super::*;

    #[test]
    fn passes_are_as_large_as_the_estimate_has_room_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, "bottles of ale\n".repeat(300)).unwrap();
        let text = "{device: cpu, data: {path: unused, block_size: 64}, model: {hidden_size: 16, intermediate_size: 512, \
                    num_hidden_layers: 2, num_attention_heads: 2}, train: {bf16: false, per_device_train_batch_size: auto, \
                    gradient_accumulation_steps: 8}}";
        let config = Config::parse("test.yaml", text, &[]).unwrap();
        let opened = |megabytes: f64| {
            let data = TextData::load(&config.data, 1, &path, None, &|_, _| {
                Err(Error::Data("no records".into()))
            });
            let mut placer = Placer::new(tch::Device::Cpu, Policy::default()).unwrap();
            let bytes = Bytes((megabytes * 1e6) as u64);
            let memory = placer.memory(bytes, bytes);
            CausalLm::from_scratch(&config, data.unwrap(), &mut placer, memory).unwrap()
        };
        let mut rows = Vec::new();
        let mut passes = Vec::new();
        for megabytes in [0.0, 3.0, 5.0, 8.0, 12.0, 1000.0] {
            let task = opened(megabytes);
            let size = task.pass_size().unwrap();
            assert_eq!(size.samples, 8);
            assert_eq!(task.eval_batch_size, size.rows as usize);
            rows.push(size.rows);
            passes.push(task.footprint.activations);
        }
        assert!(
            rows.is_sorted() && passes.is_sorted(),
            "{rows:?} {passes:?}"
        );
        assert_eq!((rows[0], rows[5]), (1, 8));
        assert!(rows.contains(&2) || rows.contains(&4), "{rows:?}");
        assert!(
            passes[0] * 6 < passes[5],
            "the estimate is that of a pass: {passes:?}"
        );
    }
}
