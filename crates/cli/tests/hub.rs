//! Training, evaluating and generating with a model that is named as on the hub, and comes from one on
//! loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "the server is another test's")]

#[path = "../../trainer/tests/hub/server.rs"]
mod server;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use server::Hub;

const CONFIG: &str = "\
name: base
device: cpu
threads: 1
output_dir: runs
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 0}
train: {bf16: false, max_steps: 2, per_device_train_batch_size: 2, eval_steps: 0, save_steps: 0}
";

struct Place {
    folder: tempfile::TempDir,
    hub: Option<Hub>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = crate::common::bottles(200);
        fs::write(folder.path().join("text.txt"), text).unwrap();
        fs::write(folder.path().join("config.yaml"), CONFIG).unwrap();
        let mut place = Self { folder, hub: None };
        fine(&place.run(&["train", "config.yaml"], &[]));
        let model = place.path("runs/base/model");
        let files = ["config.json", "tokenizer.json", "model.safetensors"];
        let files = files.map(|name| (name, fs::read(model.join(name)).unwrap()));
        let files: Vec<_> = files
            .iter()
            .map(|(name, bytes)| (*name, &**bytes))
            .collect();
        place.hub = Some(Hub::working(&files));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let endpoint = self
            .hub
            .as_ref()
            .map_or("http://127.0.0.1:1", |hub| &hub.address);
        Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"))
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("HF_TOKEN")
            .env_remove("HF_HUB_CACHE")
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", self.path("cache"))
            .env("HF_HOME", self.path("hf"))
            .env("HF_ENDPOINT", endpoint)
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }

    fn asked(&self) -> usize {
        self.hub.as_ref().unwrap().seen().len()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn fine(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_model_of_the_hub_is_trained_evaluated_and_continued_by_its_name() {
    let place = Place::new();
    let tune = ["train", "config.yaml", "--set", "name=tune", "--set"];
    let tune = [
        &tune[..],
        &["model={name_or_path: org/tiny}", "--set", "adapter={r: 2}"],
    ]
    .concat();
    let output = place.run(&tune, &[]);
    fine(&output);
    assert!(
        said(&output).contains("org/tiny with a LoRA of rank 2"),
        "{}",
        said(&output)
    );
    let adapter = fs::read_to_string(place.path("runs/tune/adapter/adapter_config.json")).unwrap();
    let adapter: Value = serde_json::from_str(&adapter).unwrap();
    assert_eq!(adapter["base_model_name_or_path"], "org/tiny");

    let generate = |model: &str| {
        place.run(
            &[
                "generate",
                "--model",
                model,
                "--prompt",
                "1",
                "--max-new-tokens",
                "4",
            ],
            &[],
        )
    };
    assert_eq!(
        fine(&generate("org/tiny")),
        fine(&generate("runs/base/model"))
    );
    let eval = ["eval", "--data", "text.txt", "--model"];
    let eval = |model: &str| place.run(&[&eval[..], &[model]].concat(), &[]);
    let lines = |text: String| text.lines().take(3).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        lines(fine(&eval("org/tiny@main"))),
        lines(fine(&eval("runs/base/model")))
    );

    // Offline the cache does, and the run goes on with the model of its name.
    let asked = place.asked();
    let offline = [("HF_HUB_OFFLINE", "1")];
    let further = [&tune[..], &["--resume", "--set", "max_steps=4"]].concat();
    fine(&place.run(&further, &offline));
    let shown = place.run(&[&tune[..], &["--show-data", "1"]].concat(), &offline);
    assert!(fine(&shown).contains("row 1 of "));
    let output = place.run(
        &["generate", "--model", "org/other", "--prompt", "1"],
        &offline,
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("hf download org/other"),
        "{}",
        said(&output)
    );
    assert_eq!(place.asked(), asked);
}

#[test]
fn a_wrong_path_does_not_become_a_download() {
    let place = Place::new();
    fs::create_dir(place.path("models")).unwrap();
    for path in [
        "./org/tiny",
        "models/tiny",
        "a/b/c",
        "~/tiny",
        "org/tiny.gguf",
        "tiny",
    ] {
        let output = place.run(&["generate", "--model", path, "--prompt", "1"], &[]);
        assert!(!output.status.success());
        let told = said(&output);
        assert!(
            told.contains("is neither a folder, nor a file"),
            "{path}: {told}"
        );
    }
    // A folder of that name comes first.
    let base = place.path("runs/base/model");
    fs::create_dir(place.path("org")).unwrap();
    std::os::unix::fs::symlink(base, place.path("org/tiny")).unwrap();
    fine(&place.run(&["generate", "--model", "org/tiny", "--prompt", "1"], &[]));
    assert_eq!(place.asked(), 0);
}

#[test]
fn a_split_of_a_data_set_of_the_hub_is_trained_on_and_another_measured() {
    let mut place = Place::new();
    let rows = |from: usize| -> String {
        let rows = (from..from + 100).map(|n| format!("{{\"text\": \"{n} bottles of ale\\n\"}}\n"));
        rows.collect()
    };
    let (train, test) = (rows(0), rows(500));
    place.hub = Some(Hub::working(&[
        ("train.jsonl", train.as_bytes()),
        ("test.jsonl", test.as_bytes()),
        ("load.py", b"import os"),
    ]));
    fs::write(place.path("train.jsonl"), &train).unwrap();
    fs::write(place.path("test.jsonl"), &test).unwrap();
    let run = |name: &str, data: &[&str]| {
        let name = format!("name={name}");
        let mut arguments = vec!["train", "config.yaml", "--set", &name];
        for key in data {
            arguments.extend(["--set", key]);
        }
        place.run(&arguments, &[])
    };
    fine(&run("hub", &["data.path=org/tiny", "data.eval_split=test"]));
    fine(&run(
        "files",
        &["data.path=train.jsonl", "data.eval_dataset=test.jsonl"],
    ));
    let losses = |name: &str| {
        let rows = fs::read_to_string(place.path(&format!("runs/{name}/metrics.jsonl"))).unwrap();
        let rows = rows
            .lines()
            .map(|row| serde_json::from_str::<Value>(row).unwrap());
        rows.map(|row| (row["loss"].clone(), row["eval_loss"].clone()))
            .filter(|pair| *pair != (Value::Null, Value::Null))
            .collect::<Vec<_>>()
    };
    assert!(losses("hub").len() >= 2);
    assert_eq!(losses("hub"), losses("files"));
    let written = fs::read_to_string(place.path("runs/hub/config.yaml")).unwrap();
    assert!(written.contains("path: org/tiny"), "{written}");

    let model = place.path("runs/hub/model");
    let eval = |data: &[&str]| {
        let model = model.to_str().unwrap();
        let mut arguments = vec!["--json", "eval", "--model", model, "--block-size", "16"];
        arguments.extend(data);
        place.run(&arguments, &[])
    };
    let score = |data: &[&str]| {
        let output = eval(data);
        fine(&output);
        let score: Value = serde_json::from_slice(&output.stdout).unwrap();
        score["negative_log_likelihood"].as_f64().unwrap()
    };
    let of_test = score(&["--data", "test.jsonl"]);
    assert_eq!(score(&["--data", "org/tiny"]), of_test);
    let of_train = score(&["--data", "org/tiny", "--split", "train"]);
    assert_ne!(of_train, of_test);
    assert_eq!(of_train, score(&["--data", "train.jsonl"]));
    let refused = said(&eval(&["--data", "test.jsonl", "--split", "test"]));
    assert!(
        refused.contains("`--split` selects from a data set"),
        "{refused}"
    );

    for (data, told) in [
        (
            &["data.path=org/tiny", "data.split=dev"][..],
            "it has train, test",
        ),
        (
            &["data.path=train.jsonl", "data.split=test"],
            "`data.split` selects from a data set",
        ),
        (
            &["data.path=train.jsonl", "data.eval_split=test"],
            "`data.eval_split` selects from a data set",
        ),
        (
            &["data.dataset=shakespeare", "data.split=test"],
            "`data.dataset: shakespeare`",
        ),
    ] {
        let output = run("refused", data);
        assert!(!output.status.success());
        assert!(said(&output).contains(told), "{}", said(&output));
    }
}
