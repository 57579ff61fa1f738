//! Which GPU errors a process can survive.
//!
//! After an asynchronous error (illegal access, launch failure, hang) every later call of the process fails
//! or gives wrong results, so the process must exit. Any other error leaves the device context intact. The
//! allocator and the PyTorch bindings share this table.

/// How a program can continue after an error of the GPU runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The context is usable: free memory, or request less.
    OutOfMemory,
    /// The device context is unusable until the process exits.
    ContextLost,
    /// The call failed; the context is usable.
    Other,
}

/// An error of the HIP and CUDA runtimes. `hipError_t` and `cudaError_t` share these numbers.
#[derive(Debug)]
pub struct DeviceError {
    /// Number in `hipError_t` and `cudaError_t`.
    pub code: u32,
    /// Its name in HIP; `None` if HIP has no such error.
    pub hip: Option<&'static str>,
    /// Its name in CUDA.
    pub cuda: &'static str,
    /// The runtimes' message, in lower case and without articles.
    pub says: &'static str,
    /// How a program can continue.
    pub class: ErrorClass,
}

/// Every error that is not [`ErrorClass::Other`].
///
/// Sources: `hip_runtime_api.h` of ROCm 7 and `driver_types.h` of CUDA 13.
pub const DEVICE_ERRORS: &[DeviceError] = {
    use ErrorClass::{ContextLost, OutOfMemory};
    const fn row(
        code: u32,
        hip: Option<&'static str>,
        cuda: &'static str,
        says: &'static str,
        class: ErrorClass,
    ) -> DeviceError {
        DeviceError {
            code,
            hip,
            cuda,
            says,
            class,
        }
    }
    #[rustfmt::skip]
    const ROWS: &[DeviceError] = &[
        row(2, Some("hipErrorOutOfMemory"), "cudaErrorMemoryAllocation", "out of memory", OutOfMemory),
        row(214, Some("hipErrorECCNotCorrectable"), "cudaErrorECCUncorrectable", "uncorrectable ecc error", ContextLost),
        row(220, None, "cudaErrorNvlinkUncorrectable", "uncorrectable nvlink error", ContextLost),
        row(401, Some("hipErrorIllegalState"), "cudaErrorIllegalState", "operation cannot be performed in the present state", ContextLost),
        row(700, Some("hipErrorIllegalAddress"), "cudaErrorIllegalAddress", "illegal memory access", ContextLost),
        row(702, Some("hipErrorLaunchTimeOut"), "cudaErrorLaunchTimeout", "launch timed out", ContextLost),
        row(709, Some("hipErrorContextIsDestroyed"), "cudaErrorContextIsDestroyed", "context is destroyed", ContextLost),
        row(710, Some("hipErrorAssert"), "cudaErrorAssert", "device-side assert", ContextLost),
        row(714, None, "cudaErrorHardwareStackError", "hardware stack error", ContextLost),
        row(715, None, "cudaErrorIllegalInstruction", "illegal instruction", ContextLost),
        row(716, None, "cudaErrorMisalignedAddress", "misaligned address", ContextLost),
        row(717, None, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space", ContextLost),
        row(718, None, "cudaErrorInvalidPc", "invalid program counter", ContextLost),
        row(719, Some("hipErrorLaunchFailure"), "cudaErrorLaunchFailure", "unspecified launch failure", ContextLost),
        // Hangs and resets are reported as this; "unknown error" alone is too common.
        row(999, Some("hipErrorUnknown"), "cudaErrorUnknown", "hip error: unknown error", ContextLost),
    ];
    ROWS
};

/// Messages of libraries above and below the runtimes, in lower case.
const OTHER_WORDINGS: &[(&str, ErrorClass)] = &[
    // The kernel driver, before it kills the process.
    ("memory access fault by gpu", ErrorClass::ContextLost),
    (
        "defaultcpuallocator: can't allocate memory",
        ErrorClass::OutOfMemory,
    ),
    (
        "defaultcpuallocator: not enough memory",
        ErrorClass::OutOfMemory,
    ),
    ("std::bad_alloc", ErrorClass::OutOfMemory),
];

impl ErrorClass {
    /// The class of a HIP or CUDA error code.
    #[must_use]
    pub fn of_code(code: u32) -> Self {
        let known = DEVICE_ERRORS.iter().find(|known| known.code == code);
        known.map_or(Self::Other, |known| known.class)
    }

    /// The class of an error given only its message, from HIP, CUDA, PyTorch or C++.
    ///
    /// ```
    /// use surefoot_platform::device_error::ErrorClass;
    ///
    /// let class = ErrorClass::of_message("HIP error: an illegal memory access was encountered");
    /// assert_eq!(class, ErrorClass::ContextLost);
    /// ```
    #[must_use]
    pub fn of_message(message: &str) -> Self {
        let message = message.to_lowercase();
        let says = |class| {
            DEVICE_ERRORS
                .iter()
                .filter(|known| known.class == class)
                .flat_map(|known| [Some(known.says), known.hip, Some(known.cuda)])
                .flatten()
                .any(|wording| message.contains(&wording.to_ascii_lowercase()))
                || OTHER_WORDINGS
                    .iter()
                    .any(|(wording, of)| *of == class && message.contains(wording))
        };
        // A lost context first: its message may quote an earlier "out of memory".
        [Self::ContextLost, Self::OutOfMemory]
            .into_iter()
            .find(|&class| says(class))
            .unwrap_or(Self::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_of_every_error_agree() {
        for known in DEVICE_ERRORS {
            assert_eq!(ErrorClass::of_code(known.code), known.class);
            let wordings = [Some(known.says), known.hip, Some(known.cuda)];
            for wording in wordings.into_iter().flatten() {
                assert_eq!(ErrorClass::of_message(wording), known.class, "{wording}");
            }
        }
        assert!(DEVICE_ERRORS.is_sorted_by(|a, b| a.code < b.code));
    }

    #[test]
    fn asynchronous_errors_lose_the_context_and_no_others_do() {
        let lost = [
            214, 220, 401, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999,
        ];
        let found = (0..2000).filter(|&code| ErrorClass::of_code(code) == ErrorClass::ContextLost);
        assert!(found.eq(lost));
    }

    #[test]
    fn every_spelling_of_a_full_device_is_out_of_memory() {
        for message in [
            "CUDA out of memory. Tried to allocate 2.00 GiB.",
            "HIP out of memory. Tried to allocate 84.00 MiB.",
            "RuntimeError: HIP error: out of memory",
            "CUDA error: out of memory",
            "hipErrorOutOfMemory: out of memory (2)",
            "cudaErrorMemoryAllocation",
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried \
             to allocate 400000000000000 bytes.",
            "DefaultCPUAllocator: not enough memory",
            "std::bad_alloc",
        ] {
            assert_eq!(
                ErrorClass::of_message(message),
                ErrorClass::OutOfMemory,
                "{message}"
            );
        }
    }

    #[test]
    fn other_errors_are_not() {
        for message in [
            "HIP error: invalid device function",
            "Memory access fault by GPU node-1 on address 0x7f. Reason: Page not present.",
            "hipErrorLaunchFailure: unspecified launch failure",
            "index 5 is out of bounds for dimension 0 with size 5",
            "the memory of the device is not mapped",
        ] {
            assert_ne!(
                ErrorClass::of_message(message),
                ErrorClass::OutOfMemory,
                "{message}"
            );
        }
    }
}
