//! What runs on tiny models of pictures have in common: a folder of pictures, losses beside those of PEFT, and runs that
//! end with the same bits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use models::diffusion::Conditions;
use models::formats::{SafetensorsFile, TensorSource};
use placement::{Bytes, Placer, Policy};
use surefoot_trainer::optim::{AdamW, Gradients};
use surefoot_trainer::task::diffusion::DiffusionTask;
use surefoot_trainer::task::{Batch, Task};
use surefoot_trainer::{Allocator, Config, Error, NoObserver, Stop, Summary};
use tch::{Device, Kind, Tensor};

/// A file that the reference implementation of a model has written.
pub(crate) fn golden(model: &str, name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join(model).join(name)
}

/// A folder with four pictures and the runs on them, with the model of this name.
pub(crate) struct Place(tempfile::TempDir, &'static str);

impl Place {
    pub(crate) fn new(model: &'static str) -> Self {
        let place = Self(tempfile::tempdir().unwrap(), model);
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

    pub(crate) fn golden(&self, name: &str) -> PathBuf {
        golden(self.1, name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn config(&self, overrides: &[&str]) -> Config {
        let (root, model) = (self.0.path().display(), self.golden("model"));
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

    pub(crate) fn run(&self, overrides: &[&str]) -> Result<Summary, Error> {
        let (config, allocator) = (self.config(overrides), Allocator::torch());
        surefoot_trainer::run(&config, &allocator, &mut NoObserver, &Stop::default())
    }

    /// The trained weights of a run.
    pub(crate) fn weights(&self, run: &str) -> Vec<u8> {
        let file = format!("runs/{run}/checkpoints/step-000004/model.safetensors");
        fs::read(self.path(&file)).unwrap()
    }
}

/// The losses of five steps with the conditions of these names, which are made of the tensors in `training.safetensors`,
/// and the adapter after them.
pub(crate) fn losses_of_five_steps_are_those_of_peft(
    place: &Place,
    names: &[&'static str],
    conditions: impl Fn(&dyn Fn(&str) -> Tensor) -> Conditions,
) {
    let golden = |name: &str| place.golden(name);
    let adapter = format!("adapter.resume_from={}", golden("adapter").display());
    let config = place.config(&[&adapter, "train.weight_decay=0.05"]);
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
    let model = golden("model");
    let mut task =
        DiffusionTask::open(&config, &model, &mut placer, memory, &mut NoObserver).unwrap();
    let file = SafetensorsFile::open(&golden("training.safetensors")).unwrap();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let conditions = conditions(&read);
    let theirs = file.read("losses", Kind::Double).unwrap();
    let mut optimizer = AdamW::from_config(&config, task.parameters(), &[]).unwrap();
    for (step, theirs) in Vec::<f64>::try_from(theirs).unwrap().iter().enumerate() {
        task.begin_step(step as u64, &mut placer).unwrap();
        let mut tensors = Vec::new();
        for name in names {
            tensors.push((*name, conditions.get(name).unwrap().shallow_clone()));
        }
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

/// Stopped and resumed, with all or some blocks streamed, or computed again.
pub(crate) fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits(place: &Place) {
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
