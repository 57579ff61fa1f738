//! A LoRA on a tiny Qwen-Image: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::qwen_image;
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;
use tch::Kind;

use crate::pictures::{KINDS, Place};

const NAME: &str = "qwen_image";

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    let texts = place.collated_texts();
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
fn quantised_runs_learn() {
    let place = Place::new(NAME);
    place.run(&["name=whole"]).unwrap();
    for quantization in ["int8", "nf4"] {
        let how = format!("model.quantization={quantization}");
        let summary = place.run(&[&format!("name={quantization}"), &how]).unwrap();
        assert!(summary.held_out.unwrap().loss.is_finite());
        assert!(place.weights(quantization) != place.weights("whole"));
    }
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    // One of the captions is the empty text.
    assert_eq!(place.encoded(&[]), (4, 4));
    assert_eq!(place.encoded(&[]), (0, 0));
    // States of the prompt alone, without those of the template before it.
    for text in fs::read_dir(place.path("cache/texts")).unwrap() {
        let file = SafetensorsFile::open(&text.unwrap().path()).unwrap();
        assert_eq!(file.names(), ["text"]);
        let shape = file.shape("text").unwrap();
        assert!(shape[0] < 34 && shape[1] == 24, "{shape:?}");
    }
    let summary = place.drawing_run(&["sample.negative_prompt=grey", "sample.guidance_scale=4"]);
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of twelve layers in three blocks; no alpha, which is in the second matrix.
    let names = file.names();
    assert_eq!(names.len(), 72);
    let of_blocks = |name: &String| name.starts_with("diffusion_model.transformer_blocks.");
    assert!(names.iter().all(of_blocks));
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let read = |file: &SafetensorsFile, name: &str| file.read(name, Kind::Float).unwrap();
    let layer = "transformer_blocks.1.txt_mlp.net.2.lora_B.weight";
    let ours = read(&file, &format!("diffusion_model.{layer}"));
    assert!(
        f64::try_from(ours.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    assert_eq!(
        ours,
        read(&peft, &format!("base_model.model.{layer}")) * 2.0
    );
    assert_eq!(file.metadata()["modelspec.architecture"], "Qwen-Image/lora");
    let read = LoraFile::read(&lora, &qwen_image::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 36);
    for (form, prefix) in [
        (LoraForm::Diffusers, "transformer.transformer_blocks."),
        (LoraForm::Kohya, "lora_unet_transformer_blocks_"),
    ] {
        let other = place.path(&format!("{form:?}.safetensors"));
        convert_lora(&lora, &other, Some(form), None).unwrap();
        let file = SafetensorsFile::open(&other).unwrap();
        assert!(file.names().iter().all(|name| name.starts_with(prefix)));
        let again = LoraFile::read_any(&other, None).unwrap();
        assert_eq!(again.arch.name, NAME);
        assert_eq!(again.modules.len(), 36);
    }
}
