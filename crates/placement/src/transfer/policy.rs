//! The engine's requests, results and errors.

use serde::Serialize;

use crate::transfer::report::{Failure, Outcome, TransferTrace};
use crate::transfer::transport::{Element, TransportError};
use crate::transfer::verify::{Role, Verify};
use platform::Bytes;

/// How tensors are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Which transfers are verified.
    pub verify: Verify,
    /// Chunk size of the chunked strategy.
    pub chunk: Bytes,
    /// Whether a tensor that cannot be moved may stay on the host, with a warning. Otherwise it is an error.
    pub may_stay_on_host: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            verify: Verify::First,
            chunk: Bytes::mib(16),
            may_stay_on_host: true,
        }
    }
}

/// One tensor to move.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The name of the parameter, or of the field of a batch (the same for each batch).
    pub name: &'a str,
    /// Weight or batch.
    pub role: Role,
    /// Target element type; `None` keeps the source's.
    pub cast: Option<Element>,
}

/// Where a tensor ended up.
#[derive(Debug)]
pub enum Placed<Remote, Host> {
    /// On the device.
    OnDevice(Remote),
    /// On the host, after every strategy failed; a warning has been logged.
    OnHost(Host),
}

/// Why a move failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MoveError {
    /// Everything on the device is lost. This process must not use it any more.
    #[error(
        "moving `{tensor}` left the device unusable: {message}; exit this process and resume \
         from the last checkpoint"
    )]
    ContextLost {
        /// The tensor that was on its way.
        tensor: String,
        /// The device's own words.
        message: String,
    },
    /// The device does not answer.
    #[error(
        "the device has hung since `{tensor}` was moved ({message}), and a full synchronisation did not \
         complete either; exit this process and resume from the last checkpoint"
    )]
    Hung {
        /// The tensor that was on its way.
        tensor: String,
        /// The operation that did not complete.
        message: String,
    },
    /// The source was written to during the move.
    #[error(
        "`{tensor}` was written to while it was being copied to the device; its writer must wait \
         until the copy is complete"
    )]
    SourceChanged {
        /// Name of the tensor.
        tensor: String,
    },
    /// The tensor could not be prepared on the host.
    #[error("`{tensor}` could not be prepared on the host: {source}")]
    Host {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: TransportError,
    },
    /// Every strategy failed, and the policy does not allow the tensor to stay on the host.
    #[error("no strategy could move this tensor to the device:\n{trace}")]
    NotPlaced {
        /// What was tried.
        trace: TransferTrace,
    },
    /// A device tensor did not arrive in host memory.
    #[error(
        "`{}` did not arrive in host memory: its copies failed, or differ from each other or from the data on the \
         device:\n{trace}",
        trace.tensor
    )]
    NotFetched {
        /// What was tried.
        trace: TransferTrace,
    },
}

impl MoveError {
    /// Whether more free memory would have helped: the caller may free some and try again.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            MoveError::Host { source, .. } => matches!(source, TransportError::OutOfMemory { .. }),
            MoveError::NotPlaced { trace } | MoveError::NotFetched { trace } => {
                trace.attempts.iter().any(|attempt| {
                    matches!(
                        &attempt.outcome,
                        Outcome::Failed {
                            failure: Failure::OutOfMemory { .. }
                        }
                    )
                })
            }
            _ => false,
        }
    }

    /// Whether the device context is still usable.
    pub fn context_is_usable(&self) -> bool {
        !matches!(self, MoveError::ContextLost { .. } | MoveError::Hung { .. })
    }
}

impl From<MoveError> for torch_ext::Error {
    fn from(error: MoveError) -> Self {
        let message = error.to_string();
        match error {
            _ if error.is_out_of_memory() => Self::OutOfMemory { message },
            _ if !error.context_is_usable() => Self::DeviceLost { message },
            _ => Self::Torch(message),
        }
    }
}
