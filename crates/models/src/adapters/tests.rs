//! Adapters compared with PEFT's: outputs, gradients and training.

use std::path::Path;

use indexmap::IndexMap;
use proptest::prelude::*;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::*;
use crate::formats::{SafetensorsFile, TensorSource};
use crate::golden::golden;
use crate::json::Object;
use crate::language::{Decoder, DecoderOptions};
use crate::model::{Base, Builder, FileWeights, Pass};
use crate::pretrained::HfFolder;
use crate::quant::Quantization;
use crate::{Error, Parameters};
use placement::Placer;

mod forms;
#[cfg(unix)]
mod kernels;
mod lycoris;
mod merged;

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

/// What modules of the model are called in its class in transformers.
fn naming(base: &str) -> Naming {
    match base.ends_with("multimodal") {
        true => Naming::PART,
        false => Naming::ALONE,
    }
}

struct Adapted {
    model: Decoder,
    parameters: Parameters,
    attached: Attached,
}

fn adapted(base: &Path, attachment: Attachment) -> Result<Adapted, Error> {
    over(base, attachment, None)
}

/// Over a base in fewer bits, if `to` says so.
fn over(
    base: &Path,
    mut attachment: Attachment,
    to: Option<Quantization>,
) -> Result<Adapted, Error> {
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
    .with_adapters(&mut attachment)
    .quantized(to);
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

/// How far logits may be from PEFT's, of their size. Of Gemma 4 with its adapter, those in fp32 are 7e-6 from those in fp64
/// in transformers.
fn bound(base: &str) -> f64 {
    if base.starts_with("gemma4") {
        1e-5
    } else {
        5e-6
    }
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
        let theirs = expected.read("logits", Kind::Float).unwrap();
        let difference = largest_difference(&logits, &theirs);
        let size = f64::try_from(theirs.abs().max()).unwrap();
        assert!(
            difference <= bound(base) * size.max(2.0),
            "{name}: {difference} of {size}"
        );
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
        // PEFT reads them there: `tests/reference/check_adapters.py`.
        let kept = std::env::var_os("SUREFOOT_ADAPTERS").map(std::path::PathBuf::from);
        let folder = kept.map_or(folder.path().to_owned(), |kept| kept.join(name));
        let original = from_peft(name, base);
        let how = (base, naming(base));
        write_peft(&folder, &original.attached, &original.parameters, how).unwrap();
        let saved = PeftAdapter::open(&folder).unwrap();
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
        assert_eq!(modules.contains(name), contain, "{modules:?}");
    }
    assert!(!Modules::AllLinear.contains("lm_head"));
    assert!(!Modules::AllLinear.contains("model.embed_tokens"));
}

#[test]
fn patterns_match_the_end_of_a_name_from_a_dot() {
    let config = LoraConfig {
        target_modules: Modules::AllLinear,
        rank_pattern: IndexMap::from([("q_proj".into(), 2), ("layers.1.mlp.up_proj".into(), 3)]),
        alpha_pattern: IndexMap::from([(r"layers\.\d+\.mlp\.up_proj".into(), 12.0)]),
        rslora: true,
        ..LoraConfig::default()
    };
    let matcher = config::Matcher::new(&config, Naming::ALONE).unwrap();
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
        "the adapter's target modules match no layer of this model; the layers that can have one \
         are down_proj, embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
    );
    let saved = PeftAdapter::open(&golden("adapters/plain")).unwrap();
    let error = adapted(&golden("models/qwen3"), Attachment::saved(saved).unwrap()).map(|_| ());
    let error = error.unwrap_err().to_string();
    assert!(
        error.ends_with(
            "is [16, 4], but this model needs [32, 4]: the adapter is for another model"
        ),
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
            json!("boft_only"),
            r#"`bias` is "boft_only"; `none`, `all` and `lora_only` are known"#,
        ),
        (
            "modules_to_save",
            json!("lm_head"),
            "`modules_to_save` must be a list of names",
        ),
        (
            "trainable_token_indices",
            json!([1, 2]),
            "`trainable_token_indices` is [1,2], which is not supported",
        ),
        (
            "ensure_weight_tying",
            json!(true),
            "`ensure_weight_tying` is true, which is not supported",
        ),
        (
            "peft_type",
            json!("IA3"),
            "`peft_type` is IA3; only LORA, LOHA and LOKR are supported",
        ),
        ("r", json!(0), "`r` must be from 1 to 65536, not 0"),
        (
            "lora_alpha",
            json!(null),
            "`lora_alpha` must be a number, not null",
        ),
        (
            "lora_dropout",
            json!(1),
            "the dropout must be at least 0 and less than 1, not 1",
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

/// The keys of PEFT 0.21.2's `LoraConfig().to_dict()`, and what it adds when it saves.
const PEFT_KEYS: [&str; 42] = [
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "kasa_config",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_bias",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "monteclora_config",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "use_rslora",
    "velora_config",
];

#[test]
fn every_key_of_pefts_config_is_obeyed_or_without_effect_or_refused() {
    for key in PEFT_KEYS {
        let places = [
            peft::APPLIED.contains(&key),
            peft::NO_EFFECT.contains(&key),
            peft::UNSUPPORTED.iter().any(|(name, _)| *name == key),
        ];
        let count = places.iter().filter(|is_there| **is_there).count();
        assert_eq!(count, 1, "{key}");
    }
    for (key, harmless) in peft::UNSUPPORTED {
        let mut config = plain();
        config[key] = json!({"anything": 1});
        let error = read_config(&config).unwrap_err();
        assert!(error.contains(&format!("`{key}` is")), "{error}");
        config[key] = serde_json::from_str(harmless[0]).unwrap();
        read_config(&config).unwrap();
    }
    let mut config = plain();
    config["use_tomorrows_lora"] = json!(true);
    let error = read_config(&config).unwrap_err();
    assert!(error.contains("`use_tomorrows_lora` is true"), "{error}");
    config["use_tomorrows_lora"] = json!(false);
    read_config(&config).unwrap();
}

#[test]
fn adapters_beside_changed_base_weights_are_refused() {
    for name in [
        "pissa",
        "pissa_niter_4",
        "olora",
        "OLoRA",
        "corda",
        "loftq",
        "lora_ga",
        "mica",
        "new",
    ] {
        let mut config = plain();
        config["init_lora_weights"] = json!(name);
        let error = read_config(&config).unwrap_err();
        assert!(
            error.contains("path_initial_model_for_weight_conversion"),
            "{error}"
        );
    }
    for harmless in [
        json!(true),
        json!(false),
        json!(null),
        json!("gaussian"),
        json!("eva"),
    ] {
        let mut config = plain();
        config["init_lora_weights"] = harmless;
        read_config(&config).unwrap();
    }
}

#[test]
fn of_patterns_that_overlap_the_first_in_the_file_counts() {
    for (first, second, rank) in [("q_proj", ".*", 2), (".*", "q_proj", 3)] {
        let mut config = plain();
        config["rank_pattern"] = json!({});
        config["rank_pattern"][first] = json!(if first == "q_proj" { 2 } else { 3 });
        config["rank_pattern"][second] = json!(if second == "q_proj" { 2 } else { 3 });
        let config = read_config(&config).unwrap();
        let matcher = config::Matcher::new(&config, Naming::ALONE).unwrap();
        let shape = matcher.shape("model.layers.0.self_attn.q_proj").unwrap();
        assert_eq!(shape.rank, rank, "{first} before {second}");
    }
}

#[test]
fn layers_to_transform_chooses_blocks_by_number() {
    let targets = |indices: Value, lists: Value| {
        let mut config = plain();
        config["target_modules"] = json!(["q_proj"]);
        config["layers_to_transform"] = indices;
        config["layers_pattern"] = lists;
        let config = read_config(&config).unwrap();
        let matcher = config::Matcher::new(&config, Naming::ALONE).unwrap();
        [0, 1, 11]
            .map(|block| format!("model.layers.{block}.self_attn.q_proj"))
            .map(|name| matcher.shape(&name).is_some())
    };
    assert_eq!(targets(json!(null), json!(null)), [true, true, true]);
    assert_eq!(targets(json!([1]), json!(null)), [false, true, false]);
    assert_eq!(targets(json!(11), json!("layers")), [false, false, true]);
    assert_eq!(
        targets(json!([0, 1]), json!(["h", "layers"])),
        [true, true, false]
    );
    assert_eq!(targets(json!([0]), json!("blocks")), [false, false, false]);
    let mut config = plain();
    config["layers_to_transform"] = json!(["one"]);
    assert!(
        read_config(&config)
            .unwrap_err()
            .contains("must be a block's number")
    );
    for (key, value, reason) in [
        (
            "layers_pattern",
            json!("layers"),
            "without `layers_to_transform`",
        ),
        (
            "layers_to_transform",
            json!([0]),
            "needs a list of `target_modules`",
        ),
    ] {
        let mut config = plain();
        config["target_modules"] = json!(".*q_proj");
        config[key] = value;
        let error = read_config(&config).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_target_that_a_fresh_adapter_would_not_find_is_an_error() {
    let error = |targets: &[&str], base: &str| {
        let config = LoraConfig {
            target_modules: Modules::Suffixes(targets.iter().map(|name| (*name).into()).collect()),
            ..LoraConfig::default()
        };
        let base = golden(&format!("models/{base}"));
        let built = adapted(&base, Attachment::fresh(&config).unwrap());
        built.map(|_| ()).unwrap_err().to_string()
    };
    let message = error(&["q_proj", "v_porj"], "qwen3");
    assert!(
        message.contains("`v_porj` matches no layer (did you mean `v_proj`?)"),
        "{message}"
    );
    let message = error(&["q_proj", "embed_token"], "qwen3");
    assert!(
        message.contains("did you mean `embed_tokens`?"),
        "{message}"
    );
}
