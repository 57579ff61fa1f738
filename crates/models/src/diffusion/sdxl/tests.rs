//! Held against diffusers and transformers: a tiny random model.

mod checkpoints;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::model::SIZES_OF_PICTURE;
use super::{ARCH, Sdxl};
use crate::diffusion::parts::clip::POOLED;
use crate::diffusion::parts::schedule::{Scheduler, Spacing};
use crate::diffusion::reference::{
    Case, FROZEN, One, Reference, difference, encoded, placer, write,
};
use crate::diffusion::sampling::{Guided, Sampling};
use crate::diffusion::{
    Conditions, Diffusion, Framing, Objective, PartPaths, Prediction, TEXT, load_text_encoder,
};
use crate::model::Pass;

const REFERENCE: Reference = Reference {
    case,
    ..Reference::of(&ARCH)
};

#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = REFERENCE.model();
    let tokenizer = model.tokenizer().unwrap();
    assert_eq!(model.text_encoders(), 2);
    let encoders =
        [0, 1].map(|number| load_text_encoder(&*model, number, Kind::Float, false, &mut placer()));
    let encoders = encoders.map(Result::unwrap);
    let mut truncated = 0;
    for (number, prompt) in REFERENCE
        .json::<Vec<Value>>("prompts.json")
        .iter()
        .enumerate()
    {
        let text = prompt["text"].as_str().unwrap();
        let theirs: Vec<Vec<u32>> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        assert_eq!(tokenizer.tokens(text).unwrap(), theirs, "{text:?}");
        let length = prompt["length"].as_u64().unwrap() as usize;
        assert_eq!(tokenizer.length(text).unwrap(), (length, 77), "{text:?}");
        truncated += usize::from(length > 77);
        let mut ours = encoders[0].encode(&theirs[0]).unwrap();
        ours.join(encoders[1].encode(&theirs[1]).unwrap()).unwrap();
        for (name, part) in [(TEXT, "text"), (POOLED, "pooled")] {
            let theirs = REFERENCE.expected(&format!("{part}.{number}"));
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
    let streamed = load_text_encoder(&*model, 1, Kind::Float, true, &mut placer()).unwrap();
    let streamed = streamed.encode(&tokens[1]).unwrap();
    assert_eq!(streamed.get(TEXT).unwrap(), whole.get(TEXT).unwrap());
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    REFERENCE.pictures_and_latents_are_those_of_diffusers(&[("vae", "model/vae")]);
}

fn case(reference: &Reference, label: &str) -> Case {
    let read = |what: &str| reference.expected(&format!("unet.{label}.{what}"));
    let mut conditions = Conditions::of(TEXT, read("text"));
    conditions.insert(POOLED, read("pooled"));
    conditions.insert(SIZES_OF_PICTURE, read("time_ids"));
    Case {
        latents: read("latents").unsqueeze(2),
        times: read("times"),
        conditions,
        made: read("made").unsqueeze(2),
    }
}

#[test]
fn predictions_are_those_of_diffusers() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    for label in ["even", "odd", "one"] {
        let case = REFERENCE.case(label);
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
fn what_is_computed_again_is_not_kept() {
    REFERENCE.what_is_computed_again_is_not_kept("even");
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("even");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    // Two blocks of the second stage on the way down and three on the way up; twice as many of the third, and those of
    // the middle.
    let all: Vec<usize> = (0..17).collect();
    let blocks: [&[usize]; 2] = [&all, &[1, 4, 16]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("odd", &blocks);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("even");
}

/// The conditions of a prompt of the runs, as a batch for a picture of their size.
fn of_run(model: &dyn Diffusion, prompt: &Value, prompts: &[Value]) -> Option<Conditions> {
    let text = prompts[prompt.as_u64()? as usize]["text"].as_str()?;
    Some(sized(model, encoded(model, text)))
}

fn sized(model: &dyn Diffusion, mut conditions: Conditions) -> Conditions {
    let sizes = model.framing_conditions(Framing::whole((40, 24)));
    conditions.extend(sizes.unwrap());
    model.collate(&[conditions]).unwrap()
}

#[test]
fn samples_are_those_of_the_pipeline() {
    let model = REFERENCE.model();
    let (unet, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let mut experts = One(unet);
    let prompts: Vec<Value> = REFERENCE.json("prompts.json");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("scheduler_config.json");
    for run in REFERENCE.json::<Vec<Value>>("runs.json") {
        let name = run["name"].as_str().unwrap();
        std::fs::write(&config, run["scheduler"].to_string()).unwrap();
        let (scheduler, objective) = Spacing::read(&config).unwrap();
        let settings = Sampling {
            objective,
            scheduler,
            steps: run["steps"].as_u64().unwrap() as usize,
            flow_shift: 1.0,
            guidance_scale: run["guidance"].as_f64().unwrap(),
            is_guidance_told: false,
            guidance_scale_2: None,
            boundary_ratio: None,
        };
        let guided = Guided {
            positive: of_run(&*model, &run["prompt"], &prompts).unwrap(),
            negative: of_run(&*model, &run["negative"], &prompts).or_else(|| {
                let prompt = &prompts[run["prompt"].as_u64()? as usize]["text"];
                let zeros = model.without_prompt(&encoded(&*model, prompt.as_str()?));
                Some(sized(&*model, zeros.unwrap()?))
            }),
        };
        REFERENCE.sample_is_that_of_the_pipeline(name, &mut experts, &guided, &settings);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let case = REFERENCE.case("even");
    let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
    for (name, size) in [
        (TEXT, &[2, 77, 64][..]),
        (TEXT, &[1, 77, 80]),
        (POOLED, &[2, 25]),
        (SIZES_OF_PICTURE, &[2, 5]),
    ] {
        let mut conditions = case.conditions.shallow_clone();
        conditions.insert(name, zeros(size));
        let error = model.predict(&case.latents, &case.times, &conditions, Pass::Evaluate);
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

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
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
    ]);
}

/// What the scheduler's config says holds for training and for sampling.
#[test]
fn the_scheduler_says_what_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    REFERENCE.configs(folder.path());
    let name = "scheduler/scheduler_config.json";
    let mut changed = REFERENCE.original(name);
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
