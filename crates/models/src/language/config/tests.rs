//! Every key of a config, by what is done about it.

use super::*;

/// The config and the keys warned about, or the reason why it is refused.
fn read(config: &Value) -> Result<(DecoderConfig, Vec<String>), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let read = DecoderConfig::read(&path).map_err(|error| error.to_string())?;
    Ok((read, keys_without_effect(&path).unwrap()))
}

fn plain(model_type: &str) -> Value {
    let mut config = json!({"model_type": model_type, "vocab_size": 8, "hidden_size": 12,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8});
    if model_type == "gemma4_text" {
        // Others count only with these.
        config["attention_k_eq_v"] = json!(true);
        config["enable_moe_block"] = json!(true);
        for key in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
            config[key] = json!(2);
        }
    }
    config
}

/// A value that changes the result, or must be refused.
fn effective_value(key: &str, base: &DecoderConfig) -> Value {
    match key {
        "model_type" if *base.family == *REGISTRY[0] => json!(REGISTRY[1].model_type),
        "model_type" => json!(REGISTRY[0].model_type),
        "hidden_act" => json!("gelu"),
        "rms_norm_eps" | "partial_rotary_factor" => json!(0.5),
        "rope_theta" => json!(123.0),
        "rope_scaling" => json!({"rope_type": "linear", "factor": 2.0}),
        "rope_parameters" => json!({"rope_type": "default", "rope_theta": 99.0}),
        "tie_word_embeddings" => json!(!base.tie_word_embeddings),
        "attention_bias" => json!(!base.output_bias),
        "mlp_bias" => json!(true),
        "no_rope_layers" => json!([0]),
        "no_rope_layer_interval" => json!(1),
        "sliding_window_pattern" | "full_attention_interval" => json!(1),
        "head_dim" => json!(16),
        "is_causal" => json!(false),
        "layer_types" => json!(["chunked_attention"]),
        "quantization_config" | "compression_config" => json!({"quant_method": "gptq"}),
        _ => json!(6),
    }
}

/// Keys that are only read together with others: the base of YaRN's ramp, windows, and what routers learn.
const TOGETHER: [&str; 5] = [
    "original_max_position_embeddings",
    "sliding_window",
    "max_window_layers",
    "use_sliding_window",
    "router_aux_loss_coef",
];

#[test]
fn each_key_of_a_config_is_obeyed_told_or_without_effect() {
    for family in REGISTRY {
        let plain = plain(family.model_type);
        let (base, warned) = read(&plain).unwrap();
        assert_eq!(warned, [""; 0]);
        for key in KEYS.iter().chain(family.keys.iter().copied().flatten()) {
            let value = effective_value(key, &base);
            let mut config = match (*key, value.as_str()) {
                // With the keys of that one.
                ("model_type", Some(other)) => self::plain(other),
                _ => plain.clone(),
            };
            config[*key] = value;
            match read(&config) {
                Ok((found, warned)) => {
                    let changes = found != base || TOGETHER.contains(key);
                    assert!(changes, "{family:?}: {key} changes nothing");
                    assert_eq!(warned, [""; 0], "{family:?}: {key}");
                }
                Err(reason) => assert!(reason.contains(key), "{family:?}, {key}: {reason}"),
            }
        }
        for key in NO_EFFECT {
            let mut config = plain.clone();
            config[*key] = json!("something");
            assert_eq!(read(&config), Ok((base.clone(), Vec::new())), "{key}");
        }
        let mut unknown = plain;
        unknown["never_seen"] = json!(1);
        unknown["nor_this"] = json!(false);
        unknown["without_a_value"] = Value::Null;
        unknown["_note"] = json!("of a library");
        unknown["attention_dropout"] = json!(0.0);
        assert_eq!(read(&unknown).unwrap().1, ["never_seen", "nor_this"]);
    }
}
