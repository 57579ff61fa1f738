//! `surefoot-trainer train` as people meet it: exit codes, messages, signals, crashes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

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
  max_steps: 6
  per_device_train_batch_size: 2
  logging_steps: 2
  eval_steps: 0
  save_steps: 3
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
        fs::write(folder.path().join("config.yaml"), CONFIG).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The trainer, with PyTorch's own allocator and a cache of its own.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
        command
            .arg("train")
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("RUST_LOG")
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", self.path("cache"));
        command
    }

    fn train(&self, arguments: &[&str]) -> Output {
        self.command(&[&["config.yaml"], arguments].concat())
            .output()
            .unwrap()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a failed command says, for a snapshot.
fn messages(output: &Output) -> String {
    format!(
        "exit code {}\n{}",
        output.status.code().unwrap(),
        stderr(output)
    )
}

fn assert_fine(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
}

#[test]
fn a_run_ends_with_a_summary_on_stdout() {
    let place = Place::new();
    let output = place.train(&[]);
    assert_fine(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("done: 6 steps\n"), "{text}");
    let shown = stderr(&output);
    assert!(
        shown.contains("allocator  PyTorch's own (HIP_ALLOC=0)"),
        "{shown}"
    );
    let json = place.train(&["--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(summary["steps"], 6);
    assert!(
        summary["environment"]["libtorch"]
            .as_str()
            .unwrap()
            .starts_with("2.13")
    );
}

/// What `tune` found is used by runs of that config and no other, unless they are told not to.
#[test]
fn what_was_tuned_is_used() {
    let place = Place::new();
    let tune = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"))
        .args(["tune", "config.yaml", "--steps", "3", "--json"])
        .current_dir(place.folder.path())
        .env("HIP_ALLOC", "0")
        .env("SUREFOOT_CACHE", place.path("cache"))
        .output()
        .unwrap();
    assert_fine(&tune);
    let report: serde_json::Value = serde_json::from_slice(&tune.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let tried: Vec<&str> = rows.iter().flat_map(|row| row["name"].as_str()).collect();
    assert!(tried.contains(&"huge pages"), "{report}");
    for row in rows {
        let tokens = row["tokens_per_second"].as_f64();
        assert!(tokens.is_some_and(|tokens| tokens > 0.0), "{row}");
    }
    // Nothing of the trials is left.
    assert_eq!(fs::read_dir(place.path("runs")).unwrap().count(), 0);

    // A choice whose effect is plain to see, in the place of what was measured.
    let file = report["file"].as_str().unwrap();
    let mut kept: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    kept["chosen"] = serde_json::json!([
        {"name": "products by nobody", "variables": {"SUREFOOT_PRODUCTS": "nobody"}}
    ]);
    fs::write(file, kept.to_string()).unwrap();
    let refused = place.train(&[]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let shown = stderr(&refused);
    assert_eq!(
        shown.matches("tuned: products by nobody").count(),
        1,
        "{shown}"
    );
    assert!(
        shown.contains("SUREFOOT_PRODUCTS=nobody: expected `onednn` or `mkl`"),
        "{shown}"
    );
    assert_fine(&place.train(&["--set", "data.block_size=8"]));
    let mut without = place.command(&["config.yaml"]);
    assert_fine(&without.env("SUREFOOT_TUNED", "off").output().unwrap());
}

#[test]
fn problems_of_a_config_are_shown_in_place() {
    let place = Place::new();
    let text = CONFIG
        .replace("logging_steps", "loging_steps")
        .replace("max_steps: 6", "max_steps: 0");
    fs::write(place.path("config.yaml"), text).unwrap();
    insta::assert_snapshot!(messages(&place.train(&["--set", "train.bf16=maybe"])));
}

#[test]
fn a_config_that_is_not_yaml_is_shown_in_place() {
    let place = Place::new();
    fs::write(place.path("config.yaml"), "name: tiny\ntrain: [1, 2\n").unwrap();
    insta::assert_snapshot!(messages(&place.train(&[])));
}

#[test]
fn a_config_that_is_not_there() {
    let place = Place::new();
    insta::assert_snapshot!(messages(&place.command(&["no.yaml"]).output().unwrap()));
}

#[test]
fn text_that_is_not_there() {
    let place = Place::new();
    let output = place.train(&[
        "--set",
        "data.path=null",
        "--set",
        "data.dataset=shakespeare",
    ]);
    let cache = place.path("cache").display().to_string();
    insta::assert_snapshot!(messages(&output).replace(&cache, "[cache]"));
}

#[test]
fn a_device_that_is_not_there() {
    let output = Place::new().train(&["--set", "device=gpu:63"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("`device: gpu:63` is not there"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_allocator_library_that_is_not_there_or_is_none() {
    let place = Place::new();
    let with = |library: &Path| {
        let mut command = place.command(&["config.yaml"]);
        command
            .env_remove("HIP_ALLOC")
            .env("HIP_ALLOC_LIB", library);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output)
    };
    let missing = with(Path::new("/no/lib.so"));
    assert!(
        missing.contains("/no/lib.so does not exist (named by HIP_ALLOC_LIB)"),
        "{missing}"
    );
    let text = with(&place.path("text.txt"));
    assert!(text.contains("cannot be loaded"), "{text}");
    let other = with(&library(
        &place,
        "unsigned hip_alloc_abi_version(void) { return 99; }",
    ));
    assert!(
        other.contains("has ABI version 99, and this program needs version 1"),
        "{other}"
    );
    let none = with(&library(&place, "int something_else;"));
    assert!(none.contains("is no allocator library"), "{none}");
    assert!(!place.path("runs").exists());
}

/// A shared library made of this C code, each in a file of its own.
fn library(place: &Place, code: &str) -> PathBuf {
    let (source, library) = (
        place.path("other.c"),
        place.path(&format!("lib{}.so", code.len())),
    );
    fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    assert!(compiler.status().unwrap().success());
    library
}

#[test]
fn hip_alloc_is_a_switch() {
    let place = Place::new();
    let output = place
        .command(&["config.yaml"])
        .env("HIP_ALLOC", "yes")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("`HIP_ALLOC=yes` is neither 0 nor 1"),
        "{}",
        stderr(&output)
    );
}

/// Starts a run that would take very long.
fn start_endless(place: &Place, arguments: &[&str]) -> Child {
    let endless = ["config.yaml", "--set", "train.max_steps=1000000"];
    let mut command = place.command(&[&endless, arguments].concat());
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until `condition` holds; the limit is for a broken program only.
fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(120), "waited in vain");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: i32) {
    let status = Command::new("kill")
        .args([format!("-{signal}"), child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

fn checkpoints(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("runs/tiny/checkpoints"));
    let name = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let mut names: Vec<String> = entries.into_iter().flatten().filter_map(name).collect();
    names.retain(|name| name.starts_with("step-"));
    names.sort();
    names
}

fn step_of(checkpoint: &str) -> u64 {
    checkpoint.trim_start_matches("step-").parse().unwrap()
}

#[test]
fn interrupted_runs_save_and_resume() {
    for number in [libc::SIGINT, libc::SIGTERM] {
        let place = Place::new();
        let mut child = start_endless(&place, &["--set", "train.save_steps=0"]);
        let metrics = place.path("runs/tiny/metrics.jsonl");
        wait_until(|| fs::metadata(&metrics).is_ok_and(|file| file.len() > 0));
        assert!(checkpoints(&place).is_empty());
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let saved = checkpoints(&place);
        assert_eq!(saved.len(), 1, "{saved:?}");
        let end = step_of(&saved[0]) + 2;
        let end_there = format!("train.max_steps={end}");
        let resumed = place.train(&["--resume", "--json", "--set", &end_there]);
        assert_fine(&resumed);
        let summary: serde_json::Value = serde_json::from_slice(&resumed.stdout).unwrap();
        assert_eq!(summary["steps"], end);
    }
}

#[test]
fn a_run_that_a_page_fault_ended_says_that_it_was_restarted() {
    let place = Place::new();
    let trainer = env!("CARGO_BIN_EXE_surefoot-trainer");
    let script = format!(
        r#"#!/bin/sh
if [ -e died ]; then exec {trainer} "$@"; fi
touch died
{trainer} "$@" --set train.max_steps=3
echo 'Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f00. Reason: Page not present.' >&2
kill -ABRT $$
"#
    );
    let program = place.path("surefoot");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .args(["run", "--restart-on-fault", "--"])
        .arg(program)
        .args(["train", "config.yaml"])
        .current_dir(place.folder.path())
        .env_remove("HIP_ALLOC_LIB")
        .env("HIP_ALLOC", "0")
        .env("SUREFOOT_CACHE", place.path("cache"))
        .output()
        .unwrap();
    assert_fine(&output);
    let read = |name: &str| fs::read_to_string(place.path("runs/tiny").join(name)).unwrap();
    let metrics = read("metrics.jsonl");
    let records = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let restarted = |record: &serde_json::Value| record["kind"] == "restarted";
    let marks: Vec<_> = records.filter(restarted).collect();
    let mark = serde_json::json!({"kind": "restarted", "step": 3, "restart": 1});
    assert_eq!(marks, [mark]);
    assert!(read("report.html").contains(r#"{"kind":"restarted","step":3,"restart":1}"#));
}

#[test]
fn killed_at_any_moment_a_run_resumes_to_the_same_end() {
    let place = Place::new();
    let options = [
        "--set",
        "train.save_steps=1",
        "--set",
        "train.save_total_limit=2",
        // So that the length of a run does not change its steps.
        "--set",
        "train.lr_scheduler_type=constant",
    ];
    let mut moments = Moments::new();
    for round in 0..6 {
        let before = checkpoints(&place).pop();
        let resume: &[&str] = if before.is_some() { &["--resume"] } else { &[] };
        let mut child = start_endless(&place, &[&options, resume].concat());
        // Past the first save of this round, then anywhere: in a step, a save, a removal.
        wait_until(|| checkpoints(&place).pop() > before);
        std::thread::sleep(moments.next());
        signal(&child, libc::SIGKILL);
        assert_eq!(child.wait().unwrap().code(), None, "round {round}");
    }
    let last = step_of(&checkpoints(&place).pop().unwrap());
    let end = format!("train.max_steps={}", last + 3);
    assert_fine(&place.train(&[&options[..], &["--resume", "--set", &end]].concat()));
    assert_fine(&place.train(&[&options[..], &["--set", "name=whole", "--set", &end]].concat()));
    let model = |run: &str| fs::read(place.path(&format!("runs/{run}/model/model.safetensors")));
    assert!(
        model("tiny").unwrap() == model("whole").unwrap(),
        "the weights differ"
    );
}

/// Pauses of up to 60 ms that differ from run to run.
struct Moments(u64);

impl Moments {
    fn new() -> Self {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        Self(now.as_nanos() as u64)
    }

    fn next(&mut self) -> Duration {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        Duration::from_micros((self.0 >> 33) % 60_000)
    }
}

#[test]
fn a_full_disk_ends_the_run_and_leaves_the_older_checkpoint() {
    let place = Place::new();
    assert_fine(&place.train(&[]));
    // Files beyond 8 kB cannot be written, as on a full disk; the model has more.
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; exec '{}' train config.yaml --resume --set train.max_steps=9",
        env!("CARGO_BIN_EXE_surefoot-trainer")
    );
    let mut command = Command::new("bash");
    command
        .args(["-c", &script])
        .current_dir(place.folder.path())
        .env("HIP_ALLOC", "0");
    let output = command
        .env("SUREFOOT_CACHE", place.path("cache"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("cannot write"),
        "{}",
        stderr(&output)
    );
    assert_eq!(checkpoints(&place), ["step-000003", "step-000006"]);
    assert_fine(&place.train(&["--resume", "--set", "train.max_steps=9"]));
}

/// Without what differs from machine to machine and run to run.
fn steady(text: &str) -> String {
    let steady = |line: &str| match line.split_whitespace().next() {
        Some(key @ ("libtorch" | "device" | "time" | "speed" | "expected" | "peak")) => {
            format!("{key} …\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(steady).collect()
}

#[test]
fn a_dry_run_checks_everything_and_writes_nothing() {
    let place = Place::new();
    let output = place.train(&["--dry-run"]);
    assert_fine(&output);
    insta::assert_snapshot!(steady(&String::from_utf8_lossy(&output.stdout)));
    assert!(!place.path("runs").exists());
    let json = place.train(&["--dry-run", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(found["seconds"].as_f64().unwrap() > 0.0);
    assert!((found["loss"].as_f64().unwrap() - 257f64.ln()).abs() < 0.3);
}

#[test]
fn a_dry_run_finds_what_training_would() {
    let place = Place::new();
    let refused = |arguments: &[&str]| {
        let output = place.train(&[&["--dry-run"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output)
    };
    assert!(refused(&["--set", "block_size=100000"]).contains("a block needs 100001"));
    let groups = "parameter_groups=[{names: lora}]";
    assert!(refused(&["--set", groups]).contains("matches no parameter"));
    let nothing = place.train(&["--dry-run", "--resume"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(stderr(&nothing).contains("no run of this name has a checkpoint"));
    let file = place.train(&["--dry-run", "--set", "output_dir=text.txt"]);
    assert_eq!(file.status.code(), Some(1), "{}", stderr(&file));
    // What a run left is taken up, and left as it is.
    assert_fine(&place.train(&[]));
    let before = fs::read(place.path("runs/tiny/metrics.jsonl")).unwrap();
    let output = place.train(&["--dry-run", "--resume", "--set", "max_steps=9"]);
    assert_fine(&output);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("runs/tiny would resume after step 6"),
        "{said}"
    );
    assert!(said.contains("for 3 steps"), "{said}");
    assert_eq!(
        fs::read(place.path("runs/tiny/metrics.jsonl")).unwrap(),
        before
    );
    assert!(!place.path("runs/tiny-2").exists());
}

#[test]
fn a_run_that_is_resumed_without_a_config_has_its_own() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "learning_rate=0.004"]));
    let mut folders = vec!["runs/tiny", "runs/tiny/checkpoints/step-000003"];
    // The default config's name finds the newest run of that name.
    fs::create_dir(place.path("configs")).unwrap();
    fs::write(
        place.path("configs/small.yaml"),
        "name: tiny\ndata: {path: no.txt}\n",
    )
    .unwrap();
    folders.push("latest");
    for (number, folder) in folders.into_iter().enumerate() {
        let steps = 7 + number as u64;
        let end = format!("max_steps={steps}");
        let output = place
            .command(&["--resume", folder, "--json", "--set", &end])
            .output()
            .unwrap();
        assert_fine(&output);
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["steps"], steps);
        let shown = stderr(&output);
        assert!(shown.contains("changed    train.max_steps "), "{shown}");
        assert!(!shown.contains("learning_rate"), "{shown}");
    }
    let config = fs::read_to_string(place.path("runs/tiny/config.yaml")).unwrap();
    assert!(config.contains("learning_rate: 0.004"), "{config}");
    let nowhere = place.command(&["--resume", "runs/none"]).output().unwrap();
    insta::assert_snapshot!(messages(&nowhere));
}

#[test]
fn a_resume_that_would_be_another_run_says_what_differs() {
    let place = Place::new();
    assert_fine(&place.train(&[]));
    let output = place.train(&[
        "--resume",
        "--set",
        "seed=3",
        "--set",
        "model.hidden_size=32",
    ]);
    insta::assert_snapshot!(messages(&output));
    let output = place.train(&["--resume", "--set", "model.hidden_size=32"]);
    assert_eq!(output.status.code(), Some(2));
    let shown = stderr(&output);
    assert!(
        shown.contains("`model.hidden_size` was 16, and is now 32"),
        "{shown}"
    );
}

#[test]
fn a_closed_terminal_saves_and_nohup_goes_on() {
    let place = Place::new();
    let metrics = place.path("runs/tiny/metrics.jsonl");
    let mut child = start_endless(&place, &["--set", "train.save_steps=0"]);
    wait_until(|| fs::metadata(&metrics).is_ok_and(|file| file.len() > 0));
    // As a shell does after the kernel did.
    signal(&child, libc::SIGHUP);
    signal(&child, libc::SIGHUP);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(checkpoints(&place).len(), 1);

    let trainer = env!("CARGO_BIN_EXE_surefoot-trainer");
    let script = format!(
        "trap '' HUP; exec '{trainer}' train config.yaml --set max_steps=1000000 --set name=nohup"
    );
    let mut child = Command::new("bash")
        .args(["-c", &script])
        .current_dir(place.folder.path())
        .env("HIP_ALLOC", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let metrics = place.path("runs/nohup/metrics.jsonl");
    let length = || fs::metadata(&metrics).map_or(0, |file| file.len());
    wait_until(|| length() > 0);
    signal(&child, libc::SIGHUP);
    let before = length();
    wait_until(|| length() > before + 1000);
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_commands_of_the_report_work() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "name=it's done"]));
    let page = fs::read_to_string(place.path("runs/it's done/report.html")).unwrap();
    let data = page.split("id=\"data\">").nth(1).unwrap();
    let data = data.split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let lines = data["commands"].as_array().unwrap().iter();
    let lines: Vec<&str> = lines
        .filter_map(|command| command["line"].as_str())
        .collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.ends_with(" && ollama run it-s-done"))
    );
    let programs = Path::new(env!("CARGO_BIN_EXE_surefoot")).parent().unwrap();
    for line in lines.iter().filter(|line| line.starts_with("surefoot ")) {
        // From anywhere.
        let output = Command::new("bash")
            .args([
                "-c",
                &format!("PATH='{}':$PATH; {line}", programs.display()),
            ])
            .current_dir("/")
            .env("SUREFOOT_CACHE", place.path("cache"))
            .output()
            .unwrap();
        assert_fine(&output);
        assert!(!output.stdout.is_empty(), "{line}");
    }
}

/// Of all but the superuser, who may write everywhere where the file system lets them.
#[test]
fn a_dry_run_finds_an_output_folder_that_takes_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let runs = place.path("runs");
    fs::create_dir(&runs).unwrap();
    fs::set_permissions(&runs, fs::Permissions::from_mode(0o555)).unwrap();
    let output = place.train(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("cannot create a run folder in `runs`"),
        "{}",
        stderr(&output)
    );
    // A file system that takes nothing, whatever the permissions say.
    let output = place.train(&["--dry-run", "--set", "output_dir=/proc"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}
