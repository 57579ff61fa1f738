//! Layouts of data sets and chat templates, through what `--show-data` shows, with the tokens that transformers makes of
//! them (`tests/reference/layouts.py`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;

use models::formats::write_tensors;
use models::pretrained::Pretrained;
use models::text::Encoder;
use serde_json::{Value, json};
use surefoot_trainer::{Config, NoObserver, Shown, show_data};
use tch::{Device, Kind, Tensor};

/// Larger than all tokens.
const VOCABULARY: i64 = 400;

fn golden(name: &str) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden/layouts");
    root.join(name)
}

/// A model of which nothing but config and tokenizer is read.
fn model(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let config = json!({"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 8,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "max_position_embeddings": 512});
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let tokenizer = fs::read(golden("tokenizer.json")).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    let keys = json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
        "bos_token": "<s>"});
    fs::write(folder.join("tokenizer_config.json"), keys.to_string()).unwrap();
    let table = Tensor::zeros([VOCABULARY, 8], (Kind::Float, Device::Cpu));
    let tensors = [("model.embed_tokens.weight".to_owned(), &table)];
    write_tensors(&folder.join("model.safetensors"), &tensors).unwrap();
}

/// The tokens of a record, and whether each is learned.
type Row = (Vec<u32>, Vec<bool>);

/// What `data` is read as.
fn shown(root: &Path, data: &Path) -> Result<Vec<Row>, String> {
    let text = format!(
        "model: {{name_or_path: {}}}\nadapter: {{}}\ntrain: {{max_steps: 1}}\ndata: {{path: {}, packing: false, \
         block_size: 512, validation_fraction: 0}}\n",
        root.join("model").display(),
        data.display()
    );
    let config = Config::parse("x.yaml", &text, &[]).map_err(|error| error.to_string())?;
    let shown = show_data(&config, 100, &mut NoObserver).map_err(|error| error.to_string())?;
    let Shown::Rows(shown) = shown else {
        return Err("no rows".into());
    };
    let row = |row: &surefoot_trainer::ShownRow| {
        let pieces = row.examples.iter().flat_map(|example| &example.pieces);
        let (mut ids, mut learned) = (Vec::new(), Vec::new());
        for piece in pieces {
            ids.extend(&piece.ids);
            learned.resize(ids.len(), piece.learned);
        }
        (ids, learned)
    };
    let mut rows: Vec<_> = shown.rows.iter().map(row).collect();
    rows.sort();
    Ok(rows)
}

#[test]
fn layouts_and_templates_are_read_as_by_transformers() {
    let text = fs::read_to_string(golden("cases.json")).unwrap();
    let cases: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 19, "{}", cases.len());
    for (name, case) in cases {
        let root = tempfile::tempdir().unwrap();
        model(&root.path().join("model"));
        let template = case["template"].as_str().unwrap();
        fs::write(root.path().join("model/chat_template.jinja"), template).unwrap();
        let data = root.path().join("data");
        for (file, text) in case["files"].as_object().unwrap() {
            let path = data.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.as_str().unwrap()).unwrap();
        }
        let mut theirs: Vec<(Vec<u32>, Option<Vec<u8>>)> =
            (case["rows"].as_array().unwrap().iter())
                .map(|row| {
                    let marked = row.get("learned").cloned();
                    (
                        serde_json::from_value(row["ids"].clone()).unwrap(),
                        marked.map(|marked| serde_json::from_value(marked).unwrap()),
                    )
                })
                .collect();
        theirs.sort();
        let ours = shown(root.path(), &data).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for ((ids, learned), (their_ids, marked)) in ours.into_iter().zip(theirs) {
            assert_eq!(ids, their_ids, "{name}");
            assert!(learned.contains(&true), "{name}");
            if let Some(marked) = marked {
                let marked: Vec<bool> = marked.into_iter().map(|mark| mark == 1).collect();
                assert_eq!(learned, marked, "{name}");
            }
        }
    }
}

/// What is said instead of training on nothing.
#[test]
fn files_without_a_record_are_named() {
    let root = tempfile::tempdir().unwrap();
    model(&root.path().join("model"));
    for (name, text) in [
        ("empty.jsonl", ""),
        ("spaces.jsonl", "\n \n"),
        ("list.json", "[]"),
        ("header.csv", "prompt,completion\n"),
    ] {
        let path = root.path().join(name);
        fs::write(&path, text).unwrap();
        let error = shown(root.path(), &path).unwrap_err();
        assert!(
            error.contains(name) && error.contains("no record"),
            "{name}: {error}"
        );
    }
}

#[test]
fn the_special_token_behind_an_answer_ends_one() {
    let chatml = "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n\
                  {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let llama = "{% for turn in messages %}{% if turn['role'] == 'user' %}<s>[INST] {{ turn['content'] }} [/INST]\
                 {% else %} {{ turn['content'] }}</s>{% endif %}{% endfor %}";
    let plain = "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}\n{% endfor %}\
                 {% if add_generation_prompt %}assistant: {% endif %}";
    let root = tempfile::tempdir().unwrap();
    model(root.path());
    for (template, end) in [(chatml, Some(3)), (llama, Some(1)), (plain, None)] {
        fs::write(root.path().join("chat_template.jinja"), template).unwrap();
        let encoder = Encoder::new(&Pretrained::open(root.path()).unwrap()).unwrap();
        assert_eq!(encoder.end_of_answer(), end, "{template}");
    }
}
