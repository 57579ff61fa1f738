//! Status codes, as the programs under test see them.
//!
//! The CUDA runtime, the CUDA driver and HIP use the same numbers for the
//! errors of the simulator, so one newtype serves every API; only the
//! names differ.

use std::ffi::CStr;

/// What a call returned: `cudaError_t`, `CUresult` and `hipError_t` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub u32);

/// The names of one status in each API.
struct Entry {
    status: Status,
    word: &'static str,
    cuda: &'static CStr,
    driver: &'static CStr,
    hip: &'static CStr,
    message: &'static CStr,
}

macro_rules! statuses {
    ($($constant:ident = $code:literal, $word:literal, $cuda:literal, $driver:literal, $hip:literal, $message:literal;)*) => {
        impl Status {
            $(#[doc = $word] pub const $constant: Status = Status($code);)*
        }
        const ENTRIES: &[Entry] = &[$(Entry {
            status: Status($code), word: $word, cuda: $cuda, driver: $driver, hip: $hip, message: $message,
        },)*];
    };
}

statuses! {
    SUCCESS = 0, "success", c"cudaSuccess", c"CUDA_SUCCESS", c"hipSuccess", c"no error";
    INVALID_VALUE = 1, "invalid_value", c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"hipErrorInvalidValue", c"invalid argument";
    OUT_OF_MEMORY = 2, "out_of_memory", c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"hipErrorOutOfMemory", c"out of memory";
    NOT_INITIALIZED = 3, "not_initialized", c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"hipErrorNotInitialized", c"initialization error";
    INVALID_CONFIGURATION = 9, "invalid_configuration", c"cudaErrorInvalidConfiguration", c"CUDA_ERROR_INVALID_VALUE", c"hipErrorInvalidConfiguration", c"invalid configuration argument";
    NO_DEVICE = 100, "no_device", c"cudaErrorNoDevice", c"CUDA_ERROR_NO_DEVICE", c"hipErrorNoDevice", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid_device", c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"hipErrorInvalidDevice", c"invalid device ordinal";
    INVALID_IMAGE = 200, "invalid_image", c"cudaErrorInvalidKernelImage", c"CUDA_ERROR_INVALID_IMAGE", c"hipErrorInvalidImage", c"device kernel image is invalid";
    NO_BINARY_FOR_GPU = 209, "no_binary_for_gpu", c"cudaErrorNoKernelImageForDevice", c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"hipErrorNoBinaryForGpu", c"no kernel image is available for execution on the device";
    INVALID_HANDLE = 400, "invalid_handle", c"cudaErrorInvalidResourceHandle", c"CUDA_ERROR_INVALID_HANDLE", c"hipErrorInvalidHandle", c"invalid resource handle";
    NOT_FOUND = 500, "not_found", c"cudaErrorSymbolNotFound", c"CUDA_ERROR_NOT_FOUND", c"hipErrorNotFound", c"named symbol not found";
    NOT_READY = 600, "not_ready", c"cudaErrorNotReady", c"CUDA_ERROR_NOT_READY", c"hipErrorNotReady", c"device not ready";
    ILLEGAL_ADDRESS = 700, "illegal_address", c"cudaErrorIllegalAddress", c"CUDA_ERROR_ILLEGAL_ADDRESS", c"hipErrorIllegalAddress", c"an illegal memory access was encountered";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "already_registered", c"cudaErrorHostMemoryAlreadyRegistered", c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"hipErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "not_registered", c"cudaErrorHostMemoryNotRegistered", c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"hipErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region";
    LAUNCH_FAILURE = 719, "launch_failure", c"cudaErrorLaunchFailure", c"CUDA_ERROR_LAUNCH_FAILED", c"hipErrorLaunchFailure", c"unspecified launch failure";
    NOT_PERMITTED = 800, "not_permitted", c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"hipErrorUnknown", c"operation not permitted";
    NOT_SUPPORTED = 801, "not_supported", c"cudaErrorNotSupported", c"CUDA_ERROR_NOT_SUPPORTED", c"hipErrorNotSupported", c"operation not supported";
    CAPTURE_UNSUPPORTED = 900, "capture_unsupported", c"cudaErrorStreamCaptureUnsupported", c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"hipErrorStreamCaptureUnsupported", c"operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, "capture_invalidated", c"cudaErrorStreamCaptureInvalidated", c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"hipErrorStreamCaptureInvalidated", c"operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, "capture_merge", c"cudaErrorStreamCaptureMerge", c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"hipErrorStreamCaptureMerge", c"operation would result in a merge of separate capture sequences";
    UNKNOWN = 999, "unknown", c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"hipErrorUnknown", c"unknown error";
}

/// The API whose name for a status is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `cudaError_t`
    CudaRuntime,
    /// `CUresult`
    CudaDriver,
    /// `hipError_t`
    Hip,
}

impl Status {
    /// The enumerator's name in the given API, or that API's name for an unknown error.
    pub fn name(self, api: Api) -> &'static CStr {
        let entry = self.entry();
        match api {
            Api::CudaRuntime => entry.cuda,
            Api::CudaDriver => entry.driver,
            Api::Hip => entry.hip,
        }
    }

    /// The message that `cudaGetErrorString` and related functions return.
    pub fn message(self) -> &'static CStr {
        self.entry().message
    }

    /// Parses the status of a setting: a number, or one of our names.
    pub fn parse(text: &str) -> Option<Status> {
        if let Ok(code) = text.parse() {
            return Some(Status(code));
        }
        ENTRIES
            .iter()
            .find(|entry| entry.word == text)
            .map(|entry| entry.status)
    }

    /// The names that [`Status::parse`] accepts, for its error message.
    pub fn words() -> impl Iterator<Item = &'static str> {
        ENTRIES.iter().map(|entry| entry.word)
    }

    fn entry(self) -> &'static Entry {
        let found = ENTRIES.iter().find(|entry| entry.status == self);
        found.unwrap_or(&ENTRIES[ENTRIES.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_from_a_word_or_a_number() {
        assert_eq!(Status::parse("out_of_memory"), Some(Status::OUT_OF_MEMORY));
        assert_eq!(Status::parse("719"), Some(Status::LAUNCH_FAILURE));
        assert_eq!(Status::parse("no_such_thing"), None);
    }

    #[test]
    fn a_foreign_number_is_named_unknown_in_every_vocabulary() {
        let foreign = Status(12345);
        assert_eq!(foreign.name(Api::CudaRuntime), c"cudaErrorUnknown");
        assert_eq!(foreign.name(Api::Hip), c"hipErrorUnknown");
        assert_eq!(foreign.name(Api::CudaDriver), c"CUDA_ERROR_UNKNOWN");
    }
}
