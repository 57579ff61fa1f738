//! What is found in a folder, and what is reported.

use std::fs;

use super::*;

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn names(items: &[Item]) -> Vec<(String, &str)> {
    let name = |item: &Item| {
        let name = item.source.path().file_name().unwrap();
        name.to_string_lossy().into_owned()
    };
    let pairs = items.iter().map(|item| (name(item), &*item.caption));
    pairs.collect()
}

#[test]
fn media_are_found_with_their_captions_in_order() {
    let folder = folder(&[
        ("b.mp4", b""),
        ("b.txt", b"\xef\xbb\xbf a dog \n"),
        ("a.png", b""),
        ("a.png.txt", b"a cat"),
        ("run/f10.png", b""),
        ("run/f2.png", b""),
        ("run.txt", b""),
        (".hidden.mp4", b""),
        ("notes.md", b"not used, and told"),
    ]);
    let items = list(folder.path(), &DataConfig::default()).unwrap();
    let found = [("a.png", "a cat"), ("b.mp4", "a dog"), ("run", "")];
    let found = found.map(|(name, caption)| (name.to_owned(), caption));
    assert_eq!(names(&items), found);
    let Source::Frames(_, files) = &items[2].source else {
        panic!("{items:?}");
    };
    assert!(files[0].ends_with("f2.png") && files[1].ends_with("f10.png"));
}

#[test]
fn captions_that_are_missing_or_no_text_are_all_named() {
    let folder = folder(&[
        ("a.mp4", b""),
        ("b.mp4", b""),
        ("b.txt", &[0x66, 0xff, 0xfe]),
        ("c.mp4", b""),
        ("c.txt", b"x\0y"),
    ]);
    let error = list(folder.path(), &DataConfig::default())
        .unwrap_err()
        .to_string();
    for part in [
        "`a.mp4` has no caption `a.txt`",
        "`b.txt` is not UTF-8 text (byte 1)",
        "`c.txt` is not text (byte 1)",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_video_is_trimmed_by_a_file_beside_it_or_by_its_line() {
    let folder = folder(&[
        ("a.mp4", b""),
        ("a.txt", b""),
        ("a.trim.json", b"{\"start\": 1.5}"),
        ("b.mp4", b""),
        ("b.txt", b""),
        ("b.mp4.trim.json", b"{\"end\": 2}"),
        ("c.mp4", b""),
        ("c.txt", b""),
        (
            "set.jsonl",
            b"{\"path\": \"a.mp4\", \"text\": \"\", \"start\": 1, \"end\": 2.5}\n{\"path\": \"b.mp4\", \"text\": \"\"}",
        ),
    ]);
    let trims = |path: &Path| -> Vec<_> {
        let items = list(path, &DataConfig::default()).unwrap();
        items
            .iter()
            .map(|item| (item.trim.start, item.trim.end))
            .collect()
    };
    let (none, lines) = ((None, None), folder.path().join("set.jsonl"));
    assert_eq!(
        trims(folder.path()),
        [(Some(1.5), None), (None, Some(2.0)), none]
    );
    assert_eq!(trims(&lines), [(Some(1.0), Some(2.5)), none]);
    for (line, complaint) in [
        (
            "\"start\": \"1\"",
            "line 1: `start` is no number of seconds: \"1\"",
        ),
        (
            "\"start\": 3, \"end\": 2",
            "line 1: `end` 2 is not after `start` 3",
        ),
        ("\"from\": 3", "unknown key `from`"),
    ] {
        fs::write(
            &lines,
            format!("{{\"path\": \"a.mp4\", \"text\": \"\", {line}}}"),
        )
        .unwrap();
        let error = list(&lines, &DataConfig::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(complaint), "{error}");
    }
}

#[test]
fn a_trim_file_that_may_be_for_several_videos_is_for_none() {
    let mut files: Vec<(&str, &[u8])> = vec![
        ("a.txt", b""),
        ("a.jpg", b""),
        ("a.mp4", b""),
        ("a.webm", b""),
        ("a.trim.json", b"{\"start\": 1.5}"),
    ];
    let found = |files: &[(&str, &[u8])]| {
        let folder = folder(files);
        let items = list(folder.path(), &DataConfig::default());
        items.map(|items| items.iter().map(|item| item.trim.start).collect::<Vec<_>>())
    };
    let error = found(&files).unwrap_err().to_string();
    for name in ["a.mp4", "a.webm"] {
        let advice = format!("`a.trim.json` may be for several videos: call it `{name}.trim.json`");
        assert!(error.contains(&advice), "{error}");
    }
    files.remove(3);
    assert_eq!(found(&files).unwrap(), [None, Some(1.5)]);
    files[3].0 = "a.mp4.trim.json";
    files.push(("a.webm", b""));
    assert_eq!(found(&files).unwrap(), [None, Some(1.5), None]);
}

#[test]
fn the_trigger_word_is_in_every_caption() {
    let config = DataConfig {
        trigger_word: Some("ohwx".into()),
        ..DataConfig::default()
    };
    let folder = folder(&[
        ("a.mp4", b""),
        ("b.mp4", b""),
        ("b.txt", b"a [trigger] dog"),
        ("c.mp4", b""),
        ("c.txt", b"a dog"),
        ("d.mp4", b""),
        ("d.txt", b"see ohwx"),
    ]);
    let items = list(folder.path(), &config).unwrap();
    let captions: Vec<_> = items.iter().map(|item| &*item.caption).collect();
    assert_eq!(captions, ["ohwx", "a ohwx dog", "ohwx, a dog", "see ohwx"]);
}

#[test]
fn lines_name_files_beside_them_and_mistakes_have_their_line() {
    let folder = folder(&[
        ("x/a.mp4", b""),
        (
            "good.jsonl",
            b"{\"file_name\": \"x/a.mp4\", \"caption\": \"one\"}\n\n{\"video\": \"x/a.mp4\", \"text\": \"two\"}\n",
        ),
        (
            "bad.jsonl",
            b"{\"path\": \"x/a.mp4\", \"caption\": \"one\", \"weight\": 2}\n{\"path\": \"gone.mp4\", \"caption\": \"\"}\n[]\n{\"path\": \"x/a.mp4\", \"caption\": 3}\n",
        ),
    ]);
    let items = list(&folder.path().join("good.jsonl"), &DataConfig::default()).unwrap();
    assert_eq!(items.len(), 2);
    assert_eq!(items[1].caption, "two");
    let error = list(&folder.path().join("bad.jsonl"), &DataConfig::default());
    let error = error.unwrap_err().to_string();
    for part in [
        "line 1: unknown key `weight`",
        "line 2: `gone.mp4` does not exist",
        "line 3: no JSON object",
        "line 4: `caption` is not text: 3",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_folder_of_photos_is_no_clip() {
    let folder = folder(&[
        ("10_ohwx cat/p1.png", b""),
        ("10_ohwx cat/p1.txt", b"on a sofa"),
        ("10_ohwx cat/p2.png", b""),
        ("3_dog/1.png", b""),
        ("3_dog/2.png", b""),
        ("0_off/1.png", b""),
        ("0_sea.png", b""),
        ("0_sea.txt", b"the sea"),
        ("holiday/beach.jpg", b""),
        ("holiday/beach.txt", b"a beach"),
        ("holiday/dunes.jpg", b""),
        ("holiday/dunes.txt", b"dunes"),
        ("walk/f1.png", b""),
        ("walk/f2.png", b""),
        ("walk.txt", b"a walk"),
        ("LICENSE", b"not used, and told"),
    ]);
    let items = list(folder.path(), &DataConfig::default()).unwrap();
    let found = [
        ("0_sea.png", "the sea"),
        ("walk", "a walk"),
        ("p1.png", "on a sofa"),
        ("p2.png", "ohwx cat"),
        ("1.png", "dog"),
        ("2.png", "dog"),
        ("beach.jpg", "a beach"),
        ("dunes.jpg", "dunes"),
    ];
    let found = found.map(|(name, caption)| (name.to_owned(), caption));
    assert_eq!(names(&items), found);
}

#[test]
fn the_name_of_a_folder_says_how_often_its_media_are_seen() {
    for (path, times) in [
        ("set/10_a cat/1.png", 10),
        ("set/0_cat/1.png", 1),
        ("set/cats/1.png", 1),
        ("set/x_10/10_1.png", 1),
    ] {
        assert_eq!(repeats(Path::new(path)), times, "{path}");
    }
}

#[test]
fn a_data_set_of_the_hub_names_its_pictures_itself() {
    let folder = folder(&[
        ("README.md", b""),
        (
            "metadata.jsonl",
            b"{\"file_name\": \"a.png\", \"text\": \"one\"}",
        ),
        ("a.png", b""),
    ]);
    let items = list(folder.path(), &DataConfig::default()).unwrap();
    assert_eq!(names(&items), [("a.png".to_owned(), "one")]);
}

/// Reading a pipe would wait for a writer.
#[cfg(unix)]
#[test]
fn pipes_and_pointers_are_not_read() {
    let folder = folder(&[("a.png", b""), ("a.txt", b"one")]);
    let pipe = folder.path().join("b.mp4");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let items = list(folder.path(), &DataConfig::default()).unwrap();
    assert_eq!(items.len(), 1);
    fs::remove_file(pipe).unwrap();
    fs::write(
        folder.path().join("c.png"),
        "version https://git-lfs.github.com/spec/v1\n",
    )
    .unwrap();
    let error = list(folder.path(), &DataConfig::default()).unwrap_err();
    assert!(error.to_string().contains("git lfs pull"), "{error}");
}

#[test]
fn a_folder_without_media_says_what_is_known() {
    let folder = folder(&[("a.txt", b"x")]);
    let error = list(folder.path(), &DataConfig::default()).unwrap_err();
    assert!(error.to_string().contains(".mp4"), "{error}");
}

#[test]
fn a_confined_config_gets_no_file_from_elsewhere() {
    use std::os::unix::fs::symlink;

    let place = folder(&[
        ("secret.txt", b"secret"),
        ("secret.png", b""),
        ("in/a.png", b""),
        ("in/a.txt", b"a cat"),
        ("in/run/1.png", b""),
        ("in/run.txt", b""),
        ("lines/a.png", b""),
        ("lines/run/1.png", b""),
    ]);
    let inside = place.path().join("in");
    let lines = place.path().join("lines");
    let confinement = Confinement::new([inside.clone(), lines.clone()]);
    let find = |path: &Path, all| find_within(path, &DataConfig::default(), all);
    assert_eq!(find(&inside, Some(&confinement)).unwrap().len(), 2);
    for link in ["b.txt", "b.png", "run/2.png", "folder"] {
        let target = match link {
            "b.txt" => "../secret.txt",
            "folder" => "..",
            _ => "../../secret.png",
        };
        symlink(target, inside.join(link)).unwrap();
        let error = find(&inside, Some(&confinement)).unwrap_err().to_string();
        assert!(error.contains(&format!("{link}` leads to")), "{error}");
        assert!(find(&inside, None).is_ok(), "{link}");
        fs::remove_file(inside.join(link)).unwrap();
    }
    symlink("../../secret.png", lines.join("run/2.png")).unwrap();
    let outside = place.path().join("secret.png").display().to_string();
    for name in ["../secret.png", "../none.png", "/none.png", &outside, "run"] {
        let line = format!("{{\"path\": {name:?}, \"caption\": \"x\"}}\n");
        fs::write(lines.join("x.jsonl"), line).unwrap();
        let error = find(&lines.join("x.jsonl"), Some(&confinement)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("leads to a folder"), "{name}: {error}");
        assert!(!error.contains("exist"), "{error}");
    }
}
