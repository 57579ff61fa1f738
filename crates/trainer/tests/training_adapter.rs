//! A distilled model that is trained with an adapter, and previews that another transformer draws.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use models::diffusion::lora::{LoraFile, WithLoras};
use models::diffusion::{Expert, Part, PartPaths, qwen_image};
use models::formats::{TensorSource, write_tensors};
use tch::Kind;

use crate::pictures::Place;

const PREVIEWS: [&str; 7] = [
    "sample.prompts=[red]",
    "sample.negative_prompt=grey",
    "sample.guidance_scale=4",
    "sample.num_inference_steps=2",
    "sample.width=32",
    "sample.height=48",
    "data.caption_dropout=0",
];

/// The folder of the model with a LoRA merged into its transformer.
fn merged(place: &Place) -> PathBuf {
    let (from, to) = (place.golden("model"), place.path("merged"));
    models::pretrained::copy(&from, &to).unwrap();
    let model = models::diffusion::open(&from, &PartPaths::default()).unwrap();
    let weights = model.weights(Part::Denoiser(Expert::High)).unwrap();
    let lora = LoraFile::read(&place.golden("lora.safetensors"), &qwen_image::ARCH, None).unwrap();
    let weights = WithLoras::new(Box::new(weights), vec![(lora, 1.0)]).unwrap();
    let tensors = weights.names().into_iter().map(|name| {
        let tensor = weights.read(&name, Kind::Float).unwrap();
        (name, tensor)
    });
    let tensors: Vec<_> = tensors.collect();
    let list: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    let file = to.join("transformer/diffusion_pytorch_model.safetensors");
    fs::remove_file(&file).unwrap();
    write_tensors(&file, &list).unwrap();
    to
}

fn key(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Training is that on the model with the adapter merged into it, whole, in parts or streamed; previews are drawn without
/// the adapter.
#[test]
fn an_adapter_is_there_in_training_and_not_in_previews() {
    let place = Place::new("qwen_image");
    let model = key("model.name_or_path", &merged(&place));
    let adapter = key("model.training_adapter", &place.golden("lora.safetensors"));
    let run = |overrides: &[&str]| {
        let overrides = [overrides, &PREVIEWS].concat();
        place.run(&overrides).unwrap()
    };
    run(&["name=merged", &model]);
    run(&["name=whole", &adapter]);
    assert!(place.weights("merged") == place.weights("whole"));
    assert!(place.previewed("merged") != place.previewed("whole"));
    assert!(place.previewed("whole") == place.drawn(None, "whole", |_| ()).unwrap());
    run(&["name=parts", &adapter, "train.max_steps=2"]);
    run(&[
        "name=parts",
        &adapter,
        "train.resume_from_checkpoint=latest",
    ]);
    let summary = run(&["name=streamed", &adapter, "model.low_vram=true"]);
    assert!(summary.streamed.is_some());
    for name in ["parts", "streamed"] {
        assert!(place.weights("whole") == place.weights(name), "{name}");
    }
    let quantised = ["name=int8", &adapter, "model.quantization=int8"];
    assert!(run(&quantised).held_out.unwrap().loss.is_finite());
    // A run goes on with the adapter that it was begun with.
    let error = place.run(&[
        "name=whole",
        "train.max_steps=6",
        "train.resume_from_checkpoint=latest",
    ]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("model.training_adapter"), "{error}");
    let other = Place::new("z_image");
    let error = other.run(&[&adapter]).unwrap_err().to_string();
    assert!(error.contains("lora.safetensors"), "{error}");
}

/// Another transformer draws with the LoRA that is trained, and training is as without it.
#[test]
fn another_transformer_draws_previews() {
    let place = Place::new("qwen_image");
    let turbo = merged(&place);
    let transformer = key("sample.transformer", &turbo.join("transformer"));
    place
        .run(&["name=plain", "data.caption_dropout=0"])
        .unwrap();
    place
        .run(&[&["name=turbo", &*transformer][..], &PREVIEWS].concat())
        .unwrap();
    assert!(place.weights("plain") == place.weights("turbo"));
    let theirs = place
        .drawn(Some(turbo.join("transformer")), "turbo", |_| ())
        .unwrap();
    assert!(place.previewed("turbo") == theirs);
    assert!(place.drawn(None, "plain", |_| ()).unwrap() != theirs);
    // A whole folder, which is streamed.
    let folder = key("sample.transformer", &turbo);
    let streamed = ["name=folder", &*folder, "model.low_vram=true"];
    place.run(&[&streamed[..], &PREVIEWS].concat()).unwrap();
    assert!(place.previewed("folder") == theirs);
    let other = Place::new("z_image");
    let wrong = key("sample.transformer", &other.golden("model"));
    let error = place.run(&[&["name=wrong", &*wrong][..], &PREVIEWS].concat());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`sample.transformer`") && error.contains("Z-Image"),
        "{error}"
    );
}
