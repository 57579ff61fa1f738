//! The wheel, the override and the GPU do not fit together.

use super::Entry;
use crate::explain::Confidence::{High, Medium};
use crate::explain::Severity::Error;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "override-invalid",
        severity: Error,
        confidence: High,
        patterns: &[r"HSA_OVERRIDE_GFX_VERSION\s+\S*\s+is invalid"],
        also: &[],
        cause: "The value of HSA_OVERRIDE_GFX_VERSION is not `major.minor.stepping` in decimal, so ROCm stops before it lists any GPU.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "if the card needs one, write it as 10.3.0, never as gfx1030",
        ],
        source: "libhsakmt, src/topology.c",
    },
    Entry {
        id: "no-binary-for-gpu",
        severity: Error,
        confidence: High,
        patterns: &[
            r"hipErrorNoBinaryForGpu",
            r"Unable to find code object for all current devices",
        ],
        also: &[],
        cause: "At least one visible GPU has no code in this wheel, and one is enough to stop the whole process: often the integrated GPU.",
        fix: &[
            "hide the GPU that is not meant: ROCR_VISIBLE_DEVICES=<index> (`surefoot env` prints it)",
            "install a wheel that has the architecture (`surefoot doctor` names it)",
        ],
        source: "https://github.com/pytorch/pytorch/issues/73534",
    },
    Entry {
        id: "invalid-isa",
        severity: Error,
        confidence: High,
        patterns: &[
            r"HSA_STATUS_ERROR_INVALID_ISA",
            r"HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS",
        ],
        also: &[],
        cause: "The code does not run on this chip. Usual reason: HSA_OVERRIDE_GFX_VERSION names another family (11.0.0 on a gfx115x).",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "install a wheel with native code for the GPU",
        ],
        source: "https://github.com/likelovewant/ROCmLibs-for-gfx1103-AMD780M-APU/issues/37",
    },
    Entry {
        id: "invalid-device-function",
        severity: Error,
        confidence: High,
        patterns: &[
            r"(?i)(?:HIP|CUDA) error: invalid device function",
            r"hipErrorInvalidDeviceFunction",
            r"error code:? ?98\b",
        ],
        also: &[],
        cause: "The wheel has no code for the architecture of the GPU, or for the one that HSA_OVERRIDE_GFX_VERSION makes it pass for.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "install a wheel with native code: `surefoot doctor` prints the command for this GPU",
            "only for gfx1031 to gfx1036 with an upstream wheel: HSA_OVERRIDE_GFX_VERSION=10.3.0 (not gfx1033, whose gradients are wrong)",
        ],
        source: "https://github.com/pytorch/pytorch/issues/164346",
    },
    Entry {
        id: "no-kernel-image",
        severity: Error,
        confidence: High,
        patterns: &[
            r"no kernel image is available for execution on the device",
            r"hipErrorNoKernelImageForDevice",
        ],
        also: &[],
        cause: "A library has no code for this GPU: torch itself, or an extension such as bitsandbytes that was built for other architectures.",
        fix: &[
            "see in the traceback which library launched the kernel, and install its build for this architecture",
            "unset HSA_OVERRIDE_GFX_VERSION",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6348",
    },
    Entry {
        id: "invalid-image",
        severity: Error,
        confidence: High,
        patterns: &[
            r"device kernel image is invalid",
            r"hipErrorInvalidImage",
            r"hipErrorSharedObjectInitFailed",
        ],
        also: &[],
        cause: "The code objects are for another architecture than the GPU in use: typically a wheel for the card while the integrated GPU is device 0.",
        fix: &[
            "Windows: set HIP_VISIBLE_DEVICES to the card; Linux: set ROCR_VISIBLE_DEVICES",
            "or install a wheel with both architectures (`torch[device-…]` takes several extras)",
        ],
        source: "https://github.com/ROCm/TheRock/issues/3392",
    },
    Entry {
        id: "tensile-library-missing",
        severity: Error,
        confidence: High,
        patterns: &[
            r"rocBLAS error: Cannot read .*TensileLibrary",
            r"TensileLibrary\w*\.dat: (?:Illegal seek|No such file)",
        ],
        also: &[],
        cause: "rocBLAS has no kernels for this architecture.",
        fix: &[
            "install a wheel that brings them: `pip install \"torch[device-<gfx>]\"` from AMD's multi-architecture index",
            "remove a foreign rocBLAS from LD_LIBRARY_PATH",
        ],
        source: "https://github.com/ROCm/ROCm/issues/2719",
    },
    Entry {
        id: "two-architectures-crash",
        severity: Error,
        confidence: Medium,
        patterns: &[r"(?i)\bkpack\b.*(?:segmentation fault|abort|failed|error)"],
        also: &[],
        cause: "The loader of multi-architecture wheels crashes when two GPUs of different architecture are visible.",
        fix: &[
            "make one GPU visible: ROCR_VISIBLE_DEVICES (Linux) or HIP_VISIBLE_DEVICES (Windows)",
        ],
        source: "https://github.com/ROCm/TheRock/issues/6696",
    },
    Entry {
        id: "hip-graph-with-override",
        severity: Error,
        confidence: Medium,
        patterns: &[
            r"hipErrorStreamCapture\w*",
            r"hipErrorGraphExecUpdateFailure",
            r"(?i)hipGraph(?:Instantiate|Launch)\w*.{0,60}(?:fail|error|invalid)",
            r"(?i)(?:CUDA|HIP)_?Graph.{0,80}(?:invalid|failed|error)",
            r"(?i)HIP error: operation (?:failed due to a previous error|not permitted).*captur",
        ],
        also: &[],
        cause: "A HIP graph could not be captured; known for kernels of gfx1030 on a gfx1031 under an override.",
        fix: &[
            "switch graphs off (no `mode=\"reduce-overhead\"`, no cudagraphs)",
            "install a wheel with native code",
        ],
        source: "https://github.com/pytorch/pytorch/issues/193668",
    },
];
