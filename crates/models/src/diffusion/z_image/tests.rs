//! Held against diffusers and transformers: a tiny random model.

mod single_files;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::ARCH;
use crate::diffusion::reference::{Case, FROZEN, Reference, placer};
use crate::diffusion::{Conditions, TEXT, load_autoencoder};
use crate::model::Pass;

const REFERENCE: Reference = Reference::of(&ARCH);

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    REFERENCE.prompts_are_cut_and_encoded_as_by_the_pipeline(1, 0, 290);
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    let all = [("vae", "model/vae"), ("quant", "quant-autoencoder")];
    REFERENCE.pictures_and_latents_are_those_of_diffusers(&all);
}

/// A picture of its own is the same as in a batch, in which its text is filled up.
#[test]
fn velocities_are_those_of_diffusers() {
    REFERENCE.velocities_are_those_of_diffusers(&["filled", "whole"], |batch| {
        REFERENCE.first_alone(batch)
    });
}

#[test]
fn what_is_computed_again_is_not_kept() {
    REFERENCE.what_is_computed_again_is_not_kept("filled");
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("filled");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    // All lists, and parts of them.
    let blocks: [&[usize]; 2] = [&[0, 1, 2, 3], &[1, 3]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("filled", &blocks);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("filled");
}

#[test]
fn samples_are_those_of_the_pipeline() {
    REFERENCE.samples_are_those_of_the_pipeline();
    assert_eq!(REFERENCE.model().defaults().unwrap().shift, 3.0);
}

#[test]
fn a_picture_survives_the_autoencoder_of_the_folder() {
    let model = REFERENCE.model();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    let latents = codec.encode_frame(&REFERENCE.expected("vae.whole.pixels"), None);
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
    } = REFERENCE.case("filled");
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
    let long = REFERENCE.model().collate(&[row(), row()]).unwrap();
    let error = model.predict(&latents, &times, &long, Pass::Evaluate);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("from 1 to 576 tokens"), "{error}");
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
        (
            "model_index.json",
            "vae",
            class("AutoencoderDC"),
            "`vae` is \"AutoencoderDC\"",
        ),
        (
            "model_index.json",
            "scheduler",
            class("DDIMScheduler"),
            "`scheduler` is",
        ),
        (
            "model_index.json",
            "transformer",
            class("FluxTransformer2DModel"),
            "`transformer` is",
        ),
        (
            "transformer/config.json",
            "in_channels",
            json!(16),
            "has latents of 4 channels",
        ),
        (
            "transformer/config.json",
            "cap_feat_dim",
            json!(2560),
            "takes the state before the last layer",
        ),
        (
            "transformer/config.json",
            "siglip_feat_dim",
            json!(1152),
            "`siglip_feat_dim`",
        ),
        ("vae/config.json", "act_fn", json!("relu"), "`act_fn`"),
        (
            "text_encoder/config.json",
            "model_type",
            json!("bert"),
            "`model_type`",
        ),
        (
            "scheduler/scheduler_config.json",
            "use_dynamic_shifting",
            json!(true),
            "`use_dynamic_shifting`",
        ),
    ]);
}
