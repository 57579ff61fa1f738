//! Constants of the GPU runtimes.
//!
//! They are defined here so that this crate builds without HIP. The tests, and
//! the feature `hip-headers`, compare them with HIP's own declarations at compile time.

use std::ffi::{c_int, c_uint};

/// `hipSuccess`, `cudaSuccess`.
pub(super) const SUCCESS: u32 = 0;
/// `hipErrorOutOfMemory`, `cudaErrorMemoryAllocation`.
pub(super) const OUT_OF_MEMORY: u32 = 2;
/// `hipErrorNoDevice`, `cudaErrorNoDevice`.
pub(super) const NO_DEVICE: u32 = 100;
/// `hipErrorNotReady`, `cudaErrorNotReady`.
pub(super) const NOT_READY: u32 = 600;

/// `hipEventDisableTiming`, `cudaEventDisableTiming`.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;

/// `hipStreamCaptureModeRelaxed`, `cudaStreamCaptureModeRelaxed`.
pub(super) const CAPTURE_MODE_RELAXED: c_int = 2;
/// `hipStreamCaptureStatusNone`, `cudaStreamCaptureStatusNone`.
pub(super) const NOT_CAPTURING: c_int = 0;

/// `hipDeviceAttributePciDomainID`, `…PciBusId`, `…PciDeviceId` and `…Integrated`.
pub(super) const HIP_PLACE_ATTRIBUTES: [c_int; 4] = [69, 67, 68, 16];
/// `cudaDevAttrPciDomainId`, `…PciBusId`, `…PciDeviceId` and `…Integrated`.
pub(super) const CUDA_PLACE_ATTRIBUTES: [c_int; 4] = [50, 33, 34, 18];

/// `hipDeviceAttributeComputeCapabilityMajor`: of an AMD GPU the major version of its architecture, 12 of gfx1201.
pub(super) const HIP_ARCHITECTURE_ATTRIBUTE: c_int = 23;

/// More than the size of `hipDeviceProp_tR0600`, and where its `luid` is.
pub(super) const HIP_PROPERTIES_BYTES: usize = 4096;
pub(super) const HIP_LUID: std::ops::Range<usize> = 272..280;

#[cfg(any(all(test, unix), feature = "hip-headers"))]
mod check {
    use super::*;
    use hip_runtime_sys::*;

    macro_rules! same {
        ($($ours:expr => $hip:expr),* $(,)?) => {
            $(const _: () = assert!($ours as u32 == $hip as u32, stringify!($hip));)*
        };
    }

    same! {
        SUCCESS => hipError_t::hipSuccess,
        OUT_OF_MEMORY => hipError_t::hipErrorOutOfMemory,
        NO_DEVICE => hipError_t::hipErrorNoDevice,
        NOT_READY => hipError_t::hipErrorNotReady,
        EVENT_DISABLE_TIMING => hipEventDisableTiming,
        CAPTURE_MODE_RELAXED => hipStreamCaptureMode::hipStreamCaptureModeRelaxed,
        NOT_CAPTURING => hipStreamCaptureStatus::hipStreamCaptureStatusNone,
        HIP_PLACE_ATTRIBUTES[0] => hipDeviceAttribute_t::hipDeviceAttributePciDomainID,
        HIP_PLACE_ATTRIBUTES[1] => hipDeviceAttribute_t::hipDeviceAttributePciBusId,
        HIP_PLACE_ATTRIBUTES[2] => hipDeviceAttribute_t::hipDeviceAttributePciDeviceId,
        HIP_PLACE_ATTRIBUTES[3] => hipDeviceAttribute_t::hipDeviceAttributeIntegrated,
        HIP_ARCHITECTURE_ATTRIBUTE => hipDeviceAttribute_t::hipDeviceAttributeComputeCapabilityMajor,
    }
}
