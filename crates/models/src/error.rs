//! Why a model could not be read, built, run or written.

use std::path::{Path, PathBuf};

/// A failure with a model's files, its config, its adapter, or an operation on its tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried, as in "read".
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A file is damaged, or holds what this crate cannot use.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        reason: String,
    },

    /// Weights of a file with which every result would be NaN.
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
        /// How many of its numbers are not finite.
        bad: i64,
        /// How many there are.
        of: i64,
    },

    /// The options do not fit the model.
    #[error("{0}")]
    Invalid(String),

    /// A tensor could not be brought to the device.
    #[error("placing {0}")]
    Placement(placement::PlaceError),

    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(tch::TchError),

    /// libtorch refused an operation of `torch-ext`.
    #[error("libtorch: {0}")]
    TorchExt(torch_ext::Error),

    /// A bug in this crate: a state that should not exist.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// Whether the cause is what the user asked for (a file, an option) rather than what
    /// happened on the way.
    pub fn is_bad_usage(&self) -> bool {
        match self {
            Self::Io { action, .. } => ["open", "read"].contains(action),
            Self::File { .. } | Self::Invalid(_) => true,
            _ => false,
        }
    }

    /// Whether memory was exhausted, and the device can still be used.
    pub fn is_out_of_memory(&self) -> bool {
        use torch_ext::Error as TorchError;
        match self {
            Self::Torch(error) => TorchError::from_message(error.to_string()).is_out_of_memory(),
            // A function that libtorch called back has only its text left.
            Self::TorchExt(TorchError::Callback(text)) => {
                TorchError::from_message(text.clone()).is_out_of_memory()
            }
            Self::TorchExt(error) => error.is_out_of_memory(),
            Self::Placement(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    /// The error as one of `torch-ext`, for functions that libtorch calls back.
    pub fn into_torch(self) -> torch_ext::Error {
        match self {
            Self::Torch(error) => error.into(),
            Self::TorchExt(error) => error,
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

    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

// Written out, since what `#[from]` derives would also be a source: an error printed with its
// causes would then show each of these twice.

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

/// libtorch's messages carry a C++ stack after the first line.
fn first_line(error: &tch::TchError) -> String {
    let text = match error {
        tch::TchError::Torch(text) => text.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}
