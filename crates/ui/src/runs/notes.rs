//! `notes.json`, in which the user says what a run is about; the trainer neither reads nor writes it.

use std::io;
use std::sync::Mutex;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::files::Folder;
use super::{Error, RunName, Runs, read_text};

const FILE: &str = "notes.json";
/// The most tags, and the most letters of one.
const MAX_TAGS: usize = 20;
const MAX_TAG_LETTERS: usize = 40;
/// The longest text, in bytes.
const MAX_TEXT: usize = 16 << 10;
/// The longest file, in bytes: JSON has up to six for one of a text.
const MAX_FILE: u64 = 6 * MAX_TEXT as u64 + (8 << 10);
/// Held while notes are changed.
static CHANGING: Mutex<()> = Mutex::new(());

/// What the user notes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Notes {
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Anything else.
    pub text: String,
}

/// Notes in the place of others.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NotesChange {
    /// The new ones.
    pub notes: Notes,
    /// The notes when they were read.
    pub before: Notes,
}

/// The notes of the run in `folder`; empty if there are none, or the file is damaged.
pub(super) fn of(folder: &Folder) -> Notes {
    read(folder).unwrap_or_default()
}

/// The notes of the run in `folder`; empty if there are none.
fn read(folder: &Folder) -> io::Result<Notes> {
    match read_text(folder.file(FILE), MAX_FILE) {
        Ok(text) => Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Notes::default()),
        Err(error) => Err(error),
    }
}

/// Tags as they are kept.
fn trimmed(tags: &[String]) -> Vec<String> {
    let tags = tags.iter().map(|tag| tag.trim().to_owned());
    tags.filter(|tag| !tag.is_empty()).collect()
}

impl Runs {
    /// Notes something of a run.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Refused`] if it is too long, if the notes are no longer those `before`, or if
    /// their file cannot be read, or an I/O error.
    pub fn set_notes(&self, name: &RunName, change: NotesChange) -> Result<(), Error> {
        let NotesChange { notes, before } = change;
        let (tags, text) = (trimmed(&notes.tags), notes.text);
        let is_tag = |tag: &String| {
            tag.chars().count() <= MAX_TAG_LETTERS
                && !tag.contains(|letter: char| letter == ',' || letter.is_control())
        };
        if tags.len() > MAX_TAGS || !tags.iter().all(is_tag) || text.len() > MAX_TEXT {
            return Err(Error::Refused(format!(
                "a run has at most {MAX_TAGS} tags of {MAX_TAG_LETTERS} letters without commas, and a note of 16 KiB"
            )));
        }
        let folder = self.folder(name)?;
        let _changing = CHANGING
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = read(&folder).map_err(|error| {
            Error::Refused(format!(
                "{FILE} of the run is not replaced, as it cannot be read: {error}"
            ))
        })?;
        if trimmed(&now.tags) != trimmed(&before.tags) || now.text != before.text {
            let text = "the notes have changed meanwhile: show the run again";
            return Err(Error::Refused(text.into()));
        }
        let text = serde_json::json!({ "tags": tags, "text": text }).to_string();
        let written = folder.replace(FILE, text.as_bytes());
        written
            .map_err(|error| Error::io("write", &self.root.join(name.as_str()).join(FILE), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_kept_in_the_folder_and_damaged_ones_are_empty() {
        let place = tempfile::tempdir().unwrap();
        let runs = Runs::new(place.path());
        let name = RunName::parse("a").unwrap();
        let notes = Notes {
            tags: vec![" good ".into(), String::new()],
            text: "a <b>note</b>".into(),
        };
        let change = |notes: &Notes, before: &Notes| NotesChange {
            notes: notes.clone(),
            before: before.clone(),
        };
        let none = Notes::default();
        assert!(matches!(
            runs.set_notes(&name, change(&notes, &none)),
            Err(Error::NotFound { .. })
        ));
        std::fs::create_dir(place.path().join("a")).unwrap();
        std::fs::write(place.path().join("a/config.yaml"), "name: a\n").unwrap();
        runs.set_notes(&name, change(&notes, &none)).unwrap();
        let detail = runs.detail(&name).unwrap();
        assert_eq!(detail.overview.tags, ["good"]);
        assert_eq!(detail.notes, "a <b>note</b>");
        let long = Notes {
            text: "x".repeat(MAX_TEXT + 1),
            ..Notes::default()
        };
        let many = Notes {
            tags: vec!["x".into(); MAX_TAGS + 1],
            ..Notes::default()
        };
        for notes in [long, many] {
            assert!(matches!(
                runs.set_notes(&name, change(&notes, &Notes::default())),
                Err(Error::Refused(_))
            ));
        }
        std::fs::write(place.path().join("a/notes.json"), "{\"tags\": 5").unwrap();
        assert!(runs.overview(&name).unwrap().tags.is_empty());
    }

    #[test]
    fn notes_that_have_changed_or_cannot_be_read_are_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let runs = Runs::new(place.path());
        let name = RunName::parse("a").unwrap();
        std::fs::create_dir(place.path().join("a")).unwrap();
        std::fs::write(place.path().join("a/config.yaml"), "name: a\n").unwrap();
        let set = |text: &str, before: &str| {
            let notes = |text: &str| Notes {
                text: text.into(),
                ..Notes::default()
            };
            let (notes, before) = (notes(text), notes(before));
            runs.set_notes(&name, NotesChange { notes, before })
        };
        // As many bytes as a text may have, six times as many in the file.
        let longest = "\u{1}".repeat(MAX_TEXT);
        set(&longest, "").unwrap();
        assert_eq!(runs.detail(&name).unwrap().notes, longest);
        assert!(matches!(set("other", ""), Err(Error::Refused(_))));
        set("other", &longest).unwrap();
        let file = place.path().join("a/notes.json");
        for damaged in ["{\"text\": 5", "{\"text\": \"other\", \"stars\": 5}"] {
            std::fs::write(&file, damaged).unwrap();
            assert!(matches!(set("new", ""), Err(Error::Refused(_))));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged);
        }
    }
}
