//! A LoRA on a tiny FLUX.2 klein: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use models::diffusion::flux2;
use models::diffusion::lora::{LoraFile, LoraForm};
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;
use tch::Kind;

use crate::pictures::Place;
use crate::qwen_image_edit::{keys, place_of, with};

const NAME: &str = "flux2";

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    let file = SafetensorsFile::open(&place.golden("training.safetensors")).unwrap();
    let text = file.read("text", Kind::Float).unwrap();
    let texts = [("text", text)];
    place.losses_of_five_steps_are_those_of_peft(&texts);
    place
        .other_kinds()
        .are_those_of_peft(&["dora", "lokr"], |step| place.flow(&texts, step));
}

/// Control pictures are seen by the transformer alone, and need not be there.
#[test]
fn control_pictures_are_trained_with() {
    let place = place_of(NAME);
    let file = place.training();
    let mut given = vec![("text", file.read("text", Kind::Float).unwrap())];
    let theirs = SafetensorsFile::open(&place.golden("kinds/edit/steps.safetensors")).unwrap();
    for name in ["control.0", "control.1"] {
        given.push((name, theirs.read(name, Kind::Float).unwrap()));
    }
    let batch = |step: i64| place.flow(&given, step);
    place.other_kinds().of_a_kind("edit", &[], batch);

    // The task above has encoded the texts and the pictures without control pictures.
    let keys = keys(&place);
    assert_eq!(place.encoded(&with(&keys, &[])), (4, 0));
    let other = image::RgbImage::new(40, 40);
    other.save(place.path("control/0.png")).unwrap();
    assert_eq!(place.encoded(&with(&keys, &[])), (1, 0));
    std::fs::remove_file(place.path("control/2.png")).unwrap();
    assert_eq!(place.encoded(&with(&keys, &[])), (0, 0));
    place.run(&["name=plain"]).unwrap();
    let control = place.path("control/1.png");
    let control = format!("sample.control_image={}", control.display());
    let summary = place.drawing_run(&with(&keys, &[&control]));
    assert!(summary.held_out.unwrap().loss.is_finite());
    assert!(place.weights("plain") != place.weights("pictures"));
}

/// LoRAs of the parts of a layer become one of the whole, with their magnitudes.
#[test]
fn other_kinds_of_adapters_are_trained_and_used() {
    let place = Place::new(NAME);
    place.other_kinds_are_trained_and_used(
        &flux2::ARCH,
        &[(
            "adapter.use_dora=true",
            &[".lora_A.weight", ".lora_B.weight", ".dora_scale"],
        )],
    );
    let half = [
        "adapter.use_dora=true",
        "adapter.target_modules=[attn.to_q]",
    ];
    let refused = place.run(&half).unwrap_err().to_string();
    assert!(
        refused.contains("`transformer_blocks.0.attn.to_q`"),
        "{refused}"
    );
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    assert_eq!(place.encoded(&[]), (4, 4));
    assert_eq!(place.encoded(&[]), (0, 0));
    let summary = place.drawing_run(&[]);
    assert!(summary.held_out.unwrap().loss.is_finite());

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Of each of two double blocks, eight layers with two matrices each, and of each single one two layers; no alpha, which
    // is in the second matrix.
    assert_eq!(file.names().len(), 2 * 2 * (8 + 2));
    let layer = "diffusion_model.double_blocks.1.txt_attn.qkv";
    let shape = |part: &str| file.shape(&format!("{layer}.{part}.weight")).unwrap();
    assert_eq!(
        (shape("lora_A"), shape("lora_B")),
        (vec![6, 32], vec![96, 6])
    );
    assert_eq!(
        file.metadata()["modelspec.architecture"],
        "Flux2-Klein/lora"
    );
    // It comes back as what was trained.
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let read = LoraFile::read(&lora, &flux2::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 28);
    let mut learned = 0;
    for (name, module) in &read.modules {
        let trained = |part: &str| {
            let name = format!("base_model.model.{name}.{part}.weight");
            peft.read(&name, Kind::Float).unwrap()
        };
        let (down, up) = (trained("lora_A"), trained("lora_B"));
        assert_eq!(
            (module.factors().unwrap()[0], module.factors().unwrap()[1]),
            (&down, &(up * 2.0)),
            "{name}"
        );
        learned +=
            i32::from(f64::try_from(module.factors().unwrap()[1].abs().max()).unwrap() > 0.0);
    }
    assert_eq!(learned, 28);
    // Other forms, and a run that goes on from the file.
    for (form, prefix) in [
        (LoraForm::Diffusers, "transformer."),
        (LoraForm::Kohya, "lora_unet_"),
    ] {
        let other = place.path(&format!("{prefix}safetensors"));
        convert_lora(&lora, &other, Some(form), None).unwrap();
        let names = SafetensorsFile::open(&other).unwrap().names();
        assert!(
            names.iter().all(|name| name.starts_with(prefix)),
            "{names:?}"
        );
    }
    let resumed = format!("adapter.resume_from={}", lora.display());
    let summary = place.run(&["name=further", "adapter.format=kohya", &resumed]);
    assert!(summary.unwrap().held_out.unwrap().loss.is_finite());
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    Place::new(NAME).a_run_that_is_resumed_or_streamed_ends_with_the_same_bits();
}
