//! What tests of several models do alike: each is held against what diffusers made of a tiny random model.

use std::path::PathBuf;

use placement::swap::SwapOptions;
use placement::{Placer, Policy};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::parts::tiles::Tiling;
use super::sampling::{Experts, Guided, Sampling, sample};
use super::{Conditions, Denoiser, Diffusion, Expert, Part, load_autoencoder, load_text_encoder};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::{Base, Builder, FileWeights, Pass, Streaming};
use crate::quant::Quantization;
use crate::{Error, Parameters};

/// The folder of a model's golden files.
#[derive(Clone, Copy)]
pub(super) struct Golden(pub(super) &'static str);

impl Golden {
    pub(super) fn path(self, name: &str) -> PathBuf {
        crate::golden::golden(self.0).join(name)
    }

    /// What diffusers was given, and what it made of it.
    pub(super) fn expected(self, name: &str) -> Tensor {
        let file = SafetensorsFile::open(&self.path("expected.safetensors")).unwrap();
        file.read(name, Kind::Float).unwrap()
    }

    pub(super) fn json(self, name: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    pub(super) fn list(self, name: &str) -> Vec<Value> {
        serde_json::from_value(self.json(name)).unwrap()
    }
}

pub(super) fn placer() -> Placer {
    Placer::new(Device::Cpu, Policy::default()).unwrap()
}

pub(super) fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

/// The difference of all elements relative to their spread.
fn spread(ours: &Tensor, theirs: &Tensor) -> f64 {
    f64::try_from((ours - theirs).std(true) / theirs.std(true)).unwrap()
}

/// Holds the autoencoder of `model` against the pictures and latents `name`, whole and in tiles of eight latents.
pub(super) fn check_autoencoder(golden: Golden, model: &dyn Diffusion, name: &str) {
    let codec = load_autoencoder(model, Kind::Float, &mut placer()).unwrap();
    check_codec(golden, &*codec, model.geometry().pixels, name);
}

/// The same for an autoencoder alone, of so many pixels per latent.
pub(super) fn check_codec(
    golden: Golden,
    codec: &dyn super::parts::codec::MediaCodec,
    step: i64,
    name: &str,
) {
    let tiles = Tiling {
        size: (8 * step, 8 * step),
        stride: (6 * step, 6 * step),
    };
    for (label, tiling) in [("whole", None), ("tiled", Some(tiles))] {
        let read = |what: &str| golden.expected(&format!("{name}.{label}.{what}"));
        // Relative to the deviation of what is made.
        let check = |what: &str, ours: &Tensor, theirs: &Tensor| {
            let spread = f64::try_from(theirs.std(true)).unwrap();
            let apart = difference(ours, theirs) / spread;
            assert!(apart <= 1e-5, "{name}, {label}, {what}: {apart}");
        };
        let latents = codec.encode_frame(&read("pixels"), tiling).unwrap();
        check("latents", &latents, &read("latents"));
        let pixels = codec.decode_frame(&read("noise"), tiling).unwrap();
        check("decoded", &pixels, &read("decoded"));
        if tiling.is_some() {
            // Tiles that made no difference would be no tiles.
            let whole = codec.encode_frame(&read("pixels"), None).unwrap();
            assert!(difference(&whole, &latents) > 1e-3, "{name}");
        }
    }
    let odd = Tensor::zeros([1, 3, step, step + 1], (Kind::Float, Device::Cpu));
    let error = codec.encode_frame(&odd, None).unwrap_err().to_string();
    assert!(error.contains(&format!("multiples of {step}")), "{error}");
    let gaps = Tiling {
        size: (step, step),
        stride: (2 * step, 2 * step),
    };
    let pixels = golden.expected(&format!("{name}.whole.pixels"));
    let error = codec.encode_frame(&pixels, Some(gaps)).unwrap_err();
    assert!(error.to_string().contains("must not leave gaps"), "{error}");
}

/// How a denoiser is built.
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

pub(super) fn denoiser(
    model: &dyn Diffusion,
    how: How,
    compute: Kind,
) -> (Box<dyn Denoiser>, Parameters) {
    let tensors = model.weights(Part::Denoiser(Expert::High)).unwrap();
    let (mut placer, mut parameters) = (placer(), Parameters::default());
    let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
    let mut builder = Builder::new(&mut source, &mut parameters, compute, how.base)
        .streamed(how.streaming)
        .quantized(how.quantization);
    let model = model.denoiser(Expert::High, Device::Cpu, &mut builder);
    (model.unwrap(), parameters)
}

/// What a denoiser is given, and what diffusers predicts.
pub(super) struct Case {
    pub(super) noisy: Tensor,
    pub(super) times: Tensor,
    pub(super) conditions: Conditions,
    pub(super) theirs: Tensor,
}

impl Case {
    pub(super) fn predicted(&self, model: &dyn Denoiser, pass: Pass) -> Tensor {
        let made = model.predict(&self.noisy, &self.times, &self.conditions, pass);
        made.unwrap()
    }

    /// How far apart the predictions are.
    pub(super) fn apart(&self, model: &dyn Denoiser) -> f64 {
        difference(&self.predicted(model, Pass::Evaluate), &self.theirs)
    }
}

pub(super) fn check_bfloat16(model: &dyn Diffusion, case: &Case) {
    let how = How {
        base: Base::Frozen(Kind::BFloat16),
        ..FROZEN
    };
    let (model, _) = denoiser(model, how, Kind::BFloat16);
    let apart = spread(&case.predicted(&*model, Pass::Evaluate), &case.theirs);
    assert!(apart > 0.0 && apart < 0.1, "{apart}");
}

/// Each of the `choices` of streamed blocks gives the bits of resident ones, quantised or not.
pub(super) fn check_streaming(model: &dyn Diffusion, case: &Case, choices: &[&[usize]]) {
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
            let (model, _) = denoiser(model, how, Kind::Float);
            let streamed = model.lists().iter().any(|list| list.report().is_some());
            (case.predicted(&*model, Pass::Evaluate), streamed)
        };
        let (resident, streamed) = made(None);
        assert!(!streamed);
        for blocks in choices {
            let (ours, streamed) = made(Some(blocks));
            assert!(streamed && ours == resident, "{quantization:?}, {blocks:?}");
        }
        let apart = spread(&resident, &case.theirs);
        assert!(apart < 0.4, "{quantization:?}: {apart}");
    }
}

/// Gradients of every parameter, with checkpoints and without.
pub(super) fn check_checkpoints(model: &dyn Diffusion, case: &Case) {
    let gradients = |checkpoint: bool| {
        let how = How {
            base: Base::Trained,
            ..FROZEN
        };
        let (model, parameters) = denoiser(model, how, Kind::Float);
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
    let file = model.weights(Part::Denoiser(Expert::High)).unwrap();
    assert_eq!(kept.len(), file.names().len());
    for ((name, kept), (_, again)) in kept.iter().zip(&again) {
        assert!(kept.allclose(again, 1e-5, 1e-8, false), "{name}");
    }
}

/// The conditions of a text, without a batch dimension.
pub(super) fn encoded(model: &dyn Diffusion, text: &str) -> Conditions {
    let tokens = model.tokenizer().unwrap().tokens(text).unwrap();
    let mut conditions = Conditions::default();
    for (number, tokens) in tokens.iter().enumerate() {
        let encoder = load_text_encoder(model, number, Kind::Float, false, &mut placer());
        conditions
            .join(encoder.unwrap().encode(tokens).unwrap())
            .unwrap();
    }
    conditions
}

/// Holds the run `name` against the latents that the pipeline ends with.
pub(super) fn check_run(
    golden: Golden,
    experts: &mut One,
    name: &str,
    guided: &Guided,
    settings: &Sampling,
) {
    let read = |what: &str| golden.expected(&format!("run.{name}.{what}")).unsqueeze(2);
    let ours = sample(experts, &read("start"), guided, settings, &mut |_| ());
    let apart = difference(&ours.unwrap(), &read("latents"));
    assert!(apart <= 1e-3, "{name}: {apart}");
}

/// A model's only denoiser.
pub(super) struct One(pub(super) Box<dyn Denoiser>);

impl Experts for One {
    fn denoiser(&mut self, _: Expert) -> Result<&dyn Denoiser, Error> {
        Ok(&*self.0)
    }
}
