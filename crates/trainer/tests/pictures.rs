//! What the tests of models of pictures share: runs on four pictures with the tiny model of `tests/reference/golden` that
//! is named like the kind of model.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use models::formats::{SafetensorsFile, TensorSource};
use placement::{Bytes, Placer, Policy};
use surefoot_trainer::optim::{Gradients, Optimizer};
use surefoot_trainer::task::diffusion::DiffusionTask;
use surefoot_trainer::task::{Batch, Task};
use surefoot_trainer::{Allocator, Config, Error, NoObserver, Stop, Summary};
use tch::{Device, Kind, Tensor};

/// A folder with four pictures and the runs on them.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    model: &'static str,
}

impl Place {
    pub(crate) fn new(model: &'static str) -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
            model,
        };
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
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
        let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
        folder.join(self.model).join(name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn config(&self, overrides: &[&str]) -> Config {
        let (root, model) = (self.folder.path().display(), self.golden("model"));
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

    /// Numbers of clips and texts that are encoded now.
    pub(crate) fn encoded(&self, overrides: &[&str]) -> (usize, usize) {
        let config = self.config(overrides);
        let done = surefoot_trainer::encode(&config, &Allocator::torch(), &mut NoObserver);
        let done = done.unwrap();
        (done.encoded_clips, done.encoded_captions)
    }

    /// What the reference trained with, and what came of it.
    pub(crate) fn training(&self) -> SafetensorsFile {
        SafetensorsFile::open(&self.golden("training.safetensors")).unwrap()
    }

    /// The losses of five steps from the same adapter are within 1e-5 of PEFT's, and the adapter after them is nearly the
    /// same; `texts` are the conditions of each step's batch.
    pub(crate) fn losses_of_five_steps_are_those_of_peft(&self, texts: &[(&'static str, Tensor)]) {
        self.losses_of_five_steps_with(&[], texts);
    }

    /// The same in a run with other keys.
    pub(crate) fn losses_of_five_steps_with(
        &self,
        keys: &[&str],
        texts: &[(&'static str, Tensor)],
    ) {
        let file = self.training();
        let batch = |step: i64| {
            let same = texts
                .iter()
                .map(|(name, text)| (*name, text.shallow_clone()));
            let own = ["latents", "noise", "sigma"].map(|name| {
                let tensor = file.read(name, Kind::Float).unwrap();
                (name, tensor.select(0, step))
            });
            same.chain(own).collect()
        };
        let task = self.trained_with(keys, &self.golden("model"), "losses", batch);
        self.parameters_are_those_of_peft(&task);
    }

    /// The losses of steps with AdamW on `model` are within 1e-5 of those that PEFT's file has as `losses`; `batch` makes
    /// that of a step. The task is that after the last.
    pub(crate) fn trained(
        &self,
        model: &Path,
        losses: &str,
        batch: impl Fn(i64) -> Vec<(&'static str, Tensor)>,
    ) -> DiffusionTask {
        self.trained_with(&[], model, losses, batch)
    }

    fn trained_with(
        &self,
        keys: &[&str],
        model: &Path,
        losses: &str,
        batch: impl Fn(i64) -> Vec<(&'static str, Tensor)>,
    ) -> DiffusionTask {
        let adapter = format!("adapter.resume_from={}", self.golden("adapter").display());
        let config = self.config(&[keys, &[&adapter, "train.weight_decay=0.05"]].concat());
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
        let mut task =
            DiffusionTask::open(&config, model, &mut placer, memory, &mut NoObserver).unwrap();
        let theirs = self.training().read(losses, Kind::Double).unwrap();
        let mut optimizer = Optimizer::from_config(&config, task.parameters(), &[]).unwrap();
        for (step, theirs) in Vec::<f64>::try_from(theirs).unwrap().iter().enumerate() {
            task.begin_step(step as u64, &mut placer).unwrap();
            let loss = task.loss(&Batch::new(batch(step as i64), 1)).unwrap();
            let mut gradients = Gradients::default();
            gradients.accumulate(&loss, task.parameters()).unwrap();
            let norm = f64::try_from(&gradients.norm().unwrap()).unwrap();
            gradients.clip(norm, 1.0).unwrap();
            optimizer.step(&gradients, 0.01).unwrap();
            let ours = f64::try_from(&loss).unwrap();
            let apart = (ours / theirs - 1.0).abs();
            assert!(apart <= 1e-5, "step {step}: {ours} and {theirs}: {apart:e}");
        }
        task
    }

    /// Nearly all trained numbers are those after PEFT's last step.
    pub(crate) fn parameters_are_those_of_peft(&self, task: &DiffusionTask) {
        let (file, mut numbers, mut near) = (self.training(), 0, 0.0);
        for parameter in task.parameters().iter() {
            let name = format!("after.{}", parameter.name);
            let theirs = file.read(&name, Kind::Float).unwrap();
            let apart = (&parameter.tensor - theirs).abs();
            numbers += apart.numel();
            near += f64::try_from(&apart.le(1e-4).sum(Kind::Double)).unwrap();
        }
        assert!(near >= 0.999 * numbers as f64, "{near} of {numbers}");
    }

    /// Streamed or not, with checkpoints or without, in one go or two.
    pub(crate) fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits(&self) {
        self.resumed_and_streamed_runs_end_with_the_same_bits();
        let how = "train.gradient_checkpointing=true";
        let summary = self.run(&["name=again", how]).unwrap();
        assert!(summary.streamed.is_none());
        assert!(self.weights("whole") == self.weights("again"));
    }

    /// The same without checkpoints: they change the order in which gradients are summed where something else than the next
    /// block takes what a block made, too.
    pub(crate) fn resumed_and_streamed_runs_end_with_the_same_bits(&self) {
        self.run(&["name=whole"]).unwrap();
        self.run(&["name=parts", "train.max_steps=2"]).unwrap();
        let resume = "train.resume_from_checkpoint=latest";
        self.run(&["name=parts", resume]).unwrap();
        assert!(self.weights("whole") == self.weights("parts"));
        for (name, how) in [
            ("all", "model.low_vram=true"),
            ("some", "model.blocks_to_swap=3"),
        ] {
            let summary = self.run(&[&format!("name={name}"), how]).unwrap();
            assert!(summary.streamed.is_some(), "{name}");
            assert!(self.weights("whole") == self.weights(name), "{name}");
        }
    }
}
