//! Splits of data sets.

use std::fs;
use std::path::PathBuf;

use surefoot_trainer::Error;
use surefoot_trainer::hub::{fetch_data_set, is_data_set};

use super::Place;
use super::server::{COMMIT, Hub};

const CARD: &str = "---\nconfigs:\n- config_name: chat\n  default: true\n  data_files:\n  \
    - {split: train, path: [chat/b.jsonl, chat/a.jsonl]}\n  - {split: test, path: chat/t.jsonl}\n\
    - config_name: plain\n  data_files: plain/*.txt\n---\n# Texts\n";
const FILES: [(&str, &[u8]); 7] = [
    ("README.md", CARD.as_bytes()),
    ("chat/a.jsonl", b"{\"text\": \"a\"}\n"),
    ("chat/b.jsonl", b"{\"text\": \"b\"}\n"),
    ("chat/t.jsonl", b"{\"text\": \"t\"}\n"),
    ("load.py", b"import os"),
    ("plain/1.txt", b"one"),
    ("plain/2.txt", b"two"),
];

fn fetch(place: &Place, subset: Option<&str>, split: &str) -> Result<PathBuf, Error> {
    fetch_data_set("org/tiny", subset, split, &place.settings, &mut |_| ())
}

/// What is read of a folder, in its order.
fn texts(folder: &PathBuf) -> Vec<String> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| fs::read_to_string(file).unwrap().trim().to_owned())
        .collect()
}

#[test]
fn a_split_is_a_folder_of_its_files_in_the_order_of_the_card() {
    let hub = Hub::working(&FILES);
    let place = Place::new(&hub);
    let train = fetch(&place, None, "train").unwrap();
    assert_eq!(texts(&train), ["{\"text\": \"b\"}", "{\"text\": \"a\"}"]);
    let snapshot = place
        .settings
        .cache
        .join("datasets--org--tiny/snapshots")
        .join(COMMIT);
    assert!(snapshot.join("chat/a.jsonl").is_file());
    for never in ["chat/t.jsonl", "load.py", "plain/1.txt"] {
        assert!(!snapshot.join(never).exists(), "{never}");
    }
    let test = fetch(&place, Some("chat"), "test").unwrap();
    assert_eq!(texts(&test), ["{\"text\": \"t\"}"]);
    let both = fetch(&place, None, "test+train").unwrap();
    assert_eq!(texts(&both).len(), 3);
    let plain = fetch(&place, Some("plain"), "train").unwrap();
    assert_eq!(texts(&plain), ["one", "two"]);
    assert_eq!(hub.downloads("chat/a.jsonl"), 1);
}

#[test]
fn a_split_that_was_fetched_needs_no_hub() {
    let hub = Hub::working(&FILES);
    let mut place = Place::new(&hub);
    let train = fetch(&place, None, "train").unwrap();
    place.settings.offline = true;
    let asked = hub.seen().len();
    assert_eq!(fetch(&place, None, "train").unwrap(), train);
    assert_eq!(hub.seen().len(), asked);
    let error = fetch(&place, None, "test").unwrap_err().to_string();
    assert!(
        error.contains("HF_HUB_OFFLINE") && error.contains("--dry-run"),
        "{error}"
    );
    // And a cache that another program filled.
    fs::remove_dir_all(&place.settings.splits).unwrap();
    assert_eq!(texts(&fetch(&place, None, "train").unwrap()).len(), 2);
    // What was taken out of the cache is not used.
    let blobs = place.settings.cache.join("datasets--org--tiny/blobs");
    for blob in fs::read_dir(blobs).unwrap().flatten() {
        fs::remove_file(blob.path()).unwrap();
    }
    fetch(&place, None, "train").unwrap_err();
    place.settings.offline = false;
    assert_eq!(texts(&fetch(&place, None, "train").unwrap()).len(), 2);
}

#[test]
fn a_cache_with_some_of_the_shards_is_not_whole() {
    let shard = |number: usize| format!("data/train-0000{number}-of-00002.csv");
    let names = [shard(0), shard(1)];
    let hub = Hub::working(&[(&names[0], b"text\na\n"), (&names[1], b"text\nb\n")]);
    let mut place = Place::new(&hub);
    fetch(&place, None, "train").unwrap();
    fs::remove_dir_all(&place.settings.splits).unwrap();
    let snapshot = place
        .settings
        .cache
        .join("datasets--org--tiny/snapshots")
        .join(COMMIT);
    fs::remove_file(snapshot.join(&names[1])).unwrap();
    place.settings.offline = true;
    let error = fetch(&place, None, "train").unwrap_err().to_string();
    assert!(
        error.contains("some of the files `data/train-…` are missing"),
        "{error}"
    );
}

#[test]
fn what_a_data_set_lacks_is_named() {
    let hub = Hub::working(&FILES);
    let place = Place::new(&hub);
    for (subset, split, said) in [
        (
            None,
            "validation",
            "`org/tiny` has no split `validation`: it has train, test",
        ),
        (
            Some("code"),
            "train",
            "`org/tiny` has no subset `code`: set `data.subset` to one of chat, plain",
        ),
    ] {
        let error = fetch(&place, subset, split).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let gone = fetch_data_set("org/gone", None, "train", &place.settings, &mut |_| ());
    let error = gone.unwrap_err().to_string();
    assert!(error.contains("no data set `org/gone`"), "{error}");
}

#[test]
fn a_path_is_no_data_set() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!is_data_set(folder.path()));
    assert!(!is_data_set("texts/a.jsonl".as_ref()));
    assert!(is_data_set("org/texts@v1".as_ref()));
}
