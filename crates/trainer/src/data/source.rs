//! Finds and reads text files, and holds out a part of the text.

use std::path::{Path, PathBuf};

use super::format;
use super::random::SplitMix64;
use crate::Error;
use crate::config::{Confinement, DataFormat, LEADS_ELSEWHERE};

/// The training and the held-out documents.
pub(super) struct Parts {
    pub(super) training: Vec<String>,
    pub(super) held_out: Vec<String>,
}

/// Reads the texts of a file of records.
pub(crate) type RecordTexts<'a> = &'a dyn Fn(&Path, DataFormat) -> Result<Vec<String>, Error>;

/// Reads a file, or all files below a folder in the order of their paths. Each is one document, or the documents
/// that `records` makes of it. Also returns whether all documents are whole files.
pub(super) fn read_documents(
    path: &Path,
    format: Option<DataFormat>,
    records: RecordTexts<'_>,
) -> Result<(Vec<String>, bool), Error> {
    let (mut documents, mut whole_files) = (Vec::new(), true);
    for file in files_in(path, format)? {
        let found = format::of(&file, format)?;
        if found != DataFormat::Text {
            whole_files = false;
            let texts = records(&file, found)?.into_iter();
            documents.extend(texts.filter(|text| !text.trim().is_empty()));
            continue;
        }
        let bytes = std::fs::read(&file).map_err(|error| Error::io("read", &file, error))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let lines = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n');
            Error::Data(format!(
                "`{}` is not UTF-8 text (byte {at}, line {})",
                file.display(),
                lines.count() + 1
            ))
        })?;
        if !text.trim().is_empty() {
            documents.push(text);
        }
    }
    if documents.is_empty() {
        return Err(Error::Data(format!("`{}` is empty", path.display())));
    }
    Ok((documents, whole_files))
}

/// Files of a data set of the hub that are not data.
pub(crate) const NOT_DATA: [&str; 6] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
];

/// Words in the names of files and folders, and the splits that they stand for.
pub(crate) const SPLIT_WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Names, without their ending, of texts about the data beside them.
const ABOUT: [&str; 9] = [
    "authors",
    "changelog",
    "citation",
    "code_of_conduct",
    "contributing",
    "licence",
    "license",
    "notice",
    "readme",
];

/// The split that a file is named after, or a folder that it is in.
fn split_of(file: &Path) -> Option<&'static str> {
    let is_apart = |character: char| "-._ 0123456789".contains(character);
    let names = file.iter().filter_map(|name| name.to_str());
    let words: Vec<&str> = names.flat_map(|name| name.split(is_apart)).collect();
    let of = |(_, known): &&(&str, &[&str])| words.iter().any(|word| known.contains(word));
    SPLIT_WORDS.iter().find(of).map(|(split, _)| *split)
}

/// Whether `file` says something about the data and is none.
fn is_about(file: &Path) -> bool {
    let part =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stem = part(file.file_stem()).to_lowercase();
    NOT_DATA.contains(&&*part(file.file_name()))
        || (ABOUT.contains(&&*stem) && matches!(format::named(file), None | Some(DataFormat::Text)))
}

/// The file `path`, or the files of data below the folder `path`, in the order of their paths: with a `format` all
/// files, else those whose name tells their format, without those about the data and those of other splits than the
/// one to train on. Hidden files are left out; a warning lists others that are left out.
pub(crate) fn files_in(path: &Path, format: Option<DataFormat>) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |error| Error::Data(format!("`{}` cannot be read: {error}", path.display()));
    let found = path.metadata().map_err(unreadable)?;
    if found.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if !found.is_dir() {
        return Err(Error::Data(format!(
            "`{}` is neither a file nor a folder: a pipe or a device cannot be read twice",
            path.display()
        )));
    }
    // Other folders are those of the hub's data, which are links into its cache.
    let confinement = Confinement::of_the_environment().filter(|all| all.allows(path));
    let files = files_below(path, confinement.as_ref())?;
    let (mut files, mut others): (Vec<_>, Vec<_>) = files
        .into_iter()
        .partition(|file| format.is_some() || format::named(file).is_some());
    let shown = |files: &[PathBuf]| {
        let names = files
            .iter()
            .take(3)
            .map(|file| file.strip_prefix(path).unwrap_or(file));
        let names = names.map(|name| format!("`{}`", name.display()));
        names.collect::<Vec<_>>().join(", ")
    };
    let split = |file: &PathBuf| split_of(file.strip_prefix(path).unwrap_or(file));
    let mut left_out = Vec::new();
    let mut leave_out = |files: &mut Vec<PathBuf>, why: &str, is_out: &dyn Fn(&PathBuf) -> bool| {
        let (out, kept): (Vec<_>, Vec<_>) = files.drain(..).partition(|file| is_out(file));
        // A folder of nothing else is meant.
        match kept.is_empty() {
            true => *files = out,
            false => {
                *files = kept;
                left_out.extend((!out.is_empty()).then(|| format!("{} ({why})", shown(&out))));
            }
        }
    };
    if format.is_none() {
        leave_out(&mut files, "about the data", &|file| is_about(file));
        others.retain(|file| !is_about(file));
        // A text may have any name.
        let is_text = |file: &PathBuf| format::named(file) == Some(DataFormat::Text);
        if !files.iter().all(is_text) || files.iter().any(|file| split(file) == Some("train")) {
            let why = "of another split; `data.eval_dataset` may name them";
            leave_out(&mut files, why, &|file| {
                split(file).is_some_and(|split| split != "train")
            });
        }
    }
    if files.is_empty() {
        let read = format::known_endings().map(|ending| format!("*.{ending}"));
        let mut message = format!(
            "`{}` contains no text (files that are read: {})",
            path.display(),
            read.collect::<Vec<_>>().join(", ")
        );
        if !others.is_empty() {
            message += &format!(", only other files such as {}", shown(&others));
        }
        return Err(Error::Data(message));
    }
    if !others.is_empty() {
        left_out.push(format!(
            "{} whose names do not tell their format, such as {} (`data.format` sets it for all files of a \
             folder)",
            others.len(),
            shown(&others)
        ));
    }
    if !left_out.is_empty() {
        let more = files.len().saturating_sub(3);
        tracing::warn!(
            "of the folder `{}`, {}{} {} read; left out: {}",
            path.display(),
            shown(&files),
            if more > 0 {
                format!(" and {more} more files")
            } else {
                String::new()
            },
            if files.len() == 1 { "is" } else { "are" },
            left_out.join("; ")
        );
    }
    Ok(files)
}

/// All files below `folder`, in the order of their paths; none is a link out of where it may lead.
fn files_below(folder: &Path, confinement: Option<&Confinement>) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).map_err(|error| Error::io("read", &folder, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("read", &folder, error))?;
            let path = entry.path();
            // Do not follow symbolic links: a link to a folder above would never end.
            let kind = entry
                .file_type()
                .map_err(|error| Error::io("read", &path, error))?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            if confinement.is_some_and(|all| kind.is_symlink() && !all.allows(&path)) {
                let path = path.display();
                return Err(Error::Data(format!("the link `{path}` {LEADS_ELSEWHERE}")));
            }
            if path.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Which of `count` records are held out, `fraction` of them rounded up: the last ones, or with a `seed` a random
/// selection, as in `train_test_split` of Hugging Face's datasets. Of two or more records, at least one is on either
/// side.
pub(crate) fn held_out_records(count: usize, fraction: f64, seed: Option<u64>) -> Vec<bool> {
    let held_out = (count as f64 * fraction).ceil() as usize;
    let held_out = held_out.clamp(1, count.saturating_sub(1).max(1));
    let mut order: Vec<usize> = (0..count).collect();
    if let Some(seed) = seed {
        // A different stream than the training order's generator.
        let mut random = SplitMix64::new(&[seed, u64::MAX]);
        for end in (1..count).rev() {
            order.swap(end, random.below(end as u64 + 1) as usize);
        }
    }
    let mut chosen = vec![false; count];
    for index in order.into_iter().rev().take(held_out) {
        chosen[index] = true;
    }
    chosen
}

/// Holds out `fraction` of the documents, selected by `seed`.
pub(super) fn split_documents(documents: Vec<String>, fraction: f64, seed: u64) -> Parts {
    let chosen = held_out_records(documents.len(), fraction, Some(seed));
    let mut chosen = chosen.into_iter();
    let (held_out, training) = documents
        .into_iter()
        .partition(|_| chosen.next().unwrap_or_default());
    Parts { training, held_out }
}

/// Holds out the last `fraction` of the text, from the start of a line on.
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

/// The end of the line at byte `at`, or the nearest character boundary if the line has no end.
fn line_end(text: &str, at: usize) -> usize {
    let at = text.floor_char_boundary(at);
    // A text without line breaks is split at the requested position.
    text[at..]
        .find('\n')
        .filter(|distance| *distance < 1000)
        .map_or(at, |distance| at + distance + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// For folders without records.
    fn none(path: &Path, _: DataFormat) -> Result<Vec<String>, Error> {
        panic!("{} has no records", path.display())
    }

    proptest! {
        #[test]
        fn as_many_records_are_held_out_as_by_train_test_split_and_none_is_lost(
            count in 2usize..200, fraction in 0.001f64..0.5, seed: u64,
        ) {
            let want = ((count as f64 * fraction).ceil() as usize).min(count - 1);
            let last = held_out_records(count, fraction, None);
            let any = held_out_records(count, fraction, Some(seed));
            for chosen in [&last, &any] {
                prop_assert_eq!(chosen.iter().filter(|chosen| **chosen).count(), want);
            }
            prop_assert!(last[count - want..].iter().all(|chosen| *chosen));
            prop_assert_eq!(&any, &held_out_records(count, fraction, Some(seed)));
            let documents: Vec<_> = (0..count).map(|number| number.to_string()).collect();
            let parts = split_documents(documents.clone(), fraction, seed);
            let mut all = [parts.training, parts.held_out].concat();
            all.sort_by_key(|text| text.parse::<usize>().unwrap());
            prop_assert_eq!(all, documents);
        }

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
    fn the_held_out_part_starts_with_a_line() {
        let parts = split(vec!["one\ntwo\n".into(), "three\nfour\nfive\n".into()], 0.4);
        assert_eq!(parts.training, ["one\ntwo\n", "three\nfour\n"]);
        assert_eq!(parts.held_out, ["five\n"]);
    }

    #[test]
    fn a_folder_is_read_in_path_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b/1.txt"), "second").unwrap();
        std::fs::write(folder.path().join("a.md"), "first").unwrap();
        std::fs::write(folder.path().join("c.bin"), [0xFF, 0xFE]).unwrap();
        assert_eq!(
            read_documents(folder.path(), None, &none).unwrap(),
            (vec!["first".into(), "second".into()], true)
        );
    }

    #[test]
    fn of_a_data_set_the_split_to_train_on_is_read() {
        let found = |names: &[&str], format| {
            let folder = tempfile::tempdir().unwrap();
            for name in names {
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "a").unwrap();
            }
            let files = files_in(folder.path(), format).unwrap();
            let name = |file: &PathBuf| {
                file.strip_prefix(folder.path())
                    .unwrap()
                    .display()
                    .to_string()
            };
            files.iter().map(name).collect::<Vec<_>>()
        };
        let hub = [
            "README.md",
            "LICENSE",
            ".gitattributes",
            "dataset_infos.json",
            "test.jsonl",
            "train.jsonl",
        ];
        assert_eq!(found(&hub, None), ["train.jsonl"]);
        let folders = [
            "License.txt",
            "data/train-00000-of-2.parquet",
            "data/val-0.parquet",
            "dev/a.json",
        ];
        assert_eq!(found(&folders, None), ["data/train-00000-of-2.parquet"]);
        // Without a named split to train on, what is not of another one.
        assert_eq!(
            found(&["chats.jsonl", "eval.jsonl", "more/b.csv"], None),
            ["chats.jsonl", "more/b.csv"]
        );
        // Texts may be called anything, and a folder of nothing else is meant.
        assert_eq!(found(&["a.txt", "test.txt"], None), ["a.txt", "test.txt"]);
        assert_eq!(found(&["train.txt", "test.txt"], None), ["train.txt"]);
        assert_eq!(found(&["README.md"], None), ["README.md"]);
        assert_eq!(found(&["test.jsonl"], None), ["test.jsonl"]);
        let all = Some(DataFormat::Text);
        assert_eq!(found(&["README.md", "a.bin"], all), ["README.md", "a.bin"]);
    }

    #[test]
    fn a_confined_config_reads_no_link_to_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let texts = place.path().join("texts");
        std::fs::create_dir(&texts).unwrap();
        std::fs::write(place.path().join("secret"), "secret").unwrap();
        std::fs::write(texts.join("a.txt"), "a").unwrap();
        std::os::unix::fs::symlink("a.txt", texts.join("b.txt")).unwrap();
        let confinement = Confinement::new([texts.clone()]);
        let names = files_below(&texts, Some(&confinement)).unwrap();
        assert_eq!(names, [texts.join("a.txt"), texts.join("b.txt")]);
        std::os::unix::fs::symlink("../secret", texts.join("c.txt")).unwrap();
        let error = files_below(&texts, Some(&confinement)).unwrap_err();
        assert!(error.to_string().contains("c.txt` leads"), "{error}");
        assert_eq!(files_below(&texts, None).unwrap().len(), 3);
    }

    #[test]
    fn missing_empty_and_binary_text_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let message = |path: &Path| {
            let error = read_documents(path, None, &none).unwrap_err();
            error.to_string()
        };
        assert!(message(folder.path()).contains("contains no text"));
        let file = folder.path().join("x.txt");
        std::fs::write(&file, " \n").unwrap();
        assert!(message(&file).contains("is empty"));
        std::fs::write(&file, [b'a', 0xFF]).unwrap();
        assert!(message(&file).contains("is not UTF-8 text (byte 1, line 1)"));
    }
}
