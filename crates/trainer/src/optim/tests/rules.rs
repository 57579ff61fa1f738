//! Optimizers beside AdamW, compared with their originals over 50 steps (`tests/reference/optimizers.py`).

use serde_json::Value;

use super::*;
use crate::config::Config;
use crate::optim::{Optimizer, Schedule};

const STEPS: i64 = 50;

fn file() -> SafetensorsFile {
    SafetensorsFile::open(&crate::golden::golden("optimizers.safetensors")).unwrap()
}

/// A matrix and a vector without weight decay.
fn parameters(file: &SafetensorsFile) -> Parameters {
    let mut parameters = Parameters::default();
    for name in ["w", "v"] {
        let start = file.read_stored(&format!("start.{name}")).unwrap();
        let _ = parameters.register(name, &start, name == "w").unwrap();
    }
    parameters
}

fn config(train: &Value) -> Config {
    let text = serde_json::json!({"data": {"dataset": "shakespeare"}, "train": train});
    Config::parse("test.yaml", &text.to_string(), &[]).unwrap()
}

/// The next step towards the noise in `file`.
fn step(
    optimizer: &mut Optimizer,
    parameters: &Parameters,
    file: &SafetensorsFile,
    rates: &Schedule,
) {
    let step = optimizer.steps();
    let toward: Vec<Tensor> = parameters
        .iter()
        .map(|parameter| {
            let noise = file
                .read_stored(&format!("noise.{}", parameter.name))
                .unwrap();
            parameter.tensor.detach() - noise.get(step as i64)
        })
        .collect();
    let gradients = gradients(parameters, &toward.iter().collect::<Vec<_>>());
    optimizer.step(&gradients, rates.at(step)).unwrap();
}

/// The largest distance of a parameter from what `file` has for this case and moment.
fn distance(parameters: &Parameters, file: &SafetensorsFile, case: &str, moment: &str) -> f64 {
    let off = parameters.iter().map(|parameter| {
        let theirs = file
            .read_stored(&format!("{case}.{moment}.{}", parameter.name))
            .unwrap();
        number(&(parameter.tensor.detach() - theirs).abs().max())
    });
    off.fold(0.0, f64::max)
}

#[test]
fn fifty_steps_of_each_lead_where_its_original_leads() {
    let file = file();
    let mut cases: Vec<_> = file.metadata().into_iter().collect();
    cases.sort_by_key(|(case, _)| case.parse::<u32>().unwrap());
    assert_eq!(cases.len(), 13);
    for (case, keys) in &cases {
        let config = config(&serde_json::from_str(keys).unwrap());
        let parameters = parameters(&file);
        let mut optimizer = Optimizer::from_config(&config, &parameters, &[]).unwrap();
        let rates = Schedule::new(&config.train, STEPS as u64);
        // Products in bf16 are rounded in another order by another library.
        let bound = if keys.contains("muon") { 1e-3 } else { 2e-6 };
        for done in 1..=STEPS {
            step(&mut optimizer, &parameters, &file, &rates);
            if [1, 10, STEPS].contains(&done) {
                let off = distance(&parameters, &file, case, &done.to_string());
                println!("{keys}: {off:e} after {done}");
                assert!(off < bound, "{keys}: {off:e} after {done}");
            }
        }
        assert_eq!(
            optimizer.evaluates_others(),
            keys.contains("schedule_free"),
            "{keys}"
        );
        if optimizer.evaluates_others() {
            let trained: Vec<_> = parameters.tensors().map(Tensor::copy).collect();
            let aside = optimizer.show_evaluated().unwrap();
            let off = distance(&parameters, &file, case, "evaluated");
            assert!(off < bound, "{keys}: {off:e} where it is evaluated");
            aside.put_back().unwrap();
            let same = parameters
                .tensors()
                .zip(&trained)
                .all(|(now, before)| now.equal(before));
            assert!(same, "{keys}");
        }
    }
}

/// As if the process had ended after 20 steps: parameters and states are copied into new ones.
#[test]
fn a_restored_optimizer_goes_on_bit_for_bit() {
    let file = file();
    for keys in file.metadata().values() {
        let config = config(&serde_json::from_str(keys).unwrap());
        let rates = Schedule::new(&config.train, STEPS as u64);
        let (whole, second) = (parameters(&file), parameters(&file));
        let mut undisturbed = Optimizer::from_config(&config, &whole, &[]).unwrap();
        let mut restored = Optimizer::from_config(&config, &second, &[]).unwrap();
        for _ in 0..20 {
            step(&mut undisturbed, &whole, &file, &rates);
        }
        for (target, source) in second.tensors().zip(whole.tensors()) {
            target.detach().copy_(&source.detach());
        }
        for ((name, target), (of, source)) in restored
            .state(&second)
            .iter()
            .zip(undisturbed.state(&whole))
        {
            assert_eq!(name, &of);
            target.detach().copy_(source);
        }
        restored.set_steps(&undisturbed.steps_of_turns()).unwrap();
        for _ in 20..STEPS {
            step(&mut undisturbed, &whole, &file, &rates);
            step(&mut restored, &second, &file, &rates);
        }
        for (ours, theirs) in whole.tensors().zip(second.tensors()) {
            assert!(ours.equal(theirs), "{keys}");
        }
    }
}

/// Elements of state for a matrix of 96 rows and 64 columns, a vector of 64 and a head.
#[test]
fn each_keeps_as_much_as_it_says() {
    let (matrix, vector) = (96 * 64, 64);
    let all = 2 * matrix + vector;
    let factored = 2 * (96 + 64) + vector;
    for (optim, args, numbers) in [
        ("lion", "{}", all),
        ("adafactor", "{}", factored),
        ("adafactor", "{beta1: 0.9}", factored + all),
        ("came", "{}", all + factored + 2 * (96 + 64)),
        ("prodigy", "{}", 4 * all),
        ("prodigy", "{slice_p: 8}", 2 * all + 2 * (all / 8)),
        ("schedule_free_adamw", "{}", 2 * all),
        ("muon", "{}", matrix + 2 * (matrix + vector)),
    ] {
        let mut parameters = Parameters::default();
        for (name, shape, decay) in [
            ("q_proj.weight", vec![96, 64], true),
            ("norm.weight", vec![64], false),
            ("lm_head.weight", vec![96, 64], true),
        ] {
            let tensor = Tensor::zeros(shape, CPU);
            let _ = parameters.register(name, &tensor, decay).unwrap();
        }
        let yaml = format!(
            "data: {{dataset: shakespeare}}\ntrain: {{optim: {optim}, optim_args: {args}, learning_rate: 1, \
             lr_scheduler_type: constant}}"
        );
        let config = Config::parse("test.yaml", &yaml, &[]).unwrap();
        let optimizer = Optimizer::from_config(&config, &parameters, &[]).unwrap();
        assert_eq!(
            optimizer.state_bytes(&parameters),
            4 * numbers,
            "{optim} {args}"
        );
    }
}

/// The average is in eight bits, and large parameters are stepped in slices.
#[test]
fn lion_in_eight_bits_stays_beside_fp32() {
    tch::manual_seed(8);
    let size = [(1 << 20) + 300];
    let start = Tensor::randn(size, CPU);
    let moved = |optim: &str| {
        let parameters = one(&start);
        let train = serde_json::json!({"optim": optim, "learning_rate": 1e-3});
        let mut optimizer = Optimizer::from_config(&config(&train), &parameters, &[]).unwrap();
        tch::manual_seed(9);
        for _ in 0..5 {
            let gradient = Tensor::randn(size, CPU);
            optimizer
                .step(&gradients(&parameters, &[&gradient]), 1e-3)
                .unwrap();
        }
        (
            parameters.tensors().next().unwrap().detach(),
            optimizer.state_bytes(&parameters),
        )
    };
    let ((full, four), (eight, one)) = (moved("lion"), moved("lion_8bit"));
    // Where the sign differs, a step differs by twice the rate.
    let off = number(&(full - eight).abs().mean(Kind::Float));
    assert!(off > 0.0 && off < 5e-5, "{off:e}");
    assert!(four > 3 * one, "{four} and {one}");
}

#[test]
fn prodigy_refuses_a_rate_for_some_parameters() {
    let file = file();
    let groups = serde_json::json!([{"names": "v", "learning_rate": 0.5}]);
    let train =
        serde_json::json!({"optim": "prodigy", "learning_rate": 1.0, "parameter_groups": groups});
    let refused = Optimizer::from_config(&config(&train), &parameters(&file), &[]);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("one learning rate for all parameters"),
        "{refused}"
    );
}
