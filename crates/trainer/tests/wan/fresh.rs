//! A model of which only the config is there: trained, resumed, and used as any other.

use std::fs;
use std::path::Path;

use models::diffusion::lora::{LoraFile, LoraModule};
use models::diffusion::wan;
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::{DenoiserOptions, PartPaths, Request, generate, open};
use tch::{Device, Kind};

use super::place::{Place, golden, scheduled};

const FRESH: [&str; 3] = [
    "model.from_config=true",
    "adapter=null",
    "train.ema_decay=0.9",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    FRESH.iter().chain(more).copied().collect()
}

/// A place whose transformers are configs alone.
fn without_weights(place: Place) -> Place {
    for part in ["transformer", "transformer_2"] {
        let weights = "diffusion_pytorch_model.safetensors";
        let weights = place.path("model").join(part).join(weights);
        if weights.is_file() {
            fs::remove_file(weights).unwrap();
        }
    }
    place
}

#[test]
fn it_learns_and_is_a_folder_that_makes_videos_and_takes_a_lora() {
    let place = scheduled(without_weights(Place::new()));
    let previews = [
        "sample.prompts=[a dog runs]",
        "sample.num_inference_steps=2",
    ];
    let long = [
        "train.max_steps=40",
        "train.learning_rate=0.003",
        "train.eval_steps=20",
        "train.save_steps=0",
        "train.logging_steps=10",
    ];
    let summary = place.run(&with(&[&previews[..], &long].concat())).unwrap();
    let run = place.path("runs/clips");
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let held_out: Vec<f64> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|record| record["kind"] == "eval")
        .map(|record| record["eval_loss"].as_f64().unwrap())
        .collect();
    assert!(held_out.len() >= 2 && held_out.iter().all(|loss| loss.is_finite()));
    let (first, last) = (summary.first_loss.unwrap(), summary.last_loss.unwrap());
    assert!(last < 0.9 * first, "{first} to {last}");
    // Nothing is known before the first step, and nothing shown.
    let names = fs::read_dir(run.join("samples")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["step-000040"]);
    assert!(!run.join("adapter").exists());

    let model = run.join("model");
    let folder = open(&model, &PartPaths::default(), &mut |_| ()).unwrap();
    let shape = |model: &Path| fs::read(model.join("transformer/config.json")).unwrap();
    assert_eq!(shape(&model), shape(&place.path("model")));
    let made = place.path("made");
    let request = Request {
        prompt: "a dog runs".into(),
        negative_prompt: Some(String::new()),
        width: Some(32),
        height: Some(32),
        num_frames: Some(5),
        fps: None,
        num_inference_steps: 2,
        guidance_scale: Some(2.0),
        guidance_scale_2: None,
        flow_shift: None,
        scheduler: None,
        boundary_ratio: None,
        seed: 1,
        image: None,
        controls: Vec::new(),
        control_area: None,
        loras: Vec::new(),
        loras_2: Vec::new(),
        checkpoint: None,
        latents: None,
        save_latents: None,
        output: Some(made.clone()),
    };
    let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
    generate(&*folder, &request, options, &mut |_, _| ()).unwrap();
    assert_eq!(fs::read_dir(&made).unwrap().count(), 5);

    let base = format!("model.name_or_path={}", model.display());
    let lora = place.run(&["name=lora", &base]).unwrap();
    assert_eq!(lora.steps, 6);
    let path = place.path("runs/lora/adapter/lora.safetensors");
    assert_eq!(SafetensorsFile::open(&path).unwrap().names().len(), 60);
    // Its parts are those that the base was trained with: nothing was encoded again but the clips and
    // captions that only the LoRA has.
    assert_eq!(place.encoded(&["name=lora", &base]), (0, 0));

    // The file that other programs load goes on as a run of its own, from the same function.
    let from = format!("adapter.resume_from={}", path.display());
    let still = "train.learning_rate=1e-12";
    place.run(&["name=further", &base, &from, still]).unwrap();
    let of = |run: &str| {
        let path = place.path(&format!("runs/{run}/adapter/{run}.safetensors"));
        LoraFile::read(&path, &wan::ARCH, None).unwrap().modules
    };
    for ((name, before), (other, after)) in of("lora").iter().zip(&of("further")) {
        assert_eq!(name, other);
        let change = |module: &LoraModule| module.change.matrix().unwrap() * module.scale();
        let error = (change(before) - change(after)).abs().max();
        assert!(f64::try_from(error).unwrap() < 1e-6, "{name}");
    }
}

#[test]
fn a_run_that_is_killed_anywhere_ends_with_the_same_bits() {
    let place = without_weights(Place::new());
    place.check_kills(
        &with(&["train.save_steps=1"]),
        &[
            "model/transformer/diffusion_pytorch_model.safetensors",
            "model/vae/diffusion_pytorch_model.safetensors",
            "checkpoints/step-000006/optimizer.safetensors",
        ],
    );
}

/// Sums over the uses of text and time have another order then, so that bits may differ.
#[test]
fn checkpointed_blocks_learn_the_same() {
    let place = without_weights(Place::new());
    let loss = |more: &[&str]| {
        let summary = place.run(&with(more)).unwrap();
        summary.held_out.unwrap().loss
    };
    let plain = loss(&["name=plain"]);
    let checkpointed = loss(&["name=other", "train.gradient_checkpointing=true"]);
    assert!(
        (plain / checkpointed - 1.0).abs() < 1e-4,
        "{plain} {checkpointed}"
    );
    let other = loss(&["name=third", "seed=4"]);
    assert!((plain / other - 1.0).abs() > 1e-3, "{plain} {other}");
}

#[test]
fn a_run_does_not_go_on_with_another_shape() {
    let place = without_weights(Place::new());
    place.run(&with(&["train.max_steps=2"])).unwrap();
    let resume = "train.resume_from_checkpoint=latest";
    let config = place.path("model/transformer/config.json");
    let shape = fs::read_to_string(&config).unwrap();
    let [one, other] = ["\"num_layers\": 2", "\"num_layers\": 3"];
    assert!(shape.contains(one));
    fs::write(&config, shape.replace(one, other)).unwrap();
    let error = place.run(&with(&[resume])).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("transformer"), "{text}");
}

/// Weights that are there are not used, and parts that are named singly are in the folder that is written.
#[test]
fn of_a_model_with_weights_only_the_config_and_the_other_parts_are_taken() {
    let place = without_weights(Place::new());
    let losses = |name: &str, more: &[&str]| {
        let name = format!("name={name}");
        let summary = place
            .run(&with(&[&[name.as_str()], more].concat()))
            .unwrap();
        (summary.first_loss, summary.last_loss)
    };
    let alone = losses("alone", &[]);
    let text_encoder = place.path("elsewhere");
    fs::rename(place.path("model/text_encoder"), &text_encoder).unwrap();
    let named = [
        format!(
            "model.transformer={}",
            golden("training/transformer").display()
        ),
        format!("model.text_encoder={}", text_encoder.display()),
    ];
    assert_eq!(
        losses("named", &named.each_ref().map(String::as_str)),
        alone
    );
    let [alone, named] = ["alone", "named"].map(|run| place.path("runs").join(run).join("model"));
    for file in [
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
    ] {
        let read = |model: &Path| fs::read(model.join(file)).unwrap();
        assert!(read(&alone) == read(&named), "{file}");
    }
    let file = text_encoder.join("model.safetensors");
    let file = format!("model.text_encoder={}", file.display());
    let error = place
        .run(&with(&["name=file", &file]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("is not a folder"), "{error}");
}

#[test]
fn two_experts_are_trained_and_written_to_their_folders() {
    let place = without_weights(Place::image_to_video());
    place.run(&with(&["train.steps_per_expert=2"])).unwrap();
    let weights = ["transformer", "transformer_2"].map(|part| {
        let folder = place.path("runs/clips/model").join(part);
        assert!(folder.join("config.json").is_file());
        let file = SafetensorsFile::open(&folder.join("diffusion_pytorch_model.safetensors"));
        let file = file.unwrap();
        file.read("proj_out.weight", Kind::Float).unwrap()
    });
    // From the same first weights, at their own levels of noise.
    assert_eq!(weights[0].size(), weights[1].size());
    assert_ne!(weights[0], weights[1]);
}
