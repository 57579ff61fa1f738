//! Held against diffusers, transformers and PEFT: a tiny random model.

mod edit;
mod single_files;

use serde_json::{Value, json};

use super::transformer::TransformerConfig;
use super::{ARCH, text};
use crate::diffusion::parts::schedule::Schedule;
use crate::diffusion::reference::Reference;
use crate::diffusion::{Objective, PartPaths};

const REFERENCE: Reference = Reference::of(&ARCH);

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    REFERENCE.prompts_are_cut_and_encoded_as_by_the_pipeline(1, text::OF_TEXT.tokens_before, 369);
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    REFERENCE.pictures_of_the_causal_autoencoder_are_those_of_diffusers();
}

/// A picture of its own is the same as in a batch, in which its text is padded.
#[test]
fn velocities_are_those_of_diffusers() {
    REFERENCE.velocities_are_those_of_diffusers(&["small", "wide", "high"], |batch| {
        REFERENCE.first_alone(batch)
    });
}

#[test]
fn what_is_computed_again_is_not_kept() {
    REFERENCE.what_is_computed_again_is_not_kept("small");
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("wide");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    let blocks: [&[usize]; 2] = [&[0, 1, 2], &[1]];
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
    let one = Schedule::new(defaults.scheduler, &Objective::FLOW, 1, 2.0).unwrap();
    assert_eq!(one.sigmas, [1.0, 0.0]);
}

/// A LoRA that diffusers loads makes the same picture here.
#[test]
fn a_lora_of_diffusers_does_what_it_does_there() {
    let ranks = REFERENCE.a_lora_of_diffusers_does_what_it_does_there();
    assert_eq!(ranks.len(), 32);
}

#[test]
fn what_does_not_fit_is_refused() {
    REFERENCE.sizes_that_do_not_fit_are_refused([16, 24]);
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    const INDEX: &str = "model_index.json";
    const TRANSFORMER: &str = "transformer/config.json";
    const SCHEDULER: &str = "scheduler/scheduler_config.json";
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
        (INDEX, "vae", class("AutoencoderKL"), "`vae` is"),
        (INDEX, "scheduler", class("DDIMScheduler"), "`scheduler` is"),
        (
            INDEX,
            "_class_name",
            json!("QwenImageEditPipeline"),
            "is \"QwenImageEditPipeline\": only ",
        ),
        (
            TRANSFORMER,
            "use_layer3d_rope",
            json!(true),
            "`use_layer3d_rope` is",
        ),
        (
            TRANSFORMER,
            "joint_attention_dim",
            json!(32),
            "takes a width of 32",
        ),
        (
            "vae/config.json",
            "input_channels",
            json!(4),
            "`in_channels`",
        ),
        (
            "text_encoder/config.json",
            "model_type",
            json!("qwen3"),
            "`model_type` is \"qwen3\"",
        ),
        (SCHEDULER, "shift_terminal", json!(2.0), "`shift_terminal`"),
        (
            SCHEDULER,
            "time_shift_type",
            json!("linear"),
            "`time_shift_type`",
        ),
    ]);
}

/// Older configs have the keys of the language part beside the others.
#[test]
fn a_text_encoder_is_read_from_older_configs_too() {
    let config = REFERENCE.golden("model/text_encoder/config.json");
    let new = text::read(&config).unwrap();
    assert!(new.qkv_bias && new.rope.theta == 1e6);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let read = |rope: Value| {
        let mut keys = REFERENCE.original("text_encoder/config.json")["text_config"].clone();
        keys["model_type"] = json!("qwen2_5_vl");
        keys["vision_config"] = json!({"depth": 32});
        keys["rope_theta"] = json!(1e6);
        keys["rope_parameters"] = Value::Null;
        keys["rope_scaling"] = rope;
        std::fs::write(&path, keys.to_string()).unwrap();
        text::read(&path)
    };
    let old = read(json!({"type": "mrope", "mrope_section": [2, 2, 2]})).unwrap();
    assert_eq!(old, new);
    let error = read(json!({"rope_type": "yarn"})).unwrap_err().to_string();
    assert!(
        error.contains("`rope_scaling.rope_type` must be"),
        "{error}"
    );
}

/// The first 34 tokens are those of the template only if the tokenizer is the model's.
#[test]
fn the_tokenizer_of_another_model_is_refused() {
    let parts = PartPaths {
        tokenizer: Some(crate::golden::golden("z_image/model/tokenizer")),
        ..PartPaths::default()
    };
    let model = (ARCH.open)(&REFERENCE.golden("model"), &parts).unwrap();
    let error = model.tokenizer().unwrap_err().to_string();
    assert!(error.contains("tokens in place of 34"), "{error}");
}

#[test]
fn configs_are_those_of_diffusers() {
    let config = TransformerConfig::read(&REFERENCE.golden("model/transformer/config.json"));
    let config = config.unwrap();
    assert_eq!((config.width(), config.num_layers), (32, 3));
}
