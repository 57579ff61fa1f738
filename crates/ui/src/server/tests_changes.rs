//! What is changed in a folder of media, and what is left as it is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::data::{self, Medium, Set};
use super::lock;
use super::tests_data::send;
use super::tests_media_folder::{captioned, model, names, opened, picture, place, put};
use crate::runs::Folder;

#[tokio::test]
async fn a_caption_stays_that_another_picture_has_or_that_is_not_the_one_that_was_read() {
    let (place, data) = place();
    picture(&data.join("a.jpg"), 5);
    picture(&data.join("book.png"), 7);
    picture(&data.join("c.png"), 11);
    let book = "a book ".repeat(20_000);
    fs::write(data.join("book.txt"), &book).unwrap();
    fs::write(data.join("c.txt"), "as it was").unwrap();
    let said = opened(&place, &data).await;
    let media = said["media"].as_array().unwrap();
    fs::write(data.join("c.txt"), "as somebody changed it").unwrap();
    let remove = async |name: &str| {
        let place_of = media
            .iter()
            .position(|medium| medium["file"] == name)
            .unwrap();
        let path = format!("/api/data/1/{place_of}");
        let before = json!({ "before": media[place_of]["caption"] });
        let (status, said) = send(&place, "DELETE", &path, before).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{name} {said}");
    };
    for name in ["a.jpg", "book.png", "c.png"] {
        remove(name).await;
    }
    let left = [
        "a.png", "a.txt", "book.txt", "c.txt", "etc", "film.mp4", "link.png", "more",
    ];
    assert_eq!(names(&data), left);
    remove("a.png").await;
    assert!(!data.join("a.txt").exists());
}

#[tokio::test]
async fn a_file_that_is_longer_than_a_caption_is_none_to_be_changed() {
    let (place, data) = place();
    // 64 KiB of a caption, and more behind it.
    let text = format!("{}b", "a".repeat(64 << 10));
    fs::write(data.join("a.txt"), &text).unwrap();
    let said = opened(&place, &data).await;
    let change = json!({ "text": "x", "before": said["media"][0]["caption"] });
    let (status, said) = send(&place, "PUT", "/api/data/1/0/caption", change).await;
    assert_eq!(status, StatusCode::CONFLICT, "{said}");
    let change = json!({ "text": "x", "before": text });
    let (status, said) = send(&place, "PUT", "/api/data/1/0/caption", change).await;
    assert_eq!(status, StatusCode::CONFLICT, "{said}");
    assert_eq!(fs::read_to_string(data.join("a.txt")).unwrap(), text);
}

#[tokio::test]
async fn no_caption_is_written_for_a_picture_that_is_gone() {
    let (place, data) = place();
    opened(&place, &data).await;
    fs::remove_file(data.join("more/b.png")).unwrap();
    let change = json!({ "text": "x", "before": null });
    let (status, said) = send(&place, "PUT", "/api/data/1/2/caption", change).await;
    assert_eq!(status, StatusCode::CONFLICT, "{said}");
    assert!(!data.join("more/b.txt").exists());
}

#[tokio::test]
async fn what_was_opened_is_changed_and_not_what_takes_its_place() {
    let (place, data) = place();
    opened(&place, &data).await;
    let moved = data.with_file_name("moved");
    let outside = tempfile::tempdir().unwrap();
    fs::rename(&data, &moved).unwrap();
    symlink(outside.path(), &data).unwrap();
    let (status, said) = put(&place, 1, "new.png", "x".into()).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
    assert_eq!(names(outside.path()), Vec::<String>::new());
    assert!(moved.join("new.png").exists());
}

#[tokio::test]
async fn files_are_added_and_removed_where_there_was_no_run_yet() {
    let (place, data) = place();
    fs::remove_dir_all(&place.runs).unwrap();
    opened(&place, &data).await;
    let (status, said) = put(&place, 1, "new.png", "x".into()).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
    let before = json!({ "before": null });
    let (status, said) = send(&place, "DELETE", "/api/data/1/0", before).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
}

#[tokio::test]
async fn a_run_is_neither_listed_nor_changed_from_the_folders_above_it() {
    let (place, _) = place();
    let runs = place.runs.canonicalize().unwrap();
    fs::create_dir_all(runs.join("a/samples")).unwrap();
    picture(&runs.join("a/samples/1.png"), 3);
    for (folder, below) in [
        (&*runs, "a/samples"),
        (runs.parent().unwrap(), "runs/a/samples"),
    ] {
        let said = opened(&place, folder).await;
        let is_of_run = |medium: &Value| medium["file"].as_str().unwrap().starts_with(below);
        let media = said["media"].as_array().unwrap();
        assert!(!media.iter().any(is_of_run), "{said}");
        // As the trainer may list it.
        let medium = Medium {
            file: Path::new(below).join("1.png"),
            frame_files: Vec::new(),
            caption_file: Some(Path::new(below).join("1.txt")),
        };
        let root = Folder::open(folder).unwrap();
        let set = Set::new(&place.state, folder.to_owned(), root, vec![medium], true);
        let set = lock(&place.state.sets).add(set);
        let change = json!({ "text": "x", "before": null });
        let path = format!("/api/data/{set}/0/caption");
        assert_eq!(
            send(&place, "PUT", &path, change).await.0,
            StatusCode::CONFLICT
        );
        let before = json!({ "before": null });
        let path = format!("/api/data/{set}/0");
        assert_eq!(
            send(&place, "DELETE", &path, before).await.0,
            StatusCode::CONFLICT
        );
    }
    assert_eq!(names(&runs.join("a/samples")), ["1.png"]);
}

#[tokio::test]
async fn two_sets_of_one_folder_are_changed_one_after_the_other() {
    let (place, data) = place();
    opened(&place, &data).await;
    opened(&place, &data).await;
    let set = |number| data::set(&place.state, number).unwrap();
    let (one, other) = (set("1"), set("2"));
    let file = Path::new("a.png");
    let meanwhile = one.change(file, |_, _| {
        let thread = std::thread::spawn(move || other.change(file, |_, _| Ok(())));
        // Time for the other to try.
        std::thread::sleep(Duration::from_millis(50));
        Ok(thread)
    });
    let done = meanwhile.unwrap().join().unwrap();
    assert!(done.is_ok(), "{done:?}");
}

#[tokio::test]
async fn a_caption_waits_for_another_program_that_changes_the_folder() {
    let (place, data) = place();
    opened(&place, &data).await;
    let other = Folder::open(&data.join("more")).unwrap();
    other.try_lock().unwrap();
    let answer = r#"{"choices":[{"message":{"content":"a dog"}}]}"#;
    let (port, asked) = model(vec![answer]).await;
    let body =
        json!({ "set": 1, "media": [2], "port": port, "model": "tiny", "prompt": "Describe it." });
    let (status, said) = send(&place, "POST", "/api/captioner", body).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
    asked.await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(other);
    let now = captioned(&place).await;
    assert_eq!(now["written"][0]["text"], "a dog", "{now}");
}
