//! A LoRA on a tiny Krea 2: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use models::diffusion::krea2;
use models::diffusion::lora::{LoraFile, LoraForm};
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;
use tch::Kind;

use crate::pictures::Place;

const NAME: &str = "krea2";

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
fn quantised_and_averaged_runs_learn() {
    let place = Place::new(NAME);
    place.run(&["name=whole", "train.ema_decay=0.9"]).unwrap();
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
    // Three states of each token of the prompt, without those of the template before it.
    for text in fs::read_dir(place.path("cache/texts")).unwrap() {
        let file = SafetensorsFile::open(&text.unwrap().path()).unwrap();
        assert_eq!(file.names(), ["text"]);
        let shape = file.shape("text").unwrap();
        assert!(shape[0] < 34 && shape[1] == 72, "{shape:?}");
    }
    let summary = place.drawing_run(&["sample.negative_prompt=grey", "sample.guidance_scale=4"]);
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of eight layers in six blocks, under their original names; no alpha, which is in the second.
    let names = file.names();
    assert_eq!(names.len(), 2 * 6 * 8);
    let is_of_blocks = |name: &String| {
        let rest = name.strip_prefix("diffusion_model.").unwrap();
        rest.starts_with("blocks.") || rest.starts_with("txtfusion.")
    };
    assert!(names.iter().all(is_of_blocks), "{names:?}");
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let read = |file: &SafetensorsFile, name: &str| file.read(name, Kind::Float).unwrap();
    for (ours, theirs) in [
        ("blocks.1.attn.wo", "transformer_blocks.1.attn.to_out.0"),
        (
            "txtfusion.layerwise_blocks.0.mlp.gate",
            "text_fusion.layerwise_blocks.0.ff.gate",
        ),
    ] {
        let ours = read(&file, &format!("diffusion_model.{ours}.lora_B.weight"));
        assert!(
            f64::try_from(ours.abs().max()).unwrap() > 0.0,
            "nothing was learned"
        );
        let theirs = format!("base_model.model.{theirs}.lora_B.weight");
        assert_eq!(ours, read(&peft, &theirs) * 2.0);
    }
    assert_eq!(file.metadata()["modelspec.architecture"], "Krea-2/lora");
    let read = LoraFile::read(&lora, &krea2::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 6 * 8);
    let other = place.path("other.safetensors");
    let kohya = convert_lora(&lora, &other, Some(LoraForm::Kohya), None);
    let error = kohya.unwrap_err().to_string();
    assert!(error.contains("choose `comfy`"), "{error}");
    convert_lora(&lora, &other, Some(LoraForm::Diffusers), None).unwrap();
    let names = SafetensorsFile::open(&other).unwrap().names();
    assert!(names.iter().all(|name| name.starts_with("transformer.")));
    assert_eq!(LoraFile::read_any(&other, None).unwrap().arch.name, NAME);
    let resumed = format!("adapter.resume_from={}", lora.display());
    let summary = place.run(&["name=further", &resumed]);
    assert!(summary.unwrap().held_out.unwrap().loss.is_finite());
}
