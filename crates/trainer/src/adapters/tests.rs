//! Held against PEFT: what its adapters compute, and how they learn.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::*;
use crate::config::TrainConfig;
use crate::golden::golden;
use crate::model::{Base, Builder, Decoder, DecoderOptions, FileWeights, Parameters, Pass};
use crate::optim::{AdamW, Gradients};
use crate::weights::json::Object;
use crate::weights::{HfFolder, Pretrained, SafetensorsFile, TensorSource};
use placement::Placer;

/// Adapter and the model it is for, as `tests/reference/adapters.py` has them.
const ADAPTERS: [(&str, &str); 3] = [
    ("plain", "llama-grouped"),
    ("rank-stabilised", "qwen2"),
    ("decomposed", "llama-tied-biases"),
];

struct Adapted {
    model: Decoder,
    parameters: Parameters,
    attached: attachment::Attached,
}

fn adapted(base: &Path, mut attachment: Attachment) -> Result<Adapted, crate::Error> {
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
    Ok(Adapted {
        model,
        parameters,
        attached: attachment.finish()?,
    })
}

fn from_peft(adapter: &str, base: &str) -> Adapted {
    let saved = PeftAdapter::open(&golden(&format!("adapters/{adapter}"))).unwrap();
    let base = golden(&format!("models/{base}"));
    adapted(&base, Attachment::saved(saved).unwrap()).unwrap()
}

fn expected(adapter: &str) -> SafetensorsFile {
    SafetensorsFile::open(&golden(&format!("adapters/{adapter}/expected.safetensors"))).unwrap()
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    f64::try_from((a - b).abs().max()).unwrap()
}

#[test]
fn pefts_adapters_give_pefts_logits() {
    for (name, base) in ADAPTERS {
        let expected = expected(name);
        let tokens = expected.read("tokens", Kind::Int64).unwrap().get(0);
        let logits = from_peft(name, base)
            .model
            .logits(&tokens, Pass::Evaluate)
            .unwrap();
        let difference =
            largest_difference(&logits, &expected.read("logits", Kind::Float).unwrap());
        assert!(difference <= 1e-5, "{name}: {difference}");
    }
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
            let mut optimizer = AdamW::new((&settings).into(), &adapted.parameters).unwrap();
            let tokens = expected.read("tokens", Kind::Int64).unwrap();
            let losses =
                Vec::<f64>::try_from(expected.read("losses", Kind::Double).unwrap()).unwrap();
            for (step, theirs) in losses.iter().enumerate() {
                let tokens = tokens.get(step as i64);
                let loss = loss(&adapted.model, &tokens, checkpoint);
                let ours = f64::try_from(&loss).unwrap();
                assert!(
                    (ours / theirs - 1.0).abs() <= 1e-4,
                    "{name}, step {step}: {ours} and {theirs}"
                );
                let mut gradients = Gradients::default();
                gradients.accumulate(&loss, &adapted.parameters).unwrap();
                optimizer.step(&gradients, 1e-2).unwrap();
            }
            for parameter in adapted.parameters.iter() {
                let theirs = expected
                    .read(&format!("after.{}", parameter.name), Kind::Float)
                    .unwrap();
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

pub(super) fn loss(model: &Decoder, tokens: &Tensor, checkpoint: bool) -> Tensor {
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

#[test]
fn dropout_leaves_out_that_share_of_an_adapters_input_in_training_only() {
    let config = LoraConfig {
        dropout: 0.25,
        target_modules: Modules::AllLinear,
        ..LoraConfig::default()
    };
    let attachment = Attachment::fresh(&config).unwrap();
    let adapted = adapted(&golden("models/llama-grouped"), attachment).unwrap();
    let tokens = Tensor::from_slice(&[3i64, 1, 4]).unsqueeze(0);
    for tensor in adapted.parameters.tensors() {
        let _ = tensor
            .detach()
            .g_add_(&(tensor.detach().randn_like() * 0.1));
    }
    let logits = |pass| adapted.model.logits(&tokens, pass).unwrap();
    let train = Pass::Train { checkpoint: false };
    assert!(
        !logits(train).equal(&logits(train)),
        "no dropout in training"
    );
    assert!(logits(Pass::Evaluate).equal(&logits(Pass::Evaluate)));
}

#[test]
fn a_fresh_adapter_changes_nothing() {
    for dora in [false, true] {
        let config = LoraConfig {
            dora,
            target_modules: Modules::AllLinear,
            ..LoraConfig::default()
        };
        let base = golden("models/llama-tied-biases");
        let fresh = adapted(&base, Attachment::fresh(&config).unwrap()).unwrap();
        let expected = SafetensorsFile::open(&base.join("expected.safetensors")).unwrap();
        let tokens = expected.read("tokens", Kind::Int64).unwrap();
        let logits = fresh.model.logits(&tokens, Pass::Evaluate).unwrap();
        let difference =
            largest_difference(&logits, &expected.read("logits", Kind::Float).unwrap());
        assert!(difference <= 1e-5, "{difference}");
        let parts = if dora { 3 } else { 2 };
        assert_eq!(fresh.parameters.iter().len(), 2 * 7 * parts);
    }
}

#[test]
fn a_written_adapter_is_read_back_as_it_was() {
    for (name, base) in ADAPTERS {
        let folder = tempfile::tempdir().unwrap();
        let original = from_peft(name, base);
        write_peft(
            folder.path(),
            &original.attached,
            &original.parameters,
            base,
        )
        .unwrap();
        let saved = PeftAdapter::open(folder.path()).unwrap();
        assert_eq!(saved.base_model(), Some(base));
        let base = golden(&format!("models/{base}"));
        let read = adapted(&base, Attachment::saved(saved).unwrap()).unwrap();
        assert_eq!(read.attached.modules, original.attached.modules);
        for (a, b) in read.parameters.iter().zip(original.parameters.iter()) {
            assert_eq!(a.name, b.name);
            assert!(a.tensor.equal(&b.tensor));
        }
        let tokens = Tensor::from_slice(&[3i64, 1, 4, 1, 5]).unsqueeze(0);
        let logits = |adapted: &Adapted| adapted.model.logits(&tokens, Pass::Evaluate).unwrap();
        assert!(logits(&read).equal(&logits(&original)), "{name}");
    }
}

#[test]
fn a_merged_model_computes_what_base_and_adapter_do() {
    for (name, base) in ADAPTERS {
        let target = tempfile::tempdir().unwrap();
        let base_folder = golden(&format!("models/{base}"));
        let gguf = Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap();
        let folder = HfFolder::open(&base_folder).unwrap();
        let pretrained = Pretrained {
            config: folder.config().clone(),
            tensors: Box::new(folder),
            ..gguf
        };
        let adapter = PeftAdapter::open(&golden(&format!("adapters/{name}"))).unwrap();
        merge(&pretrained, adapter, target.path(), Kind::Float).unwrap();

        let merged = HfFolder::open(target.path()).unwrap();
        let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
        let mut source = FileWeights::new(&merged, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let mut builder = Builder::new(
            &mut source,
            &mut parameters,
            Kind::Float,
            Base::Frozen(Kind::Float),
        );
        let options = DecoderOptions {
            positions: 64,
            initializer_range: 0.0,
            device: Device::Cpu,
        };
        let model = Decoder::new(merged.config(), options, &mut builder).unwrap();
        let expected = expected(name);
        let tokens = expected.read("tokens", Kind::Int64).unwrap().get(0);
        let logits = model.logits(&tokens, Pass::Evaluate).unwrap();
        let difference =
            largest_difference(&logits, &expected.read("logits", Kind::Float).unwrap());
        assert!(difference <= 2e-5, "{name}: {difference}");
    }
}

#[test]
fn modules_are_chosen_as_peft_chooses_them() {
    let name = "model.layers.11.self_attn.q_proj";
    let suffixes =
        |names: &[&str]| Modules::Suffixes(names.iter().map(|name| (*name).into()).collect());
    for (modules, contain) in [
        (suffixes(&["q_proj"]), true),
        (suffixes(&["self_attn.q_proj"]), true),
        (suffixes(&[name]), true),
        (suffixes(&["attn.q_proj"]), false),
        (suffixes(&["k_proj"]), false),
        (Modules::from_text("all-linear").unwrap(), true),
        (Modules::from_text(".*q_proj").unwrap(), true),
        (Modules::from_text("q_proj").unwrap(), false),
        (Modules::from_text("model.*self_attn").unwrap(), false),
        (Modules::from_text("a|.*q_proj").unwrap(), true),
    ] {
        assert_eq!(modules.contain(name), contain, "{modules:?}");
    }
    assert!(!Modules::AllLinear.contain("lm_head"));
}

#[test]
fn patterns_match_the_end_of_a_name_from_a_dot() {
    let config = LoraConfig {
        target_modules: Modules::AllLinear,
        rank_pattern: BTreeMap::from([("q_proj".into(), 2), ("layers.1.mlp.up_proj".into(), 3)]),
        alpha_pattern: BTreeMap::from([(r"layers\.\d+\.mlp\.up_proj".into(), 12.0)]),
        rslora: true,
        ..LoraConfig::default()
    };
    let matcher = config::Matcher::new(&config).unwrap();
    let shape = |name: &str| matcher.shape(name).unwrap();
    assert_eq!(shape("model.layers.0.self_attn.q_proj").rank, 2);
    assert_eq!(shape("model.layers.0.self_attn.freq_proj").rank, 8);
    assert_eq!(shape("model.layers.11.mlp.up_proj").rank, 8);
    assert_eq!(
        shape("model.layers.11.mlp.up_proj").scaling,
        12.0 / 8f64.sqrt()
    );
    assert_eq!(shape("model.layers.1.mlp.up_proj").rank, 3);
}

#[test]
fn what_does_not_fit_is_told() {
    let error = |config: LoraConfig, base: &str| {
        let attachment = Attachment::fresh(&config)?;
        adapted(&golden(&format!("models/{base}")), attachment).map(|_| ())
    };
    let none = LoraConfig {
        target_modules: Modules::Suffixes(vec!["to_q".into()]),
        ..LoraConfig::default()
    };
    assert_eq!(
        error(none, "qwen3").unwrap_err().to_string(),
        "the adapter's target modules match no layer of this model; its linear layers are \
         down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    );
    let saved = PeftAdapter::open(&golden("adapters/plain")).unwrap();
    let error = adapted(&golden("models/qwen3"), Attachment::saved(saved).unwrap()).map(|_| ());
    let error = error.unwrap_err().to_string();
    assert!(
        error.ends_with("is [16, 4], and this model needs [32, 4]: it was made for another model"),
        "{error}"
    );
}

fn read_config(value: &Value) -> Result<LoraConfig, String> {
    let object = Object::parse(Path::new("adapter_config.json"), &value.to_string()).unwrap();
    peft::config(&object).map_err(|error| error.to_string())
}

fn plain() -> Value {
    let path = golden("adapters/plain/adapter_config.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn features_that_are_not_known_are_refused_by_name() {
    for (key, value, reason) in [
        (
            "bias",
            json!("all"),
            r#"`bias` is "all", which is not known here"#,
        ),
        (
            "modules_to_save",
            json!(["lm_head"]),
            r#"`modules_to_save` is ["lm_head"], which is not known here"#,
        ),
        (
            "peft_type",
            json!("IA3"),
            "`peft_type` is IA3; only LORA is known here",
        ),
        ("r", json!(0), "`r` must be from 1 to 65536, not 0"),
        (
            "lora_dropout",
            json!(1),
            "`r` the dropout must be at least 0 and less than 1, not 1",
        ),
        (
            "rank_pattern",
            json!({"q": "x"}),
            r#"`rank_pattern.q` must be from 1 to 65536, not "x""#,
        ),
        (
            "target_modules",
            json!(7),
            "`target_modules` must be a name pattern or a list of names",
        ),
    ] {
        let mut config = plain();
        config[key] = value;
        assert_eq!(
            read_config(&config).unwrap_err(),
            format!("`adapter_config.json`: {reason}")
        );
    }
}

proptest! {
    #[test]
    fn a_config_of_anything_never_panics(
        key in any::<prop::sample::Index>(), number: i64, text in ".{0,20}", kind in 0..4,
    ) {
        let mut config = plain();
        let object = config.as_object_mut().unwrap();
        let key = key.index(object.len());
        *object.values_mut().nth(key).unwrap() = match kind {
            0 => json!(number),
            1 => json!(text),
            2 => json!([text, number]),
            _ => json!({text: number}),
        };
        let _ = read_config(&config);
    }
}
