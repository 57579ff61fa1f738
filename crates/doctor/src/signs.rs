//! Words by which a text shows on which system it was written.

pub(crate) use crate::tables::{LINUX, PROBABLY_WINDOWS, REMARKS, WINDOWS, WSL};

/// `C:\Users…` at the start of a word, or `E:/TheRock…`.
pub(crate) fn is_drive(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.next() == Some(':')
        && chars.next().is_some_and(|c| c == '\\' || c == '/')
        && chars
            .next()
            .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
}
