//! What can go wrong in libtorch, told apart by what the caller can do about it.
//!
//! * [`Error::OutOfMemory`]: the context is sane; free something or ask for less.
//! * [`Error::DeviceLost`]: an asynchronous error (illegal access, launch failure,
//!   hang) poisoned the context. Every later call fails or, worse, computes
//!   nonsense. Nothing is retried; the process must end.
//! * everything else leaves the context as it was.

use tch::TchError;

use crate::{allocator, raw};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure inside libtorch or the allocator below it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory of the device or of the host is exhausted. The context is usable.
    #[error("{message}")]
    OutOfMemory {
        /// libtorch's own words, with its numbers.
        message: String,
    },
    /// The device context is unusable from now on.
    #[error("the device context is lost: {message}")]
    DeviceLost {
        /// libtorch's own words.
        message: String,
    },
    /// An accelerator was asked for and there is none.
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
    /// Any other error of libtorch; the context is usable.
    #[error("{0}")]
    Torch(String),
    /// The allocator library.
    #[error(transparent)]
    Allocator(#[from] allocator::LibraryError),
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

    /// Puts together what the shim reported: the class of the exception, the
    /// accelerator's own error number (0 if none) and the message.
    pub(crate) fn from_shim(code: raw::Code, number: i32, message: String) -> Self {
        match code {
            raw::Code::OutOfMemory => Error::OutOfMemory { message },
            raw::Code::Accelerator => match classify_number(number) {
                Class::OutOfMemory => Error::OutOfMemory { message },
                Class::DeviceLost => Error::DeviceLost { message },
                Class::Other => Error::from_message(message),
            },
            raw::Code::NoAccelerator => Error::NoAccelerator(message),
            raw::Code::InvalidArgument => Error::InvalidArgument(message),
            raw::Code::NotImplemented => Error::NotImplemented(message),
            raw::Code::Callback => Error::Callback(message),
            raw::Code::Torch => Error::from_message(message),
        }
    }

    /// Classifies a bare message: all that is left when an exception went through
    /// tch, and what libtorch throws for errors that its own code wrapped.
    pub fn from_message(message: String) -> Self {
        let message = without_backtrace(message);
        match classify_message(&message) {
            Class::OutOfMemory => Error::OutOfMemory { message },
            Class::DeviceLost => Error::DeviceLost { message },
            Class::Other => Error::Torch(message),
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

#[derive(Debug, PartialEq)]
enum Class {
    OutOfMemory,
    DeviceLost,
    Other,
}

/// Error numbers that CUDA and HIP share (`cudaError_t` and `hipError_t` keep the
/// same values for these).
fn classify_number(number: i32) -> Class {
    match number {
        2 => Class::OutOfMemory,
        // ECC uncorrectable, NVLink uncorrectable, illegal state.
        214 | 220 | 401 => Class::DeviceLost,
        // Illegal address, launch timeout, context destroyed, assert, hardware stack
        // error, illegal instruction, misaligned address, invalid address space,
        // invalid program counter, launch failure.
        700 | 702 | 709 | 710 | 714..=719 => Class::DeviceLost,
        999 => Class::DeviceLost, // "unknown error": hangs and resets arrive as this
        _ => Class::Other,
    }
}

/// Wordings of the CUDA and HIP runtimes and of c10. Lower case.
fn classify_message(message: &str) -> Class {
    const OUT_OF_MEMORY: [&str; 5] = [
        "out of memory", // "CUDA out of memory.", "HIP out of memory.", hipErrorOutOfMemory
        "defaultcpuallocator: can't allocate memory",
        "defaultcpuallocator: not enough memory",
        "std::bad_alloc",
        "hiperroroutofmemory",
    ];
    const DEVICE_LOST: [&str; 17] = [
        "illegal memory access",
        "unspecified launch failure",
        "launch timed out",
        "device-side assert",
        "misaligned address",
        "illegal instruction",
        "invalid program counter",
        "hardware stack error",
        "uncorrectable ecc error",
        "context is destroyed",
        "hiperrorillegaladdress",
        "hiperrorlaunchfailure",
        "hiperrorlaunchtimeout",
        "hiperrorassert",
        "hiperrorillegalstate",
        "memory access fault by gpu",
        "hip error: unknown error",
    ];
    let message = message.to_lowercase();
    let has = |wordings: &[&str]| wordings.iter().any(|wording| message.contains(wording));
    // A lost device first: its message may quote an earlier "out of memory".
    if has(&DEVICE_LOST) {
        Class::DeviceLost
    } else if has(&OUT_OF_MEMORY) {
        Class::OutOfMemory
    } else {
        Class::Other
    }
}

/// `c10::Error::what()` ends with the C++ stack, which helps nobody who reads a
/// training log. The shim leaves it out itself; tch does not.
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
        let error = |number| Error::from_shim(raw::Code::Accelerator, number, "HIP error".into());
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
