//! Two processes share out what is measured and shown.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use surefoot_trainer::{Allocator, NoObserver, Stop};
use torch_ext::distributed::Store;

use super::experts;
use super::place::{config, scheduled};
use super::previews::{PREVIEWS, records};

const FOLDER: &str = "SUREFOOT_TEST_FOLDER";
const OVERRIDES: &str = "SUREFOOT_TEST_OVERRIDES";

#[test]
#[ignore = "started by the other test, as a process of its own"]
fn one_rank() {
    let root = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let overrides = std::env::var(OVERRIDES).unwrap();
    let overrides: Vec<&str> = overrides.lines().collect();
    let config = config(&root, &overrides);
    let stop = Stop::default();
    surefoot_trainer::run(&config, &Allocator::torch(), &mut NoObserver, &stop).unwrap();
}

fn two_ranks(root: &Path, overrides: &[&str]) {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let ranks = [0, 1].map(|rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "wan::ranks::one_rank",
                "--nocapture",
            ])
            .env(FOLDER, root)
            .env(OVERRIDES, overrides.join("\n"))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", store.port().to_string())
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}

/// The first evaluation, before anything is learned.
fn first_evaluation(run: &Path) -> Value {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut evaluations = lines.filter(|record: &Value| record["kind"] == "eval");
    evaluations.next().unwrap()
}

#[test]
fn two_ranks_measure_and_show_what_one_does() {
    let place = scheduled(experts::place());
    let overrides = [
        &experts::BOTH[..],
        &PREVIEWS[..],
        &["data.validation_fraction=0.4"],
    ]
    .concat();
    let alone = place.run(&[&overrides[..], &["name=one"]].concat());
    // One for each rank, at least.
    assert!(alone.unwrap().held_out.unwrap().samples > 1);
    two_ranks(&place.path(""), &[&overrides[..], &["name=two"]].concat());
    let (one, two) = (place.path("runs/one"), place.path("runs/two"));
    assert!(!place.path("runs/two-2").exists());

    let (alone, shared) = (first_evaluation(&one), first_evaluation(&two));
    let numbers = |record: &Value| {
        let turns = &record["turns"];
        [
            &record["eval_loss"],
            &turns["high_noise"],
            &turns["low_noise"],
        ]
        .map(|number| number.as_f64().unwrap())
    };
    for (one, other) in numbers(&alone).into_iter().zip(numbers(&shared)) {
        assert!((one - other).abs() < 1e-9 * one, "{alone} and {shared}");
    }

    // Of two previews, the second is made by the second rank.
    let (alone, shared) = (records(&one), records(&two));
    assert_eq!(alone, shared);
    let (step, samples) = &shared[0];
    assert_eq!(*step, 0);
    assert_eq!(samples.len(), 2);
    for file in samples.iter().flat_map(|(_, files)| files) {
        let read = |run: &Path| std::fs::read(run.join(file)).unwrap();
        assert!(read(&one) == read(&two), "{file}");
    }
}
