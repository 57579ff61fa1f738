//! Errors of libtorch, classified by what the caller can do about them.
//!
//! * [`Error::OutOfMemory`]: the context is sane; free something or ask for less.
//! * [`Error::DeviceLost`]: an asynchronous error (illegal access, launch failure,
//!   hang) poisoned the context. Every later call fails or, worse, computes
//!   nonsense. Nothing is retried; the process must end.
//! * everything else leaves the context as it was.

use platform::device_error::ErrorClass;
use tch::TchError;

use crate::library_error::LibraryError;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure inside libtorch or the allocator below it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory of the device or of the host is exhausted. The context is usable.
    #[error("{message}")]
    OutOfMemory {
        /// libtorch's message, with its numbers.
        message: String,
    },
    /// The device context is unusable from now on.
    #[error("the device context is lost: {message}")]
    DeviceLost {
        /// libtorch's message.
        message: String,
    },
    /// An accelerator was requested, but there is none.
    #[error("{0}")]
    NoAccelerator(String),
    /// This operation has no kernel for the dtype or device.
    #[error("{0}")]
    NotImplemented(String),
    /// Arguments that were refused before libtorch saw them.
    #[error("{0}")]
    InvalidArgument(String),
    /// A Rust function that libtorch called back failed or panicked.
    #[error("{0}")]
    Callback(String),
    /// Another process did not answer in time, or the connection to it broke.
    #[error("{0}")]
    Peer(String),
    /// Any other error of libtorch; the context is usable.
    #[error("{0}")]
    Torch(String),
    /// The allocator library.
    #[error(transparent)]
    Allocator(#[from] LibraryError),
}

impl Error {
    /// Whether the device context can still be used after this error.
    pub fn context_is_usable(&self) -> bool {
        !matches!(self, Error::DeviceLost { .. })
    }

    /// Whether memory was exhausted.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }

    /// Combines what the shim reported: the class of the exception, the
    /// accelerator's own error number (0 if none) and the message.
    pub(crate) fn from_shim(code: Code, number: i32, message: String) -> Self {
        match code {
            Code::OutOfMemory => Error::OutOfMemory { message },
            Code::Accelerator => {
                match u32::try_from(number).map_or(ErrorClass::Other, ErrorClass::of_code) {
                    ErrorClass::OutOfMemory => Error::OutOfMemory { message },
                    ErrorClass::ContextLost => Error::DeviceLost { message },
                    ErrorClass::Other => Error::from_message(message),
                }
            }
            Code::NoAccelerator => Error::NoAccelerator(message),
            Code::InvalidArgument => Error::InvalidArgument(message),
            Code::NotImplemented => Error::NotImplemented(message),
            Code::Callback => Error::Callback(message),
            Code::Peer => Error::Peer(message),
            Code::DeviceLost => Error::DeviceLost { message },
            Code::Torch => Error::from_message(message),
        }
    }

    /// The form in which a function called back by libtorch reports an error to the shim: `from_shim` converts it to an
    /// error of the same class.
    pub(crate) fn into_shim(self) -> (Code, String) {
        match self {
            Error::OutOfMemory { message } => (Code::OutOfMemory, message),
            Error::DeviceLost { message } => (Code::DeviceLost, message),
            Error::NoAccelerator(message) => (Code::NoAccelerator, message),
            Error::NotImplemented(message) => (Code::NotImplemented, message),
            Error::InvalidArgument(message) => (Code::InvalidArgument, message),
            Error::Callback(message) => (Code::Callback, message),
            Error::Peer(message) => (Code::Peer, message),
            Error::Torch(message) => (Code::Torch, message),
            Error::Allocator(error) => (Code::Callback, error.to_string()),
        }
    }

    /// Classifies a message without an error class: exceptions that passed through tch, and errors that libtorch itself
    /// wraps.
    pub fn from_message(message: String) -> Self {
        let message = without_backtrace(message);
        match ErrorClass::of_message(&message) {
            ErrorClass::OutOfMemory => Error::OutOfMemory { message },
            ErrorClass::ContextLost => Error::DeviceLost { message },
            ErrorClass::Other => Error::Torch(message),
        }
    }
}

impl From<TchError> for Error {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(message) => Error::from_message(message),
            other => Error::Torch(other.to_string()),
        }
    }
}

/// Class of a failure; mirrors `surefoot::Code` in `cpp/boundary.h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Code {
    Torch,
    OutOfMemory,
    Accelerator,
    NoAccelerator,
    InvalidArgument,
    NotImplemented,
    Callback,
    Peer,
    DeviceLost,
}

impl Code {
    pub(crate) fn to_raw(self) -> i32 {
        match self {
            Code::Torch => 1,
            Code::OutOfMemory => 2,
            Code::Accelerator => 3,
            Code::NoAccelerator => 4,
            Code::InvalidArgument => 5,
            Code::NotImplemented => 6,
            Code::Callback => 7,
            Code::Peer => 8,
            Code::DeviceLost => 9,
        }
    }

    pub(crate) fn from_raw(code: i32) -> Self {
        match code {
            2 => Code::OutOfMemory,
            3 => Code::Accelerator,
            4 => Code::NoAccelerator,
            5 => Code::InvalidArgument,
            6 => Code::NotImplemented,
            7 => Code::Callback,
            8 => Code::Peer,
            9 => Code::DeviceLost,
            _ => Code::Torch,
        }
    }
}

/// Removes the C++ stack at the end of `c10::Error::what()`, which is of no use in a training log. The shim omits it; tch
/// does not.
fn without_backtrace(message: String) -> String {
    match message.find("\nException raised from ") {
        Some(end) => message[..end].trim_end().to_owned(),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_full_device_are_out_of_memory() {
        for message in [
            "CUDA out of memory. Tried to allocate 20.00 MiB.",
            "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 0 bytes",
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: \
             you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)",
        ] {
            assert!(
                Error::from_message(message.into()).is_out_of_memory(),
                "{message}"
            );
        }
    }

    #[test]
    fn asynchronous_errors_lose_the_context() {
        for message in [
            "HIP error: an illegal memory access was encountered",
            "CUDA error: unspecified launch failure",
            "HIP error: the launch timed out and was terminated",
            "CUDA error: device-side assert triggered",
        ] {
            assert!(
                !Error::from_message(message.into()).context_is_usable(),
                "{message}"
            );
        }
    }

    #[test]
    fn a_lost_device_is_not_hidden_by_an_out_of_memory_that_it_quotes() {
        let message = "HIP error: an illegal memory access was encountered; earlier: out of memory";
        assert!(matches!(
            Error::from_message(message.into()),
            Error::DeviceLost { .. }
        ));
    }

    #[test]
    fn numbers_decide_where_there_is_one() {
        let error = |number| Error::from_shim(Code::Accelerator, number, "HIP error".into());
        assert!(matches!(error(2), Error::OutOfMemory { .. }));
        assert!(matches!(error(719), Error::DeviceLost { .. }));
        assert!(matches!(error(801), Error::Torch(_))); // not supported: the context is fine
    }

    #[test]
    fn the_cpp_stack_is_cut_off() {
        let error =
            Error::from_message("size mismatch\nException raised from foo at a.cpp:1".into());
        assert_eq!(error.to_string(), "size mismatch");
    }
}
