//! A LoRA on a tiny SDXL: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::sdxl;
use models::formats::{SafetensorsFile, TensorSource};
use serde_json::Value;
use surefoot_trainer::adapters::merge;
use surefoot_trainer::media_sampling::{
    DenoiserOptions, Lora, PartPaths, Request, convert_lora, generate, open,
};
use tch::{Kind, Tensor};

use crate::pictures::{KINDS, Place};

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
    place.other_kinds().are_those_of_peft(&KINDS, batch);
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
fn other_kinds_of_adapters_are_trained_and_used() {
    let lora = [
        ".lora_down.weight",
        ".lora_up.weight",
        ".alpha",
        ".dora_scale",
    ];
    Place::new(NAME).other_kinds_are_trained_and_used(
        &sdxl::ARCH,
        &[
            ("adapter.use_dora=true", &lora),
            (
                "adapter.type=loha",
                &[
                    ".hada_w1_a",
                    ".hada_w1_b",
                    ".hada_w2_a",
                    ".hada_w2_b",
                    ".alpha",
                ],
            ),
            (
                "adapter.type=lokr adapter.decompose_factor=4",
                &[".lokr_w1", ".lokr_w2_a", ".lokr_w2_b", ".alpha"],
            ),
        ],
    );
}

/// The encoders of the texts learn beside the UNet, at a rate of their own.
#[test]
fn text_encoders_learn_as_in_peft() {
    let place = Place::new(NAME);
    let given = place.training();
    let texts = SafetensorsFile::open(&place.golden("kinds/text/steps.safetensors")).unwrap();
    let read = |name: &str| given.read(name, Kind::Float).unwrap();
    let batch = |step: i64| -> Vec<(&'static str, Tensor)> {
        let of_step = |name: &'static str| (name, read(name).select(0, step));
        let text = |name: &'static str| (name, texts.read(name, Kind::Float).unwrap());
        vec![
            ("latents", of_step("latents").1.unsqueeze(2)),
            ("noise", of_step("noise").1.unsqueeze(2)),
            ("sigma", (of_step("times").1 + 1.0) / 1000.0),
            text("tokens"),
            text("tokens_2"),
            of_step("time_ids"),
        ]
    };
    place.other_kinds().of_a_kind("text", &TEXT, batch);
}

const TEXT: [&str; 2] = ["train.text_encoder=true", "train.text_encoder_lr=0.004"];

/// Captions are not encoded beforehand; the file has all three, and is used whole.
#[test]
fn text_encoders_are_trained_and_used() {
    let place = Place::new(NAME);
    let run = |more: &[&str]| place.run(&[&TEXT[..], more].concat()).unwrap();
    let preview = [
        "sample.prompts=[red]",
        "sample.num_inference_steps=2",
        "sample.width=32",
        "sample.height=48",
    ];
    run(&[&["name=whole"], &preview[..]].concat());
    run(&["name=parts", "train.max_steps=2"]);
    run(&["name=parts", "train.resume_from_checkpoint=latest"]);
    assert!(place.weights("whole") == place.weights("parts"));
    for how in ["model.low_vram=true", "train.gradient_checkpointing=true"] {
        let refused = place.run(&[TEXT[0], how]).unwrap_err().to_string();
        assert!(refused.contains("no gradient reaches"), "{refused}");
    }
    let mut texts = fs::read_dir(place.path("cache/texts")).unwrap();
    let text = SafetensorsFile::open(&texts.next().unwrap().unwrap().path()).unwrap();
    assert_eq!(text.names(), ["tokens", "tokens_2"]);
    let path = place.path("runs/whole/adapter/whole.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let of = |start: &str| {
        file.names()
            .iter()
            .filter(|name| name.starts_with(start))
            .count()
    };
    // Six layers in two blocks that are used, and in four.
    assert_eq!(
        (of("lora_te1_"), of("lora_te2_"), of("lora_unet_")),
        (36, 72, 510)
    );
    let last = "lora_te2_text_model_encoder_layers_3_mlp_fc2.lora_up.weight";
    let up = file.read(last, Kind::Float).unwrap();
    assert!(
        f64::try_from(up.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    let read = LoraFile::read(&path, &sdxl::ARCH, None).unwrap();
    assert_eq!(read.text_layers().count(), 36);
    let diffusers = place.path("diffusers.safetensors");
    let refused = convert_lora(&path, &diffusers, Some(LoraForm::Diffusers), None).unwrap_err();
    assert!(refused.to_string().contains("text encoder"), "{refused}");
    let resume = format!("adapter.resume_from={}", path.display());
    run(&["name=more", &resume, "train.max_steps=1"]);

    // Its preview is what is drawn with the file.
    let drawn = |loras: Vec<Lora>| {
        let model = open(&place.golden("model"), &PartPaths::default(), &mut |_| ()).unwrap();
        let to = place.path(&format!("drawn-{}.png", loras.len()));
        let request = Request {
            controls: Vec::new(),
            control_area: None,
            prompt: "red".into(),
            negative_prompt: Some(String::new()),
            width: Some(32),
            height: Some(48),
            num_frames: None,
            fps: None,
            num_inference_steps: 2,
            guidance_scale: None,
            guidance_scale_2: None,
            flow_shift: None,
            scheduler: None,
            boundary_ratio: None,
            seed: 3,
            image: None,
            loras,
            loras_2: Vec::new(),
            checkpoint: None,
            latents: None,
            save_latents: None,
            output: Some(to.clone()),
        };
        let options = DenoiserOptions::whole(tch::Device::Cpu, Kind::Float);
        generate(&*model, &request, options, &mut |_, _| ()).unwrap();
        image::open(to).unwrap().to_rgb8()
    };
    let lora = |strength| Lora {
        path: path.clone(),
        strength,
    };
    let folder = place.path("runs/whole/samples/step-000004/0.png");
    let preview = image::open(folder).unwrap().to_rgb8();
    let ours = drawn(vec![lora(1.0)]);
    let apart = preview
        .iter()
        .zip(ours.iter())
        .map(|(one, other)| one.abs_diff(*other));
    assert!(
        apart.max().unwrap() <= 1,
        "the file draws something else than its run"
    );
    assert!(ours != drawn(Vec::new()));
    let merged = merge(
        &place.golden("model"),
        [&[lora(1.0)], &[]],
        &place.path("merged"),
        None,
    );
    assert!(
        merged
            .unwrap_err()
            .to_string()
            .contains("changes a text encoder")
    );
}

/// Of all weights, too.
#[test]
fn a_run_on_the_whole_model_is_resumed_and_used() {
    let place = Place::new(NAME);
    let whole = [
        "adapter=null",
        "train.learning_rate=0.001",
        "train.ema_decay=0.9",
    ];
    let with = |more: &[&'static str]| place.run(&[&whole[..], more].concat()).unwrap();
    let summary = with(&["name=whole"]);
    with(&["name=parts", "train.max_steps=2"]);
    with(&["name=parts", "train.resume_from_checkpoint=latest"]);
    assert!(place.weights("whole") == place.weights("parts"));
    let (first, last) = (summary.first_loss.unwrap(), summary.last_loss.unwrap());
    assert!(first.is_finite() && last.is_finite() && first != last);
    let made = place.path("runs/whole/model");
    let base = format!("model.name_or_path={}", made.display());
    place
        .run(&["name=lora", &base, "train.max_steps=1"])
        .unwrap();
    let config = place.config(&whole);
    let little = surefoot_trainer::task::diffusion::DiffusionTask::open(
        &config,
        &place.golden("model"),
        &mut placement::Placer::new(tch::Device::Cpu, placement::Policy::default()).unwrap(),
        placement::plan::Memory::Discrete {
            device: placement::Bytes::mib(1),
            host: placement::Bytes::gib(8),
        },
        &mut surefoot_trainer::NoObserver,
    );
    let refused = little.err().unwrap().to_string();
    assert!(
        refused.contains("training all") && refused.contains("`adapter`"),
        "{refused}"
    );
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    Place::new(NAME).resumed_and_streamed_runs_end_with_the_same_bits();
}
