//! Held against diffusers and transformers: a tiny random model.

mod single_files;

use std::path::PathBuf;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::model::TEXT_TOKENS;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::kl::{KlAutoencoder, KlConfig};
use crate::diffusion::sampling::{Guided, Sampling};
use crate::diffusion::testing::{
    Case, FROZEN, Golden, One, check_bfloat16, check_checkpoints, check_codec, check_run,
    check_streaming, denoiser, difference, encoded, placer,
};
use crate::diffusion::{
    self, Conditions, DenoiserOptions, Diffusion, Expert, PartPaths, TEXT, load_autoencoder,
    load_denoiser, load_text_encoder,
};
use crate::model::{Load, Pass};

const GOLDEN: Golden = Golden("z_image");

fn golden(name: &str) -> PathBuf {
    GOLDEN.path(name)
}

fn model() -> Box<dyn Diffusion> {
    super::ZImage::open(&golden("model"), &PartPaths::default())
        .map(|model| Box::new(model) as Box<dyn Diffusion>)
        .unwrap()
}

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = model();
    let tokenizer = model.tokenizer().unwrap();
    let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
    let mut truncated = 0;
    for (number, prompt) in GOLDEN.list("prompts.json").iter().enumerate() {
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
            &GOLDEN.expected(&format!("text.{number}")),
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
        check_codec(GOLDEN, &*codec, config.pixels_per_latent(), name);
    }
}

fn case(label: &str) -> Case {
    let read = |what: &str| GOLDEN.expected(&format!("velocity.{label}.{what}"));
    let rows = ["text.0", "text.1"].map(|name| Conditions::of(TEXT, read(name)));
    Case {
        noisy: read("latents"),
        times: read("levels") * 1000.0,
        conditions: model().collate(&rows).unwrap(),
        theirs: read("made"),
    }
}

#[test]
fn velocities_are_those_of_diffusers() {
    let (model, _) = denoiser(&*model(), FROZEN, Kind::Float);
    for label in ["filled", "whole"] {
        let case = case(label);
        let apart = case.apart(&*model);
        assert!(apart <= 1e-4, "{label}: {apart}");
        // A picture of its own is the same as in a batch, in which its text is filled up.
        let conditions = &case.conditions;
        let tokens = conditions.get(TEXT_TOKENS).unwrap().int64_value(&[0]);
        let text = conditions.get(TEXT).unwrap().get(0).narrow(0, 0, tokens);
        let alone = Case {
            noisy: case.noisy.narrow(0, 0, 1),
            times: case.times.narrow(0, 0, 1),
            conditions: super::model::collated(&[Conditions::of(TEXT, text)]).unwrap(),
            theirs: case.theirs.narrow(0, 0, 1),
        };
        let apart = alone.apart(&*model);
        assert!(apart <= 1e-4, "{label}, alone: {apart}");
    }
}

#[test]
fn bfloat16_is_close() {
    check_bfloat16(&*model(), &case("filled"));
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    // All lists, and parts of them.
    check_streaming(&*model(), &case("filled"), &[&[0, 1, 2, 3], &[1, 3]]);
}

#[test]
fn checkpoints_change_no_gradient() {
    check_checkpoints(&*model(), &case("filled"));
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
    let prompts = GOLDEN.list("prompts.json");
    let collated = |number: &Value| {
        let text = prompts[number.as_u64()? as usize]["text"].as_str().unwrap();
        Some(model.collate(&[encoded(&*model, text)]).unwrap())
    };
    for run in GOLDEN.list("runs.json") {
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
        check_run(GOLDEN, &mut experts, name, &guided, &settings);
    }
}

#[test]
fn a_picture_survives_the_autoencoder_of_the_folder() {
    let model = model();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    let latents = codec.encode_frame(&GOLDEN.expected("vae.whole.pixels"), None);
    let size = model.geometry().latents(16, 24, 1);
    assert_eq!(latents.unwrap().size(), [size[1], size[3], size[4]]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = denoiser(&*model(), FROZEN, Kind::Float);
    let Case {
        noisy: latents,
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
