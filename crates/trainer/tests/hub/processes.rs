//! Processes that share one cache: two of ours, one that is killed, and Python's.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use surefoot_trainer::hub::{ModelKind, fetch_named};

use super::server::{COMMIT, Fault, Hub};
use super::{FILES, Place, WEIGHTS, is_download};

const ENDPOINT: &str = "SUREFOOT_TEST_HUB";
const FOLDER: &str = "SUREFOOT_TEST_FOLDER";
/// A Python that has `huggingface_hub`.
const PYTHON: &str = "SUREFOOT_HUB_PYTHON";

#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn a_process_that_fetches() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let endpoint = std::env::var(ENDPOINT).unwrap();
    let settings = super::settings(&endpoint, Path::new(&folder));
    let mut report = |text: &str| println!("{text}");
    let path = fetch_named("org/tiny", ModelKind::Text, &settings, &mut report).unwrap();
    println!("fetched {}", path.display());
}

/// A process that fetches into the cache of a place, and what it prints.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(place: &Place) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture"])
            .arg("hub::processes::a_process_that_fetches")
            .env(FOLDER, place.folder.path())
            .env(ENDPOINT, &place.settings.endpoint)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on until `there`, which is asked after each line.
    fn until(&mut self, mut there: impl FnMut(&str) -> bool) {
        let mut seen = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if there(&line) {
                return;
            }
            seen.push(line);
        }
        panic!("it has ended: {seen:?}");
    }

    fn ends_well(mut self) {
        self.until(|line| line.starts_with("fetched "));
        for line in self.lines {
            line.unwrap();
        }
        assert!(self.child.wait().unwrap().success());
    }
}

/// The bytes of the weights in the cache of a place, and that nothing is left there that is not whole.
fn assert_whole(place: &Place) {
    let path = place.model().join("snapshots").join(COMMIT);
    for (name, bytes) in FILES {
        if ["modeling_tiny.py", "pytorch_model.bin"].contains(&name) {
            continue;
        }
        assert!(fs::read(path.join(name)).unwrap() == bytes, "{name}");
    }
    let files = place.files();
    let unfinished = files.iter().filter(|name| name.contains("incomplete"));
    assert_eq!(unfinished.count(), 0, "{files:?}");
    let main = fs::read_to_string(place.model().join("refs/main")).unwrap();
    assert_eq!(main, COMMIT);
}

#[test]
fn two_processes_bring_a_model_once_and_both_have_it() {
    let hub = Hub::working(&FILES);
    let place = Place::new(&hub);
    let both = [(); 2].map(|()| Process::start(&place));
    for process in both {
        process.ends_well();
    }
    assert_whole(&place);
    let downloads = hub.seen().iter().filter(|one| is_download(one)).count();
    assert_eq!(downloads, 1);
}

#[test]
fn one_that_is_killed_holds_nobody_up_and_another_goes_on_with_what_it_had() {
    // The first to ask gets a part, and then nothing more.
    let fault: Fault = Box::new(|request, before, mut answer| {
        if is_download(request) && before == 0 {
            answer.cut = Some(70_000);
            answer.held = true;
        }
        answer
    });
    let hub = Hub::serving(&FILES, fault);
    let place = Place::new(&hub);
    let blobs = place.model().join("blobs");
    let has_come = || {
        let entries = fs::read_dir(&blobs).into_iter().flatten().flatten();
        let lengths = entries
            .filter(|entry| entry.file_name().to_string_lossy().contains("incomplete"))
            .map(|entry| entry.metadata().map_or(0, |file| file.len()));
        lengths.sum::<u64>()
    };
    let mut first = Process::start(&place);
    first.until(|_| has_come() == 70_000);
    let mut second = Process::start(&place);
    // Beyond what the first has let go of: the next is the file that is being fetched.
    second.until(|line| line.starts_with("asking "));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    second.ends_well();
    assert_whole(&place);
    let seen = hub.seen();
    let downloads = seen.iter().filter(|one| is_download(one));
    let ranges: Vec<_> = downloads.map(|one| one.headers.get("range")).collect();
    assert_eq!(ranges, [None, Some(&"bytes=70000-".to_owned())]);
}

/// `cargo xtask test --heavy` names a Python.
#[test]
#[ignore = "needs a Python with huggingface_hub, which SUREFOOT_HUB_PYTHON names"]
fn pythons_hub_and_this_one_have_one_cache() {
    let python = std::env::var_os(PYTHON).unwrap();
    let hub = Hub::working(&FILES);
    let fetched_by_python = |place: &Place, offline: &str| {
        let script = "import os, sys, huggingface_hub as hub\n\
                      paths = [hub.hf_hub_download('org/tiny', name) for name in sys.argv[1:]]\n\
                      print(os.path.dirname(paths[0]))";
        let files = FILES.map(|(name, _)| name);
        let output = Command::new(&python)
            .args(["-c", script])
            .args(
                files
                    .iter()
                    .filter(|name| name.contains("token") || name.contains(".s")),
            )
            .arg("config.json")
            .env("HF_ENDPOINT", &hub.address)
            .env("HF_HUB_CACHE", &place.settings.cache)
            .env("HF_HUB_DISABLE_XET", "1")
            .env("HF_HUB_OFFLINE", offline)
            .env_remove("HF_TOKEN")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let downloads = || {
        let seen = hub.seen();
        let gets = seen.iter().filter(|one| one.method == "GET");
        gets.filter(|one| !one.path.starts_with("/api/")).count()
    };
    // What Python made is whole here, without a byte from the hub.
    let place = Place::new(&hub);
    let path = fetched_by_python(&place, "0");
    let before = downloads();
    assert_eq!(place.fetch("org/tiny").unwrap(), Path::new(&path));
    assert_eq!(downloads(), before);
    assert!(fs::read(Path::new(&path).join("model.safetensors")).unwrap() == WEIGHTS);
    // And what was made here is whole for Python, which is not allowed to ask.
    let place = Place::new(&hub);
    let path = place.fetch("org/tiny").unwrap();
    assert_eq!(Path::new(&fetched_by_python(&place, "1")), path);
}
