//! What only some families' configs and files say.

use super::*;
use crate::model::FileWeights;

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
    let mut bytes = std::fs::read(golden("qwen3.5.gguf")).unwrap();
    // Another key of the same length and kind: a number of 32 bits.
    let (old, new) = (
        b"qwen35.attention.head_count_kv",
        b"qwen35.attention.recurrent_layers",
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
        reason.contains("`qwen35.attention.recurrent_layers` is set"),
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

#[test]
fn experts_in_mxfp4_are_dequantised_as_transformers_does_to_the_bit() {
    let folder = HfFolder::open(&golden("gpt-oss")).unwrap();
    let gguf = GgufModel::open(&golden("gpt-oss.gguf")).unwrap();
    let expected =
        crate::formats::SafetensorsFile::open(&golden("gpt-oss/expected.safetensors")).unwrap();
    // With the signs of zeros.
    let same = |ours: &tch::Tensor, theirs: &tch::Tensor| {
        let bits = |tensor: &tch::Tensor| tensor.contiguous().view_dtype(Kind::Int16);
        ours.kind() == theirs.kind() && bits(ours).equal(&bits(theirs))
    };
    for (part, stored, start, step) in [
        ("gate_proj", "gate_up", 0, 2),
        ("up_proj", "gate_up", 1, 2),
        ("down_proj", "down", 0, 1),
    ] {
        let stored = expected.read_stored(stored).unwrap();
        for expert in 0..6 {
            let name = format!("model.layers.0.mlp.experts.{expert}.{part}.weight");
            let theirs = stored.get(expert).tr().slice(0, start, None, step);
            for source in [&folder as &dyn TensorSource, &gguf] {
                assert!(source.is_mxfp4(&name));
                let kept = source.read_mxfp4(&name).unwrap();
                assert_eq!(kept.size(), theirs.size());
                for ours in [
                    source.read(&name, Kind::BFloat16).unwrap(),
                    kept.dequantize(Kind::BFloat16).unwrap(),
                    kept.dequantize(Kind::Float)
                        .unwrap()
                        .to_kind(Kind::BFloat16),
                ] {
                    assert!(
                        same(&ours, &theirs),
                        "{name} of {}",
                        source.path().display()
                    );
                }
            }
        }
    }
}

/// A copy of the tiny gpt-oss with changed tensors.
fn changed(change: impl Fn(&str, tch::Tensor) -> tch::Tensor) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = golden("gpt-oss");
    let config = folder.path().join("config.json");
    std::fs::copy(from.join("config.json"), config).unwrap();
    let file = crate::formats::SafetensorsFile::open(&from.join("model.safetensors")).unwrap();
    let read = |name: &String| (name.clone(), change(name, file.read_stored(name).unwrap()));
    let tensors: Vec<_> = file.names().iter().map(read).collect();
    let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    let path = folder.path().join("model.safetensors");
    crate::formats::write_tensors(&path, &named.collect::<Vec<_>>()).unwrap();
    folder
}

#[test]
fn damaged_experts_in_mxfp4_are_found() {
    let weight = "model.layers.1.mlp.experts.2.up_proj.weight";
    let load = |folder: &tempfile::TempDir| {
        let folder = HfFolder::open(folder.path()).unwrap();
        let mut placer =
            placement::Placer::new(tch::Device::Cpu, placement::Policy::default()).unwrap();
        let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
        let packed = source.packed(weight, &[64, 32], false);
        packed
            .map(|packed| packed.is_some())
            .map_err(|error| error.to_string())
    };
    assert_eq!(load(&changed(|_, tensor| tensor)), Ok(true));
    let scales = |name: &str| name.ends_with("layers.1.mlp.experts.gate_up_proj_scales");
    let no_number = changed(|name, tensor| {
        if scales(name) {
            let _ = tensor.get(2).get(3).fill_(255);
        }
        tensor
    });
    let reason = load(&no_number).unwrap_err();
    assert!(
        reason.contains("has 32 NaN or infinite values of 2048"),
        "{reason}"
    );
    let fewer = changed(|name, tensor| match scales(name) {
        true => tensor.narrow(1, 0, 100),
        false => tensor,
    });
    let reason = load(&fewer).unwrap_err();
    assert!(
        reason.contains("_blocks` has [128, 1, 16] bytes of numbers and [100, 1] factors"),
        "{reason}"
    );
    // Another format is refused.
    let folder = changed(|_, tensor| tensor);
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("mxfp4", "gptq")).unwrap();
    let reason = HfFolder::open(folder.path()).unwrap_err().to_string();
    assert!(reason.contains("quant_method` is \"gptq\""), "{reason}");
}

#[test]
fn a_gpt_oss_is_written_as_transformers_has_it() {
    written_as_read("gpt-oss-dense");
}

fn written_as_read(name: &str) {
    let from = golden(name);
    let folder = HfFolder::open(&from).unwrap();
    let target = tempfile::tempdir().unwrap();
    let path = target.path().join("model.safetensors");
    let tensors = folder.names().into_iter().map(|name| {
        let tensor = crate::formats::LazyTensor::of(&folder, &name, Kind::Float).unwrap();
        (name, tensor)
    });
    write_weights(&path, folder.config(), tensors.collect(), None).unwrap();
    let open = |path: &Path| crate::formats::SafetensorsFile::open(path).unwrap();
    let (ours, theirs) = (open(&path), open(&from.join("model.safetensors")));
    assert_eq!(ours.names(), theirs.names());
    for name in theirs.names() {
        let (ours, theirs) = (
            ours.read_stored(&name).unwrap(),
            theirs.read_stored(&name).unwrap(),
        );
        assert!(
            ours.size() == theirs.size() && ours.equal(&theirs),
            "{name}"
        );
    }
}

/// The config of gpt-oss-20b, which was written by transformers 4.
#[test]
fn a_published_config_of_gpt_oss_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let published = json!({
        "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "eos_token_id": 200_002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
        "intermediate_size": 2880, "max_position_embeddings": 131_072, "model_type": "gpt_oss",
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
        "pad_token_id": 199_999, "rms_norm_eps": 1e-5, "rope_theta": 150_000, "sliding_window": 128,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": false,
            "original_max_position_embeddings": 4096, "rope_type": "yarn"},
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        "router_aux_loss_coef": 0.9, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201_088,
    });
    std::fs::write(&path, published.to_string()).unwrap();
    assert_eq!(keys_without_effect(&path).unwrap(), [""; 0]);
    let read = DecoderConfig::read(&path).unwrap();
    // All that it says is what the class has without a key, but for the number of blocks and experts.
    let short = json!({"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32,
        "pad_token_id": 199_999, "eos_token_id": 200_002});
    assert_eq!(read, config_of(&short).unwrap());
    let local = read.local.as_ref().unwrap();
    assert!((local.window, local.layers[0], local.layers[1]) == (128, true, false));
    let factor = read.rope.attention_factor();
    assert!((factor - 1.346_573_6).abs() < 1e-6, "{factor}");
}

#[test]
fn what_is_written_of_a_model_in_mxfp4_is_not_quantised_and_says_so() {
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("model");
    let source = golden("gpt-oss.gguf");
    convert_gguf(&source, &folder, Kind::Float, &|_, _| ()).unwrap();
    let (converted, original) = (
        Pretrained::open(&folder).unwrap(),
        Pretrained::open(&source).unwrap(),
    );
    assert_eq!(converted.config, original.config);
    for name in original.tensors.names() {
        let read = |model: &Pretrained| model.tensors.read(&name, Kind::Float).unwrap();
        assert!(read(&converted).equal(&read(&original)), "{name}");
        assert!(!converted.tensors.is_mxfp4(&name));
    }
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("gpt-oss").join(file), folder.join(file)).unwrap();
    }
    let model = Pretrained::open(&folder).unwrap();
    let written = tempfile::tempdir().unwrap();
    model
        .write_companions(&model.config, written.path(), Kind::BFloat16)
        .unwrap();
    let path = written.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let keys: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(keys.get("quantization_config"), None);
    assert_eq!(DecoderConfig::read(&path).unwrap(), model.config);
}

/// The text part of E2B, as it was published.
fn published_gemma_4() -> Value {
    let kinds = (1..=35).map(|layer| match layer % 5 {
        0 => "full_attention",
        _ => "sliding_attention",
    });
    let text = r#"{
        "attention_bias": false, "attention_dropout": 0.0, "attention_k_eq_v": false,
        "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": false, "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536,
        "hidden_size_per_layer_input": 256, "initializer_range": 0.02, "intermediate_size": 6144,
        "max_position_embeddings": 131072, "model_type": "gemma4_text",
        "moe_intermediate_size": null, "num_attention_heads": 8, "num_experts": null,
        "num_global_key_value_heads": null, "num_hidden_layers": 35, "num_key_value_heads": 1,
        "num_kv_shared_layers": 20, "pad_token_id": 0, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 512, "tie_word_embeddings": true, "top_k_experts": null,
        "use_bidirectional_attention": null, "use_cache": true, "use_double_wide_mlp": true,
        "vocab_size": 262144, "vocab_size_per_layer_input": 262144}"#;
    let mut text: Value = serde_json::from_str(text).unwrap();
    text["layer_types"] = kinds.collect();
    json!({"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"],
        "image_token_id": 258_880, "vision_config": {}, "audio_config": {},
        "tie_word_embeddings": true, "text_config": text})
}

#[test]
fn a_published_config_of_gemma_4_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, published_gemma_4().to_string()).unwrap();
    assert_eq!(keys_without_effect(&path).unwrap(), [""; 0]);
    let read = DecoderConfig::read(&path).unwrap();
    let mut whole_number = published_gemma_4();
    whole_number["text_config"]["final_logit_softcapping"] = json!(30);
    std::fs::write(&path, whole_number.to_string()).unwrap();
    assert_eq!(DecoderConfig::read(&path).unwrap(), read);
    assert_eq!(
        read.to_json()["final_logit_softcapping"].to_string(),
        "30.0"
    );
    assert_eq!((read.heads(true), read.heads(false)), ((1, 256), (1, 512)));
    // The blocks 13 and 14 are the last of their kind before the twenty.
    let taken = [13, 14, 15, 19, 33, 34].map(|block| read.takes_from(block));
    assert_eq!(taken, [None, None, Some(13), Some(14), Some(13), Some(14)]);
    assert_eq!((read.inner(14), read.inner(15)), (6144, 12_288));
    let dead = |name: &str| read.is_dead(&format!("model.layers.{name}.weight"));
    assert!(dead("15.self_attn.k_proj") && dead("34.self_attn.k_norm"));
    assert!(!dead("14.self_attn.k_proj") && !dead("15.self_attn.q_proj"));
    let frequencies = read.rope.frequencies(512);
    assert_eq!(frequencies.len(), 256);
    assert!(frequencies[63] > 0.0 && frequencies[64] == 0.0);
}

#[test]
fn what_gemma_4_cannot_be_is_refused_by_name() {
    let whole = published_gemma_4();
    for (key, value, reason) in [
        (
            "num_kv_shared_layers",
            json!(31),
            "is 31, and no layer before these is one without a window",
        ),
        (
            "per_layer_config",
            json!({"4": {"head_dim": 512}, "9": {"head_dim": 128}}),
            "`text_config.per_layer_config.9` has other heads",
        ),
        (
            "per_layer_config",
            json!({"0": {"head_dim": 512}}),
            "`text_config.per_layer_config.0` has other heads",
        ),
        (
            "per_layer_config",
            json!({"4": {"sliding_window": 5}}),
            "`text_config.per_layer_config.4.sliding_window` is not supported",
        ),
        (
            "per_layer_config",
            json!({"35": {}}),
            "`text_config.per_layer_config.35` is no layer of this model",
        ),
        (
            "use_bidirectional_attention",
            json!("all"),
            r#"is "all"; only causal models are supported"#,
        ),
        (
            "enable_moe_block",
            json!(true),
            "`text_config.num_experts` is missing",
        ),
        (
            "global_head_dim",
            json!(511),
            "must be even for the rotary embedding",
        ),
    ] {
        let mut wrong = whole.clone();
        wrong["text_config"][key] = value;
        let found = config_of(&wrong).unwrap_err();
        assert!(found.contains(reason), "{found}");
    }
    // As in transformers, the last layer sees the whole text.
    let mut windowed = whole.clone();
    windowed["text_config"]["layer_types"][34] = json!("sliding_attention");
    assert_eq!(config_of(&windowed), config_of(&whole));
}

#[test]
fn the_experts_of_gemma_4_are_written_as_transformers_has_them() {
    written_as_read("gemma4-moe");
}
