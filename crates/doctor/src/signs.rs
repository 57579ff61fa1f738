//! Words by which a text shows its system, and a line what it is about.

pub(crate) use crate::tables::{
    AFTER_PRODUCT, CONTAINERS, ENGINES, FINISHED, GEFORCE, LINUX, LINUX_IN_PROSE, MACOS,
    NOT_AMD_GRAPHICS, NOT_ON_GPU, NPU, ON_WINDOWS, OTHER_VENDORS, PROBABLY_WINDOWS,
    PROCESSOR_NAMES, RATES, REMARKS, TELLING, VIRTUAL_ADAPTERS, WINDOWS, WINDOWS_IN_PROSE, WSL,
    WSL_IN_PROSE,
};

/// What programs with llama.cpp compute with, whose builds have nothing to do with wheels.
pub(crate) const ENGINE: &str = "llama.cpp";

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
