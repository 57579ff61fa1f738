//! What comes of requests to look at a folder of media and to change what is in it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use image::RgbImage;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::media_folder::is_data_name;
use super::tests::Place;
use super::tests_data::send;

pub(super) fn picture(path: &Path, seed: u8) {
    let pixels = RgbImage::from_fn(40, 20, |x, y| {
        image::Rgb([(x as u8).wrapping_mul(seed), y as u8 * 9, seed])
    });
    pixels.save(path).unwrap();
}

/// A place with the folder `data` beside its runs: two pictures, a video, and links that lead out.
pub(super) fn place() -> (Place, PathBuf) {
    let place = Place::new();
    let base = place.runs.parent().unwrap().canonicalize().unwrap();
    let data = base.join("data");
    fs::create_dir_all(data.join("more/.hidden")).unwrap();
    picture(&data.join("a.png"), 3);
    picture(&data.join("more/b.png"), 5);
    picture(&data.join("more/.hidden/c.png"), 7);
    fs::write(data.join("a.txt"), "\u{feff}a cat\n").unwrap();
    fs::write(data.join("film.mp4"), "film").unwrap();
    picture(&base.join("secret.png"), 9);
    symlink("../secret.png", data.join("link.png")).unwrap();
    symlink("/etc", data.join("etc")).unwrap();
    (place, data)
}

pub(super) async fn opened(place: &Place, path: &Path) -> Value {
    let (status, said) = send(place, "POST", "/api/media", json!({ "path": path })).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    said
}

#[tokio::test]
async fn the_media_of_a_folder_are_listed_and_nothing_that_links_or_hides() {
    let (place, data) = place();
    let said = opened(&place, &data).await;
    let media = said["media"].as_array().unwrap();
    let names: Vec<_> = media
        .iter()
        .map(|medium| medium["file"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a.png", "film.mp4", "more/b.png"]);
    assert_eq!(
        (&media[0]["width"], &media[0]["caption"]),
        (&json!(40), &json!("a cat"))
    );
    assert_eq!(
        (&media[1]["kind"], &media[1]["width"]),
        (&json!("video"), &Value::Null)
    );
    assert_eq!(media[2]["caption"], Value::Null);
}

#[tokio::test]
async fn no_other_folder_is_opened_or_made() {
    let (place, data) = place();
    let base = data.parent().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir_all(base.join(".surefoot/queue")).unwrap();
    for path in [
        outside.path().to_owned(),
        PathBuf::from("/etc"),
        PathBuf::from("data"),
        PathBuf::from(""),
        data.join("etc"),
        data.join("../../"),
        data.join("more/.hidden"),
        base.join(".surefoot/queue"),
        data.join("missing"),
    ] {
        for (route, body) in [
            ("/api/media", json!({ "path": path })),
            ("/api/folder", json!({ "path": path, "name": "made" })),
        ] {
            let (status, said) = send(&place, "POST", route, body).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{route} {path:?} {said}");
        }
    }
    for name in [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        ".hidden",
        "a\0b",
        "a\u{202e}b",
        " a",
    ] {
        let body = json!({ "path": data, "name": name });
        let (status, said) = send(&place, "POST", "/api/folder", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name:?} {said}");
    }
    let made = json!({ "path": data, "name": "new cats" });
    assert_eq!(
        send(&place, "POST", "/api/folder", made.clone()).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        send(&place, "POST", "/api/folder", made).await.0,
        StatusCode::CONFLICT
    );
    assert!(data.join("new cats").is_dir());
}

#[tokio::test]
async fn thumbnails_and_looks_are_of_the_listed_pictures_only() {
    let (place, data) = place();
    opened(&place, &data).await;
    // What was a picture when it was listed, and leads elsewhere now.
    fs::remove_file(data.join("more/b.png")).unwrap();
    symlink("../../secret.png", data.join("more/b.png")).unwrap();
    let response = place
        .answer(place.request("GET", "/api/data/1/0/thumbnail"))
        .await;
    assert_eq!(response.headers()["content-type"], "image/jpeg");
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    assert!(image::load_from_memory(&bytes).is_ok());
    for path in ["1", "2", "3", "..%2F0", "-1"] {
        let (status, said) = place.get(&format!("/api/data/1/{path}/thumbnail")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path} {said}");
    }
    let (_, said) = send(&place, "POST", "/api/data/1/look", json!({ "from": 0 })).await;
    let looks = said["looks"].as_array().unwrap();
    assert_eq!(looks[0]["hash"].as_str().unwrap().len(), 16);
    assert_eq!(
        (&looks[1]["hash"], &looks[1]["problem"]),
        (&Value::Null, &Value::Null)
    );
    assert!(looks[2]["problem"].is_string(), "{said}");
    assert_eq!(said["next"], Value::Null);
    let (_, said) = send(
        &place,
        "POST",
        "/api/data/1/look",
        json!({ "from": u64::MAX }),
    )
    .await;
    assert_eq!(said["looks"], json!([]), "{said}");
}

#[tokio::test]
async fn captions_are_changed_together_and_those_that_have_changed_are_left() {
    let (place, data) = place();
    opened(&place, &data).await;
    let changes = json!([
        { "medium": 0, "text": "ohwx, a cat", "before": "a cat" },
        { "medium": 2, "text": "a dog", "before": null },
        { "medium": 1, "text": "a film", "before": "what somebody else wrote" },
        { "medium": 9, "text": "x", "before": null },
        { "medium": 2, "text": "a\0b", "before": "a dog" },
    ]);
    let (status, left) = send(&place, "PUT", "/api/data/1/captions", changes).await;
    assert_eq!(status, StatusCode::OK, "{left}");
    let left: Vec<_> = left
        .as_array()
        .unwrap()
        .iter()
        .map(|left| left["medium"].clone())
        .collect();
    assert_eq!(left, [1, 9, 2]);
    let text = |name: &str| fs::read_to_string(data.join(name)).unwrap();
    assert_eq!(
        [text("a.txt"), text("more/b.txt")],
        ["ohwx, a cat\n", "a dog\n"]
    );
    // Undone, with the file that there was not.
    let changes = json!([
        { "medium": 0, "text": "a cat", "before": "ohwx, a cat" },
        { "medium": 2, "text": null, "before": "a dog" },
    ]);
    let (_, left) = send(&place, "PUT", "/api/data/1/captions", changes).await;
    assert_eq!(left, json!([]));
    assert_eq!(text("a.txt"), "a cat\n");
    assert!(!data.join("more/b.txt").exists());
    // A caption that leads elsewhere is none to be changed.
    fs::remove_file(data.join("a.txt")).unwrap();
    symlink("../secret.png", data.join("a.txt")).unwrap();
    let changes = json!([{ "medium": 0, "text": "x", "before": "a cat" }]);
    let (_, left) = send(&place, "PUT", "/api/data/1/captions", changes).await;
    assert_eq!(left[0]["medium"], 0, "{left}");
}

#[tokio::test]
async fn a_medium_is_removed_with_its_caption_and_nothing_else_is() {
    let (place, data) = place();
    opened(&place, &data).await;
    fs::remove_file(data.join("film.mp4")).unwrap();
    symlink("../secret.png", data.join("film.mp4")).unwrap();
    let remove = async |medium: &str| {
        let path = format!("/api/data/1/{medium}");
        let before = json!({ "before": "a cat" });
        send(&place, "DELETE", &path, before).await.0
    };
    assert_eq!(remove("0").await, StatusCode::NO_CONTENT);
    assert!(!data.join("a.png").exists() && !data.join("a.txt").exists());
    for medium in ["0", "1", "3", "..%2Fsecret.png", "-1"] {
        assert!(remove(medium).await.is_client_error(), "{medium}");
    }
    assert!(data.parent().unwrap().join("secret.png").exists());
    assert!(data.join("more/b.png").exists());
}

pub(super) async fn put(place: &Place, set: u64, name: &str, body: Body) -> (StatusCode, Value) {
    let mut request = place.request("PUT", &format!("/api/data/{set}/files/{name}"));
    *request.body_mut() = body;
    let response = place.answer(request).await;
    (response.status(), super::tests::json(response).await)
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_file_is_added_and_replaces_none() {
    let (place, data) = place();
    opened(&place, &data).await;
    // More than other requests may bring.
    let film = vec![7_u8; 700 << 10];
    let (status, said) = put(&place, 1, "new%20film.mp4", film.clone().into()).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
    assert_eq!(fs::read(data.join("new film.mp4")).unwrap(), film);
    let before = names(&data);
    let (status, said) = put(&place, 1, "a.txt", "other".into()).await;
    assert_eq!(status, StatusCode::CONFLICT, "{said}");
    // A link is a name that is taken, too.
    assert_eq!(
        put(&place, 1, "link.png", "x".into()).await.0,
        StatusCode::CONFLICT
    );
    for name in [
        "a.sh",
        "a.yaml",
        "5.json.exe",
        ".hidden.png",
        "..%2Fb.png",
        "..%2F..%2Fb.png",
        "a%00.png",
        "a%E2%80%AEgnp.png",
        "metadata.jsonl",
        "METADATA.JSONL",
    ] {
        let (status, said) = put(&place, 1, name, "x".into()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name} {said}");
    }
    // One that ends before it is whole.
    let broken = tokio_stream::iter([Ok("half"), Err(std::io::Error::other("gone"))]);
    let (status, _) = put(&place, 1, "half.png", Body::from_stream(broken)).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(names(&data), before);
    assert_eq!(
        fs::read_to_string(data.join("a.txt")).unwrap(),
        "\u{feff}a cat\n"
    );
}

#[tokio::test]
async fn nothing_is_added_to_a_run_or_removed_from_it() {
    let (place, _) = place();
    let samples = place.runs.canonicalize().unwrap().join("a/samples");
    fs::create_dir_all(&samples).unwrap();
    picture(&samples.join("1.png"), 3);
    opened(&place, &samples).await;
    assert_eq!(
        put(&place, 1, "2.png", "x".into()).await.0,
        StatusCode::CONFLICT
    );
    let before = json!({ "before": null });
    let (status, _) = send(&place, "DELETE", "/api/data/1/0", before).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let made = json!({ "path": samples, "name": "made" });
    let (status, _) = send(&place, "POST", "/api/folder", made).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(names(&samples), ["1.png"]);
}

#[test]
fn only_names_of_data_are_taken() {
    for (name, is_taken) in [
        ("a cat.PNG", true),
        ("talk.jsonl", true),
        ("job.yaml", false),
        ("a.png.sh", false),
        ("png", false),
        (".png", false),
        ("a\u{200b}.png", false),
    ] {
        assert_eq!(is_data_name(name), is_taken, "{name:?}");
    }
}

/// A server of a vision model that answers each request with one of `answers`, and returns what it was asked.
pub(super) async fn model(
    answers: Vec<&'static str>,
) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            let length = loop {
                let mut piece = vec![0; 64 << 10];
                let count = stream.read(&mut piece).await.unwrap();
                text.extend_from_slice(&piece[..count]);
                let head = String::from_utf8_lossy(&text);
                if let Some((head, _)) = head.split_once("\r\n\r\n") {
                    let length = head
                        .lines()
                        .find_map(|line| line.strip_prefix("content-length: "));
                    break head.len() + 4 + length.map_or(0, |length| length.parse().unwrap());
                }
            };
            while text.len() < length {
                let mut piece = vec![0; 64 << 10];
                let count = stream.read(&mut piece).await.unwrap();
                text.extend_from_slice(&piece[..count]);
            }
            asked.push(String::from_utf8(text).unwrap());
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            stream
                .write_all(format!("{head}{answer}").as_bytes())
                .await
                .unwrap();
        }
        asked
    });
    (port, task)
}

/// The state of the captions once they are done.
pub(super) async fn captioned(place: &Place) -> Value {
    loop {
        let (_, now) = place.get("/api/captioner").await;
        if now["is_running"] == false {
            return now;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_model_writes_the_captions_that_are_missing_and_no_others() {
    let (place, data) = place();
    picture(&data.join("c.png"), 11);
    fs::write(data.join("c.txt"), "\n").unwrap();
    opened(&place, &data).await;
    let answer = r#"{"choices":[{"message":{"content":"<think>hm</think>\na dog\non a mat"}}]}"#;
    let (port, asked) = model(vec![answer, answer]).await;
    let body = json!({ "set": 1, "media": [0, 1, 3], "port": port, "model": "tiny", "prompt": "Describe it." });
    let (status, said) = send(&place, "POST", "/api/captioner", body).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
    let now = captioned(&place).await;
    // The first has a caption; the empty one is written.
    let written = json!([{ "medium": 1, "text": "a dog on a mat" }, { "medium": 3, "text": "a dog on a mat" }]);
    assert_eq!(
        (&now["kept"], &now["written"], &now["problems"]),
        (&json!(1), &written, &json!([]))
    );
    assert_eq!(
        fs::read_to_string(data.join("a.txt")).unwrap(),
        "\u{feff}a cat\n"
    );
    assert_eq!(
        fs::read_to_string(data.join("c.txt")).unwrap(),
        "a dog on a mat\n"
    );
    let asked = asked.await.unwrap();
    assert!(
        asked[0].starts_with("POST /v1/chat/completions HTTP/1.1\r\n"),
        "{}",
        asked[0]
    );
    assert!(asked[0].contains("data:image/jpeg;base64,/9j/") && asked[0].contains("Describe it."));
    assert!(!asked[0].to_lowercase().contains("cookie"));
    let (_, now) = place.get("/api/captioner?after=1").await;
    assert_eq!(now["written"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_caption_that_somebody_writes_meanwhile_stays() {
    let (place, data) = place();
    opened(&place, &data).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let body =
        json!({ "set": 1, "media": [2], "port": port, "model": "tiny", "prompt": "Describe it." });
    send(&place, "POST", "/api/captioner", body.clone()).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    fs::write(data.join("more/b.txt"), "by hand").unwrap();
    // One at a time.
    assert_eq!(
        send(&place, "POST", "/api/captioner", body).await.0,
        StatusCode::CONFLICT
    );
    let answer = r#"{"choices":[{"message":{"content":"by the model"}}]}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    stream
        .write_all(format!("{head}{answer}").as_bytes())
        .await
        .unwrap();
    let now = captioned(&place).await;
    assert_eq!(now["written"], json!([]), "{now}");
    assert!(
        now["problems"][0]
            .as_str()
            .unwrap()
            .contains("changed meanwhile"),
        "{now}"
    );
    assert_eq!(
        fs::read_to_string(data.join("more/b.txt")).unwrap(),
        "by hand"
    );
}

#[tokio::test]
async fn a_model_that_fails_is_told_and_bad_requests_are_refused() {
    let (place, data) = place();
    opened(&place, &data).await;
    let (port, _asked) = model(vec![
        r#"{"data":[{"id":"llava"},{"id":"qwen-vl"}]}"#,
        r#"{"error":{"message":"this model sees no pictures"}}"#,
    ])
    .await;
    let (_, found) = place
        .get(&format!("/api/captioner/models?port={port}"))
        .await;
    assert_eq!(found, json!(["llava", "qwen-vl"]));
    let asked = |changes: Value| {
        let mut body = json!({ "set": 1, "media": [2], "port": port, "model": "llava", "prompt": "Describe it." });
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    for (changes, wanted) in [
        (json!({ "model": " " }), StatusCode::BAD_REQUEST),
        (
            json!({ "prompt": "x".repeat(9000) }),
            StatusCode::BAD_REQUEST,
        ),
        (json!({ "media": [3] }), StatusCode::BAD_REQUEST),
        (json!({ "port": 8420 }), StatusCode::BAD_REQUEST),
        (json!({ "port": 70_000 }), StatusCode::BAD_REQUEST),
        (json!({ "host": "example.org" }), StatusCode::BAD_REQUEST),
        (json!({ "set": 2 }), StatusCode::NOT_FOUND),
    ] {
        let (status, said) = send(&place, "POST", "/api/captioner", asked(changes.clone())).await;
        assert_eq!(status, wanted, "{changes} {said}");
    }
    send(&place, "POST", "/api/captioner", asked(json!({}))).await;
    let now = captioned(&place).await;
    assert_eq!(
        now["problems"],
        json!(["more/b.png: this model sees no pictures"])
    );
    assert!(!data.join("more/b.txt").exists());
    let (status, _) = place.get("/api/captioner/models?port=8420").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_part_of_a_video_is_kept_beside_it_and_goes_with_it() {
    let (place, data) = place();
    let set = opened(&place, &data).await["set"].clone();
    let change = async |medium: u64, trim: Value, before: Value| {
        let path = format!("/api/data/{set}/{medium}/trim");
        send(
            &place,
            "PUT",
            &path,
            json!({ "trim": trim, "before": before }),
        )
        .await
    };
    let part = json!({ "start": 1.5, "end": null });
    let film = data.join("film.trim.json");
    assert_eq!(
        change(1, part.clone(), Value::Null).await.0,
        StatusCode::NO_CONTENT
    );
    let written: Value = serde_json::from_str(&fs::read_to_string(&film).unwrap()).unwrap();
    assert_eq!(written, part);
    assert_eq!(opened(&place, &data).await["media"][1]["trim"], part);
    // As it is no more, or never can be.
    let other = json!({ "end": 4 });
    assert_eq!(
        change(1, other.clone(), Value::Null).await.0,
        StatusCode::CONFLICT
    );
    for wrong in [
        json!({ "start": 3, "end": 2 }),
        json!({ "start": -1 }),
        json!({}),
        json!({ "start": 1, "more": 2 }),
    ] {
        let (status, said) = change(1, wrong, part.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{said}");
    }
    assert_eq!(
        change(0, other.clone(), Value::Null).await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        change(1, other.clone(), part).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        change(1, Value::Null, other.clone()).await.0,
        StatusCode::NO_CONTENT
    );
    assert!(!film.exists());
    // Beside another video of this name, the file has the whole name.
    let second = data.join("film.webm");
    fs::write(&second, "a video").unwrap();
    let set = opened(&place, &data).await["set"].clone();
    let path = format!("/api/data/{set}/1/trim");
    let body = json!({ "trim": other, "before": null });
    assert_eq!(
        send(&place, "PUT", &path, body).await.0,
        StatusCode::NO_CONTENT
    );
    let long = data.join("film.mp4.trim.json");
    assert!(long.is_file() && !film.exists());
    fs::rename(&long, &film).unwrap();
    assert_eq!(opened(&place, &data).await["media"][1]["trim"], Value::Null);
    for path in [&film, &second] {
        fs::remove_file(path).unwrap();
    }
    // What the trainer refuses is not replaced, and a link is not followed.
    fs::write(&film, "no part").unwrap();
    assert_eq!(
        change(1, other.clone(), Value::Null).await.0,
        StatusCode::CONFLICT
    );
    fs::remove_file(&film).unwrap();
    let outside = data.join("../outside.json");
    fs::write(&outside, "secret").unwrap();
    symlink("../outside.json", &film).unwrap();
    let _ = change(1, other.clone(), Value::Null).await;
    assert_eq!(fs::read_to_string(&outside).unwrap(), "secret");
    let _ = fs::remove_file(&film);
    assert_eq!(
        change(1, other, Value::Null).await.0,
        StatusCode::NO_CONTENT
    );
    let removed = send(&place, "DELETE", &format!("/api/data/{set}/1"), json!({})).await;
    assert_eq!(removed.0, StatusCode::NO_CONTENT);
    assert!(!film.exists());
}
