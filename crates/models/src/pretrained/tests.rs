//! Models as `transformers` and llama.cpp's converter wrote them, and damage to them.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::*;
use crate::formats::{LazyTensor, SafetensorsFile, write_safetensors};
use crate::language::tests::MODELS;
use crate::language::{DecoderConfig, QkNorm};
use crate::model::RopeScaling;

mod families;
mod packed;

fn golden(name: &str) -> PathBuf {
    crate::golden::golden(&format!("models/{name}"))
}

fn config_of(value: &Value) -> Result<DecoderConfig, String> {
    DecoderConfig::parse(Path::new("config.json"), &value.to_string())
        .map_err(|error| error.to_string())
}

fn qwen3() -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden("qwen3/config.json")).unwrap()).unwrap()
}

#[test]
fn a_gguf_is_the_folder_it_was_made_from() {
    // One is added to the weights of Gemma's norms, and rounded.
    for (model, rounding) in [
        ("llama-grouped", 0.0),
        ("gemma2", 1e-7),
        ("gemma3", 1e-7),
        ("gemma4", 0.0),
        ("gemma4-moe", 0.0),
        ("granite", 0.0),
        ("smollm3", 0.0),
        ("olmo2", 0.0),
        ("phi3", 0.0),
        ("qwen3-moe", 0.0),
        ("gpt-oss", 0.0),
        // As those of Gemma; and A is the logarithm of an exponential.
        ("qwen3.5", 5e-7),
        ("qwen3.5-moe", 5e-7),
    ] {
        let gguf = GgufModel::open(&golden(&format!("{model}.gguf"))).unwrap();
        let folder = HfFolder::open(&golden(model)).unwrap();
        let mut config = folder.config().clone();
        if model == "gemma3" {
            // llama.cpp takes the width of the head.
            config.score_scale = Some((config.head_dim as f64).powf(-0.5));
        }
        if let Some(experts) = &mut config.experts {
            // Only for training.
            experts.balance = None;
        }
        if let (Some(ours), Some(theirs)) = (&mut config.local, &gguf.config().local) {
            // And its own pattern.
            ours.layers.clone_from(&theirs.layers);
        }
        assert_eq!(gguf.config(), &config);
        assert_eq!(gguf.names(), folder.names());
        for name in folder.names() {
            let (ours, theirs) = (
                gguf.read(&name, Kind::Float).unwrap(),
                folder.read(&name, Kind::Float).unwrap(),
            );
            assert_eq!(gguf.shape(&name).unwrap(), theirs.size());
            let difference = f64::try_from((ours - theirs).abs().max()).unwrap();
            assert!(difference <= rounding, "{name}: {difference}");
        }
    }
}

#[test]
fn a_converted_gguf_opens_as_that_folder() {
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("models/tiny");
    let progress = std::cell::RefCell::new(Vec::new());
    let note = |done, all| progress.borrow_mut().push((done, all));
    convert_gguf(&golden("llama-grouped.gguf"), &target, Kind::Float, &note).unwrap();
    assert_eq!(
        progress.take(),
        (1..=21).map(|done| (done, 21)).collect::<Vec<_>>()
    );
    assert!(!target.with_extension("part").exists());

    let converted = Pretrained::open(&target).unwrap();
    let original = Pretrained::open(&golden("llama-grouped.gguf")).unwrap();
    assert_eq!(converted.config, original.config);
    assert_eq!(converted.chat_template, original.chat_template);
    for name in original.tensors.names() {
        let read = |model: &Pretrained| model.tensors.read(&name, Kind::Float).unwrap();
        assert!(read(&converted).equal(&read(&original)), "{name}");
    }
    for text in ["the 1212 on", "a\n the", "<|im_start|>the<|im_end|>"] {
        let ids = |model: &Pretrained| {
            model
                .tokenizer
                .encode(text, true)
                .unwrap()
                .get_ids()
                .to_vec()
        };
        assert_eq!(ids(&converted), ids(&original));
    }
}

#[test]
fn of_named_chat_templates_the_default_counts_and_without_one_they_are_named() {
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("tiny");
    convert_gguf(
        &golden("llama-grouped.gguf"),
        &target,
        Kind::Float,
        &|_, _| {},
    )
    .unwrap();
    let open = |templates: Value| {
        let config = json!({"chat_template": templates});
        std::fs::write(target.join("tokenizer_config.json"), config.to_string()).unwrap();
        let opened = Pretrained::open(&target);
        let opened = opened.map(|model| (model.chat_template, model.tool_template));
        opened.map_err(|error| error.to_string())
    };
    let named = |name: &str| json!({"name": name, "template": name});
    let found = open(json!([named("tool_use"), named("default")]));
    assert_eq!(found, Ok((Some("default".into()), Some("tool_use".into()))));
    let reason = open(json!([named("tool_use"), named("rag")])).unwrap_err();
    assert!(reason.contains("are named `rag`, `tool_use`"), "{reason}");
    let reason = open(json!([{"name": "default"}])).unwrap_err();
    assert!(reason.contains("`chat_template` must be"), "{reason}");
    // Files count before the key, all of it.
    let write = |name: &str, text: &str| std::fs::write(target.join(name), text).unwrap();
    write("chat_template.jinja", "file");
    assert_eq!(open(json!("key")), Ok((Some("file".into()), None)));
    std::fs::create_dir(target.join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", "tools");
    write("additional_chat_templates/notes.txt", "not a template");
    let found = open(json!([named("tool_use"), named("default")]));
    assert_eq!(found, Ok((Some("file".into()), Some("tools".into()))));
    std::fs::remove_file(target.join("chat_template.jinja")).unwrap();
    let reason = open(json!("key")).unwrap_err();
    assert!(reason.contains("are named `tool_use`"), "{reason}");
}

#[test]
fn the_tokenizer_cuts_digits_and_keeps_control_tokens_whole() {
    let tokenizer = Pretrained::open(&golden("llama-grouped.gguf"))
        .unwrap()
        .tokenizer;
    let encoding = tokenizer.encode("the the 12<|im_end|>on", true).unwrap();
    // `12` is a token and a merge, but digits never meet.
    assert_eq!(
        encoding.get_tokens(),
        ["t", "he", "Ġthe", "Ġ", "1", "2", "<|im_end|>", "on"]
    );
    assert_eq!(
        tokenizer.decode(encoding.get_ids(), false).unwrap(),
        "the the 12<|im_end|>on"
    );
    assert_eq!(
        tokenizer.decode(encoding.get_ids(), true).unwrap(),
        "the the 12on"
    );
}

#[test]
fn shards_are_one_model() {
    let folder = HfFolder::open(&golden("llama-tied-biases")).unwrap();
    assert_eq!(folder.files(), 3);
    // 2 layers of 9 weights and 7 biases, the embedding and the last norm.
    assert_eq!(folder.names().len(), 2 * (9 + 7) + 2);
    assert_eq!(folder.shape("model.embed_tokens.weight").unwrap(), [48, 16]);
}

#[test]
fn an_index_reaches_no_other_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(
        golden("qwen3/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    for file in [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "model.bin",
    ] {
        let index = folder.path().join("model.safetensors.index.json");
        std::fs::write(&index, json!({"weight_map": {"x": file}}).to_string()).unwrap();
        let error = HfFolder::open(folder.path()).unwrap_err().to_string();
        let reason = format!(
            "`weight_map.x` names {file:?}, which is not a safetensors file of this folder"
        );
        assert!(error.ends_with(&reason), "{error}");
    }
}

#[test]
fn configs_survive_being_written() {
    for name in MODELS {
        let read = DecoderConfig::read(&golden(name).join("config.json")).unwrap();
        assert_eq!(config_of(&read.to_json()).unwrap(), read, "{name}");
    }
}

#[test]
fn each_architecture_has_its_own_biases_and_norms() {
    let parts = MODELS.map(|name| {
        let config = DecoderConfig::read(&golden(name).join("config.json")).unwrap();
        (
            config.family.model_type,
            config.qkv_bias,
            config.output_bias,
            config.mlp_bias,
            config.qk_norm,
        )
    });
    assert_eq!(parts[1], ("llama", true, true, true, QkNorm::None));
    assert_eq!(parts[3], ("qwen2", true, false, false, QkNorm::None));
    assert_eq!(parts[4], ("qwen3", false, false, false, QkNorm::Head));
    assert_eq!(parts[5], ("qwen3", true, true, false, QkNorm::Head));
}

#[test]
fn rotary_settings_are_found_in_their_old_and_new_places() {
    let mut config = qwen3();
    config.as_object_mut().unwrap().remove("rope_parameters");
    assert_eq!(config_of(&config).unwrap().rope.theta, 10_000.0);
    config["rope_theta"] = json!(7.0);
    config["rope_scaling"] = json!({"type": "linear", "factor": 2});
    let old = config_of(&config).unwrap().rope;
    assert_eq!(
        (old.theta, &old.scaling),
        (7.0, &RopeScaling::Linear { factor: 2.0 })
    );
    config.as_object_mut().unwrap().remove("rope_theta");
    config.as_object_mut().unwrap().remove("rope_scaling");
    config["rope_parameters"] = json!({"rope_type": "linear", "factor": 2, "rope_theta": 7});
    assert_eq!(config_of(&config).unwrap().rope, old);
}

#[test]
fn the_older_place_counts_where_both_are_filled() {
    let mut config = qwen3();
    config["rope_theta"] = json!(7.0);
    config["rope_scaling"] = json!({"type": "linear", "factor": 2});
    let rope = config_of(&config).unwrap().rope;
    let expected = (7.0, RopeScaling::Linear { factor: 2.0 });
    assert_eq!((rope.theta, rope.scaling), expected);
}

#[test]
fn what_a_file_does_not_say_is_what_transformers_takes() {
    let without = |mut config: Value, keys: &[&str]| {
        for key in keys {
            config.as_object_mut().unwrap().remove(*key);
        }
        config_of(&config).unwrap()
    };
    let mut qwen3 = qwen3();
    qwen3["num_attention_heads"] = json!(64);
    qwen3["hidden_size"] = json!(1024);
    let sparse = without(
        qwen3,
        &["head_dim", "num_key_value_heads", "max_position_embeddings"],
    );
    assert_eq!((sparse.head_dim, sparse.num_key_value_heads), (128, 32));
    assert_eq!(sparse.max_position_embeddings, 32_768);
    let path = golden("llama-grouped/config.json");
    let llama: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let keys = [
        "head_dim",
        "num_key_value_heads",
        "tie_word_embeddings",
        "bos_token_id",
    ];
    let sparse = without(llama.clone(), &keys);
    assert_eq!((sparse.head_dim, sparse.num_key_value_heads), (4, 4));
    assert!(!sparse.tie_word_embeddings);
    let sparse = without(llama, &["bos_token_id", "eos_token_id"]);
    assert_eq!(
        (sparse.bos_token_id, sparse.eos_token_ids),
        (Some(1), vec![2])
    );
}

#[test]
fn more_heads_than_numbers_to_share_are_refused() {
    let path = golden("llama-grouped/config.json");
    let mut llama: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    llama.as_object_mut().unwrap().remove("head_dim");
    llama["num_attention_heads"] = json!(64);
    let error = config_of(&llama).unwrap_err();
    assert!(error.contains("`head_dim` must be even"), "{error}");
}

#[test]
fn a_window_that_no_layer_uses_is_no_window() {
    let mut config = qwen3();
    for key in ["layer_types", "sliding_window"] {
        config.as_object_mut().unwrap().remove(key);
    }
    config["use_sliding_window"] = json!(true);
    config["max_window_layers"] = json!(2);
    assert!(config_of(&config).is_ok());
    config["max_window_layers"] = json!(1);
    assert!(
        config_of(&config)
            .unwrap_err()
            .contains("use_sliding_window")
    );
    config["sliding_window"] = json!(null);
    assert!(config_of(&config).is_ok());
}

#[test]
fn a_chat_model_ends_with_the_tokens_of_its_generation_config() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("qwen3").join(file), folder.path().join(file)).unwrap();
    }
    let ends = || {
        HfFolder::open(folder.path())
            .unwrap()
            .config()
            .eos_token_ids
            .clone()
    };
    assert_eq!(ends(), [2]);
    let generation = folder.path().join("generation_config.json");
    std::fs::write(&generation, r#"{"do_sample": true}"#).unwrap();
    assert_eq!(ends(), [2]);
    std::fs::write(&generation, r#"{"eos_token_id": [5, 2]}"#).unwrap();
    assert_eq!(ends(), [5, 2]);
}

#[test]
fn written_weights_are_as_readable_as_other_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| {
        let metadata = std::fs::metadata(folder.path().join(name)).unwrap();
        metadata.permissions().mode()
    };
    std::fs::write(folder.path().join("other"), "").unwrap();
    let tensor = LazyTensor::ready(&Tensor::ones([2], (Kind::Float, Device::Cpu)));
    let path = folder.path().join("weights");
    write_safetensors(&path, [("a".to_owned(), tensor)], None).unwrap();
    assert_eq!(mode("weights"), mode("other"));
}

#[test]
fn config_errors_name_the_file_the_key_and_what_would_be_right() {
    let cases = [
        (
            "model_type",
            json!("gpt_neox"),
            r#"`model_type` is "gpt_neox"; the supported models are llama, mistral, ministral3, qwen2, qwen3, qwen3_moe, qwen3_5_text, qwen3_5_moe_text, gpt_oss, gemma2, gemma3_text, gemma4_text, granite, smollm3, olmo2, olmo3, phi3"#,
        ),
        (
            "model_type",
            json!("qwen2_moe"),
            r#"`model_type` is "qwen2_moe"; the supported models are llama, mistral, ministral3, qwen2, qwen3, qwen3_moe, qwen3_5_text, qwen3_5_moe_text, gpt_oss, gemma2, gemma3_text, gemma4_text, granite, smollm3, olmo2, olmo3, phi3; the nearest of them is qwen2, but it computes something else"#,
        ),
        (
            "hidden_size",
            json!("16"),
            r#"`hidden_size` must be a whole number, not "16""#,
        ),
        ("hidden_size", json!(null), "`hidden_size` is missing"),
        (
            "num_hidden_layers",
            json!(-1),
            "`num_hidden_layers` must be from 1 to 4096, not -1",
        ),
        (
            "vocab_size",
            json!(1u64 << 63),
            "`vocab_size` must be a whole number, not 9223372036854775808",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "`num_key_value_heads` must divide the 4 query heads; 3 does not",
        ),
        (
            "head_dim",
            json!(7),
            "`head_dim` must be even for the rotary embedding, not 7",
        ),
        (
            "rms_norm_eps",
            json!(0),
            "`rms_norm_eps` must be greater than zero, not 0",
        ),
        (
            "tie_word_embeddings",
            json!("yes"),
            r#"`tie_word_embeddings` must be true or false, not "yes""#,
        ),
        (
            "hidden_act",
            json!("gelu"),
            r#"`hidden_act` is "gelu"; only "silu" is supported"#,
        ),
        (
            "rope_parameters",
            json!({"rope_type": "longrope"}),
            r#"`rope_parameters.rope_type` is "longrope"; supported: default, linear, dynamic, llama3, yarn"#,
        ),
        (
            "rope_parameters",
            json!({"rope_type": "default", "partial_rotary_factor": 0.5}),
            "`rope_parameters.partial_rotary_factor` is 0.5; only 1 is supported",
        ),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_theta": 7.0}}),
            "`rope_parameters.full_attention` is an object: different rotary embeddings per layer are not supported",
        ),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            r#"`layer_types` has "sliding_attention"; only "full_attention" is supported"#,
        ),
        (
            "eos_token_id",
            json!([1, "x"]),
            "`eos_token_id` must be a token id or a list of them, not \"x\"",
        ),
    ];
    for (key, value, message) in cases {
        let mut config = qwen3();
        config[key] = value;
        assert_eq!(
            config_of(&config).unwrap_err(),
            format!("`config.json`: {message}")
        );
    }
}

#[test]
fn a_cut_safetensors_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(golden("qwen3/model.safetensors")).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let error = SafetensorsFile::open(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("are there; the download may be incomplete"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn a_config_of_any_numbers_never_panics(
        keys in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        number in any::<i64>(),
    ) {
        let mut config = qwen3();
        let object = config.as_object_mut().unwrap();
        for key in keys {
            let key = key.index(object.len());
            *object.values_mut().nth(key).unwrap() = json!(number);
        }
        let _ = config_of(&config);
    }

    #[test]
    fn a_damaged_safetensors_file_never_panics(
        damage in prop::collection::vec((0usize..2000, any::<u8>()), 1..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(golden("qwen3/model.safetensors")).unwrap();
        for (index, byte) in damage {
            bytes[index] = byte;
        }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = SafetensorsFile::open(&path) {
            for name in file.names() {
                let _ = file.read(&name, Kind::Float);
            }
        }
    }
}

/// What transformers, vLLM and llama.cpp read from a folder besides weights.
#[test]
fn an_exported_folder_keeps_what_it_does_not_change() {
    let (source, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = source.path().join("model");
    convert_gguf(
        &golden("llama-grouped.gguf"),
        &folder,
        Kind::Float,
        &|_, _| (),
    )
    .unwrap();
    let config = folder.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut before: serde_json::Value = serde_json::from_str(&text).unwrap();
    before["initializer_range"] = json!(0.125);
    before["pad_token_id"] = json!(2);
    std::fs::write(&config, before.to_string()).unwrap();
    let files = [
        (
            "generation_config.json",
            "{\"temperature\": 0.6, \"eos_token_id\": [1, 3]}",
        ),
        (
            "tokenizer_config.json",
            "{\"padding_side\": \"left\", \"pad_token\": \"</s>\", \"extra_special_tokens\": {\"a\": \"<s>\"}}",
        ),
        ("chat_template.jinja", "{{ messages }}\r\n"),
        ("additional_chat_templates/tool_use.jinja", "{{ tools }}"),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let model = Pretrained::open(&folder).unwrap();
    let mut config = model.config.clone();
    config.tie_word_embeddings = !config.tie_word_embeddings;
    model
        .write_companions(&config, target.path(), Kind::BFloat16)
        .unwrap();
    for (name, text) in files {
        let copied = std::fs::read_to_string(target.path().join(name));
        assert_eq!(copied.unwrap(), text, "{name}");
    }
    let text = std::fs::read_to_string(target.path().join("config.json")).unwrap();
    let after: serde_json::Value = serde_json::from_str(&text).unwrap();
    before["tie_word_embeddings"] = json!(config.tie_word_embeddings);
    before["dtype"] = json!("bfloat16");
    before["architectures"] = after["architectures"].clone();
    assert_eq!(after, before);
}
