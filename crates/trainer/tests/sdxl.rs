//! A LoRA on a tiny SDXL: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::sdxl;
use models::formats::{SafetensorsFile, TensorSource};
use serde_json::Value;
use surefoot_trainer::media_sampling::convert_lora;
use tch::{Kind, Tensor};

use crate::pictures::Place;

const NAME: &str = "sdxl";

/// The golden model with other words in its scheduler's config.
fn with_scheduler(place: &Place, to: &Path, changes: &Value) {
    let from = place.golden("model");
    fs::create_dir_all(to.join("scheduler")).unwrap();
    for entry in fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "scheduler" {
            let part = fs::canonicalize(entry.path()).unwrap();
            symlink(part, to.join(entry.file_name())).unwrap();
        }
    }
    let name = "scheduler/scheduler_config.json";
    let text = fs::read_to_string(from.join(name)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(to.join(name), config.to_string()).unwrap();
}

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    let velocities = place.path("velocities");
    let changes =
        serde_json::json!({"prediction_type": "v_prediction", "rescale_betas_zero_snr": true});
    with_scheduler(&place, &velocities, &changes);
    let file = place.training();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let batch = |step: i64| -> Vec<(&'static str, Tensor)> {
        let of_step = |name: &'static str| (name, read(name).select(0, step));
        vec![
            ("latents", of_step("latents").1.unsqueeze(2)),
            ("noise", of_step("noise").1.unsqueeze(2)),
            ("sigma", (of_step("times").1 + 1.0) / 1000.0),
            ("text", read("text")),
            of_step("pooled"),
            of_step("time_ids"),
        ]
    };
    for (kind, model) in [
        ("epsilon", place.golden("model")),
        ("v_prediction", velocities),
    ] {
        let task = place.trained(&model, &format!("losses.{kind}"), batch);
        if kind == "epsilon" {
            place.parameters_are_those_of_peft(&task);
        }
    }
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    // One of the captions is the empty text.
    assert_eq!((place.encoded(&[]), place.encoded(&[])), ((4, 4), (0, 0)));
    let mut clips = fs::read_dir(place.path("cache/latents")).unwrap();
    let clip = SafetensorsFile::open(&clips.next().unwrap().unwrap().path()).unwrap();
    let sizes = clip.read("time_ids", Kind::Float).unwrap();
    let sizes = Vec::<f32>::try_from(sizes).unwrap();
    assert_eq!(sizes, [40.0, 40.0, 0.0, 0.0, 32.0, 32.0]);
    let mut texts = fs::read_dir(place.path("cache/texts")).unwrap();
    let text = SafetensorsFile::open(&texts.next().unwrap().unwrap().path()).unwrap();
    assert_eq!(text.shape("text"), Some(vec![77, 80]));
    assert_eq!(text.shape("pooled"), Some(vec![24]));

    let summary = place
        .run(&[
            "sample.prompts=[red]",
            "sample.num_inference_steps=2",
            "sample.width=32",
            "sample.height=48",
        ])
        .unwrap();
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);
    let mut samples = fs::read_dir(place.path("runs/pictures/samples")).unwrap();
    let previews = samples.next().unwrap().unwrap().path();
    assert!(previews.join("0.png").is_file(), "{}", previews.display());

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices and alpha for each of ten layers in 17 blocks.
    let names = file.names();
    assert_eq!(names.len(), 510);
    assert!(names.iter().all(|name| name.starts_with("lora_unet_")));
    let up = "lora_unet_middle_block_1_transformer_blocks_0_attn1_to_q.lora_up.weight";
    let up = file.read(up, Kind::Float).unwrap();
    assert!(
        f64::try_from(up.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    let metadata = file.metadata();
    assert_eq!(metadata["ss_network_module"], "networks.lora");
    assert_eq!(metadata["ss_network_alpha"], "4");
    let read = LoraFile::read(&lora, &sdxl::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 170);
    for (form, start) in [
        (LoraForm::Diffusers, "unet."),
        (LoraForm::Comfy, "diffusion_model."),
    ] {
        let other = place.path(&format!("{form:?}.safetensors"));
        convert_lora(&lora, &other, Some(form), None).unwrap();
        let other = SafetensorsFile::open(&other).unwrap();
        assert!(other.names().iter().all(|name| name.starts_with(start)));
    }
    // A run goes on from the file of another, in kohya's form.
    let resume = format!("adapter.resume_from={}", lora.display());
    place
        .run(&["name=more", &resume, "train.max_steps=1"])
        .unwrap();
}

/// Some layers alone are a file that is read, too: kohya's form needs none of them.
#[test]
fn some_layers_are_a_lora_in_the_same_form() {
    let place = Place::new(NAME);
    let targets = "adapter.target_modules=[attn2.to_k, proj_in]";
    place.run(&[targets, "train.max_steps=1"]).unwrap();
    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let read = LoraFile::read(&lora, &sdxl::ARCH, None).unwrap();
    // In 17 blocks, and before the blocks of eleven transformers.
    assert_eq!(read.modules.len(), 28);
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    Place::new(NAME).resumed_and_streamed_runs_end_with_the_same_bits();
}
