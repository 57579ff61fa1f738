//! The queue with the real trainer: `surefoot runs add|queue`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

const CONFIG: &str = "\
name: tiny
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 4}
train:
  bf16: false
  max_steps: 6
  per_device_train_batch_size: 2
  logging_steps: 2
  eval_steps: 0
  save_steps: 3
";

/// How long a test waits for what must come, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(300);

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
        let trainer = PathBuf::from(env!("CARGO_BIN_EXE_surefoot-trainer"));
        assert!(trainer.exists(), "{} is not built", trainer.display());
        Self { folder }
    }

    fn runs(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_surefoot"))
            .args(["--json", "runs"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("RUST_LOG")
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", self.folder.path().join("cache"))
            .output()
            .unwrap()
    }

    fn fine(&self, arguments: &[&str]) -> Value {
        let output = self.runs(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn jobs(&self) -> Vec<Value> {
        let listing = self.fine(&["queue"]);
        assert_eq!(listing["unreadable"], Value::Array(Vec::new()));
        listing["jobs"].as_array().unwrap().clone()
    }

    /// The jobs, once `is_done` of them.
    fn wait(&self, what: &str, is_done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let jobs = self.jobs();
            if is_done(&jobs) {
                return jobs;
            }
            assert!(began.elapsed() < LIMIT, "no {what}: {jobs:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn job(&self, id: u64) -> Value {
        self.jobs().into_iter().find(|job| job["id"] == id).unwrap()
    }

    fn log(&self, run: &str) -> String {
        let path = self.folder.path().join("runs").join(run).join("output.log");
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

fn are_over(jobs: &[Value]) -> bool {
    jobs.iter().all(|job| job["state"] == "ended")
}

/// Processes that were left would train on in a folder that is gone.
impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.runs(&["queue", "pause"]);
        for attempt in 0.. {
            let active = self.jobs().into_iter();
            let mut active =
                active.filter(|job| job["state"] == "running" || job["state"] == "checking");
            let Some(job) = active.next() else {
                break;
            };
            assert!(attempt < 3000, "{job}");
            let _ = self.runs(&["queue", "stop", &job["id"].to_string()]);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn three_runs_of_which_one_breaks_are_done_one_after_another() {
    let place = Place::new();
    place.fine(&["queue", "pause"]);
    place.fine(&["add", "config.yaml"]);
    // Its weights grow without end, which no look beforehand can tell.
    let steep =
        "train.learning_rate=10 train.weight_decay=1 train.max_steps=1000 train.save_steps=0";
    let mut arguments = vec!["add", "config.yaml", "--name", "steep"];
    arguments.extend(steep.split(' ').flat_map(|set| ["--set", set]));
    place.fine(&arguments);
    place.fine(&["add", "config.yaml"]);
    place.fine(&["queue", "start"]);
    let jobs = place.wait("end of three jobs", are_over);
    let mut ends: Vec<_> = jobs
        .iter()
        .map(|job| (&job["id"], &job["how"], &job["run"]))
        .collect();
    ends.sort_by_key(|(id, ..)| id.as_u64());
    let ends = serde_json::to_value(ends).unwrap();
    let wanted = serde_json::json!([
        [1, "completed", "tiny"],
        [2, "failed", "steep"],
        [3, "completed", "tiny-2"]
    ]);
    assert_eq!(ends, wanted, "{jobs:#?}");
    let error = place.job(2)["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("not finite") || error.contains("skipped"),
        "{error}"
    );
    assert!(
        place.log("tiny").contains("done: 6 steps"),
        "{}",
        place.log("tiny")
    );
    assert!(
        place.log("steep").contains("surefoot: "),
        "{}",
        place.log("steep")
    );
    // One at a time: each began after the one before it had ended.
    let list = place.fine(&["list"]);
    let names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["name"])
        .collect();
    assert_eq!(names.len(), 3, "{list:#}");
}

#[test]
fn what_cannot_work_is_refused_and_the_next_begins() {
    let place = Place::new();
    place.fine(&["queue", "pause"]);
    place.fine(&["add", "config.yaml", "--set", "data.path=missing.txt"]);
    // Mistakes in a config are told at once.
    for (mistake, said) in [
        ("train.max_steps=many", "train.max_steps"),
        ("output_dir=elsewhere", "`output_dir`"),
    ] {
        let refused = place.runs(&["add", "config.yaml", "--set", mistake]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(errors.contains(said), "{errors}");
    }
    place.fine(&["add", "config.yaml"]);
    place.fine(&["queue", "start"]);
    place.wait("end", are_over);
    assert_eq!(place.job(1)["how"], "refused");
    assert!(
        place.job(1)["error"]
            .as_str()
            .unwrap()
            .contains("missing.txt")
    );
    assert_eq!(place.job(2)["how"], "completed");
    // By force it is tried, and fails by itself.
    place.fine(&["queue", "retry", "1", "--force"]);
    place.wait("end", are_over);
    assert_eq!(place.job(1)["how"], "failed");
    let log = place.fine(&["queue", "log", "1"]);
    assert!(
        log["text"].as_str().unwrap().contains("missing.txt"),
        "{log}"
    );
    place.fine(&["queue", "remove", "1"]);
    assert_eq!(place.jobs().len(), 1);
    let gone = place.runs(&["queue", "remove", "1"]);
    assert_eq!(gone.status.code(), Some(2));
}

#[test]
fn a_run_that_was_stopped_goes_on_from_the_queue() {
    let place = Place::new();
    place.fine(&["add", "config.yaml", "--set", "train.max_steps=1000000"]);
    let has_run = |jobs: &[Value]| jobs[0]["state"] == "running" && jobs[0]["process"].is_object();
    place.wait("run", has_run);
    let began = Instant::now();
    while place.runs(&["show", "tiny"]).status.code() != Some(0)
        || place.fine(&["show", "tiny"])["run"]["latest"]["step"] == 0
    {
        assert!(began.elapsed() < LIMIT, "no step");
        std::thread::sleep(Duration::from_millis(100));
    }
    place.fine(&["queue", "stop", "1"]);
    place.wait("end", are_over);
    assert_eq!(place.job(1)["how"], "stopped", "{}", place.log("tiny"));
    let before = place.fine(&["show", "tiny"])["run"]["latest"]["step"].as_u64();
    place.fine(&["add", "--resume", "tiny"]);
    place.wait("a later step", |_| {
        place.fine(&["show", "tiny"])["run"]["latest"]["step"].as_u64() > before
    });
    assert!(
        place.log("tiny").contains("resumed "),
        "{}",
        place.log("tiny")
    );
    place.wait("process", |jobs| jobs[0]["process"].is_object());
    place.fine(&["stop", "tiny", "--wait"]);
    place.wait("end", are_over);
    assert_eq!(place.job(2)["how"], "stopped");
}

#[test]
fn a_signal_has_a_checkpoint_written_and_samples_made() {
    let place = Place::new();
    place.fine(&[
        "add",
        "config.yaml",
        "--set",
        "train.max_steps=1000000",
        "--set",
        "train.save_steps=0",
    ]);
    let jobs = place.wait("run", |jobs| {
        jobs[0]["process"].is_object() && jobs[0]["state"] == "running"
    });
    let began = Instant::now();
    while place.runs(&["save", "tiny"]).status.code() != Some(0) {
        assert!(began.elapsed() < LIMIT, "{jobs:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    place.fine(&["sample", "tiny"]);
    let saved = place.folder.path().join("runs/tiny/checkpoints");
    let sampled = place.folder.path().join("runs/tiny/samples.txt");
    let has_both = |_: &[Value]| {
        let steps = fs::read_dir(&saved).into_iter().flatten().flatten();
        steps
            .into_iter()
            .any(|step| step.file_name().to_string_lossy().starts_with("step-"))
            && sampled.exists()
    };
    place.wait("checkpoint and samples", has_both);
    assert_eq!(place.job(1)["state"], "running");
}

#[test]
fn a_run_outlives_who_started_it_and_is_found_again() {
    let place = Place::new();
    place.fine(&["add", "config.yaml", "--set", "train.max_steps=1000000"]);
    place.wait("run", |jobs| {
        jobs[0]["state"] == "running" && jobs[0]["process"].is_object()
    });
    let process = place.job(1)["process"].clone();
    let pid = process["pid"].as_u64().unwrap();
    // The process that works is its parent, and the first of its session.
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = status.rsplit_once(") ").unwrap().1.split(' ').collect();
    let (parent, session) = (fields[1].to_owned(), fields[3].to_owned());
    assert_eq!(parent, session);
    assert!(
        Command::new("kill")
            .args(["-9", &parent])
            .status()
            .unwrap()
            .success()
    );
    let is_alone = |_: &[Value]| place.fine(&["queue"])["working"] == false;
    place.wait("end of the worker", is_alone);
    assert_eq!(place.job(1)["process"], process);
    place.wait("folder", |_| place.runs(&["show", "tiny"]).status.success());
    // Another takes over, does not start it again, and sees its end.
    place.fine(&["queue", "start"]);
    place.wait("worker", |_| place.fine(&["queue"])["working"] == true);
    assert_eq!(place.job(1)["process"], process);
    place.fine(&["queue", "stop", "1"]);
    place.wait("end", are_over);
    assert_eq!(
        (&place.job(1)["how"], &place.job(1)["attempts"]),
        (&"stopped".into(), &1.into())
    );
    assert_eq!(place.fine(&["list"]).as_array().unwrap().len(), 1);
}
