//! What the tests of models share: the tiny random model of `tests/reference/golden` that is named like the kind of model,
//! held against what the libraries that its script calls made of it.

mod pictures;
mod single_files;

use std::path::{Path, PathBuf};

use placement::swap::SwapOptions;
use placement::{Placer, Policy};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use torch_ext::fake;

pub(super) use self::pictures::{checksum, picture_in};
pub(super) use self::single_files::{SingleFiles, stored, the_same_in_gguf};
use super::files::PartFile;
use super::lora::LoraFile;
use super::parts::schedule::Schedule;
use super::sampling::{Experts, Guided, Sampling, sample};
use super::{
    Arch, Conditions, Denoiser, DenoiserOptions, Diffusion, Expert, Objective, Part, PartPaths,
    TEXT, TEXT_TOKENS, load_denoiser, load_text_encoder,
};
use crate::adapters::{Attachment, LoraConfig, Modules};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::{Base, Builder, FileWeights, MetaWeights, Pass, Streaming};
use crate::quant::Quantization;
use crate::{Error, Parameters};

/// Builds a denoiser of a model.
type Build = fn(&dyn Diffusion, &mut Builder) -> Result<Box<dyn Denoiser>, Error>;

/// The tests of a kind of model.
pub(super) struct Reference {
    pub(super) arch: &'static Arch,
    /// How its denoiser is built, even where people may not train all of it.
    pub(super) build: Build,
    /// Names of the conditions of a text, each with the beginning of its name in the file.
    pub(super) conditions: &'static [(&'static str, &'static str)],
    /// What its denoiser is given under a label.
    pub(super) case: fn(&Self, &str) -> Case,
}

/// How a denoiser is held.
pub(super) struct How {
    pub(super) base: Base,
    pub(super) streaming: Option<Streaming>,
    pub(super) quantization: Option<Quantization>,
}

pub(super) const FROZEN: How = How {
    base: Base::Frozen(Kind::Float),
    streaming: None,
    quantization: None,
};

/// What a denoiser is given, and the velocity that is expected.
pub(super) struct Case {
    pub(super) latents: Tensor,
    pub(super) times: Tensor,
    pub(super) conditions: Conditions,
    pub(super) made: Tensor,
}

/// The only or the first denoiser, with its own weights and these LoRAs.
pub(super) fn loaded(
    model: &dyn Diffusion,
    loras: Vec<(LoraFile, f64)>,
    options: DenoiserOptions,
) -> Box<dyn Denoiser> {
    let weights = model.weights(Part::Denoiser(Expert::High)).unwrap();
    load_denoiser(model, Expert::High, weights, loras, options, &mut placer()).unwrap()
}

pub(super) fn placer() -> Placer {
    Placer::new(Device::Cpu, Policy::default()).unwrap()
}

pub(super) fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

impl Case {
    /// What `denoiser` makes.
    pub(super) fn predicted(&self, denoiser: &dyn Denoiser, pass: Pass) -> Tensor {
        let made = denoiser.predict(&self.latents, &self.times, &self.conditions, pass);
        made.unwrap()
    }

    /// How far that is from the expected.
    pub(super) fn apart(&self, denoiser: &dyn Denoiser) -> f64 {
        difference(&self.predicted(denoiser, Pass::Evaluate), &self.made)
    }
}

/// The conditions of a text, of all encoders and without a batch dimension.
pub(super) fn encoded(model: &dyn Diffusion, text: &str) -> Conditions {
    let tokens = model.tokenizer().unwrap().tokens(text).unwrap();
    let mut conditions = model.of_tokens(&tokens).unwrap();
    for (number, tokens) in tokens.iter().take(model.text_encoders()).enumerate() {
        let encoder = load_text_encoder(model, number, Kind::Float, false, &mut placer());
        let text = encoder.unwrap().encode(tokens).unwrap();
        conditions.join(text).unwrap();
    }
    conditions
}

impl Reference {
    /// That of a flow model whose only condition is its text.
    pub(super) const fn of(arch: &'static Arch) -> Self {
        Self {
            arch,
            build: |model, builder| model.denoiser(Expert::High, Device::Cpu, builder),
            conditions: &[(TEXT, "text")],
            case: Self::of_texts,
        }
    }

    pub(super) fn golden(&self, name: &str) -> PathBuf {
        crate::golden::golden(self.arch.name).join(name)
    }

    pub(super) fn model(&self) -> Box<dyn Diffusion> {
        super::open(&self.golden("model"), &PartPaths::default()).unwrap()
    }

    /// What the reference was given, and what it made of it.
    pub(super) fn expected(&self, name: &str) -> Tensor {
        let file = SafetensorsFile::open(&self.golden("expected.safetensors")).unwrap();
        file.read(name, Kind::Float).unwrap()
    }

    pub(super) fn json<T: DeserializeOwned>(&self, name: &str) -> T {
        serde_json::from_str(&std::fs::read_to_string(self.golden(name)).unwrap()).unwrap()
    }

    /// The weights of a part under diffusers' names.
    pub(super) fn denoiser_file(&self) -> PartFile {
        self.model().weights(Part::Denoiser(Expert::High)).unwrap()
    }

    /// Prompts are cut into the same tokens, of a vocabulary of `known`, of which 512 are read behind `before` that are left
    /// out, and their states are within 1e-4 of the expected ones, which are every `step`-th.
    pub(super) fn prompts_are_cut_and_encoded_as_by_the_pipeline(
        &self,
        step: i64,
        before: usize,
        known: u32,
    ) {
        let model = self.model();
        let tokenizer = model.tokenizer().unwrap();
        let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
        let mut truncated = 0;
        for (number, prompt) in self.json::<Vec<Value>>("prompts.json").iter().enumerate() {
            let text = prompt["text"].as_str().unwrap();
            let theirs: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
            let ours = tokenizer.tokens(text).unwrap().remove(0);
            let read = theirs.len().min(before + 512);
            assert_eq!(ours, theirs[..read], "{text:?}");
            // Said only where what is cut off is not the end.
            let length = prompt["length"].as_u64();
            let length = length.map_or(theirs.len() - before, |length| length as usize);
            assert_eq!(tokenizer.length(text).unwrap(), (length, 512));
            truncated += usize::from(length > 512);
            let rows = encoder.encode(&ours).unwrap();
            let rows = rows.get(TEXT).unwrap().slice(0, None, None, step);
            let apart = difference(&rows, &self.expected(&format!("text.{number}")));
            assert!(apart <= 1e-4, "{text:?}: {apart}");
        }
        assert_eq!(truncated, 1);
        let most = before + 512;
        for tokens in [vec![1; before], vec![1; most + 1], vec![known; before + 1]] {
            let error = encoder.encode(&tokens).unwrap_err().to_string();
            let told = format!("from {} to {most} are encoded, of {known}", before + 1);
            assert!(error.contains(&told), "{error}");
        }
    }

    pub(super) fn denoiser(&self, how: How, compute: Kind) -> (Box<dyn Denoiser>, Parameters) {
        let (model, tensors) = (self.model(), self.denoiser_file());
        let (mut placer, mut parameters) = (placer(), Parameters::default());
        let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, how.base)
            .streamed(how.streaming)
            .quantized(how.quantization);
        let denoiser = (self.build)(&*model, &mut builder).unwrap();
        (denoiser, parameters)
    }

    pub(super) fn case(&self, label: &str) -> Case {
        (self.case)(self, label)
    }

    /// A pass keeps less of blocks that are computed again, if fewer layers have adapters, and more if all weights learn.
    pub(super) fn what_is_computed_again_is_not_kept(&self, label: &str) {
        let (model, case) = (self.model(), self.case(label));
        let blocks: usize = self.arch.blocks(&self.denoiser_file()).iter().sum();
        let linear = self.arch.lists.iter().flat_map(|list| list.linear);
        let linear: Vec<String> = linear.map(|(name, _)| (*name).to_owned()).collect();
        let kept = |adapted: &[String], streamed: usize, checkpoint: bool| {
            let mut adapters = (!adapted.is_empty()).then(|| {
                let config = LoraConfig {
                    target_modules: Modules::Suffixes(adapted.to_vec()),
                    ..LoraConfig::default()
                };
                Attachment::fresh(&config).unwrap()
            });
            let base = match adapters {
                Some(_) => Base::Frozen(Kind::Float),
                None => Base::Trained,
            };
            let mut source = MetaWeights::new(None, (Kind::Float, Device::Cpu));
            let mut parameters = Parameters::default();
            let streaming = Streaming {
                blocks: (blocks - streamed..blocks).collect(),
                options: SwapOptions::default(),
            };
            let build = || {
                let builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
                let mut builder = builder.streamed(Some(streaming));
                if let Some(adapters) = &mut adapters {
                    builder = builder.with_adapters(adapters);
                }
                (self.build)(&*model, &mut builder)
            };
            let pass = Pass::Train { checkpoint };
            let measured = fake::pass(Device::Cpu, build, |denoiser| {
                let made = denoiser.predict(&case.latents, &case.times, &case.conditions, pass)?;
                Ok::<_, Error>(made.f_sum(Kind::Float)?)
            });
            measured.unwrap().kept
        };
        let whole = kept(&linear, 0, false);
        let streamed = [1, blocks].map(|count| kept(&linear, count, false));
        assert!(
            streamed[0] < whole && streamed[1] < streamed[0],
            "{streamed:?} and {whole}"
        );
        let again = kept(&linear, 0, true);
        assert!(again <= streamed[1], "{again} and {streamed:?}");
        let few = kept(&linear[linear.len() - 1..], 0, false);
        assert!(
            few < whole && few < kept(&[], 0, false),
            "{few} and {whole}"
        );
    }

    fn of_texts(&self, label: &str) -> Case {
        let read = |what: &str| self.expected(&format!("velocity.{label}.{what}"));
        let rows = [0, 1].map(|number| {
            let mut row = Conditions::default();
            for (name, theirs) in self.conditions {
                row.insert(name, read(&format!("{theirs}.{number}")));
            }
            row
        });
        Case {
            latents: read("latents"),
            times: read("levels") * 1000.0,
            conditions: self.model().collate(&rows).unwrap(),
            made: read("made"),
        }
    }

    /// Ours and theirs.
    fn velocity(&self, denoiser: &dyn Denoiser, label: &str, pass: Pass) -> (Tensor, Tensor) {
        let case = self.case(label);
        (case.predicted(denoiser, pass), case.made)
    }

    /// Velocities are within 1e-4 of the expected ones; and each row of a batch is what it is alone, with its text as
    /// `alone` makes it from the row's of the batch.
    pub(super) fn velocities_are_those_of_diffusers(
        &self,
        labels: &[&str],
        alone: impl Fn(&Conditions) -> Conditions,
    ) {
        let (denoiser, _) = self.denoiser(FROZEN, Kind::Float);
        for label in labels {
            let (ours, theirs) = self.velocity(&*denoiser, label, Pass::Evaluate);
            let apart = difference(&ours, &theirs);
            assert!(apart <= 1e-4, "{label}: {apart}");
            let case = self.case(label);
            let (latents, times) = (case.latents.narrow(0, 0, 1), case.times.narrow(0, 0, 1));
            let text = alone(&case.conditions);
            let ours = denoiser.predict(&latents, &times, &text, Pass::Evaluate);
            let apart = difference(&ours.unwrap(), &theirs.narrow(0, 0, 1));
            assert!(apart <= 1e-4, "{label}, alone: {apart}");
        }
    }

    /// Of a batch, the first text for itself, without its padding.
    pub(super) fn first_alone(&self, batch: &Conditions) -> Conditions {
        let tokens = batch.get(TEXT_TOKENS).unwrap().int64_value(&[0]);
        let text = batch.get(TEXT).unwrap().get(0).narrow(0, 0, tokens);
        let alone = Conditions::of(TEXT, text);
        self.model().collate(&[alone]).unwrap()
    }

    /// Latents of other sizes, and texts of `wrong` width or number or of impossible lengths, are refused by what the model takes:
    /// 16 channels, and texts of `width`.
    pub(super) fn sizes_that_do_not_fit_are_refused(&self, [wrong, width]: [i64; 2]) {
        let (model, _) = self.denoiser(FROZEN, Kind::Float);
        let case = self.case("small");
        let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let refused = |latents: &Tensor, conditions: &Conditions| {
            let made = model.predict(latents, &case.times, conditions, Pass::Evaluate);
            made.unwrap_err().to_string()
        };
        for size in [[2, 4, 1, 6, 8], [2, 16, 2, 6, 8], [2, 16, 1, 5, 8]] {
            let error = refused(&zeros(&size), &case.conditions);
            assert!(error.contains("this model takes 16 channels"), "{error}");
        }
        for (size, tokens) in [
            ([2, 7, wrong], [7.0, 7.0]),
            ([1, 7, width], [7.0, 7.0]),
            ([2, 7, width], [8.0, 7.0]),
            ([2, 7, width], [0.0, 7.0]),
        ] {
            let mut text = Conditions::of(TEXT, zeros(&size));
            text.insert(TEXT_TOKENS, Tensor::from_slice(&tokens));
            let error = refused(&case.latents, &text);
            let takes = format!("takes one of width {width} for each");
            assert!(error.contains(&takes), "{error}");
        }
    }

    pub(super) fn bfloat16_is_close(&self, label: &str) {
        let how = How {
            base: Base::Frozen(Kind::BFloat16),
            ..FROZEN
        };
        let (denoiser, _) = self.denoiser(how, Kind::BFloat16);
        let (ours, theirs) = self.velocity(&*denoiser, label, Pass::Evaluate);
        let apart = f64::try_from((&ours - &theirs).std(true) / theirs.std(true)).unwrap();
        assert!(apart > 0.0 && apart < 0.1, "{apart}");
    }

    /// Streamed blocks compute bit for bit what resident ones do.
    pub(super) fn streamed_and_quantised_blocks_compute_as_resident_ones(
        &self,
        label: &str,
        streamed: &[&[usize]],
    ) {
        for quantization in [None, Some(Quantization::Int8), Some(Quantization::Nf4)] {
            let made = |blocks: Option<&[usize]>| {
                let streaming = blocks.map(|blocks| Streaming {
                    blocks: blocks.to_vec(),
                    options: SwapOptions::default(),
                });
                let how = How {
                    streaming,
                    quantization,
                    ..FROZEN
                };
                let (denoiser, _) = self.denoiser(how, Kind::Float);
                let streamed = denoiser.lists().iter().any(|list| list.report().is_some());
                let (ours, theirs) = self.velocity(&*denoiser, label, Pass::Evaluate);
                (ours, theirs, streamed)
            };
            let (resident, theirs, is_streamed) = made(None);
            assert!(!is_streamed);
            for blocks in streamed {
                let (ours, _, is_streamed) = made(Some(blocks));
                assert!(is_streamed && ours == resident, "{quantization:?}");
            }
            let apart = f64::try_from((resident - &theirs).std(true) / theirs.std(true)).unwrap();
            assert!(apart < 0.4, "{quantization:?}: {apart}");
        }
    }

    /// Gradients of every parameter, with checkpoints and without.
    pub(super) fn checkpoints_change_no_gradient(&self, label: &str) {
        let gradients = |checkpoint: bool| {
            let how = How {
                base: Base::Trained,
                ..FROZEN
            };
            let (denoiser, parameters) = self.denoiser(how, Kind::Float);
            let (velocity, _) = self.velocity(&*denoiser, label, Pass::Train { checkpoint });
            torch_ext::backward(&velocity.square().mean(Kind::Float)).unwrap();
            let gradient = |parameter: &crate::Parameter| {
                let gradient = parameter.tensor.grad();
                assert!(gradient.defined(), "{}", parameter.name);
                (parameter.name.clone(), gradient)
            };
            parameters.iter().map(gradient).collect::<Vec<_>>()
        };
        let (kept, again) = (gradients(false), gradients(true));
        assert_eq!(kept.len(), self.denoiser_file().names().len());
        for ((name, kept), (_, again)) in kept.iter().zip(&again) {
            // Sums over the uses of one tensor have another order, so that small elements differ by more of themselves.
            let difference = (kept - again).abs().max().double_value(&[]);
            let largest = kept.abs().max().double_value(&[]);
            assert!(
                difference <= 5e-6 * largest,
                "{name}: {difference} of {largest}"
            );
        }
    }

    /// Whole runs end within 1e-3 of the pipeline's.
    pub(super) fn samples_are_those_of_the_pipeline(&self) {
        let model = self.model();
        let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
        let loras = Vec::new();
        let denoiser = loaded(&*model, loras, options);
        let mut experts = One(denoiser);
        let defaults = model.defaults().unwrap();
        assert_eq!(defaults.size, (1024, 1024));
        let prompts: Vec<Value> = self.json("prompts.json");
        let collated = |number: &Value| {
            let text = prompts[number.as_u64()? as usize]["text"].as_str().unwrap();
            Some(model.collate(&[encoded(&*model, text)]).unwrap())
        };
        for run in self.json::<Vec<Value>>("runs.json") {
            let name = run["name"].as_str().unwrap();
            let steps = run["steps"].as_u64().unwrap() as usize;
            let (start, patch) = (self.of_run(name, "start"), model.geometry().patch);
            let tokens = start.size()[3] / patch * (start.size()[4] / patch);
            let settings = Sampling {
                objective: model.objective(),
                scheduler: defaults.scheduler,
                steps,
                flow_shift: match run["shift"].as_f64() {
                    Some(shift) => shift,
                    None => model.shift(tokens, steps).unwrap(),
                },
                guidance_scale: run["guidance"].as_f64().unwrap(),
                is_guidance_told: model.guidance().is_some(),
                guidance_scale_2: None,
                boundary_ratio: None,
            };
            let guided = Guided {
                positive: collated(&run["prompt"]).unwrap(),
                negative: collated(&run["negative"]),
            };
            self.sample_is_that_of_the_pipeline(name, &mut experts, &guided, &settings);
        }
    }

    /// Latents of a run, with one frame.
    fn of_run(&self, name: &str, what: &str) -> Tensor {
        let tensor = self.expected(&format!("run.{name}.{what}"));
        // Pipelines of pictures often have no frames.
        match tensor.dim() {
            4 => tensor.unsqueeze(2),
            _ => tensor,
        }
    }

    /// The run `name` ends within 1e-3 of the pipeline's.
    pub(super) fn sample_is_that_of_the_pipeline(
        &self,
        name: &str,
        experts: &mut One,
        guided: &Guided,
        settings: &Sampling,
    ) {
        let start = self.of_run(name, "start");
        let ours = sample(experts, &start, guided, settings, &mut |_| ());
        let apart = difference(&ours.unwrap(), &self.of_run(name, "latents"));
        assert!(apart <= 1e-3, "{name}: {apart}");
    }

    /// The levels of runs of several lengths and sizes are those of `shifts.json`.
    pub(super) fn noise_levels_are_those_of_the_pipeline(&self) {
        let model = self.model();
        let scheduler = model.defaults().unwrap().scheduler;
        for case in self.json::<Vec<Value>>("shifts.json") {
            let steps = case["steps"].as_u64().unwrap() as usize;
            let tokens = case["tokens"].as_i64().unwrap();
            let shift = model.shift(tokens, steps).unwrap();
            let levels = Schedule::new(scheduler, &Objective::FLOW, steps, shift).unwrap();
            let theirs: Vec<f32> = serde_json::from_value(case["sigmas"].clone()).unwrap();
            assert_eq!(levels.sigmas.len(), theirs.len());
            for (ours, theirs) in levels.sigmas.iter().zip(theirs) {
                assert!((ours - theirs).abs() < 1e-6, "{case}: {ours}");
            }
        }
    }

    /// A LoRA that diffusers loads makes the same picture here; the ranks of its layers.
    pub(super) fn a_lora_of_diffusers_does_what_it_does_there(&self) -> Vec<i64> {
        let model = self.model();
        let lora = LoraFile::read(&self.golden("lora.safetensors"), self.arch, None).unwrap();
        let ranks = lora
            .modules
            .values()
            .filter_map(|module| module.change.rank());
        let ranks = ranks.collect();
        let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
        let loras = vec![(lora, 1.0)];
        let denoiser = loaded(&*model, loras, options);
        let case = self.case("small");
        let ours = case.predicted(&*denoiser, Pass::Evaluate);
        let apart = difference(&ours, &self.expected("lora.made"));
        assert!(apart <= 1e-4, "{apart}");
        assert!(difference(&ours, &case.made) > 0.01);
        ranks
    }

    /// Copies the configs of the model, without weights.
    pub(super) fn configs(&self, to: &Path) {
        let parts = self.arch.folders.iter();
        let configs = parts.flat_map(|part| {
            ["config.json", "scheduler_config.json"].map(|name| format!("{part}/{name}"))
        });
        for name in super::INDEXES.map(str::to_owned).into_iter().chain(configs) {
            if self.golden("model").join(&name).is_file() {
                write(to, &name, &self.original(&name));
            }
        }
    }

    /// A config of the model.
    pub(super) fn original(&self, name: &str) -> Value {
        self.json(&format!("model/{name}"))
    }

    /// A folder of which a file has another value for a key is refused: of each case, the file, the key, the value and
    /// what is told.
    pub(super) fn parts_of_other_models_are_refused(&self, cases: &[(&str, &str, Value, &str)]) {
        let folder = tempfile::tempdir().unwrap();
        self.configs(folder.path());
        let open = |parts: &PartPaths| super::open(folder.path(), parts).map(|_| ());
        open(&PartPaths::default()).unwrap();
        for (file, key, value, told) in cases {
            let mut changed = self.original(file);
            changed[*key] = value.clone();
            write(folder.path(), file, &changed);
            let error = open(&PartPaths::default()).unwrap_err().to_string();
            assert!(error.contains(told), "{file}, {key}: {error}");
            write(folder.path(), file, &self.original(file));
        }
        let parts = PartPaths {
            transformer_2: Some(folder.path().join("other")),
            ..PartPaths::default()
        };
        let error = open(&parts).unwrap_err().to_string();
        assert!(error.contains("given as second transformer"), "{error}");
    }
}

/// Writes a config of a folder.
pub(super) fn write(folder: &Path, name: &str, value: &Value) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, value.to_string()).unwrap();
}

/// A model's only denoiser.
pub(super) struct One(pub(super) Box<dyn Denoiser>);

impl Experts for One {
    fn denoiser(&mut self, _: Expert) -> Result<&dyn Denoiser, Error> {
        Ok(&*self.0)
    }
}
