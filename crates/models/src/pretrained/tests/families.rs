//! What only some families' configs and files say.

use super::*;

fn config_json(name: &str) -> Value {
    let text = std::fs::read_to_string(golden(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn longrope_has_several_names_and_a_number_for_each_pair() {
    let new = config_json("phi3-longrope");
    let read = config_of(&new).unwrap();
    let mut old = new.clone();
    let mut scaling = old
        .as_object_mut()
        .unwrap()
        .remove("rope_parameters")
        .unwrap();
    for (key, value) in [
        ("rope_theta", json!(100.0)),
        ("partial_rotary_factor", json!(0.5)),
    ] {
        assert_eq!(
            scaling.as_object_mut().unwrap().remove(key),
            Some(value.clone())
        );
        old[key] = value;
    }
    scaling.as_object_mut().unwrap().remove("rope_type");
    for name in ["su", "yarn", "longrope"] {
        scaling["type"] = json!(name);
        old["rope_scaling"] = scaling.clone();
        assert_eq!(config_of(&old).unwrap(), read, "{name}");
    }
    for (key, value, reason) in [
        (
            "short_factor",
            json!([1.0]),
            "`short_factor` has 1 numbers, but a head has 2 pairs",
        ),
        (
            "long_factor",
            json!([1.0, 0.0]),
            "`rope_parameters.long_factor` must have numbers greater than zero",
        ),
        (
            "rope_type",
            json!("linear"),
            r#"`rope_parameters.rope_type` is "linear"; supported: default, longrope"#,
        ),
        (
            "partial_rotary_factor",
            json!(0.4),
            "must leave an even number of a head's 8 dimensions to rotate, not 3",
        ),
    ] {
        let mut wrong = new.clone();
        wrong["rope_parameters"][key] = value;
        let found = config_of(&wrong).unwrap_err();
        assert!(found.contains(reason), "{found}");
    }
}

#[test]
fn the_text_part_of_a_larger_model_is_of_the_family_that_it_names() {
    let mut whole = config_json("ministral3-multimodal");
    let family = |config: &Value| config_of(config).map(|config| config.family.model_type);
    assert_eq!(family(&whole).as_deref(), Ok("ministral3"));
    whole["text_config"]["model_type"] = json!("mistral");
    assert_eq!(family(&whole).as_deref(), Ok("mistral"));
    whole["text_config"]["model_type"] = json!("qwen2");
    let reason = family(&whole).unwrap_err();
    let expected = r#"`text_config.model_type` is "qwen2"; supported: mistral, ministral3"#;
    assert!(reason.contains(expected), "{reason}");
    // Weights of fewer bits are those of the whole.
    whole["text_config"]["model_type"] = json!("ministral3");
    whole["quantization_config"] = json!({"quant_method": "fp8"});
    let reason = family(&whole).unwrap_err();
    assert!(
        reason.contains("`quantization_config.quant_method` is \"fp8\""),
        "{reason}"
    );
}

#[test]
fn a_gguf_file_of_a_model_that_cannot_be_read_from_one_says_what_to_take() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut bytes = std::fs::read(golden("olmo2.gguf")).unwrap();
    // Another key of the same length and kind: a number of 32 bits.
    let (old, new) = (
        b"olmo2.attention.head_count_kv",
        b"olmo2.attention.sliding_window",
    );
    let place = bytes
        .windows(old.len())
        .position(|part| part == old)
        .unwrap();
    let length = place - 8;
    bytes[length..place].copy_from_slice(&(new.len() as u64).to_le_bytes());
    bytes.splice(place..place + old.len(), new.iter().copied());
    std::fs::write(&path, bytes).unwrap();
    let reason = GgufModel::open(&path).unwrap_err().to_string();
    assert!(
        reason.contains("`olmo2.attention.sliding_window` is set"),
        "{reason}"
    );
    assert!(reason.contains("take its Hugging Face folder"), "{reason}");
}
