//! Held against diffusers and transformers: a tiny random model.

mod single_files;

use std::path::PathBuf;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::transformer::{Transformer, TransformerConfig};
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::kl::{KlAutoencoder, KlConfig};
use crate::diffusion::parts::tiles::Tiling;
use crate::diffusion::reference::{Case, FROZEN, Reference, difference, placer};
use crate::diffusion::{
    self, Conditions, Diffusion, TEXT, TEXT_TOKENS, load_autoencoder, load_text_encoder,
};
use crate::model::{Load, Pass};

const REFERENCE: Reference = Reference {
    name: "z_image",
    build: |builder| {
        let config = golden("model/transformer/config.json");
        let config = TransformerConfig::read(&config).unwrap();
        Box::new(Transformer::new(&config, Device::Cpu, builder).unwrap())
    },
};

fn golden(name: &str) -> PathBuf {
    REFERENCE.path(name)
}

fn model() -> Box<dyn Diffusion> {
    REFERENCE.model()
}

fn expected(name: &str) -> Tensor {
    REFERENCE.expected(name)
}

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = model();
    let tokenizer = model.tokenizer().unwrap();
    let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
    let mut truncated = 0;
    for (number, prompt) in REFERENCE.list("prompts.json").iter().enumerate() {
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

/// Noisy latents, times and conditions of a case, and the velocity that diffusers makes of them.
fn case(label: &str) -> Case {
    let read = |what: &str| expected(&format!("velocity.{label}.{what}"));
    let rows = ["text.0", "text.1"].map(|name| Conditions::of(TEXT, read(name)));
    Case {
        latents: read("latents"),
        times: read("levels") * 1000.0,
        conditions: model().collate(&rows).unwrap(),
        made: read("made"),
    }
}

#[test]
fn velocities_are_those_of_diffusers() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    for label in ["filled", "whole"] {
        let case = case(label);
        let apart = difference(&case.predicted(&*model, Pass::Evaluate), &case.made);
        assert!(apart <= 1e-4, "{label}: {apart}");
        // A picture of its own is the same as in a batch, in which its text is filled up.
        let tokens = case.conditions.get(TEXT_TOKENS).unwrap().int64_value(&[0]);
        let text = case.conditions.get(TEXT).unwrap().get(0);
        let text = Conditions::of(TEXT, text.narrow(0, 0, tokens));
        let alone = Case {
            latents: case.latents.narrow(0, 0, 1),
            times: case.times.narrow(0, 0, 1),
            conditions: super::model::collated(&[text]).unwrap(),
            made: case.made.narrow(0, 0, 1),
        };
        let apart = difference(&alone.predicted(&*model, Pass::Evaluate), &alone.made);
        assert!(apart <= 1e-4, "{label}, alone: {apart}");
    }
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close(&case("filled"));
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    // All lists, and parts of them.
    let streamed: [&[usize]; 2] = [&[0, 1, 2, 3], &[1, 3]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones(&case("filled"), &streamed);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient(&case("filled"));
}

#[test]
fn samples_are_those_of_the_pipeline() {
    let defaults = model().defaults().unwrap();
    assert_eq!((defaults.size, defaults.shift), ((1024, 1024), 3.0));
    REFERENCE.samples_are_those_of_the_pipeline();
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
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let Case {
        latents,
        times,
        conditions,
        ..
    } = case("filled");
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
    const FILES: [&str; 5] = [
        "model_index.json",
        "transformer/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
    ];
    let class = |name: &str| json!(["diffusers", name]);
    let changes = [
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
    ];
    REFERENCE.parts_of_other_models_are_refused(&FILES, &changes);
}
