//! Everything that can end a run, told so that the reader knows what to do next.

use std::path::{Path, PathBuf};

use crate::config::ConfigError;

/// Why a run could not start or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The config is wrong; each problem knows its place.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// The text cannot be used.
    #[error("{0}")]
    Data(String),

    /// The device asked for is not there.
    #[error("{0}")]
    Device(String),

    /// The library of the memory allocator cannot be used.
    #[error("{0}")]
    Allocator(String),

    /// A checkpoint is missing, damaged, or belongs to another model.
    #[error("checkpoint `{}`: {reason}", path.display())]
    Checkpoint {
        /// The checkpoint's folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// Losses or gradients stopped being numbers, and going back did not help.
    #[error("{0}")]
    Diverged(String),

    /// Memory ran out, and everything that can be done about it was.
    #[error(transparent)]
    OutOfMemory(Box<placement::shortage::Exhausted>),

    /// A pretrained model cannot be used.
    #[error(transparent)]
    Weights(#[from] crate::weights::WeightsError),

    /// A file could not be read or written.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried, as in "write".
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A tensor could not be brought to the device.
    #[error("placing {0}")]
    Placement(placement::PlaceError),

    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(tch::TchError),

    /// libtorch refused an operation of the shim.
    #[error("libtorch: {0}")]
    TorchExt(torch_ext::Error),

    /// A bug here: a state that should not exist.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// Whether the cause is what the user asked for rather than what happened on the way.
    pub fn is_bad_usage(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Data(_)
                | Self::Device(_)
                | Self::Allocator(_)
                | Self::Weights(_)
        )
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
    pub(crate) fn into_torch(self) -> torch_ext::Error {
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

    pub(crate) fn checkpoint(path: &Path, reason: impl Into<String>) -> Self {
        Self::Checkpoint {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

// Written out, since what `#[from]` derives would also be a source: then whoever prints an
// error with its causes would print these, which are told in full already, twice.

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

/// libtorch's messages carry a C++ stack after the first lines.
fn first_line(error: &tch::TchError) -> String {
    let text = match error {
        tch::TchError::Torch(text) => text.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}
