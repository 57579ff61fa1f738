//! Held against diffusers and transformers: a tiny random model.

mod single_files;

use std::path::PathBuf;

use placement::swap::SwapOptions;
use placement::{Placer, Policy};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::model::TEXT_TOKENS;
use super::transformer::{Transformer, TransformerConfig};
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::kl::{KlAutoencoder, KlConfig};
use crate::diffusion::parts::tiles::Tiling;
use crate::diffusion::sampling::{Experts, Guided, Sampling, sample};
use crate::diffusion::{
    self, Conditions, Denoiser, DenoiserOptions, Diffusion, Expert, Part, PartPaths, TEXT,
    load_autoencoder, load_denoiser, load_text_encoder,
};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::{Base, Builder, FileWeights, Load, Pass, Streaming};
use crate::quant::Quantization;
use crate::{Error, Parameters};

fn golden(name: &str) -> PathBuf {
    crate::golden::golden("z_image").join(name)
}

fn model() -> Box<dyn Diffusion> {
    super::ZImage::open(&golden("model"), &PartPaths::default())
        .map(|model| Box::new(model) as Box<dyn Diffusion>)
        .unwrap()
}

fn placer() -> Placer {
    Placer::new(Device::Cpu, Policy::default()).unwrap()
}

/// What diffusers was given, and what it made of it.
fn expected(name: &str) -> Tensor {
    let file = SafetensorsFile::open(&golden("expected.safetensors")).unwrap();
    file.read(name, Kind::Float).unwrap()
}

fn json_of(name: &str) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

/// The conditions of a prompt, without a batch dimension.
fn encoded(model: &dyn Diffusion, text: &str) -> Conditions {
    let tokens = model.tokenizer().unwrap().tokens(text).unwrap();
    let encoder = load_text_encoder(model, 0, Kind::Float, false, &mut placer()).unwrap();
    encoder.encode(&tokens[0]).unwrap()
}

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = model();
    let tokenizer = model.tokenizer().unwrap();
    let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
    let mut truncated = 0;
    for (number, prompt) in json_of("prompts.json").iter().enumerate() {
        let text = prompt["text"].as_str().unwrap();
        let theirs: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        let ours = tokenizer.tokens(text).unwrap().remove(0);
        let read = theirs.len().min(512);
        assert_eq!(ours, theirs[..read], "{text:?}");
        assert_eq!(tokenizer.length(text).unwrap(), (theirs.len(), 512));
        truncated += usize::from(read < theirs.len());
        let rows = encoder.encode(&ours).unwrap();
        let apart = difference(
            rows.get(TEXT).unwrap(),
            &expected(&format!("text.{number}")),
        );
        assert!(apart <= 1e-4, "{text:?}: {apart}");
    }
    assert_eq!(truncated, 1);
    for tokens in [vec![], vec![1; 513], vec![290]] {
        let error = encoder.encode(&tokens).unwrap_err().to_string();
        assert!(
            error.contains("from 1 to 512 are encoded, of 290"),
            "{error}"
        );
    }
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    for (name, folder) in [("vae", "model/vae"), ("quant", "quant-autoencoder")] {
        let folder = golden(folder);
        let config = KlConfig::read(&folder.join("config.json")).unwrap();
        let file = PartFile::open(&PartNames::DIFFUSERS, &folder).unwrap();
        let codec = Load::whole(Kind::Float)
            .frozen(&file, &mut placer(), |device, builder| {
                let codec: Box<dyn diffusion::parts::codec::MediaCodec> =
                    Box::new(KlAutoencoder::new(&config, device, builder)?);
                Ok(codec)
            })
            .unwrap();
        let step = config.pixels_per_latent();
        let tiles = Tiling {
            size: (8 * step, 8 * step),
            stride: (6 * step, 6 * step),
        };
        for (label, tiling) in [("whole", None), ("tiled", Some(tiles))] {
            let read = |what: &str| expected(&format!("{name}.{label}.{what}"));
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
        let pixels = expected(&format!("{name}.whole.pixels"));
        let error = codec.encode_frame(&pixels, Some(gaps)).unwrap_err();
        assert!(error.to_string().contains("must not leave gaps"), "{error}");
    }
}

struct How {
    base: Base,
    streaming: Option<Streaming>,
    quantization: Option<Quantization>,
}

const FROZEN: How = How {
    base: Base::Frozen(Kind::Float),
    streaming: None,
    quantization: None,
};

fn transformer(how: How, compute: Kind) -> (Transformer, Parameters) {
    let config = golden("model/transformer/config.json");
    let config = TransformerConfig::read(&config).unwrap();
    let tensors = model().weights(Part::Denoiser(Expert::High)).unwrap();
    let (mut placer, mut parameters) = (placer(), Parameters::default());
    let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
    let mut builder = Builder::new(&mut source, &mut parameters, compute, how.base)
        .streamed(how.streaming)
        .quantized(how.quantization);
    let model = Transformer::new(&config, Device::Cpu, &mut builder).unwrap();
    (model, parameters)
}

/// Noisy latents, times and conditions of a case, and the velocity that diffusers makes of them.
fn case(label: &str) -> (Tensor, Tensor, Conditions, Tensor) {
    let read = |what: &str| expected(&format!("velocity.{label}.{what}"));
    let rows = ["text.0", "text.1"].map(|name| Conditions::of(TEXT, read(name)));
    let conditions = model().collate(&rows).unwrap();
    (
        read("latents"),
        read("levels") * 1000.0,
        conditions,
        read("made"),
    )
}

fn velocity(model: &Transformer, label: &str, pass: Pass) -> (Tensor, Tensor) {
    let (latents, times, conditions, theirs) = case(label);
    let ours = model.predict(&latents, &times, &conditions, pass).unwrap();
    (ours, theirs)
}

#[test]
fn velocities_are_those_of_diffusers() {
    let (model, _) = transformer(FROZEN, Kind::Float);
    for label in ["filled", "whole"] {
        let (ours, theirs) = velocity(&model, label, Pass::Evaluate);
        let apart = difference(&ours, &theirs);
        assert!(apart <= 1e-4, "{label}: {apart}");
        // A picture of its own is the same as in a batch, in which its text is filled up.
        let (latents, times, conditions, _) = case(label);
        let tokens = conditions.get(TEXT_TOKENS).unwrap().int64_value(&[0]);
        let text = conditions.get(TEXT).unwrap().get(0).narrow(0, 0, tokens);
        let alone = super::model::collated(&[Conditions::of(TEXT, text)]).unwrap();
        let (latents, times) = (latents.narrow(0, 0, 1), times.narrow(0, 0, 1));
        let alone = model.predict(&latents, &times, &alone, Pass::Evaluate);
        let apart = difference(&alone.unwrap(), &theirs.narrow(0, 0, 1));
        assert!(apart <= 1e-4, "{label}, alone: {apart}");
    }
}

#[test]
fn bfloat16_is_close() {
    let how = How {
        base: Base::Frozen(Kind::BFloat16),
        ..FROZEN
    };
    let (model, _) = transformer(how, Kind::BFloat16);
    let (ours, theirs) = velocity(&model, "filled", Pass::Evaluate);
    let apart = f64::try_from((&ours - &theirs).std(true) / theirs.std(true)).unwrap();
    assert!(apart > 0.0 && apart < 0.1, "{apart}");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    for quantization in [None, Some(Quantization::Int8), Some(Quantization::Nf4)] {
        let made = |blocks: Option<Vec<usize>>| {
            let streaming = blocks.map(|blocks| Streaming {
                blocks,
                options: SwapOptions::default(),
            });
            let how = How {
                streaming,
                quantization,
                ..FROZEN
            };
            let (model, _) = transformer(how, Kind::Float);
            let streamed = model.lists().iter().any(|list| list.report().is_some());
            let (ours, theirs) = velocity(&model, "filled", Pass::Evaluate);
            (ours, theirs, streamed)
        };
        let (resident, theirs, streamed) = made(None);
        assert!(!streamed);
        // All lists, and parts of them.
        for blocks in [vec![0, 1, 2, 3], vec![1, 3]] {
            let (ours, _, streamed) = made(Some(blocks));
            assert!(streamed && ours == resident, "{quantization:?}");
        }
        let apart = f64::try_from((resident - &theirs).std(true) / theirs.std(true)).unwrap();
        assert!(apart < 0.4, "{quantization:?}: {apart}");
    }
}

/// Gradients of every parameter, with checkpoints and without.
#[test]
fn checkpoints_change_no_gradient() {
    let gradients = |checkpoint: bool| {
        let how = How {
            base: Base::Trained,
            ..FROZEN
        };
        let (model, parameters) = transformer(how, Kind::Float);
        let (velocity, _) = velocity(&model, "filled", Pass::Train { checkpoint });
        torch_ext::backward(&velocity.square().mean(Kind::Float)).unwrap();
        let gradient = |parameter: &crate::Parameter| {
            let gradient = parameter.tensor.grad();
            assert!(gradient.defined(), "{}", parameter.name);
            (parameter.name.clone(), gradient)
        };
        parameters.iter().map(gradient).collect::<Vec<_>>()
    };
    let (kept, again) = (gradients(false), gradients(true));
    let file = model().weights(Part::Denoiser(Expert::High)).unwrap();
    assert_eq!(kept.len(), file.names().len());
    for ((name, kept), (_, again)) in kept.iter().zip(&again) {
        assert!(kept.allclose(again, 1e-5, 1e-9, false), "{name}");
    }
}

struct One(Box<dyn Denoiser>);

impl Experts for One {
    fn denoiser(&mut self, _: Expert) -> Result<&dyn Denoiser, Error> {
        Ok(&*self.0)
    }
}

#[test]
fn samples_are_those_of_the_pipeline() {
    let model = model();
    let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
    let denoiser =
        load_denoiser(&*model, Expert::High, Vec::new(), options, &mut placer()).unwrap();
    let mut experts = One(denoiser);
    let defaults = model.defaults().unwrap();
    assert_eq!((defaults.size, defaults.shift), ((1024, 1024), 3.0));
    let prompts = json_of("prompts.json");
    let collated = |number: &Value| {
        let text = prompts[number.as_u64()? as usize]["text"].as_str().unwrap();
        Some(model.collate(&[encoded(&*model, text)]).unwrap())
    };
    for run in json_of("runs.json") {
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
        let read = |what: &str| expected(&format!("run.{name}.{what}")).unsqueeze(2);
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

#[test]
fn a_picture_survives_the_autoencoder_of_the_folder() {
    let model = model();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    let latents = codec.encode_frame(&expected("vae.whole.pixels"), None);
    let size = model.geometry().latents(16, 24, 1);
    assert_eq!(latents.unwrap().size(), [size[1], size[3], size[4]]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = transformer(FROZEN, Kind::Float);
    let (latents, times, conditions, _) = case("filled");
    for size in [
        [2, 5, 1, 6, 8],
        [2, 4, 2, 6, 8],
        [2, 4, 1, 5, 8],
        [2, 4, 1, 6, 66],
    ] {
        let latents = Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let error = model.predict(&latents, &times, &conditions, Pass::Evaluate);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("this model takes 4 channels"), "{error}");
    }
    let text = Tensor::zeros([600, 24], (Kind::Float, Device::Cpu));
    let row = || Conditions::of(TEXT, text.shallow_clone());
    let long = super::model::collated(&[row(), row()]).unwrap();
    let error = model.predict(&latents, &times, &long, Pass::Evaluate);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("from 1 to 576 tokens"), "{error}");
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    const FILES: [&str; 5] = [
        "model_index.json",
        "transformer/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
    ];
    let original = |name: &str| -> Value {
        let text = std::fs::read_to_string(golden("model").join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let write = |name: &str, value: &Value| {
        std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        std::fs::write(path(name), value.to_string()).unwrap();
    };
    for name in FILES {
        write(name, &original(name));
    }
    let open = || super::ZImage::open(folder.path(), &PartPaths::default());
    assert!(open().is_ok());
    let class = |name: &str| json!(["diffusers", name]);
    for (file, key, value, told) in [
        (
            FILES[0],
            "vae",
            class("AutoencoderDC"),
            "`vae` is \"AutoencoderDC\"",
        ),
        (
            FILES[0],
            "scheduler",
            class("DDIMScheduler"),
            "`scheduler` is",
        ),
        (
            FILES[0],
            "transformer",
            class("FluxTransformer2DModel"),
            "`transformer` is",
        ),
        (
            FILES[1],
            "in_channels",
            json!(16),
            "has latents of 4 channels",
        ),
        (
            FILES[1],
            "cap_feat_dim",
            json!(2560),
            "takes the state before the last layer",
        ),
        (
            FILES[1],
            "siglip_feat_dim",
            json!(1152),
            "`siglip_feat_dim`",
        ),
        (FILES[2], "act_fn", json!("relu"), "`act_fn`"),
        (FILES[3], "model_type", json!("bert"), "`model_type`"),
        (
            FILES[4],
            "use_dynamic_shifting",
            json!(true),
            "`use_dynamic_shifting`",
        ),
    ] {
        let mut changed = original(file);
        changed[key] = value;
        write(file, &changed);
        let error = open().unwrap_err().to_string();
        assert!(error.contains(told), "{file}, {key}: {error}");
        write(file, &original(file));
    }
    let parts = PartPaths {
        transformer_2: Some(path("other")),
        ..PartPaths::default()
    };
    let error = super::ZImage::open(folder.path(), &parts)
        .unwrap_err()
        .to_string();
    assert!(error.contains("given as second transformer"), "{error}");
}
