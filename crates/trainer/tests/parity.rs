//! Ten optimizer steps agree with plain PyTorch.
//!
//! `bench/train/golden.py` recorded them with PyTorch's own modules and optimizer: from
//! these weights, on these batches, these losses and gradient norms, and these weights
//! afterwards. The model here shares no code with that one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use models::Error;
use models::Parameters;
use models::formats::SafetensorsFile;
use models::language::{Decoder, DecoderConfig, DecoderOptions};
use models::model::{Base, Builder, Initial, Pass, WeightSource};
use serde_json::Value;
use surefoot_trainer::optim::{AdamWSettings, Gradients, Optimizer};
use tch::{Device, Kind, Reduction, Tensor};

/// The bound on losses and norms, relative to their value.
const TOLERANCE: f64 = 1e-4;

/// The bound on weights after ten steps. AdamW divides a gradient by its own size, so the
/// rounding of one that is almost zero shows in full: looser, and against the largest weight.
const WEIGHT_TOLERANCE: f64 = 1e-3;

const TRAIN: Pass = Pass::Train { checkpoint: false };

#[test]
fn grouped_heads_and_a_head_of_its_own_follow_pytorch() {
    assert_follows_pytorch("untied");
}

#[test]
fn a_head_that_shares_the_embedding_follows_pytorch() {
    assert_follows_pytorch("tied");
}

fn assert_follows_pytorch(case: &str) {
    let mut golden = Golden::open(case);
    let tokens = golden.shared("tokens");
    let (want_losses, want_norms) = (golden.numbers("losses"), golden.numbers("gradient_norms"));
    let settings = golden.optimizer();
    let rates: Vec<f64> = serde_json::from_value(settings["learning_rates"].clone()).unwrap();

    let (model, parameters) = golden.model(tokens.size()[2] - 1);
    let mut optimizer = Optimizer::new(adamw(&settings), &parameters).unwrap();
    for (step, rate) in rates.iter().enumerate() {
        let block = tokens.get(step as i64);
        let length = block.size()[1] - 1;
        let logits = model.logits(&block.narrow(1, 0, length), TRAIN).unwrap();
        let loss = cross_entropy(&logits, &block.narrow(1, 1, length));
        let mut gradients = Gradients::default();
        gradients.accumulate(&loss, &parameters).unwrap();
        let most = number(&settings, "max_grad_norm");
        let norm = number_in(&gradients.norm().unwrap());
        gradients.clip(norm, most).unwrap();
        optimizer.step(&gradients, *rate).unwrap();

        let step = step + 1;
        assert_close(
            &format!("loss of step {step}"),
            number_in(&loss),
            want_losses[step - 1],
        );
        assert_close(&format!("norm of step {step}"), norm, want_norms[step - 1]);
    }
    for parameter in parameters.iter() {
        let want = golden.tensor(&format!("after.{}", parameter.name));
        let scale = number_in(&want.abs().max());
        let off = number_in(&(parameter.tensor.detach() - want).abs().max());
        assert!(
            off <= WEIGHT_TOLERANCE * scale,
            "{} is off by {off:.1e}",
            parameter.name
        );
    }
}

/// The recording of one model.
struct Golden {
    case: String,
    file: SafetensorsFile,
    metadata: std::collections::HashMap<String, String>,
}

impl Golden {
    fn open(case: &str) -> Golden {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/golden.safetensors");
        let file = SafetensorsFile::open(&path).unwrap();
        Golden {
            case: case.to_owned(),
            metadata: file.metadata(),
            file,
        }
    }

    /// A tensor that both recordings use.
    fn shared(&mut self, name: &str) -> Tensor {
        self.file.read_stored(name).unwrap()
    }

    fn tensor(&mut self, name: &str) -> Tensor {
        let name = format!("{}.{name}", self.case);
        self.file.read_stored(&name).unwrap()
    }

    fn numbers(&mut self, name: &str) -> Vec<f64> {
        Vec::try_from(&self.tensor(name)).unwrap()
    }

    fn optimizer(&self) -> Value {
        serde_json::from_str(&self.metadata["optimizer"]).unwrap()
    }

    fn model(&mut self, positions: i64) -> (Decoder, Parameters) {
        let key = format!("{}.config.json", self.case);
        let config = DecoderConfig::parse(Path::new(&key), &self.metadata[&key]).unwrap();
        let options = DecoderOptions {
            positions,
            initializer_range: 0.0,
            device: Device::Cpu,
        };
        let mut parameters = Parameters::default();
        let mut builder = Builder::new(self, &mut parameters, Kind::Float, Base::Trained);
        let model = Decoder::new(&config, options, &mut builder).unwrap();
        (model, parameters)
    }
}

impl WeightSource for Golden {
    fn tensor(&mut self, name: &str, shape: &[i64], _initial: Initial) -> Result<Tensor, Error> {
        let tensor = Golden::tensor(self, &format!("before.{name}"));
        assert_eq!(tensor.size(), shape, "{name}");
        Ok(tensor)
    }
}

fn adamw(settings: &Value) -> AdamWSettings {
    AdamWSettings {
        beta1: number(settings, "adam_beta1"),
        beta2: number(settings, "adam_beta2"),
        epsilon: number(settings, "adam_epsilon"),
        weight_decay: number(settings, "weight_decay"),
        eight_bit: false,
    }
}

fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    let logits = logits.flatten(0, 1);
    let targets = targets.flatten(0, -1);
    logits.cross_entropy_loss(&targets, None::<&Tensor>, Reduction::Mean, -100, 0.0)
}

#[track_caller]
fn assert_close(what: &str, got: f64, want: f64) {
    let off = (got - want).abs() / want.abs();
    assert!(
        off <= TOLERANCE,
        "{what}: {got}, PyTorch has {want} ({off:.1e} off)"
    );
}

fn number(settings: &Value, key: &str) -> f64 {
    settings[key].as_f64().unwrap()
}

fn number_in(scalar: &Tensor) -> f64 {
    f64::try_from(scalar).unwrap()
}
