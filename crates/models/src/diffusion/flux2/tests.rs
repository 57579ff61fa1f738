//! Held against diffusers, transformers and PEFT: a tiny random model.

mod edit;
mod single_files;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::model::empirical_shift;
use super::{ARCH, Flux2};
use crate::diffusion::reference::{FROZEN, Reference, placer};
use crate::diffusion::{
    Conditions, Diffusion, PartPaths, TEXT, load_autoencoder, load_text_encoder,
};
use crate::model::Pass;

const REFERENCE: Reference = Reference::of(&ARCH);

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    REFERENCE.prompts_are_cut_and_encoded_as_by_the_pipeline(7, 0, 290);
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    let all = [("vae", "model/vae"), ("small", "small-decoder")];
    REFERENCE.pictures_and_latents_are_those_of_diffusers(&all);
}

#[test]
fn velocities_are_those_of_diffusers() {
    REFERENCE.velocities_are_those_of_diffusers(&["small", "wide", "high"], |batch| {
        Conditions::of(TEXT, batch.get(TEXT).unwrap().narrow(0, 0, 1))
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
    // Both lists, and parts of them.
    let blocks: [&[usize]; 3] = [&[0, 1, 2, 3], &[1, 2], &[3]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("small", &blocks);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("wide");
}

#[test]
fn samples_are_those_of_the_pipeline() {
    REFERENCE.samples_are_those_of_the_pipeline();
}

#[test]
fn shifts_are_those_of_the_pipeline() {
    for case in REFERENCE.json::<Vec<Value>>("shifts.json") {
        let steps = case["steps"].as_u64().unwrap() as usize;
        let shift = empirical_shift(case["tokens"].as_i64().unwrap(), steps);
        let half = shift / (1.0 + shift);
        let apart = (half - case["half"].as_f64().unwrap()).abs();
        assert!(apart < 1e-7, "{case}: {half}");
    }
    // One that is fixed is taken from the scheduler.
    let model = REFERENCE.model();
    let shift = model.shift(4096, 50).unwrap();
    assert_eq!(shift, empirical_shift(4096, 50));
    // 8 pixels per latent: the default's 1024 × 1024 are 128 × 128.
    let shift = model.defaults().unwrap().shift;
    assert_eq!(shift, empirical_shift(128 * 128, 50));
}

/// A LoRA that diffusers loads, with queries, keys and values as one, makes the same picture here.
#[test]
fn a_lora_in_original_names_does_what_it_does_in_diffusers() {
    let ranks = REFERENCE.a_lora_of_diffusers_does_what_it_does_there();
    // Twelve in each of two double blocks and two in each single one, taken apart.
    assert_eq!(ranks, [4; 28]);
}

#[test]
fn a_picture_survives_the_autoencoder_of_the_folder() {
    let model = REFERENCE.model();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    let latents = codec.encode_frame(&REFERENCE.expected("vae.whole.pixels"), None);
    let size = model.geometry().latents(16, 24, 1);
    assert_eq!(latents.unwrap().size(), [size[1], size[3], size[4]]);
    let few = Tensor::zeros([4, 3, 2], (Kind::Float, Device::Cpu));
    let error = codec.decode_frame(&few, None).unwrap_err().to_string();
    assert!(error.contains("this autoencoder has 16"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let case = REFERENCE.case("small");
    let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
    for size in [[2, 5, 1, 6, 8], [2, 16, 2, 6, 8], [2, 16, 1, 0, 8]] {
        let error = model.predict(&zeros(&size), &case.times, &case.conditions, Pass::Evaluate);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("this model takes 16 channels"), "{error}");
    }
    for size in [[1, 7, 48], [2, 0, 48], [2, 7, 16]] {
        let text = Conditions::of(TEXT, zeros(&size));
        let error = model.predict(&case.latents, &case.times, &text, Pass::Evaluate);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("takes one of width 48 for each"), "{error}");
    }
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
        (
            "model_index.json",
            "vae",
            class("AutoencoderKL"),
            "`vae` is \"AutoencoderKL\"",
        ),
        (
            "model_index.json",
            "scheduler",
            class("DDIMScheduler"),
            "`scheduler` is",
        ),
        (
            "model_index.json",
            "is_distilled",
            json!("yes"),
            "`is_distilled`",
        ),
        (
            "transformer/config.json",
            "in_channels",
            json!(128),
            "has latents of 16 channels",
        ),
        (
            "transformer/config.json",
            "joint_attention_dim",
            json!(7680),
            "takes the states [9, 18, 27]",
        ),
        (
            "transformer/config.json",
            "guidance_embeds",
            json!(true),
            "`guidance_embeds` is true",
        ),
        (
            "vae/config.json",
            "_class_name",
            json!("AutoencoderKL"),
            "without a norm (`bn`)",
        ),
        (
            "vae/config.json",
            "patch_size",
            json!([4, 4]),
            "`patch_size`",
        ),
        (
            "text_encoder/config.json",
            "hidden_size",
            json!(24),
            "has 28 layers of width 24",
        ),
        (
            "scheduler/scheduler_config.json",
            "time_shift_type",
            json!("linear"),
            "`time_shift_type`",
        ),
        (
            "scheduler/scheduler_config.json",
            "shift_terminal",
            json!(0.02),
            "`shift_terminal`",
        ),
    ]);
}

/// A change to a file.
type Change = fn(&mut Value);

/// A folder whose files are those of the tiny model, but for these.
fn changed(files: &[(&str, Change)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in [
        "model_index.json",
        "transformer/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/chat_template.jinja",
    ] {
        let (from, to) = (
            REFERENCE.golden("model").join(part),
            folder.path().join(part),
        );
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(&from, &to).unwrap();
        if let Some((_, change)) = files.iter().find(|(name, _)| *name == part) {
            let text = std::fs::read_to_string(&from).unwrap();
            let mut value = serde_json::from_str(&text).unwrap();
            change(&mut value);
            std::fs::write(&to, value.to_string()).unwrap();
        }
    }
    folder
}

#[test]
fn what_the_folder_says_is_obeyed() {
    let folder = changed(&[
        ("model_index.json", |index| {
            index["is_distilled"] = json!(true);
        }),
        ("scheduler/scheduler_config.json", |scheduler| {
            scheduler["use_dynamic_shifting"] = json!(false);
        }),
    ]);
    let model = Flux2::open(folder.path(), &PartPaths::default()).unwrap();
    assert!(model.is_distilled() && !REFERENCE.model().is_distilled());
    assert_eq!(model.shift(4096, 50).unwrap(), 3.0);
}

/// Texts are filled up at their end, with the token that the tokenizer names.
#[test]
fn a_tokenizer_that_fills_up_otherwise_is_refused() {
    let cases: [(Change, &str); 2] = [
        (
            |config| config["padding_side"] = json!("left"),
            "`padding_side` is \"left\"",
        ),
        (
            |config| {
                config.as_object_mut().unwrap().remove("pad_token");
            },
            "`pad_token` is missing",
        ),
    ];
    for (change, told) in cases {
        let folder = changed(&[("tokenizer/tokenizer_config.json", change)]);
        let model = Flux2::open(folder.path(), &PartPaths::default()).unwrap();
        let loaded = load_text_encoder(&model, 0, Kind::Float, false, &mut placer());
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}
