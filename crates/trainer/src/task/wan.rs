//! A LoRA on a Wan transformer, learned from encoded clips by flow matching.
//!
//! At level σ a clip is (1 − σ) · clean + σ · noise, the model is told the time 1000 σ, and the loss is the
//! mean squared error of its velocity, which should be noise − clean.

mod lora_file;

use std::path::Path;

use models::Parameters;
use models::adapters::{
    Attached, Attachment, LoraConfig, Modules, PeftAdapter, adapter_config, write_peft,
};
use models::formats::{SafetensorsFile, TensorSource};
use models::model::{Base, Builder, FileWeights, Pass, Streaming};
use models::pretrained::fingerprint;
use models::wan::files::{Part, PartFile};
use models::wan::text_encoder::TEXT_ROWS;
use models::wan::transformer::{Times, Transformer, TransformerConfig};
use placement::Placer;
use placement::swap::{SwapOptions, SwapReport};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::clip_order::{ClipOrder, Position};
use super::{Batch, Task};
use crate::Error;
use crate::config::{Config, Experts, LoraFormat, ModuleNames, Quantization};
use crate::estimate::Footprint;
use crate::events::{Evaluation, Sample};
use crate::observer::Observer;
use crate::text::thousands;
use crate::video::{Clip, Density, Encoded, ModelFolder, Pipeline, VideoData};

/// The linear layers of a block, which is what programs that load LoRAs of Wan know.
const LAYERS: [&str; 6] = [
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "ffn.net.0.proj",
    "ffn.net.2",
];
/// Levels at which the held-out loss is measured, spread evenly over what is trained.
const LEVELS: u32 = 5;

/// A video model, its LoRA, and the clips that it learns.
pub struct WanLora {
    model: Transformer,
    folder: ModelFolder,
    fingerprint: String,
    adapter: Attached,
    parameters: Parameters,
    /// Bytes of the model in memory that do not learn.
    base_bytes: u64,
    data: VideoData,
    order: ClipOrder,
    density: Density,
    /// The levels that are trained, from the lowest to the highest.
    range: (f64, f64),
    format: LoraFormat,
    config: Config,
    compute: Kind,
}

impl WanLora {
    /// The model in the folder `path` with a LoRA, and the data, as `config` says; what is not in the
    /// cache yet is encoded first.
    ///
    /// # Errors
    /// When a file is missing, damaged or not known here, the adapter does not fit, media or captions
    /// cannot be used, or memory runs out.
    pub fn open(
        config: &Config,
        path: &Path,
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let folder = ModelFolder::open(path)?;
        let (part, low, high) = folder.trained(config)?;
        let shape = TransformerConfig::read(&part.join("config.json"))?;
        check_inputs(config, &folder, &shape)?;
        let data = VideoData::prepare(config, &folder, shape.patch_size[1], placer, observer)?;
        observer.preparing("loading the transformer");
        let weights = PartFile::open(Part::Transformer, &part)?;
        let compute = match config.train.bf16.on(placer.device()) {
            true => Kind::BFloat16,
            false => Kind::Float,
        };
        tch::manual_seed(config.seed as i64);
        let mut attachment = attachment(config)?;
        let mut parameters = Parameters::default();
        let device = placer.device();
        let streaming = streaming(config, &shape, placer);
        let mut source = FileWeights::new(&weights, compute, placer);
        let base = Base::Frozen(compute);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, base)
            .with_adapters(&mut attachment)
            .quantized(config.model.quantization.map(Into::into))
            .streamed(streaming);
        let mut model = Transformer::new(&shape, device, &mut builder)?;
        model.offload_activations(config.train.activation_offload && device != Device::Cpu);
        let adapter = attachment.finish()?;
        let wanted = config.adapter.as_ref().and_then(|adapter| adapter.format);
        let format = lora_file::form(wanted, &adapter.modules, shape.num_layers)?;
        let shapes: Vec<_> = data.training.iter().map(|clip| clip.shape).collect();
        let train = &config.train;
        let rows = train.per_device_train_batch_size as usize;
        let repeats = config.data.num_repeats.unwrap_or(1) as usize;
        Ok(Self {
            model,
            fingerprint: fingerprint(&weights)?,
            folder,
            adapter,
            format,
            parameters,
            base_bytes: base_bytes(config, &weights, compute),
            order: ClipOrder::new(config.seed, &shapes, rows, repeats),
            data,
            density: Density::new(train, low, high)?,
            range: (low, high),
            config: config.clone(),
            compute,
        })
    }

    /// The tensors of clips, each at a level of noise.
    fn batch(
        &self,
        clips: &[&Clip],
        dropped: &[bool],
        sigma: &Tensor,
        noise: impl Fn(&Tensor) -> Result<Tensor, Error>,
    ) -> Result<Batch, Error> {
        let (mut latents, mut texts, mut conditions) = (Vec::new(), Vec::new(), Vec::new());
        for (clip, dropped) in clips.iter().zip(dropped) {
            let file = SafetensorsFile::open(&clip.latents)?;
            latents.push(file.read("latents", Kind::Float)?);
            if self.folder.pipeline == Pipeline::Image {
                conditions.push(file.read("condition", Kind::Float)?);
            }
            let text = if *dropped {
                &self.data.empty
            } else {
                &clip.text
            };
            let text = SafetensorsFile::open(text)?.read("text", Kind::Float)?;
            let missing = TEXT_ROWS - text.size()[0];
            texts.push(text.f_constant_pad_nd([0, 0, 0, missing])?);
        }
        let latents = Tensor::f_stack(&latents, 0)?;
        let tokens = clips.iter().map(|clip| clip.tokens).sum();
        let mut tensors = vec![
            ("noise", noise(&latents)?),
            ("latents", latents),
            ("sigma", sigma.shallow_clone()),
            ("text", Tensor::f_stack(&texts, 0)?),
        ];
        if !conditions.is_empty() {
            tensors.push(("condition", Tensor::f_stack(&conditions, 0)?));
        }
        Ok(Batch::new(tensors, tokens))
    }

    /// The mean squared error of each clip of a batch on the device, `[rows]`.
    fn losses(&self, batch: &Batch, pass: Pass) -> Result<Tensor, Error> {
        let (clean, noise) = (batch.get("latents")?, batch.get("noise")?);
        let sigma = batch.get("sigma")?.f_to_kind(Kind::Float)?;
        let level = sigma.f_view([-1, 1, 1, 1, 1])?;
        let kept = level.f_neg()?.f_add_scalar(1.0)?;
        let mut noisy = clean.f_mul(&kept)?.f_add(&noise.f_mul(&level)?)?;
        let time = sigma.f_mul_scalar(1000.0)?;
        let frames = clean.size()[2];
        let given = self.config.data.image_to_video == Some(true) && frames > 1;
        let times = match given {
            false => Times::Whole(time),
            true => {
                let first = clean.f_narrow(2, 0, 1)?;
                let rest = noisy.f_narrow(2, 1, frames - 1)?;
                noisy = Tensor::f_cat(&[first, rest], 2)?;
                Times::FirstFrame {
                    first: time.f_zeros_like()?,
                    others: time,
                }
            }
        };
        let input = match batch.find("condition") {
            Some(condition) => Tensor::f_cat(&[&noisy, condition], 1)?,
            None => noisy,
        };
        let velocity = self
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

    /// Name of the LoRA file: that of the run, and the expert's.
    fn file_name(&self) -> String {
        let expert = match self.config.train.experts {
            Some(Experts::High) => "_high_noise",
            Some(Experts::Low) => "_low_noise",
            None => "",
        };
        let name = &self.config.name;
        // Other files of a checkpoint are called so.
        match ["model", "optimizer", "adapter_model"].contains(&name.as_str()) {
            true => format!("{name}_lora{expert}.safetensors"),
            false => format!("{name}{expert}.safetensors"),
        }
    }

    /// What the metadata of the LoRA file say.
    fn about(&self) -> Vec<(&'static str, String)> {
        let lora = &self.adapter.config;
        let mut about = vec![
            ("format", "pt".to_owned()),
            ("modelspec.title", self.config.name.clone()),
            ("modelspec.architecture", "wan/lora".to_owned()),
            ("ss_network_module", "networks.lora_wan".to_owned()),
            ("ss_network_dim", lora.rank.to_string()),
            ("ss_network_alpha", lora.alpha.to_string()),
            ("ss_output_name", self.config.name.clone()),
            ("ss_sd_model_name", self.folder.path.display().to_string()),
            ("surefoot.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if let Some(word) = &self.config.data.trigger_word {
            about.push(("modelspec.trigger_phrase", word.clone()));
        }
        match self.config.train.experts {
            Some(Experts::High) => about.push(("surefoot.expert", "high_noise".to_owned())),
            Some(Experts::Low) => about.push(("surefoot.expert", "low_noise".to_owned())),
            None => {}
        }
        about
    }

    /// Numbers of held-out clips to measure, and whether those are all.
    fn measured(&self, limit: Option<u64>) -> (Vec<u64>, bool) {
        super::blocks::spread(self.data.held_out.len() as u64, limit)
    }
}

/// Encodes what a run on the model in `path` would learn from, and nothing else.
pub(crate) fn encode_data(
    config: &Config,
    path: &Path,
    placer: &mut Placer,
    observer: &mut dyn Observer,
) -> Result<Encoded, Error> {
    let folder = ModelFolder::open(path)?;
    let (part, ..) = folder.trained(config)?;
    let shape = TransformerConfig::read(&part.join("config.json"))?;
    check_inputs(config, &folder, &shape)?;
    let data = VideoData::prepare(config, &folder, shape.patch_size[1], placer, observer)?;
    Ok(Encoded {
        folder: data.folder,
        clips: data.training.len(),
        held_out: data.held_out.len(),
        encoded_clips: data.encoded.0,
        encoded_captions: data.encoded.1,
    })
}

/// Fails where the transformer reads something else than what its pipeline would give it.
fn check_inputs(
    config: &Config,
    folder: &ModelFolder,
    shape: &TransformerConfig,
) -> Result<(), Error> {
    let needed = match folder.pipeline {
        Pipeline::Text => shape.out_channels,
        Pipeline::Image if folder.expand_timesteps => {
            return Err(Error::Data(format!(
                "`{}` is an image-to-video pipeline of Wan 2.2 5B, whose transformer is that of \
                 text-to-video: set `_class_name` of its `model_index.json` to `WanPipeline`, and \
                 `data.image_to_video: true` to train it on given first frames",
                folder.path.display()
            )));
        }
        Pipeline::Image => 2 * shape.out_channels + 4,
    };
    if shape.in_channels != needed {
        return Err(Error::Data(format!(
            "the transformer in `{}` has {} input channels, and this pipeline gives it {needed}",
            folder.path.display(),
            shape.in_channels
        )));
    }
    if config.data.image_to_video.is_some() && !folder.expand_timesteps {
        return Err(Error::Data(
            "`data.image_to_video` is for Wan 2.2 5B (`expand_timesteps`): image-to-video models of 14B \
             are trained so without it, and text-to-video models cannot be"
                .into(),
        ));
    }
    Ok(())
}

/// The LoRA to put on the model, fresh or from its file.
fn attachment(config: &Config) -> Result<Attachment, Error> {
    let Some(adapter) = &config.adapter else {
        return Err(Error::Data(
            "of a video model, a LoRA is trained: add `adapter`".into(),
        ));
    };
    if let Some(folder) = &adapter.resume_from {
        return Ok(Attachment::saved(PeftAdapter::open(folder)?)?);
    }
    let mut lora: LoraConfig = adapter.lora()?;
    let all = ModuleNames::Pattern("all-linear".into());
    if adapter.target_modules == all {
        lora.target_modules = Modules::Suffixes(LAYERS.map(str::to_owned).into());
    }
    Ok(Attachment::fresh(&lora)?)
}

/// Which blocks travel, if any.
fn streaming(config: &Config, shape: &TransformerConfig, placer: &Placer) -> Option<Streaming> {
    let count = shape.num_layers.max(0) as usize;
    let away = match (config.model.low_vram, config.model.blocks_to_swap) {
        (Some(true), _) => count,
        (_, Some(blocks)) => count.min(blocks as usize),
        _ => 0,
    };
    // Spread evenly.
    let blocks: Vec<usize> = (0..away).map(|index| index * count / away).collect();
    (!blocks.is_empty()).then(|| Streaming {
        blocks,
        options: SwapOptions {
            slots: config.model.ring_slots.unwrap_or(2) as usize,
            verify: placer.policy().verify,
            transport: placer.options().clone(),
            preserve_generators: config
                .adapter
                .as_ref()
                .is_some_and(|a| a.lora_dropout > 0.0),
            offload_inputs: config.train.activation_offload && placer.device() != Device::Cpu,
            ..SwapOptions::default()
        },
    })
}

/// Bytes of the frozen weights.
fn base_bytes(config: &Config, weights: &PartFile, compute: Kind) -> u64 {
    let matrix = match config.model.quantization {
        None => compute.elt_size_in_bytes() as f64,
        Some(Quantization::Int8) => 1.0,
        // Half a byte, and a scale of four bytes for 64.
        Some(Quantization::Nf4) => 0.5 + 4.0 / 64.0,
    };
    let names = weights.names().into_iter();
    let bytes = names.filter_map(|name| {
        let shape = weights.shape(&name)?;
        let numbers = shape.iter().product::<i64>() as f64;
        Some(numbers * if shape.len() == 2 { matrix } else { 4.0 })
    });
    bytes.sum::<f64>() as u64
}

impl Task for WanLora {
    fn description(&self) -> String {
        let expert = match self.config.train.experts {
            Some(Experts::High) => ", the expert of high noise",
            Some(Experts::Low) => ", the expert of low noise",
            None => "",
        };
        format!(
            "{}{expert}, with a LoRA of rank {} on {} layers, {} parameters trained at levels of noise from \
             {} to {}",
            self.folder.path.display(),
            self.adapter.config.rank,
            self.adapter.modules.len(),
            thousands(self.parameters.count()),
            self.range.0,
            self.range.1,
        )
    }

    fn data_description(&self) -> String {
        let path = self.config.data.path.as_deref().unwrap_or(Path::new(""));
        format!(
            "{}: {} clips to train on, {} held out ({} clips and {} captions encoded now)",
            path.display(),
            self.data.training.len(),
            self.data.held_out.len(),
            self.data.encoded.0,
            self.data.encoded.1,
        )
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Of each block the stream, what its norms, attentions and adapters see, and the inside of its
    /// feed-forward layer; with checkpoints the stream before each block, and the inside of one.
    fn footprint(&self) -> Footprint {
        let shape = self.model.config();
        let (width, inner) = (shape.width() as u64, shape.ffn_dim as u64);
        let compute = self.compute.elt_size_in_bytes() as u64;
        let rows = u64::from(self.config.train.per_device_train_batch_size);
        let longest = self.data.training.iter().map(|clip| clip.tokens).max();
        let tokens = rows * longest.unwrap_or(0);
        // Three norms of the stream and two of queries and keys in fp32, inputs of six adapters in fp32,
        // and queries, keys, values and results of two attentions.
        let kept =
            tokens * (width * (4 * (3 + 3) + 4 * 5 + compute * 7) + inner * (4 + 2 * compute));
        let layers = shape.num_layers as u64;
        let stream = tokens * width * compute;
        let activations = match self.config.train.gradient_checkpointing {
            true => layers * stream + kept,
            false => layers * kept,
        };
        Footprint {
            weights: self.base_bytes + self.parameters.count() * 4,
            activations,
            logits: 0,
        }
    }

    fn streamed(&self) -> Option<SwapReport> {
        self.model.streamed()
    }

    fn starts_trained(&self) -> bool {
        true
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        let numbers = self.order.next();
        let clips: Vec<&Clip> = numbers
            .iter()
            .map(|number| &self.data.training[*number])
            .collect();
        // The loop has seeded the generator for this step.
        let options = (Kind::Double, Device::Cpu);
        let drawn = Tensor::f_rand([2, clips.len() as i64], options)?;
        let uniform = Vec::<f64>::try_from(&drawn.f_select(0, 0)?)?;
        let sigma = uniform.into_iter().map(|u| self.density.sigma(u));
        let sigma = Tensor::f_from_slice(&sigma.collect::<Result<Vec<_>, _>>()?)?;
        let share = self.config.data.caption_dropout.unwrap_or(0.0);
        let dropped = Vec::<f64>::try_from(&drawn.f_select(0, 1)?)?.into_iter();
        let dropped: Vec<bool> = dropped.map(|u| u < share).collect();
        let sigma = sigma.f_to_kind(Kind::Float)?;
        self.batch(&clips, &dropped, &sigma, |latents| {
            Ok(latents.f_randn_like()?)
        })
    }

    /// Every clip counts the same.
    fn loss_weight(&self, batch: &Batch) -> Result<f64, Error> {
        Ok(batch.rows()? as f64)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let pass = Pass::Train {
            checkpoint: self.config.train.gradient_checkpointing,
        };
        Ok(self.losses(batch, pass)?.f_mean(Kind::Float)?)
    }

    fn evaluates(&self) -> bool {
        !self.data.held_out.is_empty()
    }

    /// The mean over the held-out clips, each at the same levels with the same noise every time.
    fn evaluate(&self, limit: Option<u64>, placer: &mut Placer) -> Result<Evaluation, Error> {
        let _no_grad = tch::no_grad_guard();
        let (numbers, complete) = self.measured(limit);
        let mut sum = 0.0;
        for number in &numbers {
            let clip = &self.data.held_out[*number as usize];
            for level in 0..LEVELS {
                let share = (f64::from(level) + 0.5) / f64::from(LEVELS);
                let sigma = self.range.0 + share * (self.range.1 - self.range.0);
                let sigma = Tensor::f_from_slice(&[sigma as f32])?;
                torch_ext::random::manual_seed((number << 8) | u64::from(level))?;
                let noise = |latents: &Tensor| Ok(latents.f_randn_like()?);
                let batch = placer.batch(self.batch(&[clip], &[false], &sigma, noise)?)?;
                sum += f64::try_from(&self.losses(&batch, Pass::Evaluate)?.f_mean(Kind::Float)?)?;
            }
        }
        let samples = numbers.len() as u64;
        Ok(Evaluation {
            loss: sum / (samples.max(1) as f64 * f64::from(LEVELS)),
            nats_per_byte: None,
            samples,
            complete,
        })
    }

    /// Previews are not made yet.
    fn sample(&self, _step: u64, _placer: &mut Placer) -> Result<Vec<Sample>, Error> {
        Ok(Vec::new())
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
            "order": self.order.position(),
        }))
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        let now = self.data_state()?;
        for key in ["clips", "content"] {
            if state[key] != now[key] {
                return Err(Error::Data(format!(
                    "the clips and captions differ from those of the checkpoint: `{key}` was {}, and is {}",
                    state[key], now[key]
                )));
            }
        }
        let position: Position = serde_json::from_value(state["order"].clone())
            .map_err(|error| Error::Data(format!("the checkpoint's data position: {error}")))?;
        self.order.restore(position);
        Ok(())
    }

    fn identity(&self) -> Result<Value, Error> {
        let mut adapter = adapter_config(&self.adapter, "");
        if let Some(keys) = adapter.as_object_mut() {
            keys.retain(|key, _| key != "base_model_name_or_path" && key != "lora_dropout");
            keys.insert("layers".into(), json!(self.adapter.modules));
        }
        Ok(json!({ "transformer": self.fingerprint, "adapter": adapter }))
    }

    /// The LoRA under the names that others look for, and in PEFT's form, from which training goes on.
    fn export_adapter(&self, folder: &Path) -> Result<bool, Error> {
        let base = self.folder.path.display().to_string();
        write_peft(folder, &self.adapter, &self.parameters, &base)?;
        let path = folder.join("adapter_config.json");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        // To PEFT, a video model is of no kind.
        let text = text.replace("\"CAUSAL_LM\"", "null");
        std::fs::write(&path, text).map_err(|error| Error::io("write", &path, error))?;
        let path = folder.join(self.file_name());
        let (adapter, parameters) = (&self.adapter, &self.parameters);
        lora_file::write(&path, self.format, adapter, parameters, &self.about())?;
        Ok(true)
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        self.export_adapter(folder).map(drop)
    }

    fn export_name(&self) -> &'static str {
        "adapter"
    }
}
