//! A LoRA on a tiny Chroma: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use models::diffusion::lora::{LoraFile, LoraForm};
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;

use crate::pictures::Place;

const NAME: &str = "chroma";

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    place.losses_of_five_steps_are_those_of_peft(&place.collated_texts());
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    Place::new(NAME).a_run_that_is_resumed_or_streamed_ends_with_the_same_bits();
}

#[test]
fn quantised_runs_learn() {
    let place = Place::new(NAME);
    place.run(&["name=whole"]).unwrap();
    for how in [
        "model.quantization=int8",
        "model.quantization=nf4",
        "train.weighting_scheme=inverted_parabola",
    ] {
        let summary = place.run(&["name=other", how]).unwrap();
        assert!(summary.held_out.unwrap().loss.is_finite());
        assert!(place.weights("other") != place.weights("whole"), "{how}");
        fs::remove_dir_all(place.path("runs/other")).unwrap();
    }
    // Not every program reads LoRAs of what modulates the blocks.
    let network = "adapter.target_modules=[distilled_guidance_layer.in_proj]";
    let error = place.run(&["name=other", network]).unwrap_err();
    let told = "name `distilled_guidance_layer.in_proj`";
    assert!(error.to_string().contains(told), "{error}");
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    // One of the captions is the empty text.
    assert_eq!(place.encoded(&[]), (4, 4));
    assert_eq!(place.encoded(&[]), (0, 0));
    // The text, its end, and one token of padding.
    let texts = fs::read_dir(place.path("cache/texts"))
        .unwrap()
        .map(|text| {
            let file = SafetensorsFile::open(&text.unwrap().path()).unwrap();
            assert_eq!(file.names(), ["text"]);
            file.shape("text").unwrap()[0]
        });
    let shortest = texts.min();
    assert_eq!(shortest, Some(2));
    let summary = place.drawing_run(&["sample.negative_prompt=grey", "sample.guidance_scale=4"]);
    assert!(summary.held_out.unwrap().complete);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of twelve layers in two blocks, and of five in two, but none of the network that modulates.
    let names = file.names();
    assert_eq!(names.len(), 2 * (2 * 12 + 2 * 5));
    let of_blocks = |name: &String| {
        name.starts_with("transformer.transformer_blocks.")
            || name.starts_with("transformer.single_transformer_blocks.")
    };
    assert!(names.iter().all(of_blocks));
    assert_eq!(file.metadata()["modelspec.architecture"], "chroma/lora");
    for (form, prefix) in [
        (LoraForm::Comfy, "diffusion_model."),
        (LoraForm::Kohya, "lora_unet_"),
    ] {
        let other = place.path(&format!("{form:?}.safetensors"));
        convert_lora(&lora, &other, Some(form), None).unwrap();
        let file = SafetensorsFile::open(&other).unwrap();
        assert!(file.names().iter().all(|name| name.starts_with(prefix)));
        let again = LoraFile::read_any(&other, None).unwrap();
        assert_eq!((again.arch.name, again.modules.len()), (NAME, 34));
    }
}
