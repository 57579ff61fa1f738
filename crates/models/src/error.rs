//! Errors of reading, building, running and writing models.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A failure with a model's files, its config, its adapter, or an operation on its tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// The attempted operation, as in "read".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A file is damaged or its content is unsupported.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what is expected.
        reason: String,
    },

    /// A weight has non-finite values, so every result would be NaN.
    #[error(
        "`{}`: `{tensor}` has {bad} NaN or infinite values of {of}: the file is damaged, or the \
         training that wrote it diverged",
        path.display()
    )]
    NotFinite {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Number of non-finite values.
        bad: i64,
        /// Number of values in the tensor.
        of: i64,
    },

    /// Invalid options, or options that do not fit the model.
    #[error("{0}")]
    Invalid(String),

    /// A tensor could not be moved to the device.
    #[error("placing {0}")]
    Placement(placement::PlaceError),

    /// An operation failed in libtorch.
    #[error("libtorch: {}", first_line(.0))]
    Torch(tch::TchError),

    /// An operation of `torch-ext` failed.
    #[error("libtorch: {0}")]
    TorchExt(torch_ext::Error),

    /// A bug in this crate: an impossible state.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// Whether the cause is the user's input (a file, an option) rather than a failure at run time.
    pub fn is_bad_usage(&self) -> bool {
        match self {
            Self::Io { action, .. } => ["open", "read"].contains(action),
            Self::File { .. } | Self::Invalid(_) => true,
            _ => false,
        }
    }

    /// Whether memory ran out and the device is still usable.
    pub fn is_out_of_memory(&self) -> bool {
        use torch_ext::Error as TorchError;
        match self {
            Self::Torch(error) => TorchError::from_message(error.to_string()).is_out_of_memory(),
            // Of an error in a callback from libtorch, only the text is left.
            Self::TorchExt(TorchError::Callback(text)) => {
                TorchError::from_message(text.clone()).is_out_of_memory()
            }
            Self::TorchExt(error) => error.is_out_of_memory(),
            Self::Placement(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// Converts the error for functions that libtorch calls back.
    pub fn into_torch(self) -> torch_ext::Error {
        match self {
            Self::Torch(error) => error.into(),
            Self::TorchExt(error) => error,
            Self::Placement(error) if !error.context_is_usable() => {
                let message = error.to_string();
                torch_ext::Error::DeviceLost { message }
            }
            other => torch_ext::Error::Callback(other.to_string()),
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// What is wrong with the file `path`: `reason`, unless it is only a pointer to the file that was meant.
    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File {
            path: path.to_owned(),
            reason: match is_lfs_pointer(path) {
                true => LFS_POINTER.to_owned(),
                false => reason.into(),
            },
        }
    }
}

/// What a file is for which [`is_lfs_pointer`] holds, and what to do.
pub const LFS_POINTER: &str = "is a pointer of git-lfs and not the file itself: run `git lfs pull` in its folder, or \
                               download the file";

/// Whether the file `path` is what git-lfs leaves in place of a large file until that is fetched.
pub fn is_lfs_pointer(path: &Path) -> bool {
    const START: &[u8] = b"version https://git-lfs";
    let mut start = [0; START.len()];
    // Pointers are short; a FIFO or a device is not opened.
    let is_small = path
        .metadata()
        .is_ok_and(|data| data.is_file() && data.len() < 1024);
    let read =
        is_small && File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok());
    read && start == START
}

// Not derived with `#[from]`, which would also make it the source: an error printed with its causes would
// then show it twice.

impl From<placement::PlaceError> for Error {
    fn from(error: placement::PlaceError) -> Self {
        Self::Placement(error)
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error)
    }
}

impl From<torch_ext::Error> for Error {
    fn from(error: torch_ext::Error) -> Self {
        Self::TorchExt(error)
    }
}

/// libtorch's messages have a C++ stack trace after the first line.
fn first_line(error: &tch::TchError) -> String {
    let text = match error {
        tch::TchError::Torch(text) => text.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}
