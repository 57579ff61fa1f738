//! Runs as their folders tell them.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn runs(&self) -> Runs {
        Runs::new(self.folder.path())
    }

    fn run(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(
            path.join("config.yaml"),
            "name: x\ntrain:\n  max_steps: 800\n",
        )
        .unwrap();
        for (file, text) in files {
            fs::write(path.join(file), text).unwrap();
        }
        path
    }

    fn status(&self, name: &str) -> Status {
        self.runs().overview(&name.parse().unwrap()).unwrap().status
    }
}

fn facts(ending: &str, error: &str) -> String {
    format!(
        "{{\"ending\": \"{ending}\", \"error\": {error}, \"kind\": \"language\", \"device\": \"cpu\", \
         \"expected_memory\": {{\"peak\": 7}}, \"commands\": []}}"
    )
}

#[test]
fn the_facts_of_a_run_tell_how_it_ended() {
    let place = Place::new();
    for (name, ending, error) in [
        ("a", "completed", "null"),
        ("b", "stopped", "null"),
        ("c", "failed", "\"out of memory <b>\""),
        ("d", "running", "null"),
        ("e", "nonsense", "null"),
    ] {
        place.run(name, &[("run.json", &facts(ending, error))]);
    }
    place.run("f", &[("run.json", "{\"ending\": \"comp")]);
    place.run("g", &[("summary.json", "{\"ending\": \"completed\"}")]);
    assert_eq!(place.status("a"), Status::Completed);
    assert_eq!(place.status("b"), Status::Stopped);
    let error = Some("out of memory <b>".to_owned());
    assert_eq!(place.status("c"), Status::Failed { error });
    for name in ["d", "e", "f"] {
        assert_eq!(place.status(name), Status::Interrupted, "{name}");
    }
    assert_eq!(place.status("g"), Status::Completed);
    let detail = place.runs().detail(&"a".parse().unwrap()).unwrap();
    assert_eq!(detail.facts.unwrap().expected_memory["peak"], 7);
    assert_eq!(detail.overview.max_steps, Some(800));
}

#[test]
fn folders_that_are_not_runs_are_not_listed() {
    let place = Place::new();
    assert!(
        Runs::new(place.folder.path().join("missing"))
            .list()
            .unwrap()
            .is_empty()
    );
    place.run("a", &[]);
    place.run(".hidden", &[]);
    fs::create_dir(place.folder.path().join("empty")).unwrap();
    fs::write(place.folder.path().join("file"), "").unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("config.yaml"), "name: x\n").unwrap();
    symlink(outside.path(), place.folder.path().join("link")).unwrap();
    let names: Vec<String> = place
        .runs()
        .list()
        .unwrap()
        .iter()
        .map(|run| run.name.to_string())
        .collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn a_run_that_is_removed_while_it_is_read_is_not_found() {
    let place = Place::new();
    let path = place.run("a", &[("metrics.jsonl", "")]);
    let name: RunName = "a".parse().unwrap();
    let runs = place.runs();
    let mut file = runs.metrics_file(&name).unwrap().unwrap();
    fs::remove_dir_all(path).unwrap();
    assert!(Metrics::new(Range::default()).update(&mut file).is_ok());
    assert!(matches!(
        runs.metrics_file(&name),
        Err(Error::NotFound { .. })
    ));
    assert!(matches!(runs.detail(&name), Err(Error::NotFound { .. })));
    assert!(matches!(
        runs.stop(&name, false),
        Err(Error::NotFound { .. })
    ));
}

#[test]
fn only_the_given_run_is_removed() {
    let place = Place::new();
    place.run("a", &[]);
    place.run("b", &[]);
    place.runs().remove(&"a".parse().unwrap()).unwrap();
    let left: Vec<_> = fs::read_dir(place.folder.path())
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].file_name(), "b");
}

#[test]
fn a_run_in_use_is_not_removed() {
    let place = Place::new();
    let path = place.run("a", &[]);
    let folder = File::open(&path).unwrap();
    folder.try_lock().unwrap();
    let refused = place.runs().remove(&"a".parse().unwrap());
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert!(path.exists());
}

#[test]
fn differing_keys_are_listed_with_their_values() {
    let place = Place::new();
    place.run(
        "a",
        &[("config.yaml", "train:\n  lr: 1\n  same: 2\nlist: [1, 2]\n")],
    );
    place.run(
        "b",
        &[(
            "config.yaml",
            "train:\n  lr: 3\n  same: 2\nlist: [1]\nmore: x\n",
        )],
    );
    place.run("c", &[("config.yaml", "train: [\n")]);
    let names = ["a", "b"].map(|name| name.parse().unwrap());
    let comparison = compare(&place.runs(), &names).unwrap();
    let found: Vec<_> = comparison
        .differences
        .iter()
        .map(|difference| (&*difference.key, difference.values.clone()))
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        found,
        [
            ("list", vec![some("[1,2]"), some("[1]")]),
            ("more", vec![None, some("\"x\"")]),
            ("train.lr", vec![some("1"), some("3")]),
        ]
    );
    let broken = compare(&place.runs(), &["c".parse().unwrap()]).unwrap();
    assert_eq!(broken.unreadable.len(), 1);
}

#[test]
fn the_steps_of_a_run_in_epochs_are_read_from_the_config_s_comment() {
    let text = "# max_steps: 9 (3 epochs)\n# In force from step 4 on.\nname: x\ntrain:\n  max_steps: null\n";
    assert_eq!(super::max_steps(text), Some(9));
    assert_eq!(super::max_steps("name: x\n# max_steps: 9\n"), None);
}
