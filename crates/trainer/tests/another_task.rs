//! The seam for other models: a video diffusion transformer in the shape of Wan 2.2, which
//! learns a LoRA by flow matching from cached latents, goes through the loop as it is.
//!
//! The model is tiny and its base is random, but it is of the real kind: latents of
//! `[channels, frames, height, width]` cut into patches, a time embedding that modulates
//! every block, self-attention over the video and cross-attention to a text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use models::Parameters;
use models::adapters::{
    Attached, Attachment, LoraConfig, Modules, Naming, PeftAdapter, write_peft,
};
use models::formats::{SafetensorsFile, write_tensors};
use models::model::layers::Linear;
use models::model::{Base, Builder, Initial, RandomWeights};
use placement::Placer;
use serde_json::{Value, json};
use surefoot_trainer::data::{BlockOrder, OrderState};
use surefoot_trainer::task::{Batch, EvaluationSums, Share, Task};
use surefoot_trainer::{
    Allocator, Config, Ending, Error, Footprint, Observer, Sample, Stop, Summary,
};
use tch::{Device, Kind, Tensor};

const CHANNELS: i64 = 4;
const VIDEO: [i64; 3] = [2, 4, 4];
const PATCH: i64 = 2;
const PATCH_WIDTH: i64 = CHANNELS * PATCH * PATCH;
const HIDDEN: i64 = 32;
const HEADS: i64 = 2;
const TEXT: [i64; 2] = [3, 12];
const CLIPS: i64 = 24;
const HELD_OUT: i64 = 4;
const NORMAL: Initial = Initial::Normal(0.15);

/// One transformer block.
struct Block {
    modulation: Linear,
    video: [Linear; 4],
    text: [Linear; 4],
    mlp: [Linear; 2],
}

impl Block {
    fn new(index: usize, builder: &mut Builder<'_>) -> Result<Self, Error> {
        let mut linear = |name: &str, inputs: i64, outputs: i64| {
            let name = format!("blocks.{index}.{name}");
            builder.linear(&name, (inputs, outputs), true, NORMAL)
        };
        Ok(Self {
            modulation: linear("modulation", HIDDEN, 3 * HIDDEN)?,
            video: [
                linear("self_attn.q", HIDDEN, HIDDEN)?,
                linear("self_attn.k", HIDDEN, HIDDEN)?,
                linear("self_attn.v", HIDDEN, HIDDEN)?,
                linear("self_attn.o", HIDDEN, HIDDEN)?,
            ],
            text: [
                linear("cross_attn.q", HIDDEN, HIDDEN)?,
                linear("cross_attn.k", TEXT[1], HIDDEN)?,
                linear("cross_attn.v", TEXT[1], HIDDEN)?,
                linear("cross_attn.o", HIDDEN, HIDDEN)?,
            ],
            mlp: [
                linear("ffn.0", HIDDEN, 2 * HIDDEN)?,
                linear("ffn.2", 2 * HIDDEN, HIDDEN)?,
            ],
        })
    }

    /// `[rows, patches, HIDDEN]`, given the time's embedding `[rows, 1, HIDDEN]` and the text.
    fn forward(&self, x: &Tensor, time: &Tensor, text: &Tensor) -> Result<Tensor, Error> {
        let modulation = self.modulation.forward(time, true)?.f_chunk(3, -1)?;
        let normed = x.f_layer_norm([HIDDEN], None::<&Tensor>, None::<&Tensor>, 1e-6, true)?;
        let scaled = normed.f_mul(&modulation[0].f_add_scalar(1.0)?)?;
        let input = scaled.f_add(&modulation[1])?;
        let seen = attend(&self.video, &input, &input)?;
        let x = x.f_add(&seen.f_mul(&modulation[2])?)?;
        let x = x.f_add(&attend(&self.text, &x, text)?)?;
        let [up, down] = &self.mlp;
        let inner = up.forward(&x, true)?.f_gelu("tanh")?;
        Ok(x.f_add(&down.forward(&inner, true)?)?)
    }
}

fn attend([q, k, v, o]: &[Linear; 4], from: &Tensor, to: &Tensor) -> Result<Tensor, Error> {
    let heads = |tensor: Tensor| -> Result<Tensor, Error> {
        let (rows, length, _) = tensor.size3()?;
        let split = tensor.f_view([rows, length, HEADS, HIDDEN / HEADS])?;
        Ok(split.f_transpose(1, 2)?)
    };
    let q = heads(q.forward(from, true)?)?;
    let (k, v) = (heads(k.forward(to, true)?)?, heads(v.forward(to, true)?)?);
    let mask = None::<&Tensor>;
    let seen = Tensor::f_scaled_dot_product_attention(&q, &k, &v, mask, 0.0, false, None, false)?;
    Ok(o.forward(&seen.f_transpose(1, 2)?.f_flatten(2, 3)?, true)?)
}

/// The transformer: from noisy latents, a time in 0..1 and a text to a velocity.
struct VideoTransformer {
    patches: Linear,
    time: Linear,
    blocks: Vec<Block>,
    head: Linear,
}

impl VideoTransformer {
    fn new(builder: &mut Builder<'_>) -> Result<Self, Error> {
        Ok(Self {
            patches: builder.linear("patch_embedding", (PATCH_WIDTH, HIDDEN), true, NORMAL)?,
            time: builder.linear("time_embedding", (16, HIDDEN), true, NORMAL)?,
            blocks: (0..2)
                .map(|index| Block::new(index, builder))
                .collect::<Result<_, _>>()?,
            head: builder.linear("head", (HIDDEN, PATCH_WIDTH), true, NORMAL)?,
        })
    }

    fn velocity(&self, latents: &Tensor, time: &Tensor, text: &Tensor) -> Result<Tensor, Error> {
        let rows = latents.size()[0];
        let [frames, height, width] = VIDEO;
        let grid = [height / PATCH, width / PATCH];
        let cut = [rows, CHANNELS, frames, grid[0], PATCH, grid[1], PATCH];
        let patches = latents.f_view(&cut[..])?.f_permute([0, 2, 3, 5, 1, 4, 6])?;
        let patches = patches.f_reshape([rows, frames * grid[0] * grid[1], PATCH_WIDTH])?;
        let mut x = self.patches.forward(&patches, true)?;
        let time = self.time.forward(&sinusoids(time)?, true)?.f_silu()?;
        let time = time.f_unsqueeze(1)?;
        for block in &self.blocks {
            x = block.forward(&x, &time, text)?;
        }
        let x = self.head.forward(&x, true)?;
        let back = [rows, frames, grid[0], grid[1], CHANNELS, PATCH, PATCH];
        let x = x.f_view(&back[..])?.f_permute([0, 4, 1, 2, 5, 3, 6])?;
        Ok(x.f_reshape([rows, CHANNELS, frames, height, width])?)
    }
}

/// `[rows]` times as `[rows, 16]` sines and cosines.
fn sinusoids(time: &Tensor) -> Result<Tensor, Error> {
    let octaves = Tensor::f_arange(8, (Kind::Float, time.device()))?;
    let angles = time.f_unsqueeze(1)?.f_mul(&octaves.f_exp2()?)?;
    Ok(Tensor::f_cat(&[angles.f_sin()?, angles.f_cos()?], -1)?)
}

/// Latents and texts that an encoder wrote to a file once, and a LoRA that learns them.
struct FlowMatching {
    model: VideoTransformer,
    parameters: Parameters,
    adapter: Attached,
    latents: Tensor,
    texts: Tensor,
    order: BlockOrder,
    rows: usize,
}

impl FlowMatching {
    fn open(config: &Config, cache: &Path, placer: &mut Placer) -> Result<Self, Error> {
        let file = SafetensorsFile::open(cache)?;
        let lora = LoraConfig {
            target_modules: Modules::AllLinear,
            ..LoraConfig::default()
        };
        let mut attachment = Attachment::fresh(&lora)?;
        let mut parameters = Parameters::default();
        let mut source = RandomWeights::new(config.seed, placer);
        let base = Base::Frozen(Kind::Float);
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base)
            .with_adapters(&mut attachment);
        let model = VideoTransformer::new(&mut builder)?;
        Ok(Self {
            model,
            parameters,
            adapter: attachment.finish()?,
            latents: file.read_stored("latents")?,
            texts: file.read_stored("texts")?,
            order: BlockOrder::new(config.seed, (CLIPS - HELD_OUT + 1) as usize, 1),
            rows: config.train.batch() as usize,
        })
    }

    /// The clips of these numbers, each on its way from the video to noise.
    fn batch(&self, clips: &[i64], time: Tensor, noise: Tensor) -> Result<Batch, Error> {
        let index = Tensor::f_from_slice(clips)?;
        let tensors = vec![
            ("latents", self.latents.f_index_select(0, &index)?),
            ("text", self.texts.f_index_select(0, &index)?),
            ("time", time),
            ("noise", noise),
        ];
        Ok(Batch::new(tensors, clips.len() as u64))
    }
}

impl Task for FlowMatching {
    fn description(&self) -> String {
        format!(
            "a video transformer with LoRA on {}",
            self.adapter.modules.len()
        )
    }

    fn data_description(&self) -> String {
        format!("{CLIPS} cached clips")
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            weights: 0,
            activations: 0,
            logits: 0,
        }
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        let clips: Vec<i64> = (0..self.rows)
            .map(|_| self.order.next_start() as i64)
            .collect();
        // The loop seeds the generator at each step, so that this is the same after a resume.
        let options = (Kind::Float, Device::Cpu);
        let time = Tensor::f_rand([self.rows as i64], options)?;
        let size = [&[self.rows as i64, CHANNELS], &VIDEO[..]].concat();
        let noise = Tensor::f_randn(size, options)?;
        self.batch(&clips, time, noise)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        let (clean, noise) = (batch.get("latents")?, batch.get("noise")?);
        let time = batch.get("time")?;
        let share = time.f_view([-1, 1, 1, 1, 1])?;
        let noisy = clean.f_lerp_tensor(noise, &share)?;
        let velocity = self.model.velocity(&noisy, time, batch.get("text")?)?;
        let target = noise.f_sub(clean)?;
        Ok(velocity.f_mse_loss(&target, tch::Reduction::Mean)?)
    }

    fn evaluate(
        &self,
        limit: Option<u64>,
        share: Share,
        placer: &mut Placer,
    ) -> Result<EvaluationSums, Error> {
        let _no_grad = tch::no_grad_guard();
        let samples = limit.map_or(HELD_OUT, |limit| HELD_OUT.min(limit as i64));
        let clips: Vec<i64> = (CLIPS - HELD_OUT..).take(samples as usize).collect();
        let clips = share.part(&clips);
        let count = clips.len() as i64;
        let options = (Kind::Float, Device::Cpu);
        let time = Tensor::f_linspace(0.1, 0.9, count, options)?;
        torch_ext::random::manual_seed(7)?;
        let noise = Tensor::f_randn([&[count, CHANNELS], &VIDEO[..]].concat(), options)?;
        let batch = placer.batch(self.batch(&clips, time, noise)?)?;
        Ok(EvaluationSums {
            loss: f64::try_from(&self.loss(&batch)?)? * count as f64,
            units: count as u64,
            samples: samples as u64,
            complete: samples == HELD_OUT,
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
        if !share.has(0) {
            return Ok(Vec::new());
        }
        let _no_grad = tch::no_grad_guard();
        torch_ext::random::manual_seed(step)?;
        let noise = Tensor::f_randn([&[1, CHANNELS], &VIDEO[..]].concat(), tch::kind::FLOAT_CPU)?;
        let batch =
            placer.batch(self.batch(&[0], Tensor::f_ones([1], tch::kind::FLOAT_CPU)?, noise)?)?;
        let mut x = batch.get("noise")?.shallow_clone();
        for step in (0..8).rev() {
            let time = batch.get("time")?.f_mul_scalar(f64::from(step + 1) / 8.0)?;
            let velocity = self.model.velocity(&x, &time, batch.get("text")?)?;
            x = x.f_sub(&velocity.f_div_scalar(8.0)?)?;
        }
        let error = f64::try_from(&x.f_mse_loss(batch.get("latents")?, tch::Reduction::Mean)?)?;
        let sample = Sample {
            prompt: "clip 0".into(),
            text: format!("{error:.4} from the clip"),
            files: Vec::new(),
        };
        Ok(vec![(0, sample)])
    }

    fn data_state(&self) -> Result<Value, Error> {
        Ok(json!({ "order": self.order.state() }))
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        let order: OrderState = serde_json::from_value(state["order"].clone())
            .map_err(|error| Error::Data(error.to_string()))?;
        self.order.restore(order);
        Ok(())
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        Ok(write_peft(
            folder,
            &self.adapter,
            &self.parameters,
            ("tiny-video", Naming::ALONE),
        )?)
    }

    fn export_name(&self) -> &'static str {
        "adapter"
    }
}

/// A folder with cached clips: each is a colour that its text tells, in some pattern.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        tch::manual_seed(1);
        let texts = Tensor::randn([&[CLIPS], &TEXT[..]].concat(), tch::kind::FLOAT_CPU);
        let colours = texts.mean_dim([1].as_slice(), false, Kind::Float);
        let colours = colours.narrow(1, 0, CHANNELS) * 2.0 + 1.5;
        let pattern = Tensor::linspace(0.5, 1.5, VIDEO.iter().product(), tch::kind::FLOAT_CPU);
        let latents = colours.view([CLIPS, CHANNELS, 1, 1, 1]) * pattern.view(VIDEO);
        let tensors = [
            ("latents".to_owned(), &latents),
            ("texts".to_owned(), &texts),
        ];
        write_tensors(&folder.path().join("cache.safetensors"), &tensors).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn train(&self, name: &str, overrides: &[&str], stop_at: Option<u64>) -> Summary {
        let text = "
            {seed: 5, device: cpu, threads: 1, data: {path: unused}, train: {bf16: false,
            max_steps: 300, per_device_train_batch_size: 4, learning_rate: 0.01,
            logging_steps: 10, eval_steps: 100, save_steps: 100}, sample: {sample_steps: 150}}";
        let mut all = vec![
            format!("name={name}"),
            format!("output_dir={}", self.path("runs").display()),
        ];
        all.extend(overrides.iter().map(|text| (*text).to_owned()));
        let config = Config::parse("test.yaml", text, &all).unwrap();
        let stop = Stop::default();
        let mut observer = StopAt(stop_at, stop.clone());
        let cache = self.path("cache.safetensors");
        surefoot_trainer::run_task(
            &config,
            &Allocator::torch(),
            &mut observer,
            &stop,
            |placer, _| Ok(Box::new(FlowMatching::open(&config, &cache, placer)?)),
        )
        .unwrap()
    }

    fn adapter(&self, run: &str) -> Vec<u8> {
        let path = self
            .path("runs")
            .join(run)
            .join("adapter/adapter_model.safetensors");
        fs::read(path).unwrap()
    }
}

struct StopAt(Option<u64>, Stop);

impl Observer for StopAt {
    fn stepped(&mut self, step: u64) {
        if self.0 == Some(step) {
            self.1.request();
        }
    }
}

#[test]
fn a_video_transformer_learns_by_flow_matching_in_the_same_loop() {
    let place = Place::new();
    let summary = place.train("whole", &[], None);
    assert_eq!(summary.ending, Ending::Completed);
    let cache = SafetensorsFile::open(&place.path("cache.safetensors")).unwrap();
    let latents = cache.read_stored("latents").unwrap();
    let squares = f64::try_from(latents.square().mean(Kind::Float)).unwrap();
    // A model that always answers zero misses the noise, whose square is 1, and the clips.
    let (silent, held_out) = (1.0 + squares, summary.held_out.unwrap().loss);
    assert!(
        held_out < 0.5 * silent,
        "{held_out}, and {silent} for silence"
    );

    let run = place.path("runs").join("whole");
    for made in [
        "loss.svg",
        "report.html",
        "samples.txt",
        "checkpoints/step-000200",
    ] {
        assert!(run.join(made).exists(), "{made}");
    }
    let adapter = PeftAdapter::open(&run.join("adapter")).unwrap();
    assert_eq!(adapter.base_model(), Some("tiny-video"));
}

#[test]
fn its_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let place = Place::new();
    place.train("whole", &["max_steps=30"], None);
    let stopped = place.train("halves", &["max_steps=30"], Some(13));
    assert_eq!((stopped.ending, stopped.steps), (Ending::Stopped, 13));
    let from = format!(
        "train.resume_from_checkpoint={}",
        place.path("runs/halves").display()
    );
    let summary = place.train("halves", &["max_steps=30", &from], None);
    assert_eq!(summary.steps, 30);
    assert!(place.adapter("whole") == place.adapter("halves"));
}
