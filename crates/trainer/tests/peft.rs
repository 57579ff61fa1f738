//! How adapters learn: as PEFT's do, over a base in fewer bits as over what those bits stand for,
//! and with less memory the same to the bit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};

use models::adapters::{Attachment, LoraConfig, Modules, PeftAdapter};
use models::formats::{SafetensorsFile, TensorSource};
use models::language::{Decoder, DecoderOptions};
use models::model::{Base, Builder, FileWeights, Initial, Pass, WeightSource};
use models::pretrained::HfFolder;
use models::quant::Quantization;
use models::{Parameters, Weight};
use placement::Placer;
use surefoot_trainer::config::TrainConfig;
use surefoot_trainer::optim::{Gradients, Optimizer};
use tch::{Device, Kind, Tensor};

fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    let folder = std::env::var_os("SUREFOOT_GOLDEN").map_or(kept, PathBuf::from);
    folder.join(name)
}

/// Adapter and the model it is for, as `tests/reference/adapters.py` has them.
const ADAPTERS: [(&str, &str); 31] = [
    ("plain", "llama-grouped"),
    ("rank-stabilised", "qwen2"),
    ("decomposed", "llama-tied-biases"),
    ("embedding-and-head", "llama-grouped"),
    ("decomposed-tied", "llama-tied-biases"),
    ("saved-modules", "qwen2"),
    ("saved-head-tied", "llama-tied-biases"),
    ("saved-head", "qwen3-untied"),
    ("scaled-embedding", "gemma3"),
    ("fused", "phi3-longrope"),
    ("multiplied", "granite-biases"),
    ("post-norms", "olmo3"),
    ("beside-experts", "qwen3-moe"),
    ("beside-mxfp4", "gpt-oss"),
    ("on-a-delta-rule", "qwen3.5"),
    ("on-experts", "qwen3-moe"),
    ("on-experts-in-turns", "gpt-oss-dense"),
    ("on-experts-in-mxfp4", "gpt-oss"),
    ("beside-and-on-experts", "qwen3.5-moe"),
    ("in-gemma3", "gemma3-multimodal"),
    ("in-ministral3", "ministral3-multimodal"),
    ("in-qwen3.5", "qwen3.5-multimodal"),
    ("in-qwen3.5-moe", "qwen3.5-moe-multimodal"),
    ("hadamard", "llama-grouped"),
    ("kronecker", "qwen2"),
    ("kronecker-whole", "qwen3-untied"),
    ("per-layer", "gemma4"),
    ("beside-both", "gemma4-moe"),
    ("in-gemma4", "gemma4-multimodal"),
    ("beside-and-on-both", "gemma4-moe"),
    ("beside-plain", "llama-grouped"),
];

struct Adapted {
    model: Decoder,
    parameters: Parameters,
}

fn adapted(base: &Path, mut attachment: Attachment) -> Result<Adapted, models::Error> {
    let folder = HfFolder::open(base).unwrap();
    let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
    let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(
        &mut source,
        &mut parameters,
        Kind::Float,
        Base::Frozen(Kind::Float),
    )
    .with_adapters(&mut attachment);
    let options = DecoderOptions {
        positions: 64,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    let model = Decoder::new(folder.config(), options, &mut builder)?;
    attachment.finish()?;
    Ok(Adapted { model, parameters })
}

fn from_peft(adapter: &str, base: &str) -> Adapted {
    let saved = PeftAdapter::open(&golden(&format!("adapters/{adapter}"))).unwrap();
    let base = golden(&format!("models/{base}"));
    adapted(&base, Attachment::saved(saved).unwrap()).unwrap()
}

fn expected(adapter: &str) -> SafetensorsFile {
    SafetensorsFile::open(&golden(&format!("adapters/{adapter}/expected.safetensors"))).unwrap()
}

#[test]
fn ten_steps_lead_where_pefts_ten_steps_lead() {
    for (name, base) in ADAPTERS {
        for checkpoint in [false, true] {
            let expected = expected(name);
            let adapted = from_peft(name, base);
            let settings = TrainConfig {
                weight_decay: 0.01,
                ..TrainConfig::default()
            };
            let mut optimizer = Optimizer::new((&settings).into(), &adapted.parameters).unwrap();
            let tokens = expected.read("tokens", Kind::Int64).unwrap();
            let losses =
                Vec::<f64>::try_from(expected.read("losses", Kind::Double).unwrap()).unwrap();
            for (step, theirs) in losses.iter().enumerate() {
                let tokens = tokens.get(step as i64);
                let loss = loss(&adapted.model, &tokens, checkpoint);
                let ours = f64::try_from(&loss).unwrap();
                // Rounding grows with each step of Adam.
                let bound = if step < 5 { 1e-5 } else { 1e-4 };
                assert!(
                    (ours / theirs - 1.0).abs() <= bound,
                    "{name}, step {step}: {ours} and {theirs}"
                );
                let mut gradients = Gradients::default();
                gradients.accumulate(&loss, &adapted.parameters).unwrap();
                optimizer.step(&gradients, 1e-2).unwrap();
            }
            for parameter in adapted.parameters.iter() {
                let mut key = format!("after.{}", parameter.name);
                if base.ends_with("multimodal") {
                    key = key.replace(".model.model.", ".model.model.language_model.");
                }
                let theirs = expected.read(&key, Kind::Float).unwrap();
                // As one vector: where a gradient is nearly zero, Adam turns its rounding
                // into a whole step, here as between any two machines.
                let difference =
                    f64::try_from((parameter.tensor.detach() - &theirs).norm()).unwrap();
                let relative = difference / f64::try_from(theirs.norm()).unwrap();
                assert!(relative <= 1e-4, "{}: {relative}", parameter.name);
            }
        }
    }
}

fn loss(model: &Decoder, tokens: &Tensor, checkpoint: bool) -> Tensor {
    let logits = model.logits(tokens, Pass::Train { checkpoint }).unwrap();
    let length = tokens.size()[1] - 1;
    let logits = logits.narrow(1, 0, length).flatten(0, 1);
    logits.cross_entropy_for_logits(&tokens.narrow(1, 1, length).flatten(0, 1))
}

/// With dropout, so that the second run of a block has to draw what the first drew.
#[test]
fn gradients_are_bit_equal_with_less_memory() {
    for dora in [false, true] {
        let config = LoraConfig {
            dora,
            dropout: 0.3,
            target_modules: Modules::AllLinear,
            ..LoraConfig::default()
        };
        let gradients = |checkpoint: bool, offload: bool| -> Vec<Tensor> {
            tch::manual_seed(8);
            let attachment = Attachment::fresh(&config).unwrap();
            let mut adapted = adapted(&golden("models/llama-grouped"), attachment).unwrap();
            for tensor in adapted.parameters.tensors() {
                // B starts as zero, and A would have no gradient.
                let _ = tensor
                    .detach()
                    .g_add_(&(tensor.detach().randn_like() * 0.1));
            }
            adapted.model.offload_activations(offload);
            let tokens = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9]).view([2, 3]);
            let mut gradients = Gradients::default();
            for _ in 0..2 {
                let loss = loss(&adapted.model, &tokens, checkpoint);
                gradients.accumulate(&loss, &adapted.parameters).unwrap();
            }
            gradients.tensors().iter().map(Tensor::copy).collect()
        };
        let plain = gradients(false, false);
        assert!(plain.iter().all(|g| f64::try_from(g.norm()).unwrap() > 0.0));
        for offload in [false, true] {
            for (less, plain) in gradients(true, offload).iter().zip(&plain) {
                assert!(less.equal(plain), "DoRA {dora}, offload {offload}");
            }
        }
    }
}

/// Weights that went through `0` and back.
struct Rounded<S>(Quantization, S);

impl<S: WeightSource> WeightSource for Rounded<S> {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, models::Error> {
        let tensor = self.1.tensor(name, shape, initial)?;
        let kept = [
            "embed",
            "lm_head",
            "mlp.gate.weight",
            "mlp.router.weight",
            "router.proj.weight",
            "shared_expert_gate",
            "in_proj_a",
            "in_proj_b",
        ];
        if tensor.dim() != 2 || kept.iter().any(|part| name.contains(part)) {
            return Ok(tensor);
        }
        Weight::quantized(name, &tensor, self.0)?.dense(tensor.kind())
    }
}

/// Losses of some steps, and the adapter after them: over a base in fewer bits, or over what
/// those bits stand for.
fn train(
    base: &str,
    to: Quantization,
    config: &LoraConfig,
    in_fewer_bits: bool,
) -> (Vec<f64>, Vec<Tensor>) {
    let folder = HfFolder::open(&golden(&format!("models/{base}"))).unwrap();
    // Operations this small only lose time on several threads.
    torch_ext::threads::set_count(1).unwrap();
    tch::manual_seed(4);
    let mut attachment = Attachment::fresh(config).unwrap();
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
    let mut optimizer = Optimizer::new((&TrainConfig::default()).into(), &parameters).unwrap();
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
    // On layers, with dropout; and on experts.
    let of_layers = |dora, target_modules| LoraConfig {
        dora,
        dropout: 0.1,
        target_modules,
        ..LoraConfig::default()
    };
    let plain = || LoraConfig::default().target_modules;
    let of_experts = || LoraConfig {
        target_parameters: vec![
            "mlp.experts.gate_up_proj".into(),
            "mlp.experts.down_proj".into(),
        ],
        target_modules: Modules::Suffixes(Vec::new()),
        ..LoraConfig::default()
    };
    for (base, configs) in [
        (
            "llama-tied-biases",
            vec![of_layers(false, plain()), of_layers(true, plain())],
        ),
        ("qwen3-moe", vec![of_layers(true, plain()), of_experts()]),
        (
            "gpt-oss-dense",
            vec![of_layers(true, plain()), of_experts()],
        ),
        (
            "qwen3.5",
            vec![
                of_layers(false, Modules::AllLinear),
                of_layers(true, Modules::AllLinear),
            ],
        ),
        (
            "qwen3.5-moe",
            vec![of_layers(false, Modules::AllLinear), of_experts()],
        ),
        (
            "gemma4",
            vec![of_layers(false, plain()), of_layers(true, plain())],
        ),
        ("gemma4-moe", vec![of_layers(false, Modules::AllLinear)]),
    ] {
        for to in [Quantization::Nf4, Quantization::Int8] {
            for config in &configs {
                let dora = config.dora;
                let (losses, adapter) = train(base, to, config, true);
                let (wanted, wanted_adapter) = train(base, to, config, false);
                // Rows of int8 are scaled behind the product, which rounds otherwise.
                let [of_losses, of_adapter] = match to {
                    Quantization::Nf4 => [0.0; 2],
                    Quantization::Int8 => [1e-6, 1e-4],
                };
                for (got, wanted) in losses.iter().zip(&wanted) {
                    let difference = (got / wanted - 1.0).abs();
                    assert!(
                        difference <= of_losses,
                        "{base}, {to:?}, DoRA {dora}: {difference}"
                    );
                }
                for (got, wanted) in adapter.iter().zip(&wanted_adapter) {
                    let difference = ((got - wanted).norm() / wanted.norm()).double_value(&[]);
                    assert!(
                        difference <= of_adapter,
                        "{base}, {to:?}, DoRA {dora}: {difference}"
                    );
                }
                assert!(losses[11] < losses[0] - 0.5, "{base}, {to:?}: {losses:?}");
            }
        }
    }
}
