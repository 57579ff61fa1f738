//! A LoRA on a tiny Z-Image: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::z_image;
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;
use tch::{Kind, Tensor};

use super::pictures::{Place, check_parameters};

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new("z_image");
    let file = SafetensorsFile::open(&place.golden("training.safetensors")).unwrap();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let rows = ["text.0", "text.1"].map(read);
    let counts = rows.each_ref().map(|rows| rows.size()[0]);
    // As the model's `collate` has it.
    let texts = rows.map(|rows| rows.constant_pad_nd([0, 0, 0, 64 - rows.size()[0]]));
    let (texts, counts) = (Tensor::stack(&texts, 0), Tensor::from_slice(&counts));
    let batch = |step: i64| {
        let mut tensors = vec![
            ("text", texts.shallow_clone()),
            ("text_tokens", counts.to_kind(Kind::Float)),
        ];
        for name in ["latents", "noise", "sigma"] {
            tensors.push((name, read(name).select(0, step)));
        }
        tensors
    };
    let theirs = Vec::<f64>::try_from(file.read("losses", Kind::Double).unwrap()).unwrap();
    let task = place.check_losses(&place.golden("model"), &batch, &theirs);
    check_parameters(&task, &file);
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new("z_image");
    // One of the captions is the empty text.
    assert_eq!((place.encoded(&[]), place.encoded(&[])), ((4, 4), (0, 0)));
    // The same weights under another config are another part.
    let vae = place.path("vae");
    fs::create_dir(&vae).unwrap();
    let from = place.golden("model/vae");
    let weights = "diffusion_pytorch_model.safetensors";
    fs::copy(from.join(weights), vae.join(weights)).unwrap();
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut keys: serde_json::Value = serde_json::from_str(&text).unwrap();
    keys["scaling_factor"] = 0.5.into();
    fs::write(vae.join("config.json"), keys.to_string()).unwrap();
    let other = format!("model.vae={}", vae.display());
    assert_eq!(place.encoded(&[&other]), (4, 0));
    // Said before anything is learned.
    let refused = place
        .run(&["adapter.format=kohya"])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("`adapter.format: kohya`"), "{refused}");
    let prompts = [
        "sample.prompts=[red]",
        "sample.num_inference_steps=2",
        "sample.width=32",
    ];
    let summary = place
        .run(&[&prompts[..], &["sample.height=48"]].concat())
        .unwrap();
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of seven layers in four blocks; no alpha, which is in the second matrix.
    let names = file.names();
    assert_eq!(names.len(), 56);
    for name in &names {
        let layer = name.strip_prefix("diffusion_model.").unwrap();
        let block = [
            "layers.0.",
            "layers.1.",
            "noise_refiner.0.",
            "context_refiner.0.",
        ];
        assert!(block.iter().any(|block| layer.starts_with(block)), "{name}");
    }
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let layer = "layers.1.attention.to_out.0";
    let read = |file: &SafetensorsFile, name: String| file.read(&name, Kind::Float).unwrap();
    let ours = read(&file, format!("diffusion_model.{layer}.lora_B.weight"));
    let theirs = read(&peft, format!("base_model.model.{layer}.lora_B.weight"));
    assert!(
        f64::try_from(ours.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    assert_eq!(ours, theirs * 2.0);
    assert_eq!(file.metadata()["modelspec.architecture"], "Z-Image/lora");
    let read = LoraFile::read(&lora, &z_image::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 28);
    let other = place.path("other.safetensors");
    convert_lora(&lora, &other, Some(LoraForm::Diffusers), None).unwrap();
    let other = SafetensorsFile::open(&other).unwrap();
    let of_diffusers = |name: &String| name.starts_with("transformer.");
    assert!(other.names().iter().all(of_diffusers));
    let kohya = place.path("kohya.safetensors");
    let error = convert_lora(&lora, &kohya, Some(LoraForm::Kohya), None).unwrap_err();
    assert!(error.to_string().contains("choose `comfy`"), "{error}");
    let mut samples = fs::read_dir(place.path("runs/pictures/samples")).unwrap();
    let previews = samples.next().unwrap().unwrap().path();
    assert!(previews.join("0.png").is_file(), "{}", previews.display());
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    let place = Place::new("z_image");
    place.check_resumed_and_streamed();
    place.check_computed_again();
}
