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

#[test]
fn a_window_of_zero_in_a_gguf_file_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut bytes = std::fs::read(golden("phi3.gguf")).unwrap();
    let key = b"phi3.attention.sliding_window";
    let place = bytes.windows(key.len()).position(|part| part == key);
    // Behind the key there are its type and the number.
    let number = place.unwrap() + key.len() + 4;
    assert_eq!(bytes[number..number + 4], 9u32.to_le_bytes());
    bytes[number..number + 4].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let model = GgufModel::open(&path).unwrap();
    assert_eq!(model.config().local, None);
}

#[test]
fn windows_of_smollm3_are_refused_whatever_its_other_keys_say() {
    let mut config = config_json("smollm3");
    config.as_object_mut().unwrap().remove("layer_types");
    config["use_sliding_window"] = json!(true);
    config["sliding_window"] = json!(4096);
    config["max_window_layers"] = json!(1000);
    let reason = config_of(&config).unwrap_err();
    assert!(reason.contains("`use_sliding_window` is true"), "{reason}");
}

#[test]
fn a_part_with_a_head_of_its_own_is_not_tied() {
    let from = golden("ministral3-multimodal");
    let folder = tempfile::tempdir().unwrap();
    let mut config = config_json("ministral3-multimodal");
    const TIED: &str = "tie_word_embeddings";
    config.as_object_mut().unwrap().remove(TIED);
    config["text_config"].as_object_mut().unwrap().remove(TIED);
    let file = crate::formats::SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
    let read = |name: &String| (name.clone(), file.read(name, tch::Kind::Float).unwrap());
    let mut tensors: Vec<_> = file.names().iter().map(read).collect();
    let embedding = tensors
        .iter()
        .find(|(name, _)| name.ends_with("embed_tokens.weight"));
    let head = embedding.unwrap().1.shallow_clone() * 2.0;
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    for (with_head, is_tied) in [(false, true), (true, false)] {
        if with_head {
            tensors.push((
                "language_model.lm_head.weight".to_owned(),
                head.shallow_clone(),
            ));
        }
        let named: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        crate::formats::write_tensors(&folder.path().join("model.safetensors"), &named).unwrap();
        let opened = HfFolder::open(folder.path()).unwrap();
        assert_eq!(opened.config().tie_word_embeddings, is_tied);
    }
}
