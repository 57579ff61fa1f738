//! Why weights could not be read or written: which file, what about it.

use std::path::{Path, PathBuf};

/// A failure with weights, a model's config or its tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried, as in "read".
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// The file is damaged, or holds what this program cannot use.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        reason: String,
    },

    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(tch::TchError),
}

impl WeightsError {
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

impl From<tch::TchError> for WeightsError {
    // Without `#[from]`, which would print the message again as the cause of itself.
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error)
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
