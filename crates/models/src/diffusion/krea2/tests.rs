//! Held against diffusers, transformers and PEFT: a tiny random model.

mod single_files;

use serde_json::json;

use super::ARCH;
use crate::diffusion::PartPaths;
use crate::diffusion::parts::vision_language;
use crate::diffusion::reference::{Reference, write};

const REFERENCE: Reference = Reference::of(&ARCH);

/// Of a prompt that is too long, the end of the template stays.
#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    REFERENCE.prompts_are_cut_and_encoded_as_by_the_pipeline(
        4,
        vision_language::TOKENS_BEFORE,
        369,
    );
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
    let blocks: [&[usize]; 2] = [&[0, 1, 2, 3, 4, 5], &[1, 2, 4]];
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
    assert_eq!(defaults.shift, model.shift(128 * 128, 28).unwrap());
    assert!(!model.is_distilled() && model.guidance().is_none());
}

/// Its shift is the same for all sizes, unless the scheduler says another.
#[test]
fn a_distilled_folder_says_so() {
    let folder = tempfile::tempdir().unwrap();
    REFERENCE.configs(folder.path());
    let mut index = REFERENCE.original("model_index.json");
    index["is_distilled"] = json!(true);
    write(folder.path(), "model_index.json", &index);
    let open = || crate::diffusion::open(folder.path(), &PartPaths::default()).unwrap();
    let model = open();
    assert!(model.is_distilled());
    for tokens in [64, 4096] {
        assert_eq!(model.shift(tokens, 8).unwrap(), 1.15f64.exp());
    }
    let mut scheduler = REFERENCE.original("scheduler/scheduler_config.json");
    scheduler["use_dynamic_shifting"] = json!(false);
    scheduler["shift"] = json!(2.0);
    write(folder.path(), "scheduler/scheduler_config.json", &scheduler);
    assert_eq!(open().shift(4096, 8).unwrap(), 2.0);
}

/// A LoRA that diffusers loads makes the same picture here.
#[test]
fn a_lora_of_diffusers_does_what_it_does_there() {
    let ranks = REFERENCE.a_lora_of_diffusers_does_what_it_does_there();
    assert_eq!(ranks, [4; 6 * 8]);
}

#[test]
fn what_does_not_fit_is_refused() {
    REFERENCE.sizes_that_do_not_fit_are_refused([24, 72]);
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    const INDEX: &str = "model_index.json";
    const SCHEDULER: &str = "scheduler/scheduler_config.json";
    const STATES: &str = "text_encoder_select_layers";
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
        (INDEX, "vae", class("AutoencoderKL"), "`vae` is"),
        (INDEX, "scheduler", class("DDIMScheduler"), "`scheduler` is"),
        (
            INDEX,
            "transformer",
            class("FluxTransformer2DModel"),
            "`transformer` is",
        ),
        (
            INDEX,
            "_class_name",
            json!("Krea3Pipeline"),
            "is \"Krea3Pipeline\": only ",
        ),
        (INDEX, "patch_size", json!(1), "`patch_size` is 1"),
        (INDEX, "is_distilled", json!("yes"), "`is_distilled`"),
        (INDEX, STATES, json!([1, 2]), "states [1, 2] are taken"),
        (INDEX, STATES, json!([1, 2, 5]), "has 5 layers of width 24"),
        (INDEX, STATES, json!([1, -2, 4]), STATES),
        (
            "transformer/config.json",
            "text_hidden_dim",
            json!(32),
            "takes 3 of width 32",
        ),
        (
            "transformer/config.json",
            "in_channels",
            json!(16),
            "takes 4",
        ),
        (
            "text_encoder/config.json",
            "model_type",
            json!("qwen2_5_vl"),
            "the text encoder is \"qwen3_vl\", Qwen3-VL",
        ),
        (
            SCHEDULER,
            "time_shift_type",
            json!("linear"),
            "`time_shift_type`",
        ),
    ]);
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
