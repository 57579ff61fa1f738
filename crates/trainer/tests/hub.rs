//! Models and data sets by name: what is asked of a hub, what comes into the cache, and what is said when a hub
//! refuses, breaks off, or sends something else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod data_sets;
mod full_disk;
mod processes;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use server::{Answer, COMMIT, Fault, Hub, Request, git_name};
use surefoot_trainer::Error;
use surefoot_trainer::hub::{ModelKind, Settings, fetch_named};

const WEIGHTS: &[u8] = &[7; 300_000];
const FILES: [(&str, &[u8]); 6] = [
    ("config.json", b"{\"model_type\": \"llama\"}"),
    ("model.safetensors", WEIGHTS),
    ("modeling_tiny.py", b"import os"),
    ("pytorch_model.bin", b"pickle"),
    ("tokenizer.json", b"{}"),
    ("tokenizer_config.json", b"{\"a\": 1}"),
];

struct Place {
    folder: tempfile::TempDir,
    settings: Settings,
}

impl Place {
    fn new(hub: &Hub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&hub.address, folder.path());
        Self { folder, settings }
    }

    fn fetch(&self, name: &str) -> Result<PathBuf, Error> {
        fetch_named(name, ModelKind::Text, &self.settings, &mut |_| ())
    }

    fn refusal(&self, name: &str) -> String {
        self.fetch(name).unwrap_err().to_string()
    }

    fn model(&self) -> PathBuf {
        self.settings.cache.join("models--org--tiny")
    }

    /// Every file of the cache.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                match entry.path().is_dir() {
                    true => folders.push(entry.path()),
                    false => found.push(entry.file_name().to_string_lossy().into_owned()),
                }
            }
        }
        found
    }
}

/// A hub at `endpoint`, and a cache in `folder`.
fn settings(endpoint: &str, folder: &Path) -> Settings {
    Settings {
        endpoint: endpoint.to_owned(),
        cache: folder.join("hub"),
        splits: folder.join("splits"),
        token: None,
        offline: false,
        pause: Duration::from_millis(1),
    }
}

fn is_download(request: &Request) -> bool {
    request.method == "GET" && request.path.starts_with("/cdn/")
}

#[test]
fn a_model_comes_into_the_layout_that_others_share_and_is_not_fetched_again() {
    let hub = Hub::working(&FILES);
    let place = Place::new(&hub);
    let mut told = Vec::new();
    let path = fetch_named("org/tiny", ModelKind::Text, &place.settings, &mut |text| {
        told.push(text.to_owned());
    });
    let path = path.unwrap();
    assert_eq!(path, place.model().join("snapshots").join(COMMIT));
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(
        fs::read_to_string(place.model().join("refs/main")).unwrap(),
        COMMIT
    );
    let link = fs::read_link(path.join("config.json")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(git_name(FILES[0].1)));
    let files = place.files().join(" ");
    for never in ["modeling_tiny", "pytorch_model", "incomplete"] {
        assert!(!files.contains(never), "{files}");
    }
    assert!(
        told.iter()
            .any(|line| line.starts_with("downloading org/tiny: ") && line.contains(" of ")),
        "{told:?}"
    );
    let before = hub.seen().len();
    assert_eq!(place.fetch("org/tiny").unwrap(), path);
    assert_eq!(
        hub.seen().len(),
        before + 1,
        "what main is, and nothing else"
    );
    // A commit is what it is.
    assert_eq!(place.fetch(&format!("org/tiny@{COMMIT}")).unwrap(), path);
    assert_eq!(hub.seen().len(), before + 1);
    assert_eq!(place.fetch("org/tiny@refs/pr/1").unwrap(), path);
}

#[test]
fn a_download_that_is_cut_goes_on_where_it_was() {
    let fault: Fault = Box::new(|request, before, mut answer| {
        if is_download(request) && before < 3 {
            answer.cut = Some(70_000);
        }
        answer
    });
    let hub = Hub::serving(&FILES, fault);
    let place = Place::new(&hub);
    let path = place.fetch("org/tiny").unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), WEIGHTS);
    let seen = hub.seen();
    let ranges = seen.iter().filter(|request| is_download(request));
    let ranges: Vec<_> = ranges
        .map(|request| request.headers.get("range").cloned())
        .collect();
    let from = |start: usize| Some(format!("bytes={start}-"));
    assert_eq!(ranges, [None, from(70_000), from(140_000), from(210_000)]);
}

#[test]
fn what_a_process_that_was_killed_left_is_gone_on_from_and_checked() {
    for (left, fits) in [
        (vec![7; 100_000], true),
        (vec![8; 100_000], false),
        (vec![7; 400_000], false),
    ] {
        let hub = Hub::working(&FILES);
        let place = Place::new(&hub);
        let etag = {
            let path = place.fetch("org/tiny").unwrap();
            let link = fs::read_link(path.join("model.safetensors")).unwrap();
            fs::remove_file(path.join("model.safetensors")).unwrap();
            link.file_name().unwrap().to_owned().into_string().unwrap()
        };
        let blobs = place.model().join("blobs");
        fs::remove_file(blobs.join(&etag)).unwrap();
        fs::write(blobs.join(format!("{etag}.surefoot.incomplete")), &left).unwrap();
        let path = place.fetch("org/tiny").unwrap();
        assert_eq!(
            fs::read(path.join("model.safetensors")).unwrap(),
            WEIGHTS,
            "{}",
            left.len()
        );
        let seen = hub.seen();
        let last: Vec<_> = seen
            .iter()
            .filter(|request| is_download(request))
            .skip(1)
            .collect();
        let asked = |request: &&Request| request.headers.contains_key("range");
        match fits {
            true => assert!(last.len() == 1 && asked(&last[0])),
            false => assert!(!asked(last.last().unwrap()), "from the start"),
        }
    }
}

#[test]
fn a_server_that_gives_all_when_asked_for_a_part_is_understood() {
    let fault: Fault = Box::new(|request, before, mut answer| {
        if is_download(request) {
            answer.body = WEIGHTS.to_vec();
            answer.status = 200;
            answer.cut = (before == 0).then_some(1000);
        }
        answer
    });
    let hub = Hub::serving(&FILES, fault);
    let path = Place::new(&hub).fetch("org/tiny");
    // The folder is gone with its place; that it came is enough.
    assert!(path.is_ok());
    assert_eq!(
        hub.seen()
            .iter()
            .filter(|request| is_download(request))
            .count(),
        2
    );
}

#[test]
fn bytes_that_are_not_what_was_said_are_refused_and_not_kept() {
    for wrong in [vec![9; 300_000], vec![7; 300_001], vec![7; 10]] {
        let fault: Fault = Box::new(move |request, _, mut answer| {
            if is_download(request) {
                answer.body.clone_from(&wrong);
                answer.status = 200;
            }
            answer
        });
        let hub = Hub::serving(&FILES, fault);
        let place = Place::new(&hub);
        let told = place.refusal("org/tiny");
        assert!(
            told.contains("size or checksum that differs")
                || told.contains("the transfer ended too early"),
            "{told}"
        );
        let blobs = fs::read_dir(place.model().join("blobs")).unwrap().flatten();
        let names: Vec<_> = blobs
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        assert!(
            names
                .iter()
                .all(|name| name.len() == 40 || name.ends_with("incomplete")),
            "{names:?}"
        );
        assert!(
            !place.model().join("refs/main").exists(),
            "not a whole model"
        );
    }
}

#[test]
fn a_small_file_that_is_damaged_is_noticed_too() {
    let fault: Fault = Box::new(|request, _, mut answer| {
        if request.method == "GET" && request.path.ends_with("/config.json") {
            answer.body = b"{\"model_type\": \"lloma\"}".to_vec();
        }
        answer
    });
    let told = Place::new(&Hub::serving(&FILES, fault)).refusal("org/tiny");
    assert!(
        told.contains("`config.json`") && told.contains("size or checksum that differs"),
        "{told}"
    );
}

#[test]
fn a_file_that_changes_between_question_and_answer_comes_as_it_is_now() {
    // The first HEAD tells of another content.
    let fault: Fault = Box::new(|request, before, answer| {
        match request.method == "HEAD" && request.path.ends_with("model.safetensors") && before == 0
        {
            true => Answer::of(302)
                .with("Location", "/cdn/model.safetensors")
                .with("X-Linked-Etag", &format!("\"{}\"", "ab".repeat(32)))
                .with("X-Linked-Size", "300000"),
            false => answer,
        }
    });
    let hub = Hub::serving(&FILES, fault);
    let place = Place::new(&hub);
    let path = place.fetch("org/tiny").unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), WEIGHTS);
    assert!(!place.files().contains(&"ab".repeat(32)));
}

#[test]
fn what_a_hub_refuses_is_said_with_what_to_do() {
    for (status, code, name, told) in [
        (
            401,
            "RepoNotFound",
            "org/tiny",
            &["there is no model `org/tiny`", "no token was given"][..],
        ),
        (
            404,
            "RepoNotFound",
            "org/tiny",
            &["there is no model `org/tiny`"],
        ),
        (
            403,
            "GatedRepo",
            "org/tiny",
            &[
                "has a licence to accept",
                "/org/tiny in a browser",
                "HF_TOKEN",
            ],
        ),
        (401, "GatedRepo", "org/tiny", &["has a licence to accept"]),
        (
            404,
            "RevisionNotFound",
            "org/tiny@v9",
            &["no branch, tag or commit `v9`"],
        ),
        (418, "", "org/tiny", &["answers 418"]),
    ] {
        let fault: Fault = Box::new(move |_, _, _| Answer::of(status).with("X-Error-Code", code));
        let hub = Hub::serving(&FILES, fault);
        let place = Place::new(&hub);
        let error = place.fetch(name).unwrap_err();
        assert!(error.is_bad_usage());
        for told in told {
            assert!(error.to_string().contains(told), "{status}: {error}");
        }
        assert_eq!(hub.seen().len(), 1, "asked once");
    }
}

#[test]
fn a_hub_that_is_busy_is_asked_again_and_not_for_ever() {
    let busy = |times: usize, status: u16| -> Fault {
        Box::new(
            move |request, before, answer| match before < times && !is_download(request) {
                true => Answer::of(status).with("Retry-After", "0"),
                false => answer,
            },
        )
    };
    for status in [429, 503] {
        assert!(
            Place::new(&Hub::serving(&FILES, busy(2, status)))
                .fetch("org/tiny")
                .is_ok()
        );
        let hub = Hub::serving(&FILES, busy(usize::MAX, status));
        let place = Place::new(&hub);
        let error = place.fetch("org/tiny").unwrap_err();
        assert!(!error.is_bad_usage());
        assert!(
            error.to_string().contains(&format!("answers {status}")),
            "{error}"
        );
        assert_eq!(hub.seen().len(), 6);
    }
    let patient: Fault = Box::new(|_, _, _| Answer::of(429).with("Retry-After", "86400"));
    let told = Place::new(&Hub::serving(&FILES, patient)).refusal("org/tiny");
    assert!(told.contains("asks to wait for 86400 s"), "{told}");
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let elsewhere = Hub::working(&FILES);
    let cdn = elsewhere.address.clone();
    // The same machine by another name is another host.
    let fault: Fault = Box::new(move |request, _, mut answer| {
        if request
            .path
            .ends_with("/resolve/0123456789abcdef0123456789abcdef01234567/model.safetensors")
        {
            answer.headers.retain(|(name, _)| name != "Location");
            return answer.with("Location", &format!("{cdn}/cdn/model.safetensors"));
        }
        answer
    });
    let hub = Hub::serving(&FILES, fault);
    let mut place = Place::new(&hub);
    place.settings.token = Some("hf_secret".into());
    place.fetch("org/tiny").unwrap();
    let asked = |request: &Request| request.headers.get("authorization").cloned();
    let bearer = Some("Bearer hf_secret".to_owned());
    assert!(hub.seen().iter().all(|request| asked(request) == bearer));
    let seen = elsewhere.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(asked(&seen[0]), None);
}

#[test]
fn redirects_of_the_hub_itself_are_followed_but_not_for_ever() {
    // A model that was renamed.
    let renamed: Fault = Box::new(|request, _, answer| {
        match request.path.strip_prefix("/api/models/org/tiny/") {
            Some(rest) if !rest.ends_with("?new") => {
                Answer::of(307).with("Location", &format!("/api/models/org/tiny/{rest}?new"))
            }
            Some(rest) => Answer {
                headers: Vec::new(),
                status: 200,
                body: format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{{\"rfilename\": \"config.json\"}}, {{\"rfilename\": \"tokenizer.json\"}}, {{\"rfilename\": \"model.safetensors\"}}], \"x\": {}}}", rest.len())
                    .into_bytes(),
                cut: None,
                held: false,
            },
            None => answer,
        }
    });
    assert!(
        Place::new(&Hub::serving(&FILES, renamed))
            .fetch("org/tiny")
            .is_ok()
    );
    let around: Fault = Box::new(|request, _, _| Answer::of(302).with("Location", &request.path));
    let told = Place::new(&Hub::serving(&FILES, around)).refusal("org/tiny");
    assert!(told.contains("redirects too often"), "{told}");
}

#[test]
fn without_a_hub_the_cache_does_and_offline_nobody_is_asked() {
    let hub = Hub::working(&FILES);
    let mut place = Place::new(&hub);
    place.settings.offline = true;
    let told = place.refusal("org/tiny");
    assert!(
        told.contains("is not in the cache") && told.contains("hf download org/tiny"),
        "{told}"
    );
    assert!(hub.seen().is_empty());
    place.settings.offline = false;
    let path = place.fetch("org/tiny").unwrap();
    let asked = hub.seen().len();
    place.settings.offline = true;
    assert_eq!(place.fetch("org/tiny").unwrap(), path);
    assert!(place.refusal("org/tiny@v2").contains("--revision v2"));
    assert_eq!(hub.seen().len(), asked);
    // Nobody listens there.
    place.settings.offline = false;
    place.settings.endpoint = "http://127.0.0.1:1".into();
    assert_eq!(place.fetch("org/tiny").unwrap(), path);
    fs::remove_file(path.join("model.safetensors")).unwrap();
    let told = place.refusal("org/tiny");
    assert!(
        told.contains("cannot be fetched") && told.contains("the next try resumes"),
        "{told}"
    );
    place.settings.offline = true;
    assert!(
        place
            .refusal("org/tiny")
            .contains("is incomplete in the cache")
    );
}

#[test]
fn a_cache_that_pythons_hub_made_is_used_and_added_to() {
    let hub = Hub::working(&FILES);
    let place = Place::new(&hub);
    // As `hf_hub_download("org/tiny", "config.json")` leaves it.
    let model = place.model();
    let snapshot = model.join("snapshots").join(COMMIT);
    for folder in ["blobs", "refs"] {
        fs::create_dir_all(model.join(folder)).unwrap();
    }
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    let etag = git_name(FILES[0].1);
    fs::write(model.join("blobs").join(&etag), FILES[0].1).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{etag}"), snapshot.join("config.json"))
        .unwrap();
    // And a content that a link is missing for.
    let other = git_name(FILES[4].1);
    fs::write(model.join("blobs").join(&other), FILES[4].1).unwrap();
    assert_eq!(place.fetch("org/tiny").unwrap(), snapshot);
    assert_eq!(
        (
            hub.downloads("/config.json"),
            hub.downloads("/tokenizer.json")
        ),
        (0, 0)
    );
    assert_eq!(hub.downloads("tokenizer_config.json"), 1);
}

#[test]
fn two_that_want_the_same_model_bring_it_once() {
    let hub = Hub::working(&FILES);
    let place = Place::new(&hub);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| place.fetch("org/tiny").unwrap());
        }
    });
    for file in ["/config.json", "/tokenizer.json"] {
        assert_eq!(hub.downloads(file), 1, "{file}");
    }
    assert_eq!(
        hub.seen()
            .iter()
            .filter(|request| is_download(request))
            .count(),
        1
    );
}

#[test]
fn what_cannot_be_written_is_said_with_its_place() {
    let hub = Hub::working(&FILES);
    let mut place = Place::new(&hub);
    let file = place.folder.path().join("file");
    fs::write(&file, "").unwrap();
    place.settings.cache = file.join("hub");
    let told = place.refusal("org/tiny");
    assert!(told.contains("cannot create"), "{told}");
}
