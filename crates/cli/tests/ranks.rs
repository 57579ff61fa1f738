//! Several processes that train one model, as processes: what they learn, and what happens when
//! one of them differs, dies, or stops answering.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backend;
mod combinations;
mod elastic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use torch_ext::distributed::Store;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(240);

const CONFIG: &str = "\
name: tiny
device: cpu
threads: 1
output_dir: runs
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 8}
train:
  bf16: false
  max_steps: 8
  per_device_train_batch_size: 2
  learning_rate: 0.01
  lr_scheduler_type: constant
  logging_steps: 1
  eval_steps: 4
  save_steps: 4
";

/// A folder with a text and a config.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = crate::common::bottles(400);
        fs::write(folder.path().join("text.txt"), text).unwrap();
        let line = |n: usize| format!("{{\"text\": \"{}\"}}\n", "more ale ".repeat(n % 7 + 1));
        let lines: String = (0..60).map(line).collect();
        fs::write(folder.path().join("lines.jsonl"), lines).unwrap();
        fs::write(folder.path().join("config.yaml"), CONFIG).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
        command
            .args(["train", "config.yaml"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("RUST_LOG")
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", self.path("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn train(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// One rank of `size`, as `torchrun` would start it, beside a store that is here.
    fn rank(&self, store: &Store, rank: usize, size: usize, arguments: &[&str]) -> Child {
        let mut command = self.rank_command(store, rank, size, arguments);
        command.spawn().unwrap()
    }

    fn rank_command(&self, store: &Store, rank: usize, size: usize, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("LOCAL_WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", store.port().to_string())
            .env("TORCHELASTIC_USE_AGENT_STORE", "True");
        command
    }

    fn records(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path("runs").join(run).join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    /// The training losses by step.
    fn losses(&self, run: &str) -> Vec<f64> {
        let records = self.records(run).into_iter();
        let training = records.filter(|record| record["kind"] == "train");
        training
            .map(|record| record["loss"].as_f64().unwrap())
            .collect()
    }

    /// The held-out losses by step, and those per byte.
    fn evaluations(&self, run: &str) -> Vec<f64> {
        let records = self.records(run).into_iter();
        let records = records.filter(|record| record["kind"] == "eval");
        let numbers = records.flat_map(|record| {
            let number = |key: &str| record[key].as_f64();
            [number("eval_loss"), number("eval_nats_per_byte")]
        });
        numbers.flatten().collect()
    }

    /// All weights of a checkpoint, in the order of the file.
    fn weights(&self, run: &str, step: u64) -> Vec<f32> {
        let checkpoint = format!("runs/{run}/checkpoints/step-{step:06}/model.safetensors");
        let bytes = fs::read(self.path(&checkpoint)).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let numbers = bytes[8 + header..].chunks_exact(4);
        numbers
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    }

    fn checkpoints(&self, run: &str) -> Vec<PathBuf> {
        self.checkpoints_in("runs", run)
    }

    fn checkpoints_in(&self, runs: &str, run: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path(runs).join(run).join("checkpoints"));
        let paths = entries.into_iter().flatten().flatten();
        let mut paths: Vec<_> = paths
            .map(|entry| entry.path())
            .filter(|path| {
                path.file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with("step-")
            })
            .collect();
        paths.sort();
        paths
    }
}

/// The step of a checkpoint.
fn step_of(checkpoint: &Path) -> u64 {
    let name = checkpoint.file_name().unwrap().to_string_lossy();
    name.trim_start_matches("step-").parse().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_fine(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
}

fn send(rank: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(rank.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The largest difference relative to the larger of both.
fn distance(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    assert!(!one.is_empty());
    let pairs = one.iter().zip(other);
    pairs
        .map(|(one, other)| (one - other).abs() / one.abs().max(other.abs()).max(1e-3))
        .fold(0.0, f64::max)
}

fn doubles(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| f64::from(*number)).collect()
}

#[test]
fn ranks_learn_what_one_with_their_batch_would() {
    let place = Place::new();
    let set = |key: &'static str, value: &str| ["--set".to_owned(), format!("{key}={value}")];
    let run = |name: &str, batch: &str, further: &[&str]| {
        let options = [
            set("name", name),
            set("train.per_device_train_batch_size", batch),
        ];
        let options: Vec<&str> = options.iter().flatten().map(String::as_str).collect();
        let output = place.train(&[&options, further].concat());
        assert_fine(&output);
        output
    };
    run("one", "4", &[]);
    let output = run("two", "2", &["--nproc", "2"]);
    let shown = stderr(&output);
    assert!(
        shown.contains("ranks      2 on 1 machine, by Gloo"),
        "{shown}"
    );
    assert_eq!(shown.matches("held out").count(), 2, "shown once: {shown}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("done: 8 steps").count(), 1, "{text}");
    run("four", "1", &["--nproc", "4"]);

    let tokens = |run: &str| {
        let text = fs::read_to_string(place.path("runs").join(run).join("summary.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["tokens"].clone()
    };
    for run in ["two", "four"] {
        let losses = distance(&place.losses("one"), &place.losses(run));
        let (one, other) = (place.weights("one", 8), place.weights(run, 8));
        let weights = distance(&doubles(&one), &doubles(&other));
        println!("{run}: losses differ by {losses:.1e}, weights by {weights:.1e}");
        let evaluations = distance(&place.evaluations("one"), &place.evaluations(run));
        println!("{run}: evaluations differ by {evaluations:.1e}");
        assert!(
            evaluations < 1e-6,
            "{run}: evaluations differ by {evaluations}"
        );
        assert!(losses < 1e-6, "{run}: losses differ by {losses}");
        assert!(weights < 1e-3, "{run}: weights differ by {weights}");
        assert_eq!(tokens("one"), tokens(run));
    }
    assert!(
        !place.path("runs/two-2").exists(),
        "one folder for all ranks"
    );
}

/// The last step of a pass has no batch for some of the ranks, and a smaller one for another.
#[test]
fn ranks_go_through_epochs_as_one_does() {
    let place = Place::new();
    let text = crate::common::bottles(30);
    fs::write(place.path("text.txt"), text).unwrap();
    let epochs = CONFIG.replace("max_steps: 8", "num_train_epochs: 3");
    let epochs = epochs.replace("eval_steps: 4\n  save_steps: 4", "eval_strategy: epoch");
    fs::write(place.path("config.yaml"), epochs).unwrap();
    for (name, batch, ranks) in [("one", 4, 1), ("two", 2, 2), ("four", 1, 4)] {
        let (name, batch) = (
            format!("name={name}"),
            format!("per_device_train_batch_size={batch}"),
        );
        let mut arguments = vec!["--set", &name, "--set", &batch];
        let ranks = ranks.to_string();
        if ranks != "1" {
            arguments.extend(["--nproc", &ranks]);
        }
        assert_fine(&place.train(&arguments));
    }
    let summary = |run: &str| -> Value {
        let text = fs::read_to_string(place.path("runs").join(run).join("summary.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let one = summary("one");
    let blocks = one["tokens"].as_u64().unwrap() / 16;
    assert!(
        blocks < one["steps"].as_u64().unwrap() * 4,
        "no step is smaller: {one}"
    );
    for run in ["two", "four"] {
        for key in ["steps", "max_steps", "tokens"] {
            assert_eq!(one[key], summary(run)[key], "{key} of {run}");
        }
        let evaluated = |run: &str| -> Vec<Value> {
            let records = place.records(run).into_iter();
            let records = records.filter(|record| record["kind"] == "eval");
            records.map(|record| record["step"].clone()).collect()
        };
        assert_eq!(evaluated("one"), evaluated(run));
        let losses = distance(&place.losses("one"), &place.losses(run));
        assert!(losses < 1e-6, "{run}: losses differ by {losses}");
    }
}

#[test]
fn adapters_learn_what_one_rank_would() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "name=base"]));
    let model = place.path("runs/base/model").display().to_string();
    let config = CONFIG.replace(
        "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}",
        &format!("model: {{name_or_path: {model}}}\nadapter: {{r: 4}}"),
    );
    fs::write(place.path("config.yaml"), config).unwrap();
    let run = |name: &str, arguments: &[&str]| {
        let name = format!("name={name}");
        let output = place.train(&[&["--set", &name], arguments].concat());
        assert_fine(&output);
    };
    run("one", &["--set", "train.per_device_train_batch_size=4"]);
    run("two", &["--nproc", "2"]);
    let losses = distance(&place.losses("one"), &place.losses("two"));
    let (one, other) = (place.weights("one", 8), place.weights("two", 8));
    let weights = distance(&doubles(&one), &doubles(&other));
    println!("losses differ by {losses:.1e}, weights by {weights:.1e}");
    assert!(losses < 1e-6, "losses differ by {losses}");
    assert!(weights < 1e-3, "weights differ by {weights}");
    assert!(
        place
            .path("runs/two/adapter/adapter_model.safetensors")
            .exists()
    );
}

#[test]
fn another_number_of_ranks_goes_on_and_says_so() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "name=whole", "--nproc", "2"]));
    let name = ["--set", "name=cut"];
    assert_fine(
        &place.train(&[&name[..], &["--nproc", "2", "--set", "train.max_steps=4"]].concat()),
    );
    // Two ranks of two samples, and then one of four: the same steps.
    let output = place.train(
        &[
            &name[..],
            &["--resume", "--set", "train.per_device_train_batch_size=4"],
        ]
        .concat(),
    );
    assert_fine(&output);
    let shown = stderr(&output);
    assert!(shown.contains("changed    ranks 2 → 1"), "{shown}");
    assert!(!shown.contains("samples in a step 4 → 4"), "{shown}");
    let apart = distance(&place.losses("whole"), &place.losses("cut"));
    assert!(apart < 1e-6, "{apart}");
    // And three, which is a larger step.
    let output = place.train(
        &[
            &name[..],
            &["--resume", "--nproc", "3", "--set", "train.max_steps=10"],
        ]
        .concat(),
    );
    assert_fine(&output);
    let shown = stderr(&output);
    assert!(shown.contains("changed    ranks 1 → 3"), "{shown}");
    assert!(
        shown.contains("changed    samples in a step 4 → 6"),
        "{shown}"
    );
    assert_eq!(place.losses("cut").len(), 10);
}

#[test]
fn a_rank_that_would_train_something_else_is_refused_with_the_difference() {
    let place = Place::new();
    fs::write(
        place.path("other.txt"),
        "something else entirely\n".repeat(300),
    )
    .unwrap();
    for (other, told) in [
        (
            "train.learning_rate=0.02",
            "`config.train.learning_rate` is 0.01 there, and 0.02 here",
        ),
        (
            "model.hidden_size=32",
            "`config.model.hidden_size` is 16 there, and 32 here",
        ),
        ("data.path=other.txt", "`data."),
    ] {
        let store = Store::host("127.0.0.1", 0).unwrap();
        let first = place.rank(&store, 0, 2, &[]);
        let second = place.rank(&store, 1, 2, &["--set", other]);
        let second = second.wait_with_output().unwrap();
        let first = first.wait_with_output().unwrap();
        assert_eq!(second.status.code(), Some(2), "{}", stderr(&second));
        let shown = stderr(&second);
        assert!(shown.contains("rank 1 on "), "{shown}");
        assert!(shown.contains(told), "{shown}");
        // Rank 0 shows why, and has made nothing.
        assert!(!first.status.success());
        let shown = stderr(&first);
        assert!(
            shown.contains("rank 1 on ") && shown.contains(told),
            "{shown}"
        );
        assert!(!place.path("runs").exists());
    }
}

/// Two ranks whose run would take long, after the first checkpoint.
fn long_run(place: &Place, store: &Store, further: &[&str]) -> (Child, Child) {
    let arguments = [
        &[
            "--set",
            "train.max_steps=1000000",
            "--set",
            "train.save_steps=3",
        ],
        &[
            "--set",
            "train.save_total_limit=3",
            "--set",
            "train.eval_steps=0",
        ],
        further,
    ]
    .concat();
    let ranks = (
        place.rank(store, 0, 2, &arguments),
        place.rank(store, 1, 2, &arguments),
    );
    wait_for("a checkpoint", || !place.checkpoints("tiny").is_empty());
    ranks
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_its_name_and_a_whole_checkpoint() {
    let place = Place::new();
    let store = Store::host("127.0.0.1", 0).unwrap();
    let (first, mut second) = long_run(&place, &store, &[]);
    second.kill().unwrap();
    second.wait().unwrap();
    let first = first.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(1));
    let shown = stderr(&first);
    assert!(
        shown.contains("has lost the connection to\n  rank 1 on "),
        "{shown}"
    );
    assert!(shown.contains("last heard of at "), "{shown}");
    // It goes on from the last checkpoint, which is whole.
    let step = step_of(&place.checkpoints("tiny").pop().unwrap());
    let steps = format!("train.max_steps={}", step + 2);
    let output = place.train(&["--resume", "--nproc", "2", "--set", &steps]);
    assert_fine(&output);
    assert!(stderr(&output).contains("resumed    after step"));
}

#[test]
fn rank_0_that_is_killed_ends_the_others() {
    let place = Place::new();
    let store = Store::host("127.0.0.1", 0).unwrap();
    let (mut first, second) = long_run(&place, &store, &[]);
    first.kill().unwrap();
    first.wait().unwrap();
    let second = second.wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let shown = stderr(&second);
    assert!(shown.contains("rank 0 on "), "{shown}");
    assert_fine(&place.train(&["--resume", "--dry-run"]));
}

#[test]
fn a_rank_that_does_not_answer_is_named_by_all_when_the_time_is_over() {
    let place = Place::new();
    let store = Store::host("127.0.0.1", 0).unwrap();
    let arguments = [
        ["--set", "train.max_steps=1000000"],
        ["--set", "train.save_steps=3"],
        ["--set", "train.rank_timeout=40"],
    ];
    let arguments = arguments.concat();
    let [first, mut second, third] = [0, 1, 2].map(|rank| place.rank(&store, rank, 3, &arguments));
    wait_for("a checkpoint", || !place.checkpoints("tiny").is_empty());
    send(&second, rustix::process::Signal::STOP);
    let ended = [first, third].map(|rank| rank.wait_with_output().unwrap());
    second.kill().unwrap();
    second.wait().unwrap();
    // Whose time is over first breaks the connection of the other, who was not what it waited for.
    for output in ended {
        assert_eq!(output.status.code(), Some(1));
        let shown = stderr(&output);
        assert!(shown.contains("waited 40 seconds"), "{shown}");
        assert!(shown.contains("\n  rank 1 on "), "{shown}");
        for well in [0, 2] {
            assert!(!shown.contains(&format!("\n  rank {well} on ")), "{shown}");
        }
    }
}

#[test]
fn ranks_stop_together_and_save() {
    let place = Place::new();
    let mut command = place.command(&["--nproc", "2", "--set", "train.max_steps=1000000"]);
    let launcher = command.spawn().unwrap();
    wait_for("a checkpoint", || !place.checkpoints("tiny").is_empty());
    send(&launcher, rustix::process::Signal::INT);
    let output = launcher.wait_with_output().unwrap();
    assert_fine(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("stopped"), "{text}");
    let steps = place.losses("tiny").len();
    let last = place.checkpoints("tiny").pop().unwrap();
    assert!(
        last.ends_with(format!("step-{steps:06}")),
        "{}",
        last.display()
    );
}

#[test]
fn a_checkpoint_that_one_rank_is_asked_for_is_made_by_all() {
    let place = Place::new();
    let store = Store::host("127.0.0.1", 0).unwrap();
    let arguments = [
        ["--set", "train.max_steps=1000000"],
        ["--set", "train.save_steps=0"],
        ["--set", "train.eval_steps=0"],
    ];
    let arguments = arguments.concat();
    let ranks = [0, 1].map(|rank| place.rank(&store, rank, 2, &arguments));
    let metrics = place.path("runs/tiny/metrics.jsonl");
    wait_for("a step", || {
        fs::metadata(&metrics).is_ok_and(|file| file.len() > 0)
    });
    assert!(place.checkpoints("tiny").is_empty());
    send(&ranks[1], rustix::process::Signal::USR1);
    wait_for("the checkpoint", || !place.checkpoints("tiny").is_empty());
    send(&ranks[1], rustix::process::Signal::INT);
    for rank in ranks {
        assert_fine(&rank.wait_with_output().unwrap());
    }
    assert_eq!(place.checkpoints("tiny").len(), 2);
}

#[test]
fn a_rank_that_cannot_start_ends_all() {
    let place = Place::new();
    let store = Store::host("127.0.0.1", 0).unwrap();
    let first = place.rank(&store, 0, 2, &[]);
    let gone: &Path = Path::new("data.path=no-such-file.txt");
    let second = place.rank(&store, 1, 2, &["--set", &gone.display().to_string()]);
    let (first, second) = (
        first.wait_with_output().unwrap(),
        second.wait_with_output().unwrap(),
    );
    assert!(stderr(&second).contains("no-such-file.txt"));
    let shown = stderr(&first);
    assert!(
        shown.contains("rank 1 on ") && shown.contains("no-such-file.txt"),
        "{shown}"
    );
}

#[test]
fn what_is_wrong_with_the_variables_is_told() {
    let place = Place::new();
    let output = place.command(&[]).env("WORLD_SIZE", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("RANK is not set"),
        "{}",
        stderr(&output)
    );
    let mut both = place.command(&["--nproc", "2"]);
    let output = both.env("RANK", "0").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("`--nproc 2`"),
        "{}",
        stderr(&output)
    );
}
