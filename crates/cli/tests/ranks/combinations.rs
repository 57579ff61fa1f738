//! What else a run may be asked for, with two ranks: the same as one with twice the batch.

use std::fs;

use super::{CONFIG, Place, assert_fine, distance, doubles, stderr};

/// Of two blocks, with matrices that quantisation and states of eight bits take.
const BASE: &str = "model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 2}";
const ONE_BLOCK: &str =
    "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}";

/// How far apart, relative, held-out losses and the norm of all weights may be after training.
struct Bounds {
    evaluations: f64,
    weights: f64,
}

/// Of sums in another order.
const ROUNDING: Bounds = Bounds {
    evaluations: 1e-6,
    weights: 1e-5,
};
/// Where rounding puts a moment on the other side between two of its 256 codes, it is a whole code off.
const CODES: Bounds = Bounds {
    evaluations: 1e-5,
    weights: 1e-2,
};

/// The norm of the difference of two vectors, relative to that of the vectors. Adam enlarges the rounding of a
/// gradient near zero, so that single weights say nothing: the more there are, the farther is the farthest.
fn apart(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut one.iter().zip(other).map(|(one, other)| one - other));
    difference / norm(&mut one.iter().copied())
}

/// Runs with these keys, by one and by two ranks; what the latter say.
fn two_ranks_are_one(model: &str, further: &str, keys: &[&str], bounds: &Bounds) -> String {
    let place = Place::new();
    fs::write(place.path("config.yaml"), CONFIG.replace(ONE_BLOCK, BASE)).unwrap();
    let mut config = CONFIG.replace(ONE_BLOCK, BASE);
    if !model.is_empty() {
        assert_fine(&place.train(&["--set", "name=base", "--set", "train.max_steps=2"]));
        let base = place.path("runs/base/model").display().to_string();
        let model = format!("model: {{name_or_path: {base}, {model}}}\n{further}");
        config = CONFIG.replace(ONE_BLOCK, &model);
    }
    fs::write(place.path("config.yaml"), config).unwrap();
    let run = |arguments: &[&str]| {
        let keys = keys.iter().flat_map(|key| ["--set", *key]);
        let arguments: Vec<&str> = keys.chain(arguments.iter().copied()).collect();
        let output = place.train(&arguments);
        assert_fine(&output);
        stderr(&output)
    };
    run(&[
        "--set",
        "name=one",
        "--set",
        "train.per_device_train_batch_size=4",
    ]);
    let told = run(&["--set", "name=two", "--nproc", "2"]);
    let losses = distance(&place.losses("one"), &place.losses("two"));
    let evaluations = distance(&place.evaluations("one"), &place.evaluations("two"));
    println!("{keys:?} {model}: losses differ by {losses:.1e}, evaluations by {evaluations:.1e}");
    assert!(losses < 1e-6, "losses differ by {losses}");
    assert!(
        evaluations < bounds.evaluations,
        "evaluations differ by {evaluations}"
    );
    let (one, two) = (place.weights("one", 8), place.weights("two", 8));
    let weights = apart(&doubles(&one), &doubles(&two));
    println!("weights differ by {weights:.1e}");
    assert!(weights < bounds.weights, "weights differ by {weights}");
    told
}

#[test]
fn dora() {
    two_ranks_are_one(
        "max_memory: null",
        "adapter: {r: 4, use_dora: true}",
        &[],
        &ROUNDING,
    );
}

#[test]
fn a_quantised_base() {
    two_ranks_are_one("quantization: nf4", "adapter: {r: 4}", &[], &ROUNDING);
}

#[test]
fn streamed_blocks_with_checkpointing() {
    let keys = ["train.gradient_checkpointing=true"];
    two_ranks_are_one("low_vram: true", "adapter: {r: 4}", &keys, &ROUNDING);
}

#[test]
fn accumulation_with_checkpointing() {
    let keys = [
        "train.gradient_checkpointing=true",
        "train.gradient_accumulation_steps=2",
    ];
    two_ranks_are_one("max_memory: null", "adapter: {r: 4}", &keys, &ROUNDING);
}

#[test]
fn sums_that_overlap_with_a_backward_pass_of_checkpointed_blocks() {
    let keys = [
        "train.gradient_checkpointing=true",
        "train.gradient_accumulation_steps=2",
    ];
    // Of so high a rank that the gradients are several buckets.
    let adapter = "adapter: {r: 64}";
    let told = two_ranks_are_one("max_memory: null", adapter, &keys, &ROUNDING);
    assert!(told.contains("buckets during the backward pass"), "{told}");
}

#[test]
fn batches_by_length() {
    let keys = [
        "data.path=lines.jsonl",
        "data.packing=false",
        "data.block_size=64",
        "train.group_by_length=true",
        "train.label_smoothing_factor=0.1",
    ];
    two_ranks_are_one("max_memory: null", "adapter: {r: 4}", &keys, &ROUNDING);
}

#[test]
fn moments_of_eight_bits() {
    two_ranks_are_one("", "", &["train.optim=adamw_8bit"], &CODES);
}
