//! What comes of requests for data, samples and answers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::tests::{Place, json as body_of};

/// A path of the table with something in its places.
pub(super) fn actual(path: &str) -> String {
    let mut path = path.replace("{name}", "a");
    for place in ["{job}", "{set}", "{medium}", "{step}", "{sample}", "{file}"] {
        path = path.replace(place, "1");
    }
    path
}

/// A place whose `surefoot` is a script, which says what the trainer would.
pub(super) fn with_program(script: &str) -> Place {
    let place = Place::new();
    let program = &place.state.launch.program;
    fs::write(program, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    place
}

pub(super) async fn send(
    place: &Place,
    method: &str,
    path: &str,
    body: Value,
) -> (StatusCode, Value) {
    let mut request = place.request(method, path);
    *request.body_mut() = Body::from(body.to_string());
    let response = place.answer(request).await;
    (response.status(), body_of(response).await)
}

/// A folder of pictures that the trainer knows, looked at.
async fn looked_at() -> Place {
    let place = with_program("cat > /dev/null; cat \"$(dirname \"$0\")/answer.json\"\n");
    let base = place.runs.parent().unwrap();
    let data = base.join("data");
    fs::create_dir_all(data.join("frames")).unwrap();
    fs::write(base.join("secret.png"), "secret").unwrap();
    fs::write(data.join("a.png"), "0123456789").unwrap();
    fs::write(data.join("a.txt"), "\u{feff}a cat\n").unwrap();
    fs::write(data.join("frames/1.png"), "first").unwrap();
    symlink("../secret.png", data.join("link.png")).unwrap();
    symlink("../secret.png", data.join("link.txt")).unwrap();
    let media = json!({ "folder": data, "fps": 16.0, "trigger_word": null, "count": 5, "media": [
        { "file": "a.png", "kind": "image", "caption_file": "a.txt", "caption": "a cat" },
        { "file": "link.png", "kind": "image", "caption_file": "link.txt", "caption": "x" },
        { "file": "../secret.png", "kind": "image", "caption_file": "../stolen.txt", "caption": "x" },
        { "file": "/etc/hostname", "kind": "image", "caption_file": null, "caption": "x" },
        { "file": "frames", "kind": "frames", "frame_files": ["frames/1.png"], "caption_file": "frames.txt", "caption": null },
        { "file": "config.png", "kind": "image", "caption_file": "config.yaml", "caption": "name: a" },
    ] });
    fs::write(base.join("answer.json"), media.to_string()).unwrap();
    let (status, said) = send(&place, "POST", "/api/data", json!({ "config": "" })).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    assert_eq!(said["found"]["media"]["set"], 1, "{said}");
    assert_eq!(said["found"]["media"]["editable"], true, "{said}");
    place
}

#[tokio::test]
async fn pictures_are_sent_whole_or_in_part_and_none_from_elsewhere() {
    let place = looked_at().await;
    let response = place.answer(place.request("GET", "/api/data/1/0")).await;
    assert_eq!(response.headers()["content-type"], "image/png");
    assert_eq!(response.headers()["content-length"], "10");
    let bytes = to_bytes(response.into_body(), 100).await.unwrap();
    assert_eq!(&bytes[..], b"0123456789");
    let mut request = place.request("GET", "/api/data/1/0");
    request
        .headers_mut()
        .insert("range", "bytes=2-4".parse().unwrap());
    let response = place.answer(request).await;
    assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(response.headers()["content-range"], "bytes 2-4/10");
    assert_eq!(
        &to_bytes(response.into_body(), 100).await.unwrap()[..],
        b"234"
    );
    let response = place.answer(place.request("GET", "/api/data/1/4")).await;
    assert_eq!(
        &to_bytes(response.into_body(), 100).await.unwrap()[..],
        b"first"
    );
    for path in [
        "/api/data/1/1",
        "/api/data/1/2",
        "/api/data/1/3",
        "/api/data/1/6",
        "/api/data/2/0",
        "/api/data/1/-1",
        "/api/data/1/..%2F..%2Fsecret.png",
        "/api/data/..%2F1/0",
        "/api/data/1/0%00",
    ] {
        let (status, said) = place.get(path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path} {said}");
        assert!(!said.to_string().contains("secret"), "{path}");
    }
}

#[tokio::test]
async fn a_caption_is_changed_unless_it_has_changed_and_only_where_it_belongs() {
    let place = looked_at().await;
    let file = place.runs.with_file_name("data").join("a.txt");
    let put = async |medium: u32, text: &str, before: Value| {
        let body = json!({ "text": text, "before": before });
        send(
            &place,
            "PUT",
            &format!("/api/data/1/{medium}/caption"),
            body,
        )
        .await
    };
    assert_eq!(
        put(0, " a <b>dog</b> ", json!("a cat")).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "a <b>dog</b>\n");
    let (status, said) = put(0, "mine", json!("a cat")).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        said["error"]
            .as_str()
            .unwrap()
            .contains("changed meanwhile"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "a <b>dog</b>\n");
    // One that is not there yet.
    assert_eq!(
        put(4, "frames", Value::Null).await.0,
        StatusCode::NO_CONTENT
    );
    // `data.caption_extension: .yaml` makes a config a caption.
    let config = file.with_file_name("config.yaml");
    fs::write(file.with_file_name("config.png"), "").unwrap();
    fs::write(&config, "name: a").unwrap();
    let (status, said) = put(5, "name: b", json!("name: a")).await;
    assert_eq!(status, StatusCode::CONFLICT, "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), "name: a");
    for medium in [1, 2, 3] {
        let (status, said) = put(medium, "x", json!("secret")).await;
        assert!(
            status.is_client_error() || status.is_server_error(),
            "{medium}: {said}"
        );
    }
    assert_eq!(
        put(0, "a\0b", json!("a <b>dog</b>")).await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        put(0, &"x".repeat(70 << 10), json!("")).await.0,
        StatusCode::BAD_REQUEST
    );
    let base = place.runs.parent().unwrap();
    assert_eq!(
        fs::read_to_string(base.join("secret.png")).unwrap(),
        "secret"
    );
    assert!(!base.join("stolen.txt").exists());
    let mut left: Vec<_> = fs::read_dir(file.parent().unwrap())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "a.png",
            "a.txt",
            "config.png",
            "config.yaml",
            "frames",
            "frames.txt",
            "link.png",
            "link.txt"
        ]
    );
}

#[tokio::test]
async fn captions_outside_the_allowed_folders_are_only_shown() {
    let place = with_program("cat > /dev/null; cat \"$(dirname \"$0\")/answer.json\"\n");
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("a.png"), "x").unwrap();
    let media =
        json!({ "folder": other.path(), "media": [{ "file": "a.png", "caption_file": "a.txt" }] });
    fs::write(place.runs.with_file_name("answer.json"), media.to_string()).unwrap();
    let (_, said) = send(&place, "POST", "/api/data", json!({ "config": "" })).await;
    assert_eq!(said["found"]["media"]["editable"], false, "{said}");
    let (status, _) = send(
        &place,
        "PUT",
        "/api/data/1/0/caption",
        json!({ "text": "x", "before": null }),
    )
    .await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(!other.path().join("a.txt").exists());
}

#[tokio::test]
async fn sample_files_are_those_that_the_run_recorded_in_its_folder() {
    let place = Place::new();
    let run = place.runs.join("a");
    fs::create_dir_all(run.join("samples")).unwrap();
    fs::write(run.join("samples/0.mp4"), "video").unwrap();
    fs::write(place.runs.with_file_name("secret.mp4"), "secret").unwrap();
    symlink("../../secret.mp4", run.join("samples/link.mp4")).unwrap();
    let files = [
        "samples/0.mp4",
        "../../secret.mp4",
        "samples/link.mp4",
        "/etc/hostname",
        "config.yaml",
    ];
    let record = json!({ "kind": "samples", "step": 7, "samples": [{ "prompt": "p", "text": "t", "files": files }] });
    fs::write(run.join("metrics.jsonl"), format!("{record}\n")).unwrap();
    let response = place
        .answer(place.request("GET", "/api/runs/a/samples/7/0/0"))
        .await;
    assert_eq!(response.headers()["content-type"], "video/mp4");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert_eq!(
        &to_bytes(response.into_body(), 100).await.unwrap()[..],
        b"video"
    );
    for rest in [
        "7/0/1",
        "7/0/2",
        "7/0/3",
        "7/0/9",
        "7/1/0",
        "8/0/0",
        "7/0/..%2F0",
        "-7/0/0",
    ] {
        let (status, said) = place.get(&format!("/api/runs/a/samples/{rest}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{rest} {said}");
    }
    // What is no picture is nothing that a browser would run.
    let response = place
        .answer(place.request("GET", "/api/runs/a/samples/7/0/4"))
        .await;
    assert_eq!(
        response.headers()["content-type"],
        "application/octet-stream"
    );
}
