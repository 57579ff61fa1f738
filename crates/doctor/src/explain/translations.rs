//! Messages of the C library, of shells and of Windows in other languages.
//!
//! A message is looked up as its English original; the line that is shown stays as it was posted.

use crate::tables::PHRASES;
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use std::sync::LazyLock;

static ANY: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    // Constant phrases: the test compiles them.
    let longest = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(PHRASES.iter().map(|(phrase, _)| phrase));
    longest.ok()
});

/// The line in English, as far as these phrases go.
pub(super) fn in_english(line: &str) -> Cow<'_, str> {
    match &*ANY {
        Some(any) if any.is_match(line) => {
            let mut english = String::with_capacity(line.len());
            any.replace_all_with(line, &mut english, |found, _, english| {
                english.push_str(PHRASES[found.pattern().as_usize()].1);
                true
            });
            Cow::Owned(english)
        }
        _ => Cow::Borrowed(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_another_language_becomes_the_english_one() {
        for (posted, english) in [
            (
                "OSError: libhsa-runtime64.so.1: Kann die Shared-Object-Datei nicht öffnen: Datei oder Verzeichnis nicht gefunden",
                "OSError: libhsa-runtime64.so.1: cannot open shared object file: No such file or directory",
            ),
            (
                "Unable to open /dev/kfd read-write: 权限不够",
                "Unable to open /dev/kfd read-write: Permission denied",
            ),
            (
                "Erreur de segmentation (core dumped)",
                "Segmentation fault (core dumped)",
            ),
            (
                "bash: rocminfo: Befehl nicht gefunden",
                "bash: rocminfo: command not found",
            ),
            (
                "E: Impossible de trouver le paquet rocm-hip-sdk",
                "E: Unable to locate package rocm-hip-sdk",
            ),
            (
                "[1]    4242 已杀死   python train.py",
                "[1]    4242 Killed   python train.py",
            ),
            ("loss 0.1 — fertig", "loss 0.1 — fertig"),
        ] {
            assert_eq!(in_english(posted), english);
        }
    }
}
