//! What tests of several models have in common: a tiny random model, held against what its reference implementation makes
//! of the same inputs (`tests/reference`).

use std::path::PathBuf;

use placement::swap::SwapOptions;
use placement::{Placer, Policy};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::sampling::{Experts, Guided, Sampling, sample};
use super::{
    Conditions, Denoiser, DenoiserOptions, Diffusion, Expert, Part, PartPaths, load_denoiser,
    load_text_encoder,
};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::{Base, Builder, FileWeights, Pass, Streaming};
use crate::quant::Quantization;
use crate::{Error, Parameters};

/// The golden files of a model.
pub(crate) struct Reference {
    /// Their folder.
    pub(crate) name: &'static str,
    /// Builds the denoiser of the folder `model` in it.
    pub(crate) build: fn(&mut Builder) -> Box<dyn Denoiser>,
}

/// How a denoiser is held.
#[derive(Clone)]
pub(crate) struct How {
    pub(crate) base: Base,
    pub(crate) streaming: Option<Streaming>,
    pub(crate) quantization: Option<Quantization>,
}

pub(crate) const FROZEN: How = How {
    base: Base::Frozen(Kind::Float),
    streaming: None,
    quantization: None,
};

/// What a denoiser is given, and what the reference makes of it.
pub(crate) struct Case {
    pub(crate) latents: Tensor,
    pub(crate) times: Tensor,
    pub(crate) conditions: Conditions,
    pub(crate) made: Tensor,
}

impl Case {
    pub(crate) fn predicted(&self, model: &dyn Denoiser, pass: Pass) -> Tensor {
        let made = model.predict(&self.latents, &self.times, &self.conditions, pass);
        made.unwrap()
    }

    /// How far the deviation of the difference is from that of the reference.
    fn apart(&self, ours: &Tensor) -> f64 {
        f64::try_from((ours - &self.made).std(true) / self.made.std(true)).unwrap()
    }
}

pub(crate) fn placer() -> Placer {
    Placer::new(Device::Cpu, Policy::default()).unwrap()
}

pub(crate) fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

struct One(Box<dyn Denoiser>);

impl Experts for One {
    fn denoiser(&mut self, _: Expert) -> Result<&dyn Denoiser, Error> {
        Ok(&*self.0)
    }
}

impl Reference {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        crate::golden::golden(self.name).join(name)
    }

    pub(crate) fn model(&self) -> Box<dyn Diffusion> {
        super::open(&self.path("model"), &PartPaths::default()).unwrap()
    }

    /// What the reference was given, and what it made of it.
    pub(crate) fn expected(&self, name: &str) -> Tensor {
        let file = SafetensorsFile::open(&self.path("expected.safetensors")).unwrap();
        file.read(name, Kind::Float).unwrap()
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    pub(crate) fn list(&self, name: &str) -> Vec<Value> {
        self.json(name).as_array().unwrap().clone()
    }

    /// The conditions of a prompt, without a batch dimension.
    pub(crate) fn encoded(&self, text: &str) -> Conditions {
        let model = self.model();
        let tokens = model.tokenizer().unwrap().tokens(text).unwrap();
        let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
        let mut conditions = model.of_tokens(&tokens).unwrap();
        conditions.extend(encoder.encode(&tokens[0]).unwrap());
        conditions
    }

    pub(crate) fn denoiser(&self, how: How, compute: Kind) -> (Box<dyn Denoiser>, Parameters) {
        let tensors = self.model().weights(Part::Denoiser(Expert::High)).unwrap();
        let (mut placer, mut parameters) = (placer(), Parameters::default());
        let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, how.base)
            .streamed(how.streaming)
            .quantized(how.quantization);
        ((self.build)(&mut builder), parameters)
    }

    pub(crate) fn bfloat16_is_close(&self, case: &Case) {
        let how = How {
            base: Base::Frozen(Kind::BFloat16),
            ..FROZEN
        };
        let (model, _) = self.denoiser(how, Kind::BFloat16);
        let apart = case.apart(&case.predicted(&*model, Pass::Evaluate));
        assert!(apart > 0.0 && apart < 0.1, "{apart}");
    }

    /// Each of `streamed` are blocks, counted through all lists.
    pub(crate) fn streamed_and_quantised_blocks_compute_as_resident_ones(
        &self,
        case: &Case,
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
                let (model, _) = self.denoiser(how, Kind::Float);
                let streamed = model.lists().iter().any(|list| list.report().is_some());
                (case.predicted(&*model, Pass::Evaluate), streamed)
            };
            let (resident, is_streamed) = made(None);
            assert!(!is_streamed);
            for blocks in streamed {
                let (ours, is_streamed) = made(Some(blocks));
                assert!(is_streamed && ours == resident, "{quantization:?}");
            }
            let apart = case.apart(&resident);
            assert!(apart < 0.4, "{quantization:?}: {apart}");
        }
    }

    /// Gradients of every parameter, with checkpoints and without.
    pub(crate) fn checkpoints_change_no_gradient(&self, case: &Case) {
        let gradients = |checkpoint: bool| {
            let how = How {
                base: Base::Trained,
                ..FROZEN
            };
            let (model, parameters) = self.denoiser(how, Kind::Float);
            let made = case.predicted(&*model, Pass::Train { checkpoint });
            torch_ext::backward(&made.square().mean(Kind::Float)).unwrap();
            let gradient = |parameter: &crate::Parameter| {
                let gradient = parameter.tensor.grad();
                assert!(gradient.defined(), "{}", parameter.name);
                (parameter.name.clone(), gradient)
            };
            parameters.iter().map(gradient).collect::<Vec<_>>()
        };
        let (kept, again) = (gradients(false), gradients(true));
        let file = self.model().weights(Part::Denoiser(Expert::High)).unwrap();
        assert_eq!(kept.len(), file.names().len());
        for ((name, kept), (_, again)) in kept.iter().zip(&again) {
            assert!(kept.allclose(again, 1e-5, 1e-9, false), "{name}");
        }
    }

    /// Those of `runs.json`, with the prompts of `prompts.json`.
    pub(crate) fn samples_are_those_of_the_pipeline(&self) {
        let model = self.model();
        let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
        let denoiser =
            load_denoiser(&*model, Expert::High, Vec::new(), options, &mut placer()).unwrap();
        let mut experts = One(denoiser);
        let defaults = model.defaults().unwrap();
        let prompts = self.list("prompts.json");
        let collated = |number: &Value| {
            let text = prompts[number.as_u64()? as usize]["text"].as_str().unwrap();
            Some(model.collate(&[self.encoded(text)]).unwrap())
        };
        for run in self.list("runs.json") {
            let name = run["name"].as_str().unwrap();
            let settings = Sampling {
                objective: model.objective(),
                scheduler: defaults.scheduler,
                steps: run["steps"].as_u64().unwrap() as usize,
                flow_shift: run["shift"].as_f64().unwrap(),
                guidance_scale: run["guidance"].as_f64().unwrap(),
                guidance_scale_2: None,
                boundary_ratio: None,
            };
            let guided = Guided {
                positive: collated(&run["prompt"]).unwrap(),
                negative: collated(&run["negative"]),
            };
            // Some pipelines of pictures have no frames.
            let read = |what: &str| {
                let tensor = self.expected(&format!("run.{name}.{what}"));
                match tensor.dim() {
                    4 => tensor.unsqueeze(2),
                    _ => tensor,
                }
            };
            let ours = sample(
                &mut experts,
                &read("start"),
                &guided,
                &settings,
                &mut |_| (),
            );
            let apart = difference(&ours.unwrap(), &read("latents"));
            assert!(apart <= 1e-3, "{name}: {apart}");
        }
    }

    /// Every `(file, key, value, told)` that does not fit is refused with that text. `index` is the file that names the
    /// parts, of which a part has the entry `[library, class]`.
    pub(crate) fn parts_of_other_models_are_refused(
        &self,
        files: &[&str],
        changes: &[(&str, &str, Value, &str)],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, value: &Value| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), value.to_string()).unwrap();
        };
        let original = |name: &str| self.json(&format!("model/{name}"));
        for name in files {
            write(name, &original(name));
        }
        let open = |parts: &PartPaths| super::open(folder.path(), parts);
        assert!(open(&PartPaths::default()).is_ok());
        for (file, key, value, told) in changes {
            let mut changed = original(file);
            changed[*key] = value.clone();
            write(file, &changed);
            let error = open(&PartPaths::default()).unwrap_err().to_string();
            assert!(error.contains(told), "{file}, {key}: {error}");
            write(file, &original(file));
        }
        let parts = PartPaths {
            transformer_2: Some(path("other")),
            ..PartPaths::default()
        };
        let error = open(&parts).unwrap_err().to_string();
        assert!(error.contains("given as second transformer"), "{error}");
    }
}
