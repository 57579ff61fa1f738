//! What the tests of models of pictures share: runs on four pictures with the tiny model of `tests/reference/golden` that
//! is named like the kind of model.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use models::diffusion::lora::{LoraFile, LoraModule};
use models::diffusion::{Arch, Conditions, Expert, PartPaths, TEXT, TEXT_TOKENS, denoiser_at};
use models::formats::{SafetensorsFile, TensorSource};
use placement::{Bytes, Placer, Policy};
use surefoot_trainer::adapters::{Keep, extract_lora, merge, plain_lora};
use surefoot_trainer::media_sampling::{self, DenoiserOptions, Lora, Request};
use surefoot_trainer::optim::{Gradients, Optimizer};
use surefoot_trainer::task::diffusion::DiffusionTask;
use surefoot_trainer::task::{Batch, Task};
use surefoot_trainer::{Allocator, Config, Error, NoObserver, Stop, Summary};
use tch::{Device, Kind, Tensor};

/// The kinds of adapters in golden files, beside LoRA.
pub(crate) const KINDS: [&str; 5] = ["dora", "loha", "lokr", "lokr-both", "lokr-whole"];

/// The config of a run with these keys.
pub(crate) type ConfigOf<'a> = dyn Fn(&[&str]) -> Config + 'a;

/// Steps of other kinds of adapters on a model.
pub(crate) struct Steps<'a> {
    pub(crate) config: Box<ConfigOf<'a>>,
    pub(crate) model: PathBuf,
    /// The folder with what the reference made.
    pub(crate) kinds: PathBuf,
}

impl Steps<'_> {
    /// Those of these kinds, and of all weights, have the losses that PEFT's and diffusers' have.
    pub(crate) fn are_those_of_peft(
        &self,
        kinds: &[&str],
        batch: impl Fn(i64) -> Vec<(&'static str, Tensor)>,
    ) {
        for kind in kinds {
            self.of_a_kind(kind, &[], &batch);
        }
        let whole = [
            "adapter=null",
            "train.learning_rate=0.001",
            "train.weight_decay=0",
        ];
        let file = SafetensorsFile::open(&self.kinds.join("whole.safetensors")).unwrap();
        let theirs = file.read("losses", Kind::Double).unwrap();
        let task = Place::stepped(&(self.config)(&whole), &self.model, &theirs, &batch);
        for parameter in task.parameters().iter() {
            let name = format!("after.{}", parameter.name);
            let theirs = file.read(&name, Kind::Float).unwrap();
            let apart = f64::try_from(parameter.tensor.norm() / theirs.squeeze() - 1.0).unwrap();
            assert!(apart.abs() <= 1e-4, "{name}: {apart:e}");
        }
    }

    /// Those of the adapter in a folder, with what else the config says.
    pub(crate) fn of_a_kind(
        &self,
        kind: &str,
        more: &[&str],
        batch: impl Fn(i64) -> Vec<(&'static str, Tensor)>,
    ) {
        let folder = self.kinds.join(kind);
        let adapter = format!("adapter.resume_from={}", folder.display());
        let set = [adapter.as_str(), "train.weight_decay=0.05"];
        let config = (self.config)(&[&set, more].concat());
        let file = SafetensorsFile::open(&folder.join("steps.safetensors")).unwrap();
        let theirs = file.read("losses", Kind::Double).unwrap();
        let task = Place::stepped(&config, &self.model, &theirs, batch);
        Place::parameters_are_those_of(&file, &task);
    }
}

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

    /// The batch of a step of a model that is trained by flow matching.
    pub(crate) fn flow(
        &self,
        texts: &[(&'static str, Tensor)],
        step: i64,
    ) -> Vec<(&'static str, Tensor)> {
        let file = self.training();
        let same = texts.iter();
        let same = same.map(|(name, text)| (*name, text.shallow_clone()));
        let own = ["latents", "noise", "sigma"].map(|name| {
            let tensor = file.read(name, Kind::Float).unwrap();
            (name, tensor.select(0, step))
        });
        same.chain(own).collect()
    }

    /// The texts of the reference's training, as its model collates them.
    pub(crate) fn collated_texts(&self) -> [(&'static str, Tensor); 2] {
        let file = self.training();
        let rows = ["text.0", "text.1"]
            .map(|name| Conditions::of(TEXT, file.read(name, Kind::Float).unwrap()));
        let model = models::diffusion::open(&self.golden("model"), &PartPaths::default()).unwrap();
        let batch = model.collate(&rows).unwrap();
        [TEXT, TEXT_TOKENS].map(|name| (name, batch.get(name).unwrap().shallow_clone()))
    }

    /// A run with these keys that draws a picture, which is there.
    pub(crate) fn drawing_run(&self, more: &[&str]) -> Summary {
        let previews = [
            "sample.prompts=[red]",
            "sample.num_inference_steps=2",
            "sample.width=32",
            "sample.height=48",
        ];
        let summary = self.run(&[&previews, more].concat()).unwrap();
        let mut samples = fs::read_dir(self.path("runs/pictures/samples")).unwrap();
        let drawn = samples.next().unwrap().unwrap().path().join("0.png");
        assert!(drawn.is_file(), "{}", drawn.display());
        summary
    }

    /// What `surefoot generate` draws with the LoRA of a run, as `change` says it, on the model or another transformer.
    pub(crate) fn drawn(
        &self,
        transformer: Option<PathBuf>,
        run: &str,
        change: impl FnOnce(&mut Request),
    ) -> Result<RgbImage, Error> {
        let parts = PartPaths {
            transformer,
            ..PartPaths::default()
        };
        let model = models::diffusion::open(&self.golden("model"), &parts).unwrap();
        let output = self.path(&format!("{run}-drawn.png"));
        let mut request = Request {
            prompt: "red".into(),
            negative_prompt: Some("grey".into()),
            width: Some(32),
            height: Some(48),
            num_frames: None,
            fps: None,
            num_inference_steps: 2,
            guidance_scale: Some(4.0),
            guidance_scale_2: None,
            flow_shift: None,
            scheduler: None,
            boundary_ratio: None,
            seed: 3,
            image: None,
            controls: Vec::new(),
            control_area: None,
            loras: vec![Lora {
                path: self.path(&format!("runs/{run}/adapter/{run}.safetensors")),
                strength: 1.0,
            }],
            loras_2: Vec::new(),
            checkpoint: None,
            latents: None,
            save_latents: None,
            output: Some(output.clone()),
        };
        change(&mut request);
        let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
        media_sampling::generate(&*model, &request, options, &mut |_, _| ())?;
        Ok(image::open(output).unwrap().to_rgb8())
    }

    /// The preview after the last step of a run.
    pub(crate) fn previewed(&self, run: &str) -> RgbImage {
        let folders = fs::read_dir(self.path(&format!("runs/{run}/samples"))).unwrap();
        let last = folders.map(|entry| entry.unwrap().path()).max().unwrap();
        image::open(last.join("0.png")).unwrap().to_rgb8()
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
        let batch = |step: i64| self.flow(texts, step);
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
        let theirs = self.training().read(losses, Kind::Double).unwrap();
        Self::stepped(&config, model, &theirs, batch)
    }

    /// The same for a config, whose learning rate is taken, and the losses `theirs`.
    fn stepped(
        config: &Config,
        model: &Path,
        theirs: &Tensor,
        batch: impl Fn(i64) -> Vec<(&'static str, Tensor)>,
    ) -> DiffusionTask {
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
        let mut task =
            DiffusionTask::open(config, model, &mut placer, memory, &mut NoObserver).unwrap();
        let mut optimizer = Optimizer::from_config(config, task.parameters(), &[]).unwrap();
        for (step, theirs) in Vec::<f64>::try_from(theirs).unwrap().iter().enumerate() {
            task.begin_step(step as u64, &mut placer).unwrap();
            let loss = task.loss(&Batch::new(batch(step as i64), 1)).unwrap();
            let mut gradients = Gradients::default();
            gradients.accumulate(&loss, task.parameters()).unwrap();
            let norm = f64::try_from(&gradients.norm().unwrap()).unwrap();
            gradients.clip(norm, 1.0).unwrap();
            optimizer
                .step(&gradients, config.train.learning_rate)
                .unwrap();
            let ours = f64::try_from(&loss).unwrap();
            let apart = (ours / theirs - 1.0).abs();
            assert!(apart <= 1e-5, "step {step}: {ours} and {theirs}: {apart:e}");
        }
        task
    }

    /// Steps of other kinds of adapters, as golden files have them.
    pub(crate) fn other_kinds(&self) -> Steps<'_> {
        Steps {
            config: Box::new(|overrides| self.config(overrides)),
            model: self.golden("model"),
            kinds: self.golden("kinds"),
        }
    }

    /// Nearly all trained numbers are those after PEFT's last step.
    pub(crate) fn parameters_are_those_of_peft(&self, task: &DiffusionTask) {
        Self::parameters_are_those_of(&self.training(), task);
    }

    fn parameters_are_those_of(file: &SafetensorsFile, task: &DiffusionTask) {
        let (mut numbers, mut near) = (0, 0.0);
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

    /// The held-out loss of a model as it is.
    fn loss_of(&self, name: &str, model: &Path) -> f64 {
        let named = [
            format!("name={name}"),
            format!("model.name_or_path={}", model.display()),
        ];
        let still = [
            "adapter=null",
            "train.learning_rate=1e-12",
            "train.max_steps=1",
        ];
        let mut all: Vec<&str> = named.iter().map(String::as_str).collect();
        all.extend(still);
        self.run(&all).unwrap().held_out.unwrap().loss
    }

    /// A run with each of these kinds, also resumed and streamed, ends with the same bits; the file, whose keys end as `ends` says,
    /// goes on and makes the same when it is merged; what the merged model learned is what the file says.
    pub(crate) fn other_kinds_are_trained_and_used(
        &self,
        arch: &'static Arch,
        ends: &[(&str, &[&str])],
    ) {
        let before = self.loss_of("before", &self.golden("model"));
        for (how, ends) in ends {
            let kind: Vec<&str> = how.split(' ').collect();
            let run = |name: &str, more: &[&str]| {
                let name = format!("name={name}");
                self.run(&[&[name.as_str()], &kind[..], more].concat())
                    .unwrap()
            };
            let summary = run("whole", &[]);
            run("parts", &["train.max_steps=2"]);
            run("parts", &["train.resume_from_checkpoint=latest"]);
            let streamed = run("streamed", &["model.low_vram=true"]);
            assert!(
                self.weights("whole") == self.weights("parts"),
                "{how}: parts"
            );
            match how.contains("lokr") {
                // Its small products round otherwise where other tensors lie beside them (`docs/adapters.md`).
                true => {
                    let [whole, streamed] = [&summary, &streamed].map(|run| run.last_loss.unwrap());
                    assert!(
                        (whole / streamed - 1.0).abs() < 1e-5,
                        "{how}: {whole}, {streamed}"
                    );
                }
                false => assert!(
                    self.weights("whole") == self.weights("streamed"),
                    "{how}: streamed"
                ),
            }
            run("int8", &["model.quantization=int8"]);

            let path = self.path("runs/whole/adapter/whole.safetensors");
            let names = SafetensorsFile::open(&path).unwrap().names();
            for end in *ends {
                assert!(
                    names.iter().any(|name| name.ends_with(end)),
                    "{how}: {names:?}"
                );
            }
            let known = |name: &String| ends.iter().any(|end| name.ends_with(end));
            assert!(names.iter().all(known), "{how}: {names:?}");

            let lora = LoraFile::read(&path, arch, None).unwrap();
            let merged = self.path("merged");
            let given = [Lora {
                path: path.clone(),
                strength: 1.0,
            }];
            let float = Some(Kind::Float);
            merge(&self.golden("model"), [&given, &[]], &merged, float).unwrap();
            let (loss, after) = (
                self.loss_of("after", &merged),
                summary.held_out.unwrap().loss,
            );
            assert!(
                (loss / after - 1.0).abs() <= 1e-5,
                "{how}: {loss} and {after}"
            );
            assert!(
                (loss / before - 1.0).abs() > 1e-4,
                "{how}: nothing was learned"
            );

            // What does not fit a plain LoRA is nearly in one of a high rank.
            let (taken, plain) = (
                self.path("taken.safetensors"),
                self.path("plain.safetensors"),
            );
            let base = self.golden("model");
            let keep = Keep::Energy(1.0);
            let found = extract_lora(
                [&base, &merged],
                &taken,
                keep,
                None,
                Expert::High,
                &|_, _| (),
            );
            let found = found.unwrap();
            assert_eq!((found.layers, found.others.len()), (lora.modules.len(), 0));
            plain_lora(
                &path,
                &plain,
                Some(arch.lora.partial),
                None,
                keep,
                Some(&base),
            )
            .unwrap();
            let source = denoiser_at(&base, Expert::High).unwrap().1;
            for other in [&taken, &plain] {
                let other = LoraFile::read(other, arch, None).unwrap();
                for (name, module) in &lora.modules {
                    let weight = source.read(&format!("{name}.weight"), Kind::Float).unwrap();
                    let change =
                        |module: &LoraModule| module.merged(&weight, 1.0).unwrap() - &weight;
                    let apart = change(module) - change(&other.modules[name]);
                    let apart = f64::try_from(apart.abs().max()).unwrap();
                    assert!(apart <= 1e-5, "{how}: {name}: {apart}");
                }
            }
            let resume = format!("adapter.resume_from={}", path.display());
            self.run(&["name=more", &resume, "train.max_steps=1"])
                .unwrap();
            for name in ["runs", "merged"] {
                fs::remove_dir_all(self.path(name)).unwrap();
            }
            [taken, plain]
                .iter()
                .for_each(|file| fs::remove_file(file).unwrap());
        }
    }
}
