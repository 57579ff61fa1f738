//! A LoRA on a tiny FLUX.1: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use models::diffusion::flux1;
use models::diffusion::lora::{LoraFile, LoraForm};
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;
use tch::Kind;

use crate::pictures::{KINDS, Place};

const NAME: &str = "flux1";

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    let file = place.training();
    let texts = ["text", "pooled"].map(|name| (name, file.read(name, Kind::Float).unwrap()));
    place.losses_of_five_steps_are_those_of_peft(&texts);
    place
        .other_kinds()
        .are_those_of_peft(&KINDS, |step| place.flow(&texts, step));
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    Place::new(NAME).a_run_that_is_resumed_or_streamed_ends_with_the_same_bits();
}

#[test]
fn quantised_runs_learn_and_guidance_matters() {
    let place = Place::new(NAME);
    place.run(&["name=whole"]).unwrap();
    for (name, how) in [
        ("int8", "model.quantization=int8"),
        ("nf4", "model.quantization=nf4"),
        ("told", "train.guidance_scale=3.5"),
    ] {
        let summary = place.run(&[&format!("name={name}"), how]).unwrap();
        assert!(summary.held_out.unwrap().loss.is_finite());
        assert!(place.weights(name) != place.weights("whole"));
    }
    // What is trained if nothing is said.
    place.run(&["name=one", "train.guidance_scale=1"]).unwrap();
    assert!(place.weights("one") == place.weights("whole"));
    let other = Place::new("z_image");
    let error = other.run(&["train.guidance_scale=1"]).unwrap_err();
    assert!(
        error.to_string().contains("`train.guidance_scale`"),
        "{error}"
    );
    let second = place.golden("model/text_encoder_2");
    let second = format!("model.text_encoder_2={}", second.display());
    let error = other.run(&[&second]).unwrap_err();
    assert!(error.to_string().contains("second text encoder"), "{error}");
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    // One of the captions is the empty text.
    assert_eq!(place.encoded(&[]), (4, 4));
    assert_eq!(place.encoded(&[]), (0, 0));
    for text in fs::read_dir(place.path("cache/texts")).unwrap() {
        let file = SafetensorsFile::open(&text.unwrap().path()).unwrap();
        assert_eq!(file.names(), ["pooled", "text"]);
        assert_eq!(file.shape("text").unwrap(), [512, 24]);
    }
    let summary = place.drawing_run(&[]);
    assert!(summary.held_out.unwrap().complete);
    let told = fs::read_to_string(place.path("runs/pictures/metrics.jsonl")).unwrap();
    assert!(told.contains("guidance 3.5"), "{told}");

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of twelve layers in two blocks, and of five in two; no alpha, which is in the second matrix.
    let names = file.names();
    assert_eq!(names.len(), 2 * (2 * 12 + 2 * 5));
    assert!(names.iter().all(|name| name.starts_with("transformer.")));
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let read = |file: &SafetensorsFile, name: &str| file.read(name, Kind::Float).unwrap();
    let layer = "single_transformer_blocks.1.proj_mlp.lora_B.weight";
    let ours = read(&file, &format!("transformer.{layer}"));
    assert!(
        f64::try_from(ours.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    assert_eq!(
        ours,
        read(&peft, &format!("base_model.model.{layer}")) * 2.0
    );
    assert_eq!(file.metadata()["modelspec.architecture"], "flux-1-dev/lora");
    for (form, prefix) in [
        (LoraForm::Comfy, "diffusion_model."),
        (LoraForm::Kohya, "lora_unet_"),
    ] {
        let other = place.path(&format!("{form:?}.safetensors"));
        convert_lora(&lora, &other, Some(form), None).unwrap();
        let file = SafetensorsFile::open(&other).unwrap();
        assert!(file.names().iter().all(|name| name.starts_with(prefix)));
        let again = LoraFile::read_any(&other, None).unwrap();
        assert_eq!(again.arch.name, flux1::ARCH.name);
        assert_eq!(again.modules.len(), 34);
    }
}
