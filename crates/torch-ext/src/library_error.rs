//! Why an allocator library cannot be used.

use std::path::PathBuf;

/// The ABI version that this crate supports.
pub const ABI_VERSION: u32 = 1;

/// Environment variable that names the library's file.
pub const LIBRARY_VARIABLE: &str = "HIP_ALLOC_LIB";

/// Why an allocator library cannot be used, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// There is no file of that name.
    #[error("the allocator library {} does not exist{}", path.display(), named_by(*from_variable))]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// Whether `HIP_ALLOC_LIB` named it.
        from_variable: bool,
    },
    /// No library was named, and none lies beside the program, or the trainer's library.
    #[error("no allocator library: {LIBRARY_VARIABLE} is not set, and {} does not exist", looked_at.display())]
    NotFound {
        /// That place.
        looked_at: PathBuf,
    },
    /// The file is no library that can be loaded here.
    #[error("the allocator library {} cannot be loaded: {reason}", path.display())]
    Unloadable {
        /// Path of the library.
        path: PathBuf,
        /// The dynamic linker's message.
        reason: String,
    },
    /// The library lacks a function of the ABI.
    #[error("{} is no allocator library: it has no `{symbol}`", path.display())]
    MissingSymbol {
        /// Path of the library.
        path: PathBuf,
        /// Name of the function.
        symbol: &'static str,
    },
    /// The library speaks another version of the ABI.
    #[error(
        "the allocator library {} has ABI version {found}, and this program needs version {ABI_VERSION}; \
         build both from the same source", path.display()
    )]
    WrongAbi {
        /// Path of the library.
        path: PathBuf,
        /// Version of the ABI that the library has.
        found: u32,
    },
    /// A call returned an error code.
    #[error("the allocator library {} failed in `{function}` with code {code}", path.display())]
    Failed {
        /// Path of the library.
        path: PathBuf,
        /// Name of the function.
        function: &'static str,
        /// What it returned; its meaning is in the library's log.
        code: i32,
    },
}

fn named_by(from_variable: bool) -> String {
    if from_variable {
        format!(" (named by {LIBRARY_VARIABLE})")
    } else {
        String::new()
    }
}
