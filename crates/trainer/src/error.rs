//! Everything that can end a run; each message says what to do about it.

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

    /// The hub of models cannot be reached.
    #[error("{0}")]
    Hub(String),

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

    /// A config asks a run to go on as something that it was not.
    #[error("{0}")]
    Resume(String),

    /// This is no rank of the run: the environment says nonsense, or it would train something else.
    #[error("{0}")]
    RankDiffers(String),

    /// The processes that train together do not find each other, or have lost one.
    #[error("{0}")]
    Ranks(String),

    /// Losses or gradients stopped being numbers, and going back did not help.
    #[error("{0}")]
    Diverged(String),

    /// Memory ran out, and everything that can be done about it was.
    #[error(transparent)]
    OutOfMemory(Box<placement::oom::Exhausted>),

    /// A model, a tensor of it, or libtorch.
    #[error(transparent)]
    Model(#[from] models::Error),

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

    /// A bug here: a state that should not exist.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// What a model says of a config that does not fit it.
    pub(crate) fn of_config(error: models::Error) -> Self {
        match error {
            models::Error::Invalid(reason) => Self::Data(reason),
            other => other.into(),
        }
    }

    /// Whether the cause is what the user asked for rather than what happened on the way.
    pub fn is_bad_usage(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Data(_)
            | Self::Device(_)
            | Self::Allocator(_)
            | Self::RankDiffers(_)
            | Self::Resume(_) => true,
            Self::Model(error) => error.is_bad_usage(),
            _ => false,
        }
    }

    /// Whether memory was exhausted, and the device can still be used.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Model(error) if error.is_out_of_memory())
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

impl From<placement::PlaceError> for Error {
    fn from(error: placement::PlaceError) -> Self {
        Self::Model(error.into())
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Self::Model(error.into())
    }
}

impl From<torch_ext::Error> for Error {
    fn from(error: torch_ext::Error) -> Self {
        Self::Model(error.into())
    }
}
