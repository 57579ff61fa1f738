//! Held against diffusers and transformers: a tiny random model.

mod checkpoints;

use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::Sdxl;
use super::model::SIZES_OF_PICTURE;
use crate::diffusion::parts::clip::POOLED;
use crate::diffusion::parts::schedule::{Scheduler, Spacing};
use crate::diffusion::sampling::{Guided, Sampling};
use crate::diffusion::testing::{
    Case, FROZEN, Golden, One, check_autoencoder, check_bfloat16, check_checkpoints, check_run,
    check_streaming, denoiser, difference, encoded, placer,
};
use crate::diffusion::{
    Conditions, Diffusion, Framing, Objective, PartPaths, Prediction, TEXT, load_text_encoder,
};
use crate::model::Pass;

const GOLDEN: Golden = Golden("sdxl");

fn model() -> Sdxl {
    Sdxl::open(&GOLDEN.path("model"), &PartPaths::default()).unwrap()
}

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = model();
    let tokenizer = model.tokenizer().unwrap();
    assert_eq!(model.text_encoders(), 2);
    let encoders =
        [0, 1].map(|number| load_text_encoder(&model, number, Kind::Float, false, &mut placer()));
    let encoders = encoders.map(Result::unwrap);
    let mut truncated = 0;
    for (number, prompt) in GOLDEN.list("prompts.json").iter().enumerate() {
        let text = prompt["text"].as_str().unwrap();
        let theirs: Vec<Vec<u32>> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        assert_eq!(tokenizer.tokens(text).unwrap(), theirs, "{text:?}");
        let length = prompt["length"].as_u64().unwrap() as usize;
        assert_eq!(tokenizer.length(text).unwrap(), (length, 77), "{text:?}");
        truncated += usize::from(length > 77);
        let mut ours = encoders[0].encode(&theirs[0]).unwrap();
        ours.join(encoders[1].encode(&theirs[1]).unwrap()).unwrap();
        for (name, part) in [(TEXT, "text"), (POOLED, "pooled")] {
            let theirs = GOLDEN.expected(&format!("{part}.{number}"));
            let apart = difference(ours.get(name).unwrap(), &theirs);
            assert!(apart <= 1e-4, "{text:?}, {name}: {apart}");
        }
    }
    assert!(truncated > 1);
    for tokens in [vec![], vec![1; 78], vec![523]] {
        let error = encoders[1].encode(&tokens).unwrap_err().to_string();
        assert!(
            error.contains("from 1 to 77 are encoded, of 523"),
            "{error}"
        );
    }
    // Blocks that are streamed one by one compute the same.
    let tokens = tokenizer.tokens("a grey cat").unwrap();
    let whole = encoders[1].encode(&tokens[1]).unwrap();
    let streamed = load_text_encoder(&model, 1, Kind::Float, true, &mut placer()).unwrap();
    let streamed = streamed.encode(&tokens[1]).unwrap();
    assert_eq!(streamed.get(TEXT).unwrap(), whole.get(TEXT).unwrap());
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    check_autoencoder(GOLDEN, &model(), "vae");
}

fn case(label: &str) -> Case {
    let read = |what: &str| GOLDEN.expected(&format!("unet.{label}.{what}"));
    let mut conditions = Conditions::of(TEXT, read("text"));
    conditions.insert(POOLED, read("pooled"));
    conditions.insert(SIZES_OF_PICTURE, read("time_ids"));
    Case {
        noisy: read("latents").unsqueeze(2),
        times: read("times"),
        conditions,
        theirs: read("made").unsqueeze(2),
    }
}

#[test]
fn predictions_are_those_of_diffusers() {
    let (model, _) = denoiser(&model(), FROZEN, Kind::Float);
    for label in ["even", "odd", "one"] {
        let case = case(label);
        let apart = case.apart(&*model);
        assert!(apart <= 1e-4, "{label}: {apart}");
        // The sizes of a picture are not ignored.
        let mut other = case.conditions.shallow_clone();
        let sizes = other.get(SIZES_OF_PICTURE).unwrap() + 64.0;
        other.insert(SIZES_OF_PICTURE, sizes);
        let moved = Case {
            conditions: other,
            ..case
        };
        assert!(moved.apart(&*model) > 1e-3, "{label}");
    }
    assert_eq!(
        model.description(),
        "a UNet of 32, 32, 64 channels with transformers of 0, 1, 2 blocks"
    );
}

#[test]
fn bfloat16_is_close() {
    check_bfloat16(&model(), &case("even"));
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    // Two blocks of the second stage on the way down and three on the way up; twice as many of the third, and those of
    // the middle.
    let all: Vec<usize> = (0..17).collect();
    check_streaming(&model(), &case("odd"), &[&all, &[1, 4, 16]]);
}

#[test]
fn checkpoints_change_no_gradient() {
    check_checkpoints(&model(), &case("even"));
}

/// The conditions of a prompt of the runs, as a batch for a picture of their size.
fn of_run(model: &Sdxl, prompt: &Value, prompts: &[Value]) -> Option<Conditions> {
    let text = prompts[prompt.as_u64()? as usize]["text"].as_str()?;
    Some(sized(model, encoded(model, text)))
}

fn sized(model: &Sdxl, mut conditions: Conditions) -> Conditions {
    let sizes = model.framing_conditions(Framing::whole((40, 24)));
    conditions.extend(sizes.unwrap());
    model.collate(&[conditions]).unwrap()
}

#[test]
fn samples_are_those_of_the_pipeline() {
    let model = model();
    let (unet, _) = denoiser(&model, FROZEN, Kind::Float);
    let mut experts = One(unet);
    let prompts = GOLDEN.list("prompts.json");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("scheduler_config.json");
    for run in GOLDEN.list("runs.json") {
        let name = run["name"].as_str().unwrap();
        std::fs::write(&config, run["scheduler"].to_string()).unwrap();
        let (scheduler, objective) = Spacing::read(&config).unwrap();
        let settings = Sampling {
            objective,
            scheduler,
            steps: run["steps"].as_u64().unwrap() as usize,
            flow_shift: 1.0,
            guidance_scale: run["guidance"].as_f64().unwrap(),
            guidance_scale_2: None,
            boundary_ratio: None,
        };
        let guided = Guided {
            positive: of_run(&model, &run["prompt"], &prompts).unwrap(),
            negative: of_run(&model, &run["negative"], &prompts).or_else(|| {
                let prompt = &prompts[run["prompt"].as_u64()? as usize]["text"];
                let zeros = model.without_prompt(&encoded(&model, prompt.as_str()?));
                Some(sized(&model, zeros.unwrap()?))
            }),
        };
        check_run(GOLDEN, &mut experts, name, &guided, &settings);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = denoiser(&model(), FROZEN, Kind::Float);
    let case = case("even");
    let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
    for (name, size) in [
        (TEXT, &[2, 77, 64][..]),
        (TEXT, &[1, 77, 80]),
        (POOLED, &[2, 25]),
        (SIZES_OF_PICTURE, &[2, 5]),
    ] {
        let mut conditions = case.conditions.shallow_clone();
        conditions.insert(name, zeros(size));
        let error = model.predict(&case.noisy, &case.times, &conditions, Pass::Evaluate);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("this model takes 4 channels"), "{error}");
    }
    for (size, told) in [
        (&[2, 9, 1, 8, 8], "this model takes 4 channels"),
        (&[2, 4, 2, 8, 8], "makes pictures"),
    ] {
        let error = model.predict(&zeros(size), &case.times, &case.conditions, Pass::Evaluate);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// Copies the configs of the golden folder, without weights.
fn configs(to: &Path) {
    for name in [
        "model_index.json",
        "unet/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "text_encoder_2/config.json",
        "scheduler/scheduler_config.json",
    ] {
        write(to, name, &original(name));
    }
}

fn original(name: &str) -> Value {
    GOLDEN.json(&format!("model/{name}"))
}

fn write(folder: &Path, name: &str, value: &Value) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, value.to_string()).unwrap();
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    configs(folder.path());
    let open = |parts: &PartPaths| Sdxl::open(folder.path(), parts);
    assert!(open(&PartPaths::default()).is_ok());
    let class = |name: &str| json!(["diffusers", name]);
    for (file, key, value, told) in [
        (
            "model_index.json",
            "vae",
            class("AutoencoderTiny"),
            "`vae` is \"AutoencoderTiny\"",
        ),
        (
            "model_index.json",
            "scheduler",
            class("LCMScheduler"),
            "`scheduler` is",
        ),
        ("unet/config.json", "in_channels", json!(9), "inpainting"),
        (
            "unet/config.json",
            "cross_attention_dim",
            json!(64),
            "together a width of 64",
        ),
        (
            "unet/config.json",
            "time_cond_proj_dim",
            json!(256),
            "(LCM)",
        ),
        (
            "vae/config.json",
            "latent_channels",
            json!(16),
            "has latents of 16 channels",
        ),
        (
            "text_encoder/config.json",
            "hidden_act",
            json!("relu"),
            "`hidden_act`",
        ),
        (
            "text_encoder_2/config.json",
            "projection_dim",
            json!(32),
            "a vector of 24",
        ),
        (
            "scheduler/scheduler_config.json",
            "use_karras_sigmas",
            json!(true),
            "`use_karras_sigmas`",
        ),
    ] {
        let mut changed = original(file);
        changed[key] = value;
        write(folder.path(), file, &changed);
        let error = open(&PartPaths::default()).unwrap_err().to_string();
        assert!(error.contains(told), "{file}, {key}: {error}");
        write(folder.path(), file, &original(file));
    }
    let parts = PartPaths {
        transformer_2: Some(folder.path().join("other")),
        ..PartPaths::default()
    };
    let error = open(&parts).unwrap_err().to_string();
    assert!(error.contains("given as second transformer"), "{error}");
}

/// What the scheduler's config says holds for training and for sampling.
#[test]
fn the_scheduler_says_what_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    configs(folder.path());
    let name = "scheduler/scheduler_config.json";
    let mut changed = original(name);
    changed["prediction_type"] = json!("v_prediction");
    changed["rescale_betas_zero_snr"] = json!(true);
    changed["timestep_spacing"] = json!("trailing");
    write(folder.path(), name, &changed);
    let model = Sdxl::open(folder.path(), &PartPaths::default()).unwrap();
    let expected = Objective::scaled_linear(0.00085, 0.012, Prediction::V).ending_in_noise();
    assert_eq!(model.objective(), expected);
    let defaults = model.defaults().unwrap();
    assert_eq!(defaults.scheduler, Scheduler::Discrete(Spacing::Trailing));
    // Euler's method is meant as the model's own, and DDIM is another.
    for (asked, used) in [
        (Some(Scheduler::Euler), defaults.scheduler),
        (None, defaults.scheduler),
        (Some(Scheduler::Ddim), Scheduler::Ddim),
    ] {
        assert_eq!(defaults.scheduler.or_asked(asked), used);
    }
}
