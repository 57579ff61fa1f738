//! A disk that takes no more: files of more than so many bytes cannot be written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child_process;
use super::place::{Place, weights};

/// What [`the_process_without_room`] is to do.
const TASK: &str = "SUREFOOT_TEST_WITHOUT_ROOM";
/// What a refusal is written after.
const REFUSED: &str = "refused: ";

/// Started by the others here, as a process of its own.
#[test]
#[ignore = "the process that other tests start with a limit"]
fn the_process_without_room() {
    if let Some(Err(error)) = child_process::run_if_asked(TASK) {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let text: Vec<String> = causes.map(ToString::to_string).collect();
        println!("{REFUSED}{}", text.join(": "));
    }
}

/// What a process is refused with in which no file gets longer than `bytes`.
fn refused(place: &Place, what: &str, overrides: &[&str], bytes: u64) -> String {
    let task = child_process::write(place, what, overrides);
    // Writes beyond the limit fail as those to a full disk do, where the signal is ignored.
    let script = "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh", &(bytes / 512).to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "wan::full_disk::the_process_without_room"])
        .args(["--ignored", "--nocapture"])
        .env(TASK, task)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let refusal = text.split_once(REFUSED);
    let (_, refusal) = refusal.unwrap_or_else(|| panic!("{output:?}"));
    refusal.lines().next().unwrap().to_owned()
}

/// All files below `folder`, with what is in them.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(found.insert(path.clone(), fs::read(&path).unwrap())),
            }
        }
    }
    found
}

#[test]
fn what_is_encoded_stays_where_the_disk_is_full() {
    let place = Place::new();
    place.encoded(&[]);
    for part in ["latents", "texts"] {
        let folder = place.path("cache").join(part);
        let whole = files(&folder);
        let (missing, _) = whole.first_key_value().unwrap();
        fs::remove_file(missing).unwrap();
        let error = refused(&place, "encode", &[], 0);
        let name = missing.file_stem().unwrap().to_string_lossy();
        assert!(error.contains(&*name), "{error}");
        assert!(error.contains("File too large"), "{error}");
        // No part of it is left, and the others are as they were.
        let kept = files(&folder);
        assert_eq!(kept.len(), whole.len() - 1);
        assert!(kept.iter().all(|(path, bytes)| whole[path] == *bytes));
        let (clips, texts) = place.encoded(&[]);
        assert_eq!(clips + texts, 1);
        assert!(files(&folder) == whole);
    }
}

#[test]
fn a_run_goes_on_from_the_checkpoint_before_the_disk_was_full() {
    let place = Place::new();
    // So much is learned that the optimizer's file is the largest of all.
    let large = "adapter={r: 256, lora_alpha: 256}";
    place.run(&["name=whole", large]).unwrap();
    let parts = ["name=parts", large, "train.max_steps=4"];
    place
        .run(&["name=parts", large, "train.max_steps=2"])
        .unwrap();
    let run = place.path("runs/parts");
    let checkpoint = run.join("checkpoints/step-000002");
    let before = files(&checkpoint);
    let mut sizes: Vec<(usize, PathBuf)> = files(&run)
        .into_iter()
        .map(|(path, bytes)| (bytes.len(), path))
        .collect();
    sizes.sort();
    let (next, largest) = (&sizes[sizes.len() - 2], &sizes[sizes.len() - 1]);
    assert_eq!(largest.1, checkpoint.join("optimizer.safetensors"));
    assert!(largest.0 > next.0 + 16_384, "{largest:?} and {next:?}");
    let resume = "train.resume_from_checkpoint=latest";
    let overrides = [&parts[..], &[resume]].concat();
    let error = refused(&place, "train", &overrides, largest.0 as u64 - 4096);
    assert!(error.contains("optimizer.safetensors"), "{error}");
    assert!(error.contains("File too large"), "{error}");
    assert!(files(&checkpoint) == before);
    let names = fs::read_dir(run.join("checkpoints")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["step-000002"], "no part of another is left");
    place.run(&["name=parts", large, resume]).unwrap();
    assert!(weights(&place.path("runs/whole")) == weights(&run));
}
