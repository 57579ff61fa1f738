//! `surefoot-trainer eval` and `generate` on the small golden model, and fine-tuning it from
//! each kind of data.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A tiny random Llama with a vocabulary of letters, digits and a few words.
fn model() -> PathBuf {
    let path = "../../tests/reference/golden/models/llama-grouped.gguf";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("RUST_LOG")
            .env("HIP_ALLOC", "0")
            .env("NO_COLOR", "1")
            .env("SUREFOOT_CACHE", self.path("cache"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn generate(&self, more: &[&str]) -> Output {
        let path = model().display().to_string();
        let fixed = ["generate", "--model", &path, "--prompt", "the 42"];
        self.run(&[&fixed, more].concat())
    }

    fn eval(&self, data: &str, more: &[&str]) -> Output {
        let path = model().display().to_string();
        self.run(&[&["eval", "--model", &path, "--data", data], more].concat())
    }
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a refused command says, without the paths of this test.
fn refusal(place: &Place, output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
    stderr(output)
        .replace(&model().display().to_string(), "[model]")
        .replace(&place.folder.path().display().to_string(), "[folder]")
}

/// JSON without what differs from run to run.
fn steady(output: &Output) -> Value {
    let mut value: Value = serde_json::from_str(&stdout(output)).unwrap();
    assert!(value["tokens_per_second"].as_f64().unwrap() > 0.0);
    value.as_object_mut().unwrap().remove("tokens_per_second");
    value
}

#[test]
fn generate_prints_the_text_and_nothing_else() {
    let place = Place::new();
    let output = place.generate(&["--max-new-tokens", "12"]);
    insta::assert_snapshot!(stdout(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
fn generate_as_json_is_one_line() {
    let place = Place::new();
    let output = place.generate(&["--max-new-tokens", "12", "--json"]);
    assert_eq!(stdout(&output).lines().count(), 1);
    insta::assert_json_snapshot!(steady(&output));
}

#[test]
fn a_seed_decides_and_temperature_zero_has_none() {
    let place = Place::new();
    let text =
        |more: &[&str]| stdout(&place.generate(&[&["--max-new-tokens", "20"], more].concat()));
    let warm = |seed| text(&["--temperature", "1", "--top-p", "0.9", "--seed", seed]);
    assert_eq!(warm("1"), warm("1"));
    assert_ne!(warm("1"), warm("2"));
    assert_eq!(text(&["--seed", "1"]), text(&["--seed", "2"]));
    // So little probability that only the likeliest token is left.
    let narrow = text(&["--temperature", "1", "--top-p", "0.0001", "--seed", "3"]);
    assert_eq!(narrow, text(&[]));
    let idle = place.generate(&["--max-new-tokens", "2", "--top-p", "0.5"]);
    let told = String::from_utf8(idle.stderr).unwrap();
    assert!(told.contains("`--top-p` has no effect"), "{told}");
}

#[test]
fn a_chat_goes_through_the_template() {
    let place = Place::new();
    let chat = steady(&place.generate(&["--chat", "--max-new-tokens", "4", "--json"]));
    let plain = steady(&place.generate(&["--max-new-tokens", "4", "--json"]));
    assert_eq!(chat["prompt"], plain["prompt"]);
    assert!(chat["prompt_tokens"].as_u64() > Some(0));
}

#[test]
fn what_generate_refuses() {
    let place = Place::new();
    let model = model().display().to_string();
    let mut said = Vec::new();
    for arguments in [
        &["generate", "--model", "/no/model", "--prompt", "a"][..],
        &["generate", "--model", &model, "--prompt", ""],
        &[
            "generate",
            "--model",
            &model,
            "--prompt",
            "a",
            "--adapter",
            "/no/adapter",
        ],
        &[
            "generate", "--model", &model, "--prompt", "a", "--top-p", "0",
        ],
        &[
            "generate",
            "--model",
            &model,
            "--prompt",
            "a",
            "--temperature",
            "-1",
        ],
        &[
            "generate", "--model", &model, "--prompt", "a", "--device", "gpu:63",
        ],
    ] {
        said.push(refusal(&place, &place.run(arguments)));
    }
    let long = "the ".repeat(80);
    let arguments = ["generate", "--model", &model, "--prompt", &long];
    said.push(refusal(&place, &place.run(&arguments)));
    let cache = place.path("cache").display().to_string();
    insta::assert_snapshot!(said.join("\n").replace(&cache, "[cache]"));
}

#[test]
fn eval_as_people_read_it() {
    let place = Place::new();
    place.write("text.txt", &"the 42 on 12\n".repeat(30));
    let text = stdout(&place.eval("text.txt", &["--block-size", "32"]));
    let measured: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("speed"))
        .collect();
    insta::assert_snapshot!(measured.join("\n"));
}

#[test]
fn eval_as_json_agrees_with_itself() {
    let place = Place::new();
    place.write("text.txt", &"the 42 on 12\n".repeat(30));
    let score = steady(&place.eval("text.txt", &["--block-size", "32", "--json"]));
    let nats = score["negative_log_likelihood"].as_f64().unwrap();
    assert!((score["perplexity"].as_f64().unwrap() - nats.exp()).abs() < 1e-9);
    // The same text line by line: every line begins and ends on its own.
    let lines = format!("{}\n", json!({"text": "the 42 on 12\n".repeat(30)}));
    place.write("text.jsonl", &lines);
    let same = steady(&place.eval("text.jsonl", &["--block-size", "32", "--json"]));
    assert_eq!(score, same);
}

#[test]
fn what_eval_refuses_names_file_and_line() {
    let place = Place::new();
    place.write("broken.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
    place.write("other.jsonl", "{\"words\": \"a\"}\n");
    place.write("json.jsonl", "{\"text\": \n");
    place.write("empty.txt", "");
    fs::write(place.path("binary.txt"), [0xFF, 0xFE, 0]).unwrap();
    let mut said = Vec::new();
    let files = [
        "broken.jsonl",
        "other.jsonl",
        "json.jsonl",
        "empty.txt",
        "binary.txt",
    ];
    for data in files {
        said.push(refusal(&place, &place.eval(data, &[])));
    }
    let missing = place.eval("missing.txt", &[]);
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
    said.push(stderr(&missing));
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn eval_says_where_the_model_sees_less_than_was_asked_for() {
    let place = Place::new();
    place.write("text.txt", &"the 42 on 12\n".repeat(30));
    let text = stdout(&place.eval("text.txt", &[]));
    let line = text.lines().find(|line| line.starts_with("windows"));
    let line = line.unwrap();
    assert!(
        line.contains("64 (the model's maximum; `--block-size` is 1024)"),
        "{line}"
    );
    assert!(line.contains("1 of 1 records are longer"), "{line}");
    let score = steady(&place.eval("text.txt", &["--json"]));
    assert_eq!(
        [&score["block_size"], &score["records"], &score["divided"]],
        [64, 1, 1]
    );
}

/// A config of fewer layers than its weights have, and weights that nothing is made of.
#[test]
fn weights_that_are_not_used_are_named() {
    let place = Place::new();
    place.write("text.txt", "the 42 on 12\n");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden/models");
    let small = place.path("small");
    fs::create_dir(&small).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden.join("llama-grouped").join(file), small.join(file)).unwrap();
    }
    let options = trainer::inference::LoadOptions {
        device: trainer::device::choose("cpu").unwrap(),
        compute: trainer::inference::compute_kind(false),
        context: 8,
    };
    let opened = trainer::inference::LanguageModel::open(&model(), None, options).unwrap();
    let tokenizer = opened.encoder.tokenizer();
    tokenizer.save(small.join("tokenizer.json"), false).unwrap();
    let eval = |folder: &Path| {
        let folder = folder.display().to_string();
        let output = place.run(&["eval", "--model", &folder, "--data", "text.txt"]);
        stdout(&output);
        stderr(&output)
    };
    assert!(!eval(&small).contains("not used"));
    let config = fs::read_to_string(small.join("config.json")).unwrap();
    let fewer = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    fs::write(small.join("config.json"), fewer).unwrap();
    let said = eval(&small);
    let want = "has weights of 2 layers, and its config says `num_hidden_layers: 1`";
    assert!(said.contains(want), "{said}");
    let tied = config.replace(
        "\"tie_word_embeddings\": false",
        "\"tie_word_embeddings\": true",
    );
    fs::write(small.join("config.json"), tied).unwrap();
    let refused = place.run(&[
        "eval",
        "--model",
        &small.display().to_string(),
        "--data",
        "text.txt",
    ]);
    let said = stderr(&refused);
    assert!(
        !refused.status.success() && said.contains("`tie_word_embeddings`"),
        "{said}"
    );
}

/// As a user gives it: paths with `~` and variables, long and short examples, one a row.
#[test]
fn examples_are_told_that_are_cut_or_left_out() {
    let place = Place::new();
    let pair =
        |prompt: String, completion: &str| json!({"prompt": prompt, "completion": completion});
    let mut lines: Vec<Value> = (0..20)
        .map(|n| pair(format!("on {n}"), " the 42."))
        .collect();
    lines.push(pair("on 1".into(), &" the 42.".repeat(20)));
    lines.push(pair("on 2 ".repeat(20), " the 42."));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::create_dir(place.path("my-texts")).unwrap();
    place.write("my-texts/data.jsonl", &text);
    let config = CONFIG.replace("path: data.jsonl", "dataset: shakespeare");
    place.write("config.yaml", &config);
    let model = format!("model.name_or_path={}", model().display());
    let train = |more: &[&str]| {
        let fixed = [
            "train",
            "config.yaml",
            "--set",
            &model,
            "--set",
            "max_steps=2",
        ];
        let mut command = place.command(&[&fixed, more].concat());
        command.env("HOME", place.folder.path()).output().unwrap()
    };
    let output = train(&[
        "--set",
        "data.path=~/my-texts",
        "--set",
        "packing=false",
        "--set",
        "validation_fraction=0",
    ]);
    stdout(&output);
    let said = stderr(&output);
    assert!(said.contains("2 of 22 examples"), "{said}");
    assert!(
        said.contains("1 of 22 examples") && said.contains("left out"),
        "{said}"
    );
    assert!(
        said.contains("21 training examples, one a row, nothing held out"),
        "{said}"
    );
    let output = train(&[
        "--dry-run",
        "--set",
        "data.path=$HOME/my-texts",
        "--set",
        "data.packing=true",
    ]);
    let said = stdout(&output);
    assert!(said.contains("rows of whole examples"), "{said}");
    let refused = train(&["--set", "data.path=$NOT_SET_HERE/my-texts"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("`$NOT_SET_HERE` is not set"),
        "{}",
        stderr(&refused)
    );
}

const CONFIG: &str = "\
name: tune
device: cpu
threads: 1
output_dir: runs
adapter: {r: 2}
data: {path: data.jsonl, block_size: 16, validation_fraction: 0.1}
sample: {prompts: [the], max_new_tokens: 4}
train: {bf16: false, max_steps: 30, per_device_train_batch_size: 2, learning_rate: 0.02, eval_steps: 0, save_steps: 0}
";

impl Place {
    /// Fine-tunes on these lines; the summary.
    fn tune(&self, lines: &[Value]) -> Value {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.write("data.jsonl", &text);
        self.write("config.yaml", CONFIG);
        let model = format!("model.name_or_path={}", model().display());
        let output = self.run(&["train", "config.yaml", "--set", &model, "--json"]);
        serde_json::from_str(&stdout(&output)).unwrap()
    }
}

impl Place {
    /// The answers to these lines.
    fn chat(&self, arguments: &[&str], lines: &str) -> Vec<Value> {
        let fixed = [
            "chat",
            "--json",
            "--temperature",
            "0",
            "--max-new-tokens",
            "6",
        ];
        let mut command = self.command(&[&fixed, arguments].concat());
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        process
            .stdin
            .take()
            .unwrap()
            .write_all(lines.as_bytes())
            .unwrap();
        let answers = stdout(&process.wait_with_output().unwrap());
        answers
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn assert_learned(summary: &Value) {
    let (first, last) = (
        summary["first_loss"].as_f64(),
        summary["last_loss"].as_f64(),
    );
    assert!(
        last.unwrap() < 0.8 * first.unwrap(),
        "{first:?} to {last:?}"
    );
}

#[test]
fn json_lines_of_text_are_learned_and_the_adapter_is_used() {
    let place = Place::new();
    let lines: Vec<Value> = (0..60).map(|_| json!({"text": "the 42 on 12."})).collect();
    assert_learned(&place.tune(&lines));
    let base = steady(&place.eval("data.jsonl", &["--json"]));
    let tuned = place.eval("data.jsonl", &["--json", "--adapter", "runs/tune/adapter"]);
    let nats = |score: &Value| score["negative_log_likelihood"].as_f64().unwrap();
    let tuned = nats(&steady(&tuned));
    assert!(tuned < 0.8 * nats(&base), "{base} and {tuned}");
    let plain = stdout(&place.generate(&["--max-new-tokens", "12"]));
    let with =
        stdout(&place.generate(&["--max-new-tokens", "12", "--adapter", "runs/tune/adapter"]));
    assert_ne!(plain, with);
}

#[test]
fn prompts_and_completions_are_learned() {
    let place = Place::new();
    let pair = |n: usize| json!({"prompt": format!("on {}", n % 10), "completion": " the 42."});
    let lines: Vec<Value> = (0..120).map(pair).collect();
    assert_learned(&place.tune(&lines));
}

#[test]
fn answers_of_chats_are_learned() {
    let place = Place::new();
    let chat = |n: usize| {
        json!({"messages": [
            {"role": "user", "content": format!("on {}", n % 10)},
            {"role": "assistant", "content": "the 42 the 42."},
        ]})
    };
    let lines: Vec<Value> = (0..120).map(chat).collect();
    assert_learned(&place.tune(&lines));
    // The run answers lines of stdin, each with those before it, as `generate --chat` answers the first.
    let answers = place.chat(&["runs/tune"], "on 3\n\non 4\n/new\non 3\n");
    let [first, second, again] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert_eq!(first["text"], again["text"]);
    assert_eq!(
        (&first["prompt"], &second["prompt"]),
        (&json!("on 3"), &json!("on 4"))
    );
    let path = model().display().to_string();
    let asked = [
        "generate",
        "--model",
        &path,
        "--chat",
        "--prompt",
        "on 3",
        "--max-new-tokens",
        "6",
        "--json",
    ];
    let of_generate = |more: &[&str]| {
        let answer: Value =
            serde_json::from_str(&stdout(&place.run(&[&asked, more].concat()))).unwrap();
        answer["text"].clone()
    };
    assert_eq!(
        first["text"],
        of_generate(&["--adapter", "runs/tune/adapter"])
    );
    // With what was said before, `generate` answers the second, too.
    let said = json!([
        {"role": "user", "content": "on 3"},
        {"role": "assistant", "content": first["text"]},
    ]);
    let asked_second = ["--prompt", "on 4", "--history", &said.to_string()];
    let asked_second = [&asked[..4], &asked_second, &asked[6..]].concat();
    let adapter = ["--adapter", "runs/tune/adapter"];
    let answer = place.run(&[&asked_second[..], &adapter].concat());
    let answer: Value = serde_json::from_str(&stdout(&answer)).unwrap();
    assert_eq!(answer["text"], second["text"]);
    let base = place.chat(&["runs/tune", "--base"], "on 3\n");
    assert_eq!(base[0]["text"], of_generate(&[]));
    assert_ne!(base[0]["text"], first["text"]);
    let export = ["export", "gguf", "runs/tune", "--quantize", "f32", "--json"];
    let report: Value = serde_json::from_str(&stdout(&place.run(&export))).unwrap();
    assert_eq!(report["output"], "runs/tune/model-f32.gguf");
    let modelfile = fs::read_to_string(place.path("runs/tune/model-f32.Modelfile")).unwrap();
    assert!(
        modelfile.starts_with("FROM ./model-f32.gguf\n")
            && modelfile.contains("\nTEMPLATE \"\"\"{{- $last"),
        "{modelfile}"
    );
    let exported = place.chat(&["runs/tune/model-f32.gguf"], "on 3\n");
    assert_eq!(exported[0]["text"], first["text"]);
    assert!(refusal(&place, &place.run(&export)).contains("is there already"));
    let refused = place.run(&["chat", &path, "--base"]);
    assert!(refusal(&place, &refused).contains("`--base` is for a run"));
}

impl Place {
    /// What `train --show-data` says of these lines.
    fn show(&self, lines: &[Value], more: &[&str]) -> Output {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.write("data.jsonl", &text);
        self.write("config.yaml", CONFIG);
        let model = format!("model.name_or_path={}", model().display());
        let fixed = ["train", "config.yaml", "--set", &model];
        self.run(&[&fixed, more].concat())
    }
}

#[test]
fn rows_of_data_are_shown_with_what_is_learned_and_what_is_cut() {
    let place = Place::new();
    let pair = |n: usize| {
        let answer = " the 42.".repeat(2 * n + 1);
        json!({"prompt": format!("on {n}"), "completion": answer})
    };
    let lines: Vec<Value> = (0..6).map(pair).collect();
    let more = [
        "--show-data",
        "9",
        "--set",
        "validation_fraction=0",
        "--set",
        "block_size=24",
    ];
    let each = [&more[..], &["--set", "packing=false"]].concat();
    insta::assert_snapshot!(
        "each_example",
        stdout(&place.show(&lines, &each))
            .replace(&place.folder.path().display().to_string(), "[folder]")
    );
    let wrapped = stdout(&place.show(&lines, &more));
    assert!(
        wrapped.contains("tokens behind, in other rows"),
        "{wrapped}"
    );
    let json = stdout(&place.show(&lines, &[&each[..], &["--json"]].concat()));
    let json: Value = serde_json::from_str(&json).unwrap();
    let row = &json["rows"][0];
    let pieces = row["examples"][0]["pieces"].as_array().unwrap();
    let learned = pieces.iter().filter(|piece| piece["learned"] == true);
    let learned: usize = learned
        .map(|piece| piece["ids"].as_array().unwrap().len())
        .sum();
    assert_eq!(row["learned"], learned);
    assert_eq!(json["truncated"], 4);
    assert!(!place.path("runs").exists(), "nothing is left behind");
}

#[test]
fn text_that_a_model_from_scratch_learns_is_shown_and_its_control_characters_are_not_obeyed() {
    let place = Place::new();
    place.write("text.txt", &"red \u{1b}[31m and\n".repeat(200));
    place.write("config.yaml", "data: {path: text.txt, block_size: 32}\n");
    let output = place.run(&["train", "config.yaml", "--show-data", "1"]);
    let shown = stdout(&output);
    assert!(shown.contains("33 tokens, 32 of them learned"), "{shown}");
    assert!(
        shown.contains("\\u{1b}[31m") && !shown.contains('\u{1b}'),
        "{shown}"
    );
    assert!(shown.contains("[["), "{shown}");
}
