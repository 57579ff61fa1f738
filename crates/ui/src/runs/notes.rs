//! `notes.json`, in which the user says what a run is about; the trainer neither reads nor writes it.

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

/// What the user notes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Notes {
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Anything else.
    pub text: String,
}

/// The notes of the run in `folder`; empty if there are none, or the file is damaged.
pub(super) fn of(folder: &Folder) -> Notes {
    let text = read_text(folder.file(FILE), 2 * MAX_TEXT as u64).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

impl Runs {
    /// Notes something of a run.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Refused`] if it is too long, or an I/O error.
    pub fn set_notes(&self, name: &RunName, notes: Notes) -> Result<(), Error> {
        let Notes { tags, text } = notes;
        let mut tags: Vec<_> = tags.iter().map(|tag| tag.trim().to_owned()).collect();
        tags.retain(|tag| !tag.is_empty());
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
        assert!(matches!(
            runs.set_notes(&name, notes.clone()),
            Err(Error::NotFound { .. })
        ));
        std::fs::create_dir(place.path().join("a")).unwrap();
        std::fs::write(place.path().join("a/config.yaml"), "name: a\n").unwrap();
        runs.set_notes(&name, notes).unwrap();
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
                runs.set_notes(&name, notes),
                Err(Error::Refused(_))
            ));
        }
        std::fs::write(place.path().join("a/notes.json"), "{\"tags\": 5").unwrap();
        assert!(runs.overview(&name).unwrap().tags.is_empty());
    }
}
