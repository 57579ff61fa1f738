//! A language model as components and modules of a plan.

use models::Parameters;
use models::language::{Decoder, DecoderConfig};
use placement::Bytes;
use placement::plan::{
    Component, Memory, Module, OffloadOptions, Phase, PlacementConstraint, PlanError, TensorSize,
    plan,
};
use tch::Kind;
use torch_ext::fake::PassMemory;

use super::{MemoryPlan, STREAM_ALIGNMENT, decide};
use crate::Error;
use crate::config::{Config, Quantization};
use crate::estimate::{Estimate, Footprint};
use crate::optim::Optimizer;

/// Name of the only component.
pub(crate) const MODEL: &str = "model";

/// The model to plan, as far as it is known before it is loaded.
pub(crate) struct PlannedDecoder<'a> {
    pub(crate) config: &'a Config,
    pub(crate) shape: &'a DecoderConfig,
    /// Built from [`MetaWeights`](models::model::MetaWeights).
    pub(crate) decoder: &'a Decoder,
    pub(crate) parameters: &'a Parameters,
    /// The type of frozen matrices that are not quantised.
    pub(crate) stored: Kind,
    /// What a pass needs if these blocks are streamed.
    pub(crate) measured: &'a dyn Fn(&[usize]) -> Result<PassMemory, Error>,
}

impl PlannedDecoder<'_> {
    /// Plans the model within `memory`.
    ///
    /// # Errors
    /// If it does not fit in any way, or an option does not apply to this model.
    pub(crate) fn plan(
        &self,
        memory: Memory,
        options: &OffloadOptions,
    ) -> Result<MemoryPlan, Error> {
        let components = [self.component()?];
        let planned = decide(
            self.without_table(memory),
            options,
            self.blocks(),
            |streamed| self.working(streamed),
            |working, memory, options| {
                let phase = Phase {
                    name: "train".into(),
                    active: vec![components[0].name.clone()],
                    working,
                };
                plan(&components, &[phase], memory, options)
            },
        )?;
        let plan = planned.map_err(|error| self.explain(&error))?;
        Ok(MemoryPlan::new(self.config, plan))
    }

    /// `memory` without the table of per-layer embeddings, which stays on the host.
    fn without_table(&self, memory: Memory) -> Memory {
        let numbers = self.shape.per_layer.map_or(0, |inputs| {
            inputs.vocabulary * inputs.width * self.shape.num_hidden_layers
        });
        let size = self.stored.elt_size_in_bytes() as u64;
        let table = Bytes(u64::try_from(numbers).unwrap_or(0) * size);
        match memory {
            Memory::Discrete { device, host } => Memory::Discrete {
                device,
                host: host.saturating_sub(table),
            },
            Memory::Unified {
                device,
                pool,
                zero_copy,
            } => Memory::Unified {
                device,
                pool: pool.saturating_sub(table),
                zero_copy,
            },
        }
    }

    fn blocks(&self) -> usize {
        usize::try_from(self.shape.num_hidden_layers).unwrap_or(0)
    }

    /// The parts of the model, with the names in its files.
    fn component(&self) -> Result<Component, Error> {
        let stored = self.stored;
        let number = |width: i64| u64::try_from(width).unwrap_or(0);
        let (vocabulary, hidden) = (
            number(self.shape.vocab_size),
            number(self.shape.hidden_size),
        );
        let table = Bytes(vocabulary * hidden * stored.elt_size_in_bytes() as u64);
        // Modules that are trained in full are counted as trained.
        let frozen = |module: &str, bytes| {
            let whole = format!(".{module}.weight");
            let mut names = self.parameters.iter().map(|parameter| &parameter.name);
            match names.any(|name| name.ends_with(&whole)) {
                true => Bytes::ZERO,
                false => bytes,
            }
        };
        let module = |name: String, storage, bytes, constraint| Module {
            name,
            tensors: vec![TensorSize { storage, bytes }],
            constraint,
        };
        let embedding = "model.embed_tokens".to_owned();
        let tied = self.shape.tie_word_embeddings;
        // A tied head may still need the weight if the embedding no longer does.
        let bytes = match tied && frozen("lm_head", table) > Bytes::ZERO {
            true => table,
            false => frozen("embed_tokens", table),
        };
        let mut modules = vec![module(embedding, 0, bytes, PlacementConstraint::Resident)];
        for index in 0..self.blocks() {
            let bytes = self.block_bytes(index, stored)?;
            let name = format!("model.layers.{index}");
            modules.push(module(
                name,
                index as u64 + 1,
                bytes,
                PlacementConstraint::Streamable,
            ));
        }
        let (norm, head) = (self.blocks() as u64 + 1, self.blocks() as u64 + 2);
        let scale = frozen("model.norm", Bytes(hidden * 4));
        modules.push(module(
            "model.norm".into(),
            norm,
            scale,
            PlacementConstraint::Resident,
        ));
        if let Some(inputs) = self.shape.per_layer {
            let outputs = number(self.shape.num_hidden_layers * inputs.width);
            let size = (vec![outputs as i64, hidden as i64], stored);
            modules.push(module(
                "model.per_layer_model_projection".into(),
                self.blocks() as u64 + 3,
                self.tensor_bytes(&size, stored, &[]),
                PlacementConstraint::Resident,
            ));
        }
        // A tied head shares the embedding's memory.
        let (head, bytes) = match tied {
            true => (0, bytes),
            false => (head, frozen("lm_head", table)),
        };
        modules.push(module(
            "lm_head".into(),
            head,
            bytes,
            PlacementConstraint::Resident,
        ));
        Ok(Component {
            name: MODEL.into(),
            modules,
        })
    }

    /// Bytes that a block takes in a slot of the ring.
    fn block_bytes(&self, index: usize, stored: Kind) -> Result<Bytes, Error> {
        // Routers, gates and what makes decays are not quantised, and convolutions are fp32.
        let hidden = self.shape.hidden_size;
        let experts = self.shape.experts.as_ref();
        let router = experts.map(|experts| vec![experts.count, hidden]);
        let delta = self.shape.delta.as_ref();
        let gate = experts.and_then(|experts| experts.shared.map(|_| vec![1, hidden]));
        let decay = delta.map(|delta| vec![delta.value_heads, hidden]);
        let exact: Vec<Vec<i64>> = [router, gate, decay].into_iter().flatten().collect();
        let sizes = self.decoder.block_sizes(index)?;
        let bytes = sizes
            .iter()
            .map(|size| self.tensor_bytes(size, stored, &exact));
        Ok(bytes.sum())
    }

    /// Bytes of a tensor of this size and type, which is not quantised if its size is one of `exact`.
    fn tensor_bytes(
        &self,
        (size, kind): &(Vec<i64>, Kind),
        stored: Kind,
        exact: &[Vec<i64>],
    ) -> Bytes {
        let aligned = |bytes: u64| bytes.next_multiple_of(STREAM_ALIGNMENT);
        let numbers: u64 = size.iter().map(|&width| width.max(0) as u64).product();
        let rows = size.first().map_or(0, |&rows| rows.max(0) as u64);
        if size.len() != 2 {
            return Bytes(aligned(numbers * 4));
        }
        // In MXFP4, and stays so.
        if *kind == Kind::Uint8 {
            return Bytes(aligned(numbers));
        }
        let to = self.config.model.quantization;
        Bytes(match to.filter(|_| !exact.contains(size)) {
            None => aligned(numbers * stored.elt_size_in_bytes() as u64),
            Some(Quantization::Int8) => aligned(numbers) + aligned(rows * 4),
            // Two elements per byte, and a scale per 64.
            Some(Quantization::Nf4) => {
                let blocks = numbers.div_ceil(64);
                aligned(blocks * 32) + aligned(blocks * 4)
            }
        })
    }

    /// What training needs besides the frozen weights if these blocks are streamed.
    fn working(&self, streamed: &[usize]) -> Result<Bytes, Error> {
        let rest = self.decoder.rope_bytes() + self.parameters.count() * 4;
        let footprint = Footprint::new(rest, (self.measured)(streamed)?);
        let optimizer = Optimizer::from_config(self.config, self.parameters, &[])?;
        let moments = optimizer.all_bytes(self.parameters);
        Ok(Bytes(
            Estimate::new(self.config, footprint, self.parameters, moments, None).peak,
        ))
    }

    fn explain(&self, error: &PlanError) -> Error {
        let mut text = format!("the model cannot be placed: {error}");
        if matches!(error, PlanError::DeviceTooSmall { .. }) {
            let train = &self.config.train;
            if !train.gradient_checkpointing {
                text += "; `train.gradient_checkpointing: true` reduces the working memory";
            } else if train.batch() > 1 {
                text +=
                    "; a smaller `train.per_device_train_batch_size` reduces the working memory";
            } else if self.config.model.quantization.is_none() {
                text += "; `model.quantization: nf4` makes smaller blocks";
            }
        }
        Error::Data(text)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use models::adapters::Attachment;
    use models::language::DecoderOptions;
    use models::loss::mean_cross_entropy;
    use models::model::{Base, Builder, Initial, Pass, Streaming, WeightSource};
    use models::quant::Mxfp4;
    use placement::swap::SwapOptions;
    use serde_json::json;
    use tch::{Device, Tensor};
    use torch_ext::fake::{self, FakeMode};

    use super::*;

    /// Tensors of any shape, for fake mode; experts in MXFP4, if that says so.
    struct Shapes(bool);

    impl WeightSource for Shapes {
        fn packed(
            &mut self,
            _: &str,
            shape: &[i64],
            _: bool,
        ) -> Result<Option<Mxfp4>, models::Error> {
            let packed = self.0.then(|| Mxfp4::shape_alone(shape, Device::Cpu));
            packed.transpose()
        }

        fn tensor(&mut self, _: &str, shape: &[i64], _: Initial) -> Result<Tensor, models::Error> {
            Ok(Tensor::f_empty(shape, (Kind::BFloat16, Device::Cpu))?)
        }
    }

    /// The plan for Qwen3-30B-A3B with an adapter on its attention and rows of 2,048 tokens.
    fn thirty_billion(quantization: &str, memory: Memory) -> Result<MemoryPlan, Error> {
        let keys = json!({
            "model_type": "qwen3_moe", "vocab_size": 151_936, "hidden_size": 2048,
            "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
        });
        planned((keys, false), quantization, memory)
    }

    /// The plan for a model with an adapter on its attention and rows of 2,048 tokens, whose experts may be in MXFP4.
    fn planned(
        (keys, mxfp4): (serde_json::Value, bool),
        quantization: &str,
        memory: Memory,
    ) -> Result<MemoryPlan, Error> {
        let shape = DecoderConfig::from_json(Path::new("config.json"), keys).unwrap();
        let text = format!(
            "adapter: {{r: 16}}\nmodel: {{name_or_path: m, quantization: {quantization}}}\n\
             data: {{path: text, block_size: 2048}}\n\
             train: {{per_device_train_batch_size: 1, gradient_checkpointing: true}}"
        );
        let config = Config::parse("test.yaml", &text, &[]).unwrap();
        let lora = config.adapter.as_ref().unwrap().lora().unwrap();
        let compute = Kind::BFloat16;
        let build = |parameters: &mut Parameters, quantization, streamed: &[usize]| {
            let mut attachment = Attachment::fresh(&lora).unwrap();
            let mut source = Shapes(mxfp4);
            let streaming = Streaming {
                blocks: streamed.to_vec(),
                options: SwapOptions::default(),
            };
            let mut builder = Builder::new(&mut source, parameters, compute, Base::Frozen(compute))
                .with_adapters(&mut attachment)
                .quantized(quantization)
                .streamed(Some(streaming));
            let options = DecoderOptions {
                positions: 2048,
                initializer_range: 0.0,
                device: Device::Cpu,
            };
            let mut decoder = Decoder::new(&shape, options, &mut builder)?;
            // As on a card of 4 GiB: the CPU, on which this pass is traced, would compute more.
            decoder.logits_at_once = 1 << 23;
            Ok(decoder)
        };
        let row = Tensor::zeros([1, 2048], (Kind::Int64, Device::Cpu));
        let pass = Pass::Train { checkpoint: true };
        let loss = |decoder: &Decoder| {
            let (hidden, _) = decoder.learned(&row, (None, None), pass)?;
            Ok(mean_cross_entropy(decoder, &hidden, &row, pass)?)
        };
        let measured = |streamed: &[usize]| {
            let mut parameters = Parameters::default();
            let quantization = config.model.quantization.map(Into::into);
            let build = || build(&mut parameters, quantization, streamed);
            fake::pass(Device::Cpu, build, loss)
        };
        let mut parameters = Parameters::default();
        let decoder: Decoder = {
            let _fake = FakeMode::begin(Device::Cpu).unwrap();
            build(&mut parameters, None, &[])?
        };
        let planned = PlannedDecoder {
            config: &config,
            shape: &shape,
            decoder: &decoder,
            parameters: &parameters,
            stored: compute,
            measured: &measured,
        };
        planned.plan(memory, &OffloadOptions::default())
    }

    #[test]
    fn gpt_oss_20b_trains_on_a_card_of_16_gib() {
        let keys =
            || json!({"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32});
        let card = |device: u64| Memory::Discrete {
            device: Bytes::gib(device),
            host: Bytes::gib(32),
        };
        let plan = planned((keys(), true), "nf4", card(15)).unwrap();
        let phase = &plan.plan.phases[0];
        println!(
            "{} of weights, {} beside them",
            phase.resident, phase.working
        );
        assert_eq!(plan.streamed, [0; 0]);
        // 19.1 billion numbers of experts, each 17/32 of a byte; 0.6 of attention, each 9/16 of one; embedding and head,
        // 0.58 each, in bf16.
        assert!(
            (11.7..12.1).contains(&phase.resident.as_gib()),
            "{}",
            phase.resident
        );
        assert!(phase.working < Bytes::gib(3), "{}", phase.working);
        // Dequantised, they would not fit.
        let dense = planned((keys(), false), "int8", card(15)).unwrap();
        assert!(!dense.streamed.is_empty());
    }

    /// With an adapter on its attention and rows of 2,048 tokens, in NF4; the table of 2.35 billion numbers stays on the host.
    #[test]
    fn gemma_4_e2b_trains_on_a_card_of_4_gib() {
        let keys = json!({
            "model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144,
            "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1,
            "num_kv_shared_layers": 20, "use_double_wide_mlp": true, "final_logit_softcapping": 30.0,
            "layer_types": (1..=35).map(|layer| match layer % 5 {
                0 => "full_attention",
                _ => "sliding_attention",
            }).collect::<Vec<_>>(),
        });
        let card = |host: u64| Memory::Discrete {
            device: Bytes::mib(3584),
            host: Bytes::gib(host),
        };
        let plan = planned((keys.clone(), false), "nf4", card(16)).unwrap();
        let phase = &plan.plan.phases[0];
        println!(
            "{} of weights, {} beside them",
            phase.resident, phase.working
        );
        assert_eq!(plan.streamed, [0; 0]);
        // The embedding is 0.75 GiB; 1.88 billion numbers of blocks and projection, each 9/16 of a byte.
        assert!(
            (1.7..1.85).contains(&phase.resident.as_gib()),
            "{}",
            phase.resident
        );
        assert!(phase.working < Bytes::mib(1600), "{}", phase.working);
    }

    #[test]
    fn thirty_billion_parameters_of_experts_in_four_bits_train_on_a_card_of_24_gib() {
        let card = |device: u64| Memory::Discrete {
            device: Bytes::gib(device),
            host: Bytes::gib(32),
        };
        let plan = thirty_billion("nf4", card(23)).unwrap();
        let phase = &plan.plan.phases[0];
        println!(
            "{} of weights, {} beside them",
            phase.resident, phase.working
        );
        assert_eq!(plan.streamed, [0; 0]);
        // 18.1 billion bytes: 29.0 billion numbers of experts and 0.9 of attention, each 9/16 of a byte, and embedding
        // and head in bf16.
        assert!(
            (16.7..17.0).contains(&phase.resident.as_gib()),
            "{}",
            phase.resident
        );
        assert!(phase.working < Bytes::gib(3), "{}", phase.working);
        // On a smaller card, or in eight bits, some of the blocks are streamed.
        for plan in [
            thirty_billion("nf4", card(15)),
            thirty_billion("int8", card(23)),
        ] {
            let streamed = plan.unwrap().streamed.len();
            assert!((1..48).contains(&streamed), "{streamed}");
        }
    }
}
