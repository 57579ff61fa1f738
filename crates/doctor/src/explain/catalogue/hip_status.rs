//! Codes of the HIP and ROCr runtimes that have a meaning of their own.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "peer-access-refused",
        confidence: Medium,
        patterns: &[
            r"hipErrorPeerAccess\w*",
            r"(?i)peer access (?:is not supported between|is already enabled|has not been enabled)",
            r"(?i)(?:can ?not|unable to|failed to) enable peer access|peer access .{0,40}(?:failed|denied|not possible)",
        ],
        covers: &["hip-error-other", "cuda-error-other"],
        cause: "Two GPUs were to read each other's memory directly (peer access), and this pair cannot: the board does not pass such traffic on, the IOMMU translates it, or one of them is an integrated GPU. `already enabled` alone is harmless: a program asked twice.",
        fix: &[
            "NCCL_P2P_DISABLE=1 (llama.cpp: a build with GGML_CUDA_NO_PEER_COPY=ON) copies through the memory of the host instead",
            "Linux: iommu=pt on the kernel command line; Above 4G decoding and Resizable BAR on in the BIOS; both cards in slots of the processor",
            "one GPU visible: HIP_VISIBLE_DEVICES=<index>",
        ],
        ask: &["Linux: rocm-smi --showtopo; cat /proc/cmdline"],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
    Entry {
        id: "memory-pointer-invalid",
        confidence: Medium,
        patterns: &[
            r"hipErrorInvalid(?:DevicePointer|MemcpyDirection|PitchValue|Symbol)\b",
            r"(?i)(?:HIP|CUDA|ROCm) error: invalid (?:device pointer|copy direction|pitch argument|device symbol)",
        ],
        covers: &["hip-error-other", "cuda-error-other"],
        cause: "A function of the runtime was given an address or a symbol that is not of this GPU: memory of another device, freed memory, or a variable that this build has no code for. It is an error of the program, its extension or of two copies of the runtime in one process.",
        fix: &[
            "one GPU visible: HIP_VISIBLE_DEVICES=<index>, which tells whether tensors of two devices are mixed",
            "a newer version of the program and of its extensions, built for this torch; one ROCm only in the process",
        ],
        ask: &["AMD_LOG_LEVEL=3 <your program> 2>&1 | tail -n 50"],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
    Entry {
        id: "runtime-shutting-down",
        severity: Warning,
        confidence: Low,
        patterns: &[r"hipErrorDeinitialized|(?i:(?:HIP|CUDA|ROCm) error: driver shutting down)"],
        covers: &["hip-error-other", "cuda-error-other"],
        cause: "The program called the HIP runtime while it was being unloaded: at the end of the process, after the work was done. Results are not affected; if it happens before, the process ended for another reason.",
        fix: &["look at the first error before this line; without one nothing is needed"],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
    Entry {
        id: "queue-out-of-resources",
        confidence: Medium,
        patterns: &[
            r"(?i)aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES.{0,240}Available Free mem",
        ],
        scope: NotWindows,
        covers: &[
            "hsa-out-of-resources",
            "container-one-render-node",
            "queue-error",
            "wsl-gpu-not-usable",
        ],
        cause: "The runtime found no memory for what a kernel needs while it runs (scratch memory, a queue): the memory of the GPU is full. Where the message says `Available Free mem`, that is what was left. The GPU itself was started and used before.",
        fix: &[
            "a smaller model, batch, image or context; close other programs on the GPU",
            "APU: a larger limit of GTT (`surefoot doctor` tells the value) or carve-out",
            "with memory left over: a newer ROCm (older ones ask for too much scratch memory on some kernels), or without the kernel that asks for it (another attention)",
        ],
        ask: &["Linux: rocm-smi --showmeminfo vram gtt"],
        source: "https://github.com/ROCm/hip/issues/3253",
        ..BASE
    },
    Entry {
        id: "profiler-threads-harmless",
        severity: Info,
        patterns: &[
            r"(?i)External init callback must run in same thread as registerClient",
            r"(?i)(?:roctracer|kineto).{0,60}(?:not initiali[sz]ed|is disabled|unavailable)",
        ],
        cause: "A remark of PyTorch's profiler, which was not asked for anything: computing is not affected.",
        fix: &[],
        source: "https://github.com/pytorch/kineto",
        ..BASE
    },
    Entry {
        id: "profiler-failed",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"ROCPROFILER_STATUS_ERROR\w*",
            r"(?i)\brocprof(?:v[23])?\b.{0,60}(?:error|failed|fatal|not supported)|rocprofiler\w*: (?:error|fatal)",
            r"(?i)\bGFXIP is not supported",
            r"(?i)aqlprofile API table load failed",
            r"(?i)(?:rocprof-(?:compute|sys)|omniperf|omnitrace)\b.{0,60}(?:not supported|unsupported|error)",
            r"(?i)Unable to find all counters for agent",
        ],
        scope: NotWindows,
        covers: &["hsa-error-other"],
        cause: "ROCm's profiler failed, not the program: its library for counters (aqlprofile) is not installed or of another version, the GPU has not these counters (most are for Instinct cards), or the kernel driver does not let a user read them.",
        fix: &[
            "rocprofiler, rocprofiler-sdk and hsa-amd-aqlprofile of one ROCm release, and no second ROCm in the search path",
            "rocprofv3 --list-avail shows the counters of this GPU; traces (--sys-trace, --kernel-trace) need none",
            "PyTorch's own profiler needs nothing of it",
        ],
        ask: &["rocprofv3 --version; ls /opt"],
        source: "https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/",
        ..BASE
    },
    Entry {
        id: "debugger-refused",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)amd-dbgapi: .{0,120}(?:not supported|restriction|unable to enable|incompatible)",
            r"AMD_DBGAPI_STATUS_ERROR\w*",
        ],
        scope: NotWindows,
        cause: "The debugger (rocgdb) cannot stop this GPU: its firmware or the kernel driver is too old for debugging, another debugger uses it, or the GPU is not supported. The program itself is not affected.",
        fix: &[
            "Linux: a newer kernel and linux-firmware; rocgdb and rocm-dbgapi of the ROCm in use",
            "one debugger at a time; no profiler beside it",
        ],
        ask: &["Linux: uname -r; rocgdb --version"],
        source: "https://rocm.docs.amd.com/projects/ROCgdb/en/latest/",
        ..BASE
    },
];
