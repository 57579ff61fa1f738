//! What a caller asks of the engine, and what it answers.

use serde::Serialize;

use crate::transfer::report::{Failure, Outcome, TransferTrace};
use crate::transfer::transport::{Element, TransportError};
use crate::transfer::verify::{Role, Verify};
use platform::Bytes;

/// How moves are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Which arrivals are verified.
    pub verify: Verify,
    /// The piece size of the chunked route.
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
    /// Its name: of the parameter, or of the batch's field (the same for each batch).
    pub name: &'a str,
    /// What it is.
    pub role: Role,
    /// The element type it shall have on the device; `None` keeps the source's.
    pub cast: Option<Element>,
}

/// Where a tensor ended.
#[derive(Debug)]
pub enum Placed<Remote, Host> {
    /// On the device.
    OnDevice(Remote),
    /// On the host, after every strategy failed; a warning has been logged.
    OnHost(Host),
}

/// Why a move ended without the tensor.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MoveError {
    /// Everything on the device is lost. Nothing may be tried again in this process.
    #[error(
        "moving `{tensor}` left the device unusable: {message}; end this process and start again \
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
        "the device hangs since `{tensor}` was moved ({message}), and a full synchronisation did not \
         end either; end this process and start again from the last checkpoint"
    )]
    Hung {
        /// The tensor that was on its way.
        tensor: String,
        /// What did not end.
        message: String,
    },
    /// Somebody wrote to the source during the move.
    #[error(
        "`{tensor}` was written to while it was on its way to the device; whoever fills it must wait \
         until the copy is complete"
    )]
    SourceChanged {
        /// Name of the tensor.
        tensor: String,
    },
    /// The host could not even prepare the tensor.
    #[error("`{tensor}` could not be prepared on the host: {source}")]
    Host {
        /// Name of the tensor.
        tensor: String,
        /// What went wrong.
        source: TransportError,
    },
    /// Every strategy failed, and the policy does not allow the tensor to stay on the host.
    #[error("no way to the device worked for this tensor:\n{trace}")]
    NotPlaced {
        /// What was tried.
        trace: TransferTrace,
    },
    /// A tensor of the device did not arrive in host memory.
    #[error(
        "`{}` did not arrive in host memory: its copies failed, differ from each other, or from what is on the \
         device:\n{trace}",
        trace.tensor
    )]
    NotFetched {
        /// What was tried.
        trace: TransferTrace,
    },
}

impl MoveError {
    /// Whether more free memory would have helped: the caller may make room and try again.
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

    /// Whether the device context can still be used.
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
