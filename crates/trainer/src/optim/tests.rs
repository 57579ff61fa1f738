//! AdamW with 8-bit moments, compared with bitsandbytes and with fp32 moments.

mod rules;

use tch::{Device, Kind, Tensor};

use super::*;
use models::Parameters;
use models::formats::SafetensorsFile;

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

fn golden(name: &str) -> Tensor {
    SafetensorsFile::open(&crate::golden::golden("quantisation.safetensors"))
        .unwrap()
        .read_stored(name)
        .unwrap()
}

fn settings(eight_bit: bool) -> AdamWSettings {
    AdamWSettings {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
        eight_bit,
    }
}

fn one(tensor: &Tensor) -> Parameters {
    let mut parameters = Parameters::default();
    let _ = parameters.register("w", &tensor.copy(), true).unwrap();
    parameters
}

/// Gradients with these values.
fn gradients(parameters: &Parameters, numbers: &[&Tensor]) -> Gradients {
    let products = parameters
        .tensors()
        .zip(numbers)
        .map(|(tensor, wanted)| (tensor * *wanted).sum(Kind::Float));
    let mut gradients = Gradients::default();
    gradients
        .accumulate(&products.sum::<Tensor>(), parameters)
        .unwrap();
    gradients
}

fn number(tensor: &Tensor) -> f64 {
    f64::try_from(tensor).unwrap()
}

/// Like bitsandbytes' own test of its 8-bit optimizers: states within 3e-3 and 1e-3 relative except for a few
/// values between two codes, and parameters within 6e-5 on average.
#[test]
fn five_steps_lead_where_bitsandbytes_leads() {
    let parameters = one(&golden("adam_start"));
    let mut optimizer = Optimizer::new(settings(true), &parameters).unwrap();
    for step in 0..5 {
        let gradient = golden("adam_gradients").get(step);
        let gradients = gradients(&parameters, &[&gradient]);
        optimizer.step(&gradients, 1e-3).unwrap();
    }
    let ours = parameters.tensors().next().unwrap().detach();
    let off = (&ours - golden("adam_end")).abs();
    assert!(number(&off.mean(Kind::Float)) < 6e-5);
    let relative = &off / (golden("adam_end").abs() + 1e-9);
    assert!(number(&relative.mean(Kind::Float)) < 6e-4);
    let moments = optimizer.states_of("w", &parameters);
    for (ours, theirs) in moments.into_iter().zip(["adam_first", "adam_second"]) {
        let near = ours.isclose(&golden(theirs), 1e-3, 3e-3, false);
        let off = ours.numel() as i64 - i64::try_from(near.sum(Kind::Int64)).unwrap();
        assert!(off < 20, "{theirs}: {off} numbers are off");
        // 3e-3 is wide for second moments of 1e-5, so also compare them relative to their magnitude.
        let error = (&ours - golden(theirs)).abs().max() / golden(theirs).abs().max();
        assert!(number(&error) < 0.02, "{theirs}: {error:?}");
    }
}

#[test]
fn fifty_steps_stay_beside_fp32() {
    tch::manual_seed(5);
    let start = Tensor::randn([300, 40], CPU) * 0.1;
    let (full, eight) = (one(&start), one(&start));
    let mut reference = Optimizer::new(settings(false), &full).unwrap();
    let mut optimizer = Optimizer::new(settings(true), &eight).unwrap();
    for step in 0..50 {
        let gradient = Tensor::randn([300, 40], CPU) * 0.01;
        reference
            .step(&gradients(&full, &[&gradient]), 1e-3)
            .unwrap();
        optimizer
            .step(&gradients(&eight, &[&gradient]), 1e-3)
            .unwrap();
        let (wanted, got) = (
            full.tensors().next().unwrap(),
            eight.tensors().next().unwrap(),
        );
        let off = (wanted - got).detach().abs();
        assert!(
            number(&off.mean(Kind::Float)) < 6e-5,
            "step {step}: {off:?}"
        );
        // Like the reference's test: each step is compared separately.
        got.detach().copy_(&wanted.detach());
    }
}

/// A least-squares problem: both converge to the solution.
#[test]
fn eight_bits_converge_as_fp32_does() {
    tch::manual_seed(6);
    let inputs = Tensor::randn([256, 64], CPU);
    let answer = Tensor::randn([64, 80], CPU);
    let targets = inputs.matmul(&answer);
    let train = |eight_bit: bool| -> f64 {
        let parameters = one(&Tensor::zeros([64, 80], CPU));
        let settings = AdamWSettings {
            weight_decay: 0.0,
            ..settings(eight_bit)
        };
        let mut optimizer = Optimizer::new(settings, &parameters).unwrap();
        let loss = || {
            let weight = parameters.tensors().next().unwrap();
            (inputs.matmul(weight) - &targets)
                .square()
                .mean(Kind::Float)
        };
        for step in 0..400 {
            let mut gradients = Gradients::default();
            gradients.accumulate(&loss(), &parameters).unwrap();
            let rate = 0.05 * (1.0 - f64::from(step) / 400.0);
            optimizer.step(&gradients, rate).unwrap();
        }
        number(&loss())
    };
    let (full, eight) = (train(false), train(true));
    assert!(full < 1e-3 && eight < 1e-2, "{full} and {eight}");
}

#[test]
fn small_parameters_and_embeddings_keep_fp32() {
    let mut parameters = Parameters::default();
    for (name, shape) in [
        ("norm.weight", vec![4095]),
        ("model.embed_tokens.weight", vec![100, 64]),
        ("q_proj.weight", vec![64, 64]),
    ] {
        let tensor = Tensor::zeros(shape, CPU);
        let _ = parameters.register(name, &tensor, true).unwrap();
    }
    let optimizer = Optimizer::new(settings(true), &parameters).unwrap();
    let kinds = optimizer
        .state(&parameters)
        .into_iter()
        .map(|(name, tensor)| (name, tensor.kind()));
    let eight: Vec<String> = kinds
        .filter(|(_, kind)| *kind == Kind::Uint8)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        eight,
        [
            "exp_avg.q_proj.weight.values",
            "exp_avg_sq.q_proj.weight.values"
        ]
    );
    let full = Optimizer::new(settings(false), &parameters).unwrap();
    let small = 8 * (4095 + 6400);
    assert_eq!(full.state_bytes(&parameters), small + 8 * 4096);
    let scales = 2 * 4 * 4096 / 256;
    assert_eq!(
        optimizer.state_bytes(&parameters),
        small + 2 * 4096 + scales
    );
}

/// More elements than a slice, and not a multiple of a block.
#[test]
fn slices_are_as_the_whole() {
    tch::manual_seed(7);
    let count = (1 << 20) + 300;
    let start = Tensor::randn([count], CPU);
    let gradient = Tensor::randn([count], CPU);
    let (whole, part) = (
        one(&start),
        one(&start.narrow(0, 1 << 20, 300).repeat([20])),
    );
    let tail = gradient.narrow(0, 1 << 20, 300).repeat([20]);
    let mut first = Optimizer::new(settings(true), &whole).unwrap();
    let mut second = Optimizer::new(settings(true), &part).unwrap();
    first.step(&gradients(&whole, &[&gradient]), 1e-2).unwrap();
    second.step(&gradients(&part, &[&tail]), 1e-2).unwrap();
    let ours = whole.tensors().next().unwrap().detach();
    let theirs = part.tensors().next().unwrap().detach();
    assert!(
        ours.narrow(0, 1 << 20, 256)
            .equal(&theirs.narrow(0, 0, 256))
    );
    assert!(ours.ne_tensor(&start).all().int64_value(&[]) == 1);
}
