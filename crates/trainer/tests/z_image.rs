//! A LoRA on a tiny Z-Image: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::z_image;
use models::formats::{SafetensorsFile, TensorSource};
use placement::{Bytes, Placer, Policy};
use surefoot_trainer::media_sampling::convert_lora;
use surefoot_trainer::optim::{AdamW, Gradients};
use surefoot_trainer::task::diffusion::DiffusionTask;
use surefoot_trainer::task::{Batch, Task};
use surefoot_trainer::{Allocator, Config, Error, NoObserver, Stop, Summary};
use tch::{Device, Kind, Tensor};

fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join("z_image").join(name)
}

/// A folder with four pictures and the runs on them.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.path("media")).unwrap();
        for (number, caption) in ["red", "", "a blue one, 一", "grey"].iter().enumerate() {
            let file = |ending: &str| place.path(&format!("media/{number}.{ending}"));
            let mut colour = [60, 70, 80];
            colour[number % 3] = 250 - number as u8;
            let picture = RgbImage::from_pixel(40, 40, Rgb(colour));
            picture.save(file("png")).unwrap();
            fs::write(file("txt"), caption).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, overrides: &[&str]) -> Config {
        let (root, model) = (self.0.path().display(), golden("model"));
        let text = format!(
            "name: pictures\noutput_dir: {root}/runs\ndevice: cpu\nthreads: 1\nseed: 3\n\
             model: {{name_or_path: {}}}\nadapter: {{r: 2, lora_alpha: 4}}\n\
             data: {{path: {root}/media, resolution: 32, cache_dir: {root}/cache, \
             validation_fraction: 0.25, caption_dropout: 0.3}}\n\
             train: {{max_steps: 4, per_device_train_batch_size: 2, learning_rate: 0.01, bf16: false, \
             lr_scheduler_type: constant, logging_steps: 1, eval_steps: 2, save_steps: 2}}\n",
            model.display()
        );
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Config::parse("pictures.yaml", &text, &overrides).unwrap()
    }

    fn run(&self, overrides: &[&str]) -> Result<Summary, Error> {
        let (config, allocator) = (self.config(overrides), Allocator::torch());
        surefoot_trainer::run(&config, &allocator, &mut NoObserver, &Stop::default())
    }

    /// The trained weights of a run.
    fn weights(&self, run: &str) -> Vec<u8> {
        let file = format!("runs/{run}/checkpoints/step-000004/model.safetensors");
        fs::read(self.path(&file)).unwrap()
    }
}

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new();
    let adapter = format!("adapter.resume_from={}", golden("adapter").display());
    let config = place.config(&[&adapter, "train.weight_decay=0.05"]);
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
    let model = golden("model");
    let mut task =
        DiffusionTask::open(&config, &model, &mut placer, memory, &mut NoObserver).unwrap();
    let file = SafetensorsFile::open(&golden("training.safetensors")).unwrap();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let rows = ["text.0", "text.1"].map(read);
    let counts = rows.each_ref().map(|rows| rows.size()[0]);
    // As the model's `collate` has it.
    let texts = rows.map(|rows| rows.constant_pad_nd([0, 0, 0, 64 - rows.size()[0]]));
    let (texts, counts) = (Tensor::stack(&texts, 0), Tensor::from_slice(&counts));
    let theirs = file.read("losses", Kind::Double).unwrap();
    let mut optimizer = AdamW::from_config(&config, task.parameters(), &[]).unwrap();
    for (step, theirs) in Vec::<f64>::try_from(theirs).unwrap().iter().enumerate() {
        task.begin_step(step as u64, &mut placer).unwrap();
        let mut tensors = vec![
            ("text", texts.shallow_clone()),
            ("text_tokens", counts.to_kind(Kind::Float)),
        ];
        for name in ["latents", "noise", "sigma"] {
            tensors.push((name, read(name).select(0, step as i64)));
        }
        let loss = task.loss(&Batch::new(tensors, 1)).unwrap();
        let mut gradients = Gradients::default();
        gradients.accumulate(&loss, task.parameters()).unwrap();
        let norm = f64::try_from(&gradients.norm().unwrap()).unwrap();
        gradients.clip(norm, 1.0).unwrap();
        optimizer.step(&gradients, 0.01).unwrap();
        let ours = f64::try_from(&loss).unwrap();
        let apart = (ours / theirs - 1.0).abs();
        assert!(apart <= 1e-5, "step {step}: {ours} and {theirs}: {apart:e}");
    }
    let (mut numbers, mut near) = (0, 0.0);
    for parameter in task.parameters().iter() {
        let theirs = read(&format!("after.{}", parameter.name));
        let apart = (&parameter.tensor - theirs).abs();
        numbers += apart.numel();
        near += f64::try_from(&apart.le(1e-4).sum(Kind::Double)).unwrap();
    }
    assert!(near >= 0.999 * numbers as f64, "{near} of {numbers}");
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new();
    let encoded = |overrides: &[&str]| {
        let config = place.config(overrides);
        let done = surefoot_trainer::encode(&config, &Allocator::torch(), &mut NoObserver);
        let done = done.unwrap();
        (done.encoded_clips, done.encoded_captions)
    };
    // One of the captions is the empty text.
    assert_eq!((encoded(&[]), encoded(&[])), ((4, 4), (0, 0)));
    // The same weights under another config are another part.
    let vae = place.path("vae");
    fs::create_dir(&vae).unwrap();
    let from = golden("model/vae");
    let weights = "diffusion_pytorch_model.safetensors";
    fs::copy(from.join(weights), vae.join(weights)).unwrap();
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut keys: serde_json::Value = serde_json::from_str(&text).unwrap();
    keys["scaling_factor"] = 0.5.into();
    fs::write(vae.join("config.json"), keys.to_string()).unwrap();
    let other = format!("model.vae={}", vae.display());
    assert_eq!(encoded(&[&other]), (4, 0));
    // Said before anything is learned.
    let refused = place
        .run(&["adapter.format=kohya"])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("`adapter.format: kohya`"), "{refused}");
    let prompts = [
        "sample.prompts=[red]",
        "sample.num_inference_steps=2",
        "sample.width=32",
    ];
    let summary = place
        .run(&[&prompts[..], &["sample.height=48"]].concat())
        .unwrap();
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of seven layers in four blocks; no alpha, which is in the second matrix.
    let names = file.names();
    assert_eq!(names.len(), 56);
    for name in &names {
        let layer = name.strip_prefix("diffusion_model.").unwrap();
        let block = [
            "layers.0.",
            "layers.1.",
            "noise_refiner.0.",
            "context_refiner.0.",
        ];
        assert!(block.iter().any(|block| layer.starts_with(block)), "{name}");
    }
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let layer = "layers.1.attention.to_out.0";
    let read = |file: &SafetensorsFile, name: String| file.read(&name, Kind::Float).unwrap();
    let ours = read(&file, format!("diffusion_model.{layer}.lora_B.weight"));
    let theirs = read(&peft, format!("base_model.model.{layer}.lora_B.weight"));
    assert!(
        f64::try_from(ours.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    assert_eq!(ours, theirs * 2.0);
    assert_eq!(file.metadata()["modelspec.architecture"], "Z-Image/lora");
    let read = LoraFile::read(&lora, &z_image::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 28);
    let other = place.path("other.safetensors");
    convert_lora(&lora, &other, Some(LoraForm::Diffusers), None).unwrap();
    let other = SafetensorsFile::open(&other).unwrap();
    let of_diffusers = |name: &String| name.starts_with("transformer.");
    assert!(other.names().iter().all(of_diffusers));
    let kohya = place.path("kohya.safetensors");
    let error = convert_lora(&lora, &kohya, Some(LoraForm::Kohya), None).unwrap_err();
    assert!(error.to_string().contains("choose `comfy`"), "{error}");
    let mut samples = fs::read_dir(place.path("runs/pictures/samples")).unwrap();
    let previews = samples.next().unwrap().unwrap().path();
    assert!(previews.join("0.png").is_file(), "{}", previews.display());
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    let place = Place::new();
    place.run(&["name=whole"]).unwrap();
    place.run(&["name=parts", "train.max_steps=2"]).unwrap();
    let resume = "train.resume_from_checkpoint=latest";
    place.run(&["name=parts", resume]).unwrap();
    assert!(place.weights("whole") == place.weights("parts"));
    for (name, how) in [
        ("all", "model.low_vram=true"),
        ("some", "model.blocks_to_swap=3"),
        ("again", "train.gradient_checkpointing=true"),
    ] {
        let summary = place.run(&[&format!("name={name}"), how]).unwrap();
        assert_eq!(summary.streamed.is_some(), name != "again", "{name}");
        assert!(place.weights("whole") == place.weights(name), "{name}");
    }
}
