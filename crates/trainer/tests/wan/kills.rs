//! Processes that are killed while they encode or train, at any moment.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use super::child_process;
use super::experts::{self, BOTH};
use super::place::{Place, plain, weights};

/// What [`the_process_that_is_killed`] is to do.
const TASK: &str = "SUREFOOT_TEST_TASK";

/// Started by the others here, as a process of its own.
#[test]
#[ignore = "the process that other tests start and kill"]
fn the_process_that_is_killed() {
    if let Some(done) = child_process::run_if_asked(TASK) {
        done.unwrap();
    }
}

fn start(place: &Place, what: &str, overrides: &[&str]) -> Child {
    let task = child_process::write(place, what, overrides);
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "wan::kills::the_process_that_is_killed",
            "--ignored",
        ])
        .env(TASK, task)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Fractions from 0 to 1 that differ from run to run.
struct Moments(u64);

impl Moments {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(now.unwrap().as_nanos() as u64)
    }

    fn next(&mut self) -> f64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
}

/// All files below `folder` but drafts, with what is in them.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for part in ["latents", "texts"] {
        for entry in fs::read_dir(folder.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if !path.to_string_lossy().contains(".tmp-") {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Kills `child` after `moment`, unless it ends earlier; says how long it took, if it did.
fn kill_after(mut child: Child, moment: Duration) -> Option<Duration> {
    let began = Instant::now();
    while began.elapsed() < moment {
        if child.try_wait().unwrap().is_some() {
            return Some(began.elapsed());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap().success().then(|| began.elapsed())
}

#[test]
fn a_cache_is_whole_however_often_its_maker_was_killed() {
    let place = Place::new();
    for index in 0..24u8 {
        plain(index * 7)
            .save(place.path(&format!("media/m{index}.png")))
            .unwrap();
        let caption = format!("a cat run{}", "s".repeat(usize::from(index % 9)));
        fs::write(place.path(&format!("media/m{index}.txt")), caption).unwrap();
    }
    let began = Instant::now();
    let whole = format!("data.cache_dir={}", place.path("whole").display());
    assert!(start(&place, "encode", &[&whole]).wait().unwrap().success());
    let mut length = began.elapsed();
    let mut moments = Moments::new();
    let mut killed = 0;
    while killed < 10 {
        let moment = length.mul_f64(0.2 + 0.6 * moments.next());
        match kill_after(start(&place, "encode", &[]), moment) {
            None => killed += 1,
            Some(whole) => {
                // The machine is faster than it was, or nothing was left to encode: anew, by the time of now.
                length = length.min(whole);
                fs::remove_dir_all(place.path("cache")).unwrap();
            }
        }
    }
    assert!(start(&place, "encode", &[]).wait().unwrap().success());
    let (found, expected) = (files(&place.path("cache")), files(&place.path("whole")));
    assert!(
        found == expected,
        "{:?} and {:?}",
        found.keys(),
        expected.keys()
    );
    assert_eq!(place.encoded(&[]), (0, 0));
}

#[test]
fn a_run_of_both_experts_ends_alike_however_often_it_was_killed() {
    let place = experts::place();
    let steady = ["train.save_steps=1", "train.max_steps=6"];
    let overrides = [&BOTH[..], &steady].concat();
    let began = Instant::now();
    let whole = [&overrides[..], &["name=whole"]].concat();
    assert!(start(&place, "train", &whole).wait().unwrap().success());
    let mut length = began.elapsed();
    let checkpoints = place.path("runs/clips/checkpoints");
    let has_checkpoint = || {
        let entries = fs::read_dir(&checkpoints).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
            .count()
            > 0
    };
    let mut moments = Moments::new();
    let mut killed = 0;
    for _ in 0..10 {
        let resume: &[&str] = match has_checkpoint() {
            true => &["train.resume_from_checkpoint=latest"],
            // Killed before it had saved anything, a run begins anew.
            false => &[],
        };
        if !has_checkpoint() {
            let _ = fs::remove_dir_all(place.path("runs/clips"));
        }
        let child = start(&place, "train", &[&overrides[..], resume].concat());
        let moment = length.mul_f64(1.1 * moments.next());
        match kill_after(child, moment.max(Duration::from_millis(50))) {
            None => killed += 1,
            Some(rest) => length = length.min(rest).max(Duration::from_millis(100)),
        }
    }
    assert!(killed > 0, "every process ended before it was killed");
    let resume: &[&str] = match has_checkpoint() {
        true => &["train.resume_from_checkpoint=latest"],
        false => &[],
    };
    let last = start(&place, "train", &[&overrides[..], resume].concat()).wait();
    assert!(last.unwrap().success());
    let [expected, found] = ["whole", "clips"].map(|run| place.path("runs").join(run));
    assert!(weights(&found) == weights(&expected), "the weights differ");
    for expert in ["high_noise", "low_noise"] {
        let read = |run: &Path, name: &str| {
            fs::read(run.join(format!("adapter/{name}_{expert}.safetensors")))
                .unwrap()
                .len()
        };
        assert_eq!(read(&found, "clips"), read(&expected, "whole"));
    }
    let rows = fs::read_to_string(found.join("metrics.jsonl")).unwrap();
    let steps: Vec<u64> = rows
        .lines()
        .map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap())
        .filter(|row| row.get("loss").is_some())
        .map(|row| row["step"].as_u64().unwrap())
        .collect();
    assert_eq!(
        steps,
        [1, 2, 3, 4, 5, 6],
        "no row is lost, none written twice"
    );
}
