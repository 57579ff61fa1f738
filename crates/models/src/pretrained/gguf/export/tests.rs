//! Exports of tiny models, read back.

use tch::Device;

use super::*;
use crate::adapters::PeftAdapter;
use crate::formats::gguf::Gguf;
use crate::golden::golden;
use crate::language::{Decoder, DecoderOptions};
use crate::model::{Base, Builder, FileWeights, Pass};
use crate::pretrained::{HfFolder, SpecialTokens};
use crate::{Parameters, language};
use placement::{Placer, Policy};

/// A model of random weights; a folder with the tokenizer of another, which has no more tokens.
fn model(name: &str) -> Pretrained {
    if name.ends_with(".gguf") {
        return Pretrained::open(&golden(&format!("models/{name}"))).unwrap();
    }
    let text = Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap();
    let folder = HfFolder::open(&golden(&format!("models/{name}"))).unwrap();
    Pretrained {
        config: folder.config().clone(),
        chat_template: Some("{{ messages[0].content }}".into()),
        special_tokens: SpecialTokens::default(),
        tensors: Box::new(folder),
        ..text
    }
}

/// Olmo 3 with windows where llama.cpp has them, the same base for all blocks, and the factor that follows from YaRN's other.
fn as_llama_cpp_knows_it(model: &mut Pretrained) {
    let (rope, local) = (&mut model.config.rope, model.config.local.as_mut().unwrap());
    local.layers = vec![true, true];
    local.rope.theta = rope.theta;
    if let RopeScaling::Yarn(yarn) = &mut rope.scaling {
        yarn.attention_factor = 0.1 * yarn.factor.ln() + 1.0;
    }
}

fn export(model: &Pretrained, stored: GgufType, path: &Path) -> Result<(), Error> {
    let export = Export {
        model,
        tokenizer: &model.tokenizer,
        tensors: model.tensors.as_ref(),
        config: &model.config,
        name: "tiny".into(),
        stored,
    };
    export.write(path, &|_, _| ())
}

fn logits(model: &Pretrained, tokens: &Tensor) -> Tensor {
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut source = FileWeights::new(model.tensors.as_ref(), Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let base = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
    let options = DecoderOptions {
        positions: 64,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    let decoder = Decoder::new(&model.config, options, &mut builder).unwrap();
    decoder.logits(tokens, Pass::Evaluate).unwrap()
}

#[test]
fn what_is_written_is_read_as_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let mut families = std::collections::BTreeSet::new();
    for name in [
        "llama-grouped",
        "llama-tied-biases",
        "llama-yarn",
        "mistral",
        "ministral3",
        "olmo3",
        "qwen2",
        "qwen3",
        "qwen3-moe",
        "gpt-oss",
        "qwen3.5",
        "qwen3.5-moe",
        "gemma2",
        "gemma3.gguf",
        "gemma4",
        "gemma4-moe",
        "granite.gguf",
        "olmo2.gguf",
        "phi3.gguf",
        "smollm3.gguf",
    ] {
        let mut written = model(name);
        if name == "llama-tied-biases" {
            written.config.rope.scaling = RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192.0,
            };
        }
        if name == "olmo3" {
            as_llama_cpp_knows_it(&mut written);
        }
        // llama.cpp runs Mistral without a window.
        if name == "mistral" {
            written.config.local = None;
        }
        families.insert(written.config.family.model_type);
        let path = folder.path().join(format!("{name}.gguf"));
        export(&written, GgufType::F32, &path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let read = Pretrained::open(&path).unwrap();
        assert_eq!(read.chat_template, written.chat_template, "{name}");
        let tokens = Tensor::arange_start(3, 27, (Kind::Int64, Device::Cpu)).unsqueeze(0);
        let (ours, theirs) = (logits(&written, &tokens), logits(&read, &tokens));
        let difference = (&ours - theirs).abs().max().double_value(&[]);
        let size = ours.abs().max().double_value(&[]);
        assert!(difference <= 2e-6 * size, "{name}: {difference} of {size}");
    }
    let all = language::Family::in_gguf().map(|(family, _)| family.model_type);
    assert_eq!(families, all.collect());
}

/// As the file that was made from the same numbers without this code.
#[test]
fn experts_in_mxfp4_are_written_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    export(&model("gpt-oss"), GgufType::Q8_0, &path).unwrap();
    let (ours, theirs) = (
        crate::formats::Gguf::open(&path).unwrap(),
        crate::formats::Gguf::open(&golden("models/gpt-oss.gguf")).unwrap(),
    );
    for part in ["gate", "up", "down"] {
        let name = format!("blk.1.ffn_{part}_exps.weight");
        let format = |gguf: &crate::formats::Gguf| gguf.header().tensors[&name].format();
        assert_eq!(
            (format(&ours), format(&theirs)),
            (Some(Format::Mxfp4), Some(Format::Mxfp4))
        );
        for expert in 0..6 {
            let bytes = |gguf: &crate::formats::Gguf| gguf.read_bytes(&name, expert).unwrap();
            assert!(bytes(&ours).equal(&bytes(&theirs)), "{name} {expert}");
        }
    }
}

#[test]
fn smaller_forms_keep_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let written = model("llama-grouped");
    let tokens = Tensor::arange_start(3, 27, (Kind::Int64, Device::Cpu)).unsqueeze(0);
    let exact = logits(&written, &tokens);
    for (stored, bound) in [
        (GgufType::F16, 5e-3),
        (GgufType::BF16, 4e-2),
        (GgufType::Q8_0, 6e-2),
    ] {
        let path = folder.path().join(format!("{stored:?}.gguf"));
        export(&written, stored, &path).unwrap();
        let ours = logits(&Pretrained::open(&path).unwrap(), &tokens);
        let error = ((ours - &exact).norm() / exact.norm()).double_value(&[]);
        assert!(error < bound && error > 0.0, "{stored:?}: {error}");
    }
}

#[test]
fn the_matrices_that_suffer_most_have_more_bits() {
    let of = |name: &str, row| GgufType::Q4KM.format(name, row, 32, name == "output.weight");
    for (name, row, expected) in [
        ("output.weight", 4096, Format::Q6K),
        ("token_embd.weight", 4096, Format::Q4K),
        ("blk.0.attn_v.weight", 4096, Format::Q6K),
        ("blk.5.attn_v.weight", 4096, Format::Q4K),
        ("blk.6.ffn_down.weight", 4096, Format::Q6K),
        ("blk.31.ffn_down.weight", 4096, Format::Q6K),
        ("blk.6.attn_q.weight", 4096, Format::Q4K),
        ("blk.6.attn_q.weight", 576, Format::Q8_0),
        ("blk.6.attn_q.weight", 24, Format::F16),
    ] {
        assert_eq!(of(name, row), expected, "{name} {row}");
    }
}

#[test]
fn what_a_file_cannot_say_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let refused = |model: &Pretrained| {
        let error = export(model, GgufType::F32, &path).unwrap_err().to_string();
        assert!(!path.exists());
        error
    };
    let error = refused(&model("qwen2-dynamic"));
    assert!(error.contains("\"dynamic\""), "{error}");
    let error = refused(&model("olmo3"));
    assert!(error.contains("three of four blocks"), "{error}");
    let mut based = model("olmo3");
    as_llama_cpp_knows_it(&mut based);
    if let Some(local) = &mut based.config.local {
        local.rope.theta = 100.0;
    }
    let error = refused(&based);
    assert!(error.contains("cannot say `rope_parameters"), "{error}");
    let error = refused(&model("qwen3-untied"));
    assert!(error.contains("no bias for"), "{error}");
    let mut windowed = model("ministral3");
    windowed.config.local = model("mistral").config.local;
    let error = refused(&windowed);
    assert!(error.contains("`sliding_window: 9` (null"), "{error}");
    let mut uneven = model("qwen3.5");
    if let Some(delta) = &mut uneven.config.delta {
        delta.value_width = 6;
    }
    let error = refused(&uneven);
    assert!(error.contains("heads of values are 6 wide"), "{error}");
    let error = refused(&model("gpt-oss-dense"));
    assert!(error.contains("`swiglu_limit: 0.8` (7"), "{error}");
    let mut scaled = model("gemma3.gguf");
    scaled.config.score_scale = Some(0.25);
    let error = refused(&scaled);
    assert!(error.contains("`query_pre_attn_scalar"), "{error}");
    let error = refused(&model("gemma4-multimodal"));
    assert!(error.contains("shared_kv_layers"), "{error}");
    let mut other = model("llama-grouped");
    let numbers = tokenizers::pre_tokenizers::digits::Digits::new(false);
    other.tokenizer.with_pre_tokenizer(Some(numbers));
    let error = refused(&other);
    assert!(error.contains("has no name in a GGUF file"), "{error}");
}

/// A LoRA of random numbers on some matrices of the model, in PEFT's form.
fn random_lora(model: &Pretrained, folder: &Path, more: &serde_json::Value) -> PeftAdapter {
    let used = crate::pretrained::names_used(&model.config).unwrap();
    let mut tensors = Vec::new();
    let mut targets = std::collections::BTreeSet::new();
    for name in used {
        let shape = model.tensors.shape(&name).unwrap();
        let Some(module) = name.strip_suffix(".weight") else {
            continue;
        };
        let last = module.rsplit('.').next().unwrap();
        let is_router = ["gate", "router"].contains(&last) || module.contains(".router.");
        // It has no products.
        if last == "embed_tokens_per_layer" {
            continue;
        }
        let has_lora = shape.len() == 2 && !name.contains(".experts.") && !is_router;
        let is_tied = module == "lm_head" && model.config.tie_word_embeddings;
        if !has_lora || is_tied {
            continue;
        }
        let rank = if last == "q_proj" { 2 } else { 3 };
        let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        let prefix = format!("base_model.model.{module}");
        let factors = match last {
            "embed_tokens" => [
                ("lora_embedding_A", [rank, shape[0]]),
                ("lora_embedding_B", [shape[1], rank]),
            ],
            _ => [
                ("lora_A.weight", [rank, shape[1]]),
                ("lora_B.weight", [shape[0], rank]),
            ],
        };
        targets.insert(last.to_owned());
        tensors.extend(factors.map(|(factor, size)| (format!("{prefix}.{factor}"), random(size))));
    }
    for block in 0..model.config.num_hidden_layers {
        let Some(experts) = &model.config.experts else {
            break;
        };
        let layer = if experts.beside { "" } else { "mlp." };
        let prefix = format!("base_model.model.model.layers.{block}.{layer}experts");
        let sizes = experts.sizes(model.config.hidden_size);
        let [both, down] = sizes.matrices();
        for (wrapper, (inputs, outputs)) in [(".base_layer", both), ("", down)] {
            let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu));
            let all = 3 * sizes.count;
            tensors.push((
                format!("{prefix}{wrapper}.lora_A.weight"),
                random([all, inputs]),
            ));
            tensors.push((
                format!("{prefix}{wrapper}.lora_B.weight"),
                random([outputs, all]),
            ));
        }
    }
    let mut config = serde_json::json!({
        "target_parameters": match model.config.experts {
            Some(_) => vec!["experts.gate_up_proj", "experts.down_proj"],
            None => vec![],
        },
        "peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": true,
        "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"o_proj": 5},
        "target_modules": targets,
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    crate::adapters::write_folder(folder, &config, &tensors).unwrap();
    PeftAdapter::open(folder).unwrap()
}

/// Matrix by matrix, as llama.cpp adds them: base + alpha / rank · B·A.
#[test]
fn a_base_and_an_adapter_in_files_of_their_own_are_the_merged_model() {
    tch::manual_seed(3);
    for name in [
        "llama-grouped",
        "llama-tied-biases",
        "qwen3",
        "qwen3-moe",
        "qwen3.5",
        "qwen3.5-moe",
        "gpt-oss",
        "gemma2",
        "gemma3.gguf",
        "gemma4",
        "gemma4-moe",
        "granite.gguf",
        "olmo2.gguf",
        "phi3.gguf",
        "smollm3.gguf",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let base = model(name);
        let adapter = random_lora(&base, &path("lora"), &serde_json::json!({}));
        export(&base, GgufType::F32, &path("base.gguf")).unwrap();
        export_adapter(&base, &adapter, "tiny", &path("lora.gguf")).unwrap();
        let merged = crate::pretrained::Merged::new(&base, adapter).unwrap();
        let whole = Export {
            model: &base,
            tokenizer: &base.tokenizer,
            tensors: &merged,
            config: merged.config(),
            name: "tiny".into(),
            stored: GgufType::F32,
        };
        whole.write(&path("merged.gguf"), &|_, _| ()).unwrap();
        let [base, lora, merged] = ["base", "lora", "merged"]
            .map(|name| Gguf::open(&path(&format!("{name}.gguf"))).unwrap());
        let alpha = match lora.header().metadata.get("adapter.lora.alpha") {
            Some(Value::Float(alpha)) => *alpha,
            other => panic!("{name}: {other:?}"),
        };
        let mut changed = 0;
        for matrix in merged.header().tensors.keys() {
            let expected = merged.read(matrix).unwrap();
            // A head of its own, where the embedding alone has an adapter.
            let source = match base.header().tensors.contains_key(matrix) {
                true => matrix.as_str(),
                false => "token_embd.weight",
            };
            let mut ours = base.read(source).unwrap();
            if lora
                .header()
                .tensors
                .contains_key(&format!("{matrix}.lora_a"))
            {
                let [a, b] = ["lora_a", "lora_b"]
                    .map(|part| lora.read(&format!("{matrix}.{part}")).unwrap());
                let scale = alpha / *b.size().last().unwrap() as f64;
                let added = match matrix.as_str() {
                    "token_embd.weight" => a.matmul(&b.tr()),
                    _ => b.matmul(&a),
                };
                assert_ne!(ours, expected, "{name}: {matrix}");
                ours += (added * scale).view_(ours.size());
                changed += 1;
            }
            let off = (ours - &expected).abs().max().double_value(&[]);
            let size = expected.abs().max().double_value(&[]);
            assert!(
                off <= 1e-5 * size.max(1.0),
                "{name}: {matrix} {off} of {size}"
            );
        }
        assert_eq!(2 * changed, lora.header().tensors.len(), "{name}");
    }
}

#[test]
fn what_an_adapter_in_a_file_cannot_be_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lora.gguf");
    for (name, more, told) in [
        (
            "llama-grouped",
            serde_json::json!({"bias": "all"}),
            "`bias`",
        ),
        (
            "llama-grouped",
            serde_json::json!({"modules_to_save": ["norm"]}),
            "`modules_to_save`",
        ),
        (
            "llama-grouped",
            serde_json::json!({"use_dora": true}),
            "DoRA",
        ),
        (
            "llama-tied-biases",
            serde_json::json!({"target_modules": ["q_proj", "lm_head"]}),
            "head",
        ),
    ] {
        let base = model(name);
        let adapter = random_lora(&base, &folder.path().join(told), &more);
        let error = export_adapter(&base, &adapter, "tiny", &path)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(told) && error.contains("--adapter-only"),
            "{error}"
        );
        assert!(!path.exists());
    }
}

/// Of models whose files have the merges of a SentencePiece tokenizer, and tokens that are special but shown.
#[test]
fn merges_of_a_sentencepiece_tokenizer_are_read_as_they_are_written() {
    let mut written = model("gemma4");
    let mut json = serde_json::to_value(&written.tokenizer).unwrap();
    let words = [
        "<pad>", "<eos>", "<bos>", "<unk>", "▁", "t", "h", "e", "he", "the", "▁the", "\n", "\n\n",
    ];
    let words = words.into_iter().map(str::to_owned);
    let all: Vec<String> = words
        .chain((0..31).map(|byte| format!("<0x{byte:02X}>")))
        .collect();
    let ids = all
        .iter()
        .zip(0..)
        .map(|(word, id)| (word.clone(), serde_json::json!(id)));
    json["model"] = serde_json::json!({
        "type": "BPE", "vocab": ids.collect::<serde_json::Map<_, _>>(), "unk_token": "<unk>", "fuse_unk": true,
        "byte_fallback": true, "ignore_merges": false,
        "merges": [["h", "e"], ["t", "he"], ["▁", "the"], ["\n", "\n"]],
    });
    json["normalizer"] =
        serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    json["pre_tokenizer"] = serde_json::Value::Null;
    let added = [
        (0, "<pad>"),
        (1, "<eos>"),
        (2, "<bos>"),
        (44, "<|channel>"),
        (45, "<|turn>"),
    ];
    let added = added.map(|(id, content)| serde_json::json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    }));
    json["added_tokens"] = added.to_vec().into();
    written.tokenizer = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    export(&written, GgufType::F32, &path).unwrap();
    let file = Gguf::open(&path).unwrap();
    let metadata = |key: &str| file.header().metadata.get(&format!("tokenizer.ggml.{key}"));
    assert_eq!(metadata("model"), Some(&Value::String("gemma4".into())));
    assert_eq!(metadata("pre"), None);
    let Some(Value::Array(Array::Signed(types))) = metadata("token_type") else {
        panic!("no types");
    };
    // Normal tokens, bytes, one that is shown, control tokens, and none.
    let some = (types[4], types[13], types[44], types[45], types[46]);
    assert_eq!(some, (1, 6, 4, 3, 5));
    let read = Pretrained::open(&path).unwrap();
    for text in ["the  he the\n\n\nthe", "<|turn>the<|channel>\u{3}"] {
        let ids = |model: &Pretrained| {
            model
                .tokenizer
                .encode(text, false)
                .unwrap()
                .get_ids()
                .to_vec()
        };
        assert_eq!(ids(&read), ids(&written), "{text}");
    }
}
