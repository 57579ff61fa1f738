//! Held against diffusers, transformers and PEFT: a tiny random model.

mod single_files;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::ARCH;
use crate::diffusion::parts::clip::POOLED;
use crate::diffusion::reference::{Case, FROZEN, Reference, difference, loaded, placer, write};
use crate::diffusion::{Conditions, DenoiserOptions, GUIDANCE, PartPaths, TEXT, load_text_encoder};
use crate::model::Pass;

const REFERENCE: Reference = Reference {
    conditions: &[(TEXT, "text"), (POOLED, "pooled"), (GUIDANCE, "guidance")],
    ..Reference::of(&ARCH)
};

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = REFERENCE.model();
    let tokenizer = model.tokenizer().unwrap();
    assert_eq!(model.text_encoders(), 2);
    let encoders =
        [0, 1].map(|number| load_text_encoder(&*model, number, Kind::Float, false, &mut placer()));
    let encoders = encoders.map(Result::unwrap);
    let prompts = REFERENCE.json::<Vec<Value>>("prompts.json");
    for (number, prompt) in prompts.iter().enumerate() {
        let text = prompt["text"].as_str().unwrap();
        let theirs: Vec<Vec<u32>> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        assert_eq!(tokenizer.tokens(text).unwrap(), theirs, "{text:?}");
        let length = prompt["length"].as_u64().unwrap() as usize;
        assert_eq!(tokenizer.length(text).unwrap(), (length, 512), "{text:?}");
        let mut ours = encoders[0].encode(&theirs[0]).unwrap();
        assert!(ours.find(TEXT).is_none());
        ours.join(encoders[1].encode(&theirs[1]).unwrap()).unwrap();
        let states = ours.get(TEXT).unwrap().slice(0, None, None, 7);
        for (ours, name) in [(&states, "text"), (ours.get(POOLED).unwrap(), "pooled")] {
            let apart = difference(ours, &REFERENCE.expected(&format!("{name}.{number}")));
            assert!(apart <= 1e-4, "{text:?}, {name}: {apart}");
        }
    }
    assert!(prompts.last().unwrap()["length"].as_u64() > Some(512));
    // Blocks that are streamed one by one share the first one's table.
    let tokens = tokenizer.tokens("a grey cat").unwrap();
    let streamed = load_text_encoder(&*model, 1, Kind::Float, true, &mut placer()).unwrap();
    let [whole, streamed] = [&encoders[1], &streamed].map(|encoder| {
        let rows = encoder.encode(&tokens[1]).unwrap();
        rows.get(TEXT).unwrap().shallow_clone()
    });
    assert_eq!(whole, streamed);
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    REFERENCE.pictures_and_latents_are_those_of_diffusers(&[("vae", "model/vae")]);
}

fn first(batch: &Conditions) -> Conditions {
    let batch = batch.shallow_clone();
    let first = batch.map(|_, tensor| Ok::<_, crate::Error>(tensor.f_narrow(0, 0, 1)?));
    first.unwrap()
}

#[test]
fn velocities_are_those_of_diffusers() {
    REFERENCE.velocities_are_those_of_diffusers(&["small", "wide", "high"], first);
}

/// Without a word about guidance, it is 1, at which the model learns.
#[test]
fn guidance_is_told_and_one_if_nothing_is_said() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let case = REFERENCE.case("small");
    let made = |guidance: Option<[f32; 2]>| {
        let mut conditions = Conditions::default();
        for name in [TEXT, POOLED] {
            conditions.insert(name, case.conditions.get(name).unwrap().shallow_clone());
        }
        if let Some(guidance) = guidance {
            conditions.insert(GUIDANCE, Tensor::from_slice(&guidance));
        }
        let made = model.predict(&case.latents, &case.times, &conditions, Pass::Evaluate);
        made.unwrap()
    };
    assert_eq!(made(None), made(Some([1.0, 1.0])));
    assert!(difference(&made(None), &case.made) > 1e-3);
    assert!(difference(&made(Some([3.5, 1.0])), &case.made) <= 1e-4);
}

/// One that is not told the guidance, beside the parts of the other.
#[test]
fn schnell_computes_without_guidance() {
    let folder = tempfile::tempdir().unwrap();
    REFERENCE.configs(folder.path());
    let mut config = REFERENCE.original("transformer/config.json");
    config["guidance_embeds"] = json!(false);
    write(folder.path(), "transformer/config.json", &config);
    let mut scheduler = REFERENCE.original("scheduler/scheduler_config.json");
    scheduler["use_dynamic_shifting"] = json!(false);
    scheduler["shift"] = json!(1.0);
    write(folder.path(), "scheduler/scheduler_config.json", &scheduler);
    let file = "transformer/diffusion_pytorch_model.safetensors";
    let from = REFERENCE.golden("model").join(file);
    std::fs::copy(from, folder.path().join(file)).unwrap();
    let parts = PartPaths {
        tokenizer: Some(REFERENCE.golden("model")),
        ..PartPaths::default()
    };
    let model = crate::diffusion::open(folder.path(), &parts).unwrap();
    assert!(model.is_distilled() && model.guidance().is_none());
    assert_eq!(model.shift(4096, 4).unwrap(), 1.0);
    let tokens = model.tokenizer().unwrap().tokens("a grey cat").unwrap();
    assert_eq!([tokens[0].len(), tokens[1].len()], [77, 256]);
    let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
    let denoiser = loaded(&*model, Vec::new(), options);
    let ours = REFERENCE
        .case("small")
        .predicted(&*denoiser, Pass::Evaluate);
    let apart = difference(&ours, &REFERENCE.expected("schnell"));
    assert!(apart <= 1e-4, "{apart}");
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("wide");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    let blocks: [&[usize]; 2] = [&[0, 1, 2, 3], &[1, 2]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("small", &blocks);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("small");
}

#[test]
fn samples_are_those_of_the_pipeline() {
    REFERENCE.samples_are_those_of_the_pipeline();
}

#[test]
fn noise_levels_are_those_of_the_pipeline() {
    REFERENCE.noise_levels_are_those_of_the_pipeline();
    let model = REFERENCE.model();
    let defaults = model.defaults().unwrap();
    // 4 pixels per latent: the default's 1024 × 1024 are 128 × 128 tokens.
    assert_eq!(defaults.shift, model.shift(128 * 128, 50).unwrap());
}

/// A LoRA that diffusers loads makes the same picture here.
#[test]
fn a_lora_of_diffusers_does_what_it_does_there() {
    let ranks = REFERENCE.a_lora_of_diffusers_does_what_it_does_there();
    assert_eq!(ranks.len(), 34);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let Case {
        latents,
        times,
        conditions,
        ..
    } = REFERENCE.case("small");
    let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
    for size in [[2, 8, 1, 6, 8], [2, 4, 2, 6, 8], [2, 4, 1, 5, 8]] {
        let made = model.predict(&zeros(&size), &times, &conditions, Pass::Evaluate);
        let error = made.unwrap_err().to_string();
        assert!(error.contains("this model takes 4 channels"), "{error}");
    }
    for (name, size, told) in [
        (TEXT, &[2, 7, 16][..], "takes one of width 24 for each"),
        (TEXT, &[1, 7, 24], "takes one of width 24 for each"),
        (POOLED, &[2, 8], "this model takes [2, 16]"),
    ] {
        let mut other = conditions.shallow_clone();
        other.insert(name, zeros(size));
        let made = model.predict(&latents, &times, &other, Pass::Evaluate);
        let error = made.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    const INDEX: &str = "model_index.json";
    const SCHEDULER: &str = "scheduler/scheduler_config.json";
    let class = |name: &str| json!(["diffusers", name]);
    let of_t5 = "text_encoder_2/config.json";
    REFERENCE.parts_of_other_models_are_refused(&[
        (INDEX, "vae", class("AutoencoderKLFlux2"), "`vae` is"),
        (
            INDEX,
            "text_encoder_2",
            class("UMT5EncoderModel"),
            "`text_encoder_2` is",
        ),
        (
            INDEX,
            "_class_name",
            json!("FluxKontextPipeline"),
            "\"FluxPipeline\"",
        ),
        (
            "transformer/config.json",
            "joint_attention_dim",
            json!(32),
            "takes one of 32",
        ),
        (
            "transformer/config.json",
            "pooled_projection_dim",
            json!(32),
            "takes one of 32",
        ),
        (
            "transformer/config.json",
            "in_channels",
            json!(64),
            "takes 16",
        ),
        (
            of_t5,
            "model_type",
            json!("umt5"),
            "`model_type` is \"umt5\"",
        ),
        (
            of_t5,
            "feed_forward_proj",
            json!("relu"),
            "`feed_forward_proj` is",
        ),
        (
            SCHEDULER,
            "time_shift_type",
            json!("linear"),
            "`time_shift_type`",
        ),
    ]);
}
