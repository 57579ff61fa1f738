//! A LoRA on a tiny Anima: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::{Conditions, Diffusion, Expert, Part, PartPaths, TEXT, TEXT_TOKENS, anima};
use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use surefoot_trainer::media_sampling::convert_lora;
use tch::Kind;

use crate::pictures::{KINDS, Place};

const NAME: &str = "anima";

fn model(place: &Place) -> Box<dyn Diffusion> {
    models::diffusion::open(&place.golden("model"), &PartPaths::default()).unwrap()
}

/// Of a LoRA on the transformer and on a part of the conditioner.
#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    let file = SafetensorsFile::open(&place.golden("training.safetensors")).unwrap();
    let read = |name: String| file.read(&name, Kind::Float).unwrap();
    let rows = [0, 1].map(|number| {
        let mut row = Conditions::of(TEXT, read(format!("text.{number}")));
        row.insert("t5_tokens", read(format!("t5.{number}")));
        row
    });
    let batch = model(&place).collate(&rows).unwrap();
    let texts = [TEXT, TEXT_TOKENS, "t5_tokens"]
        .map(|name| (name, batch.get(name).unwrap().shallow_clone()));
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
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    // One of the captions is the empty text.
    assert_eq!(place.encoded(&[]), (4, 4));
    assert_eq!(place.encoded(&[]), (0, 0));
    // States of the language model, and T5's tokens.
    let texts = fs::read_dir(place.path("cache/texts")).unwrap();
    for text in texts {
        let file = SafetensorsFile::open(&text.unwrap().path()).unwrap();
        assert_eq!(file.names(), ["t5_tokens", "text"]);
        assert_eq!(file.shape("text").unwrap()[1], 24);
    }
    let refused = place
        .run(&["adapter.format=kohya"])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("`adapter.format: kohya`"), "{refused}");
    let summary = place.drawing_run(&[]);
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of ten layers in the three blocks of the transformer; no alpha, which is in the second matrix.
    let names = file.names();
    assert_eq!(names.len(), 60);
    let of_blocks = |name: &String| name.starts_with("diffusion_model.blocks.");
    assert!(names.iter().all(of_blocks));
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let read = |file: &SafetensorsFile, name: &str| file.read(name, Kind::Float).unwrap();
    let ours = read(&file, "diffusion_model.blocks.2.mlp.layer2.lora_B.weight");
    let theirs = "base_model.model.transformer_blocks.2.ff.net.2.lora_B.weight";
    assert!(
        f64::try_from(ours.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    assert_eq!(ours, read(&peft, theirs) * 2.0);
    assert_eq!(file.metadata()["modelspec.architecture"], "anima/lora");
    let whole = LoraFile::read(&lora, &anima::ARCH, None).unwrap();
    assert_eq!(whole.modules.len(), 30);
    let other = place.path("other.safetensors");
    convert_lora(&lora, &other, Some(LoraForm::Diffusers), None).unwrap();
    let other = SafetensorsFile::open(&other).unwrap();
    let of_diffusers = |name: &String| name.starts_with("transformer.transformer_blocks.");
    assert!(other.names().iter().all(of_diffusers));
}

/// Also those of the conditioner, which a folder has beside the transformer.
#[test]
fn other_kinds_of_adapters_are_trained_and_used() {
    Place::new(NAME).other_kinds_are_trained_and_used(
        &anima::ARCH,
        &[
            (
                "adapter.use_dora=true",
                &[".lora_A.weight", ".lora_B.weight", ".dora_scale"],
            ),
            (
                "adapter.target_modules=[attn1.to_q,cross_attn.k_proj]",
                &[".lora_A.weight", ".lora_B.weight"],
            ),
        ],
    );
}

/// All weights are written to the two folders that they were in, and to what is read of them.
#[test]
fn all_weights_are_trained() {
    let place = Place::new(NAME);
    let whole = ["adapter=null", "train.learning_rate=0.001"];
    let run = |more: &[&str]| place.run(&[&whole[..], more].concat()).unwrap();
    let learned = run(&["name=whole"]).held_out.unwrap().loss;
    run(&["name=parts", "train.max_steps=2"]);
    run(&["name=parts", "train.resume_from_checkpoint=latest"]);
    for part in ["transformer", "text_conditioner"] {
        let file = format!("model/{part}/diffusion_pytorch_model.safetensors");
        let read = |run: &str| fs::read(place.path(&format!("runs/{run}/{file}"))).unwrap();
        assert!(read("whole") == read("parts"), "{part}");
        assert!(read("whole") != fs::read(place.golden(&file)).unwrap());
    }
    let made = format!(
        "model.name_or_path={}",
        place.path("runs/whole/model").display()
    );
    let still = [
        "name=again",
        &made,
        "train.learning_rate=1e-12",
        "train.max_steps=1",
    ];
    let again = run(&still).held_out.unwrap().loss;
    assert!(
        (again / learned - 1.0).abs() <= 1e-5,
        "{again} and {learned}"
    );
    let fresh = run(&["name=fresh", "model.from_config=true"]);
    assert!(fresh.held_out.unwrap().loss.is_finite());
}

/// The conditioner's layers are trained if they are named.
#[test]
fn a_lora_may_change_the_conditioner() {
    let place = Place::new(NAME);
    let targets = "adapter.target_modules=[attn1.to_q, cross_attn.k_proj]";
    place.run(&["name=plain", targets]).unwrap();
    place
        .run(&["name=streamed", targets, "model.low_vram=true"])
        .unwrap();
    assert!(place.weights("plain") == place.weights("streamed"));
    let lora = place.path("runs/plain/adapter/plain.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    let name = "diffusion_model.llm_adapter.blocks.1.cross_attn.k_proj.lora_B.weight";
    let learned = file.read(name, Kind::Float).unwrap().abs().max();
    assert!(f64::try_from(learned).unwrap() > 0.0);
    assert_eq!(file.names().len(), 2 * (3 + 2));
}

/// Transformer and conditioner in one file, as ComfyUI's users have them.
#[test]
fn a_run_on_single_files_is_the_run_on_the_folder() {
    let place = Place::new(NAME);
    place.run(&["name=folder"]).unwrap();
    let (model, text) = (
        model(&place),
        fs::read_to_string(place.golden("original.json")),
    );
    let names: BTreeMap<String, BTreeMap<String, [String; 1]>> =
        serde_json::from_str(&text.unwrap()).unwrap();
    let file = |part: &str| place.path(&format!("{part}.safetensors"));
    for (part, name) in [
        (Part::Denoiser(Expert::High), "transformer"),
        (Part::Autoencoder, "vae"),
    ] {
        let weights = model.weights(part).unwrap();
        let tensors = names[name].iter().map(|(original, [own])| {
            let tensor = weights.read(own, Kind::Float).unwrap();
            (original.clone(), tensor)
        });
        let tensors: Vec<_> = tensors.collect();
        let list: Vec<_> = tensors.iter().map(|(n, t)| (n.clone(), t)).collect();
        write_tensors(&file(name), &list).unwrap();
    }
    let from = place.golden("model/text_encoder/model.safetensors");
    fs::copy(from, file("text_encoder")).unwrap();
    let set = |key: &str, path: PathBuf| format!("model.{key}={}", path.display());
    let overrides = [
        "name=files".to_owned(),
        set("name_or_path", file("transformer")),
        set("vae", file("vae")),
        set("text_encoder", file("text_encoder")),
        set("tokenizer", place.golden("model")),
    ];
    place
        .run(&overrides.each_ref().map(String::as_str))
        .unwrap();
    assert!(place.weights("files") == place.weights("folder"));
    for quantization in ["int8", "nf4"] {
        let how = format!("model.quantization={quantization}");
        let summary = place.run(&[&format!("name={quantization}"), &how]).unwrap();
        assert!(summary.held_out.unwrap().loss.is_finite());
        assert!(place.weights(quantization) != place.weights("folder"));
    }
}
