//! Finds text files, reads them, and holds the end of the text out.

use std::path::{Path, PathBuf};

use crate::Error;

/// The training and the held-out documents.
pub(super) struct Parts {
    pub(super) training: Vec<String>,
    pub(super) held_out: Vec<String>,
}

/// Extensions read from a folder. A file named by itself may have any.
pub(crate) const TEXT_EXTENSIONS: [&str; 4] = ["txt", "text", "md", "markdown"];

/// The text of a file, or of every text file below a folder in the order of their paths.
pub(super) fn read_documents(path: &Path) -> Result<Vec<String>, Error> {
    let files = if path.is_dir() {
        files_below(path, &TEXT_EXTENSIONS)?
    } else {
        vec![path.to_owned()]
    };
    let mut documents = Vec::new();
    for file in &files {
        let bytes = std::fs::read(file).map_err(|error| Error::io("read", file, error))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Error::Data(format!(
                "`{}` is not UTF-8 text (byte {at})",
                file.display()
            ))
        })?;
        if !text.trim().is_empty() {
            documents.push(text);
        }
    }
    if documents.is_empty() {
        let what = if path.is_dir() {
            format!(
                "has no text in it (files read: {})",
                TEXT_EXTENSIONS.map(|e| format!("*.{e}")).join(", ")
            )
        } else {
            "is empty".to_owned()
        };
        return Err(Error::Data(format!("`{}` {what}", path.display())));
    }
    Ok(documents)
}

/// Every file below `folder` with one of these extensions, in the order of the paths.
pub(crate) fn files_below(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).map_err(|error| Error::io("read", &folder, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("read", &folder, error))?;
            let path = entry.path();
            // The entry's own type: a link to a folder above would never end.
            let kind = entry
                .file_type()
                .map_err(|error| Error::io("read", &path, error))?;
            let extension = path.extension().and_then(|extension| extension.to_str());
            if kind.is_dir() {
                folders.push(path);
            } else if extension.is_some_and(|e| extensions.contains(&e.to_lowercase().as_str())) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Cuts the last `fraction` of the text off, at the end of a line.
pub(super) fn split(mut documents: Vec<String>, fraction: f64) -> Parts {
    let total: usize = documents.iter().map(String::len).sum();
    let mut remaining = ((total as f64) * (1.0 - fraction)).round() as usize;
    let mut held_out = Vec::new();
    for index in 0..documents.len() {
        let length = documents[index].len();
        if remaining >= length {
            remaining -= length;
            continue;
        }
        let cut = line_end(&documents[index], remaining);
        let tail = documents[index].split_off(cut);
        held_out = documents.split_off(index + 1);
        if !tail.is_empty() {
            held_out.insert(0, tail);
        }
        break;
    }
    documents.retain(|document| !document.is_empty());
    Parts {
        training: documents,
        held_out,
    }
}

/// The end of the line at byte `at`, or the nearest character where the line has no end.
fn line_end(text: &str, at: usize) -> usize {
    let at = text.floor_char_boundary(at);
    // A text without line breaks is cut where it was asked.
    text[at..]
        .find('\n')
        .filter(|distance| *distance < 1000)
        .map_or(at, |distance| at + distance + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_split_loses_and_repeats_nothing(
            documents in prop::collection::vec("[a-zä\n]{1,60}", 1..6), fraction in 0.01f64..0.5,
        ) {
            let whole = documents.concat();
            let parts = split(documents, fraction);
            prop_assert_eq!(parts.training.concat() + &parts.held_out.concat(), whole);
        }
    }

    #[test]
    fn the_held_out_part_is_the_end_from_a_line_on() {
        let parts = split(vec!["one\ntwo\n".into(), "three\nfour\nfive\n".into()], 0.4);
        assert_eq!(parts.training, ["one\ntwo\n", "three\nfour\n"]);
        assert_eq!(parts.held_out, ["five\n"]);
    }

    #[test]
    fn a_folder_is_read_in_the_order_of_its_paths() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/1.txt"), "second").unwrap();
        std::fs::write(folder.path().join("a.md"), "first").unwrap();
        std::fs::write(folder.path().join("c.bin"), [0xFF, 0xFE]).unwrap();
        assert_eq!(read_documents(folder.path()).unwrap(), ["first", "second"]);
    }

    #[test]
    fn missing_empty_and_binary_text_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| read_documents(path).unwrap_err().to_string();
        assert!(message(folder.path()).contains("has no text in it"));
        let file = folder.path().join("x.txt");
        std::fs::write(&file, " \n").unwrap();
        assert!(message(&file).contains("is empty"));
        std::fs::write(&file, [b'a', 0xFF]).unwrap();
        assert!(message(&file).contains("is not UTF-8 text (byte 1)"));
    }
}
