//! Adapters over a base in fewer bits: the same as over the base that those bits stand for.

use tch::{Device, Kind, Tensor};

use super::tests::loss;
use super::*;
use crate::config::{Quantization, TrainConfig};
use crate::golden::golden;
use crate::model::{
    Base, Builder, Decoder, DecoderOptions, FileWeights, Initial, Parameters, Weight, WeightSource,
};
use crate::optim::{AdamW, Gradients};
use crate::weights::HfFolder;
use placement::Placer;

/// Weights that went through `0` and back.
struct Rounded<S>(Quantization, S);

impl<S: WeightSource> WeightSource for Rounded<S> {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, crate::Error> {
        let tensor = self.1.tensor(name, shape, initial)?;
        if tensor.dim() != 2 || name.contains("embed") || name.starts_with("lm_head") {
            return Ok(tensor);
        }
        Weight::quantized(name, &tensor, self.0)?.dense(tensor.kind())
    }
}

/// Losses of some steps, and the adapter after them: over a base in fewer bits, or over what
/// those bits stand for.
fn train(to: Quantization, dora: bool, in_fewer_bits: bool) -> (Vec<f64>, Vec<Tensor>) {
    let folder = HfFolder::open(&golden("models/llama-tied-biases")).unwrap();
    let config = LoraConfig {
        dora,
        dropout: 0.1,
        ..LoraConfig::default()
    };
    // Operations this small only lose time on several threads.
    torch_ext::threads::set_count(1).unwrap();
    tch::manual_seed(4);
    let mut attachment = Attachment::fresh(&config).unwrap();
    let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
    let file = FileWeights::new(&folder, Kind::Float, &mut placer);
    let mut source: Box<dyn WeightSource> = match in_fewer_bits {
        true => Box::new(file),
        false => Box::new(Rounded(to, file)),
    };
    let mut parameters = Parameters::default();
    let base = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(source.as_mut(), &mut parameters, Kind::Float, base)
        .with_adapters(&mut attachment)
        .quantized(in_fewer_bits.then_some(to));
    let options = DecoderOptions {
        positions: 64,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    let model = Decoder::new(folder.config(), options, &mut builder).unwrap();
    let tokens = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6]).view([2, 4]);
    let mut optimizer = AdamW::new((&TrainConfig::default()).into(), &parameters).unwrap();
    let mut losses = Vec::new();
    for step in 0..12 {
        tch::manual_seed(step);
        let loss = loss(&model, &tokens, step % 2 == 1);
        losses.push(f64::try_from(&loss).unwrap());
        let mut gradients = Gradients::default();
        gradients.accumulate(&loss, &parameters).unwrap();
        optimizer.step(&gradients, 1e-2).unwrap();
    }
    let trained = parameters.tensors().map(|tensor| tensor.detach().copy());
    (losses, trained.collect())
}

#[test]
fn fewer_bits_train_as_what_they_stand_for_and_learn() {
    for to in [Quantization::Nf4, Quantization::Int8] {
        for dora in [false, true] {
            let (losses, adapter) = train(to, dora, true);
            let (wanted, wanted_adapter) = train(to, dora, false);
            assert_eq!(losses, wanted, "{to:?}, DoRA {dora}");
            for (got, wanted) in adapter.iter().zip(&wanted_adapter) {
                assert!(got.equal(wanted), "{to:?}, DoRA {dora}");
            }
            assert!(losses[11] < losses[0] - 0.5, "{to:?}: {losses:?}");
        }
    }
}

#[test]
fn fewer_bits_are_fewer_bytes() {
    let matrix = Tensor::randn([96, 128], (Kind::BFloat16, Device::Cpu));
    let dense = Weight::Dense(matrix.shallow_clone());
    assert_eq!(dense.bytes(), 96 * 128 * 2);
    let int8 = Weight::quantized("w", &matrix, Quantization::Int8).unwrap();
    assert_eq!(int8.bytes(), 96 * 128 + 96 * 4);
    let nf4 = Weight::quantized("w", &matrix, Quantization::Nf4).unwrap();
    assert_eq!(nf4.bytes(), 96 * 128 / 2 + 96 * 128 / 64 * 4);
    for weight in [int8, nf4] {
        assert_eq!(weight.size(), (96, 128));
        let back = weight.dense(Kind::BFloat16).unwrap();
        let error =
            (back - &matrix).to_kind(Kind::Float).norm() / matrix.to_kind(Kind::Float).norm();
        assert!(f64::try_from(error).unwrap() < 0.1);
    }
}
