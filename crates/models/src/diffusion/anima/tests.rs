//! Held against diffusers and transformers: a tiny random model.

mod single_files;

use std::path::PathBuf;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::ARCH;
use super::model::{T5_TOKENS, collated};
use super::transformer::{ConditionerConfig, Transformer, TransformerConfig};
use crate::diffusion::reference::{FROZEN, How, Reference, difference, placer};
use crate::diffusion::{Conditions, Diffusion, PartPaths, TEXT, TEXT_TOKENS, load_text_encoder};
use crate::model::{Base, Builder, Pass};

const REFERENCE: Reference = Reference {
    build: |_, builder| Ok(Box::new(built(builder))),
    conditions: &[(TEXT, "text"), (T5_TOKENS, "t5")],
    ..Reference::of(&ARCH)
};

fn golden(name: &str) -> PathBuf {
    REFERENCE.golden(name)
}

fn configs() -> (TransformerConfig, ConditionerConfig) {
    let config = |part: &str| golden(&format!("model/{part}/config.json"));
    (
        TransformerConfig::read(&config("transformer")).unwrap(),
        ConditionerConfig::read(&config("text_conditioner")).unwrap(),
    )
}

fn built(builder: &mut Builder) -> Transformer {
    let (config, conditioner) = configs();
    Transformer::new(&config, &conditioner, Device::Cpu, builder).unwrap()
}

fn model() -> Box<dyn Diffusion> {
    REFERENCE.model()
}

fn expected(name: &str) -> Tensor {
    REFERENCE.expected(name)
}

/// The denoiser of the folder, not as one of several.
fn transformer() -> Transformer {
    let (tensors, mut placer) = (REFERENCE.denoiser_file(), placer());
    let load = crate::model::Load::whole(Kind::Float);
    load.frozen(&tensors, &mut placer, |_, builder| Ok(built(builder)))
        .unwrap()
}

/// Tokens equal, states and what the conditioner makes of them within 1e-4.
#[test]
fn prompts_are_cut_encoded_and_conditioned_as_by_the_pipeline() {
    let (model, transformer) = (model(), transformer());
    let tokenizer = model.tokenizer().unwrap();
    let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
    let (mut truncated, mut rows) = (0, Vec::new());
    for (number, prompt) in REFERENCE
        .json::<Vec<Value>>("prompts.json")
        .iter()
        .enumerate()
    {
        let text = prompt["text"].as_str().unwrap();
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(prompt[key].clone()).unwrap() };
        let (theirs, t5, t5_read) = (ids("tokens"), ids("t5"), ids("t5_read"));
        let ours = tokenizer.tokens(text).unwrap();
        let read = theirs.len().min(512);
        assert_eq!(ours, [&theirs[..read], &t5_read], "{text:?}");
        let longer = theirs.len().max(t5.len());
        assert_eq!(tokenizer.length(text).unwrap(), (longer, 512), "{text:?}");
        truncated += usize::from(read < theirs.len() && t5_read.len() < t5.len());
        let mut conditions = model.of_tokens(&ours).unwrap();
        conditions.extend(encoder.encode(&ours[0]).unwrap());
        let states = conditions.get(TEXT).unwrap();
        let apart = difference(states, &expected(&format!("text.{number}")));
        assert!(apart <= 1e-4, "{text:?}: {apart}");
        rows.push(conditions);
    }
    assert_eq!(truncated, 1);
    // Together, so that all but the longest are padded.
    let text = transformer.text(&collated(&rows).unwrap(), Pass::Evaluate);
    let text = text.unwrap();
    for number in 0..rows.len() {
        let theirs = expected(&format!("conditioned.{number}"));
        let (own, length) = (text.get(number as i64), theirs.size()[0]);
        let apart = difference(&own.narrow(0, 0, length), &theirs);
        assert!(apart <= 1e-4, "{number}: {apart}");
        let behind = own.narrow(0, length, 512 - length).abs().sum(Kind::Float);
        assert_eq!(f64::try_from(&behind).unwrap(), 0.0, "{number}");
    }
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    REFERENCE.pictures_of_the_causal_autoencoder_are_those_of_diffusers();
}

/// A picture of its own is the same as in a batch, in which its text is padded in both forms.
#[test]
fn velocities_are_those_of_diffusers() {
    REFERENCE.velocities_are_those_of_diffusers(&["low", "wide"], |batch| {
        let row = |name: &str| batch.get(name).unwrap().get(0);
        let states = row(TEXT_TOKENS).int64_value(&[]);
        let tokens = row(T5_TOKENS).ge(0.0).sum(Kind::Int64).int64_value(&[]);
        let mut alone = Conditions::of(TEXT, row(TEXT).narrow(0, 0, states));
        alone.insert(T5_TOKENS, row(T5_TOKENS).narrow(0, 0, tokens));
        collated(&[alone]).unwrap()
    });
}

#[test]
fn what_is_computed_again_is_not_kept() {
    REFERENCE.what_is_computed_again_is_not_kept("low");
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("low");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    // All of conditioner and transformer, and parts of them.
    let streamed: [&[usize]; 3] = [&[0, 1, 2, 3, 4], &[1, 3], &[2]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("low", &streamed);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("low");
}

#[test]
fn samples_are_those_of_the_pipeline() {
    REFERENCE.samples_are_those_of_the_pipeline();
    assert_eq!(model().defaults().unwrap().shift, 3.0);
}

#[test]
fn texts_of_a_batch_are_padded_and_counted() {
    let rows = [(2, 5), (3, 1)].map(|(states, tokens)| {
        let ones = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, Device::Cpu));
        let mut row = Conditions::of(TEXT, ones(&[states, 4]));
        row.insert(T5_TOKENS, ones(&[tokens]));
        row
    });
    let batch = collated(&rows).unwrap();
    assert_eq!(batch.get(TEXT).unwrap().size(), [2, 3, 4]);
    let numbers = |name: &str| {
        let tensor = batch.get(name).unwrap().reshape([-1]);
        Vec::<f32>::try_from(tensor).unwrap()
    };
    assert_eq!(numbers(TEXT_TOKENS), [2.0, 3.0]);
    let ids = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0];
    assert_eq!(numbers(T5_TOKENS), ids);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let case = REFERENCE.case("low");
    let predicted = |latents: &Tensor, conditions: &Conditions| {
        let made = model.predict(latents, &case.times, conditions, Pass::Evaluate);
        made.unwrap_err().to_string()
    };
    for size in [
        [2, 17, 1, 6, 8],
        [2, 16, 2, 6, 8],
        [2, 16, 1, 5, 8],
        [2, 16, 1, 6, 42],
    ] {
        let latents = Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let error = predicted(&latents, &case.conditions);
        assert!(error.contains("this model takes 16 channels"), "{error}");
        assert!(error.contains("up to 20 times"), "{error}");
    }
    let vocabulary = configs().1.target_vocab_size;
    let mut conditions = case.conditions.shallow_clone();
    let ids = conditions.get(T5_TOKENS).unwrap() + vocabulary as f64;
    conditions.insert(T5_TOKENS, ids);
    let error = predicted(&case.latents, &conditions);
    assert!(error.contains(&format!("of {vocabulary}")), "{error}");
}

/// Every part of the folder that is of another class, or for another model, is refused by its file and key.
#[test]
fn parts_of_other_models_are_refused() {
    const INDEX: &str = "modular_model_index.json";
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
        (INDEX, "vae", class("AutoencoderKL"), "`vae` is"),
        (
            INDEX,
            "text_conditioner",
            class("Other"),
            "`text_conditioner` is",
        ),
        (INDEX, "_class_name", json!("CosmosPipeline"), "only "),
        (
            "transformer/config.json",
            "text_embed_dim",
            json!(32),
            "its conditioner makes one of 16",
        ),
        (
            "transformer/config.json",
            "img_context_dim_in",
            json!(8),
            "`img_context_dim_in`",
        ),
        (
            "text_conditioner/config.json",
            "source_dim",
            json!(32),
            "takes a width of 32",
        ),
        (
            "vae/config.json",
            "input_channels",
            json!(4),
            "`in_channels`",
        ),
        (
            "text_encoder/config.json",
            "model_type",
            json!("bert"),
            "`model_type`",
        ),
        (
            "scheduler/scheduler_config.json",
            "use_dynamic_shifting",
            json!(true),
            "`use_dynamic_shifting`",
        ),
    ]);
}

/// Both tokenizers of a folder that is named singly, and what is said if there is no second one.
#[test]
fn the_second_tokenizer_is_in_the_first_one_or_beside_it() {
    let opened = |tokenizer: PathBuf| {
        let parts = PartPaths {
            tokenizer: Some(tokenizer),
            ..PartPaths::default()
        };
        let model = super::Anima::open(&golden("model"), &parts).unwrap();
        model.tokenizer()?.tokens("a grey cat")
    };
    let own = model().tokenizer().unwrap().tokens("a grey cat").unwrap();
    for name in ["model", "model/tokenizer", "model/tokenizer/tokenizer.json"] {
        assert_eq!(opened(golden(name)).unwrap(), own, "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("qwen");
    std::fs::create_dir(&alone).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden("model/tokenizer").join(file), alone.join(file)).unwrap();
    }
    let error = opened(alone).unwrap_err().to_string();
    assert!(error.contains("no folder `t5_tokenizer`"), "{error}");
}

#[test]
fn a_trained_conditioner_gets_gradients_and_a_frozen_one_costs_none() {
    let case = REFERENCE.case("low");
    let operators = |how: How| {
        let (model, _) = REFERENCE.denoiser(how, Kind::Float);
        let noisy = case.latents.copy().set_requires_grad(true);
        let pass = Pass::Train { checkpoint: true };
        let made = model.predict(&noisy, &case.times, &case.conditions, pass);
        let work = || torch_ext::backward(&made.unwrap().sum(Kind::Float)).unwrap();
        let ((), counts) = torch_ext::operators::counted(work).unwrap();
        counts.get("aten::rms_norm").copied().unwrap_or(0)
    };
    let trained = How {
        base: Base::Trained,
        ..FROZEN
    };
    // A block of the conditioner has seven such norms, and there are two; one of the transformer has four.
    let (frozen, trained) = (operators(FROZEN), operators(trained));
    assert!(
        frozen >= 12 && trained >= frozen + 14,
        "{frozen}, {trained}"
    );
}
