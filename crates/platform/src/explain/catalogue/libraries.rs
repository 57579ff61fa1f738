//! MIOpen, BLAS, attention, collectives.

use super::Entry;
use crate::explain::Confidence::{High, Low, Medium};
use crate::explain::Severity::{Error, Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "miopen-elapsed-time",
        severity: Error,
        confidence: High,
        patterns: &[r"(?i)Invalid elapsed time", r"elapsed <= 0"],
        also: &[],
        cause: "MIOpen 3.6.0, in the ROCm 10.0 wheels, measures times of zero on gfx1151: every convolution fails.",
        fix: &[
            "another wheel (7.14)",
            "torch.backends.cudnn.enabled = False",
        ],
        source: "https://github.com/ROCm/TheRock/issues/6250",
    },
    Entry {
        id: "miopen-unknown-error",
        severity: Error,
        confidence: Medium,
        patterns: &[
            r"miopenStatusUnknownError",
            r"miopenStatusInternalError",
            r"(?i)MIOpen.*\bstoul\b",
        ],
        also: &[],
        cause: "A fault within MIOpen, often a cached database of another version.",
        fix: &[
            "delete ~/.cache/miopen and ~/.config/miopen",
            "update the wheel",
            "torch.backends.cudnn.enabled = False",
        ],
        source: "https://github.com/ROCm/TheRock/issues/1229",
    },
    Entry {
        id: "miopen-no-database",
        severity: Info,
        confidence: High,
        patterns: &[
            r"ParseAndLoadDb.*File is unreadable",
            r"(?i)MIOpen\(HIP\): Warning.*(?:SQLite|database|perf ?db)",
            r"(?i)Missing system database file",
        ],
        also: &[],
        cause: "MIOpen has no tuned kernels for this GPU and searches them: the first step takes minutes, and that is all it means.",
        fix: &[
            "wait once and keep ~/.config/miopen and ~/.cache/miopen",
            "MIOPEN_FIND_MODE=FAST",
        ],
        source: "https://github.com/kohya-ss/musubi-tuner/pull/1013",
    },
    Entry {
        id: "miopen-workspace",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)MIOpen.*(?:workspace|Workspace).*(?:required|insufficient|not enough)"],
        also: &[],
        cause: "The fast algorithm needs a workspace that was not given, and MIOpen falls back to a slow one.",
        fix: &["MIOPEN_FIND_MODE=FAST", "a smaller batch or tile"],
        source: "https://github.com/ROCm/ROCm/issues/5216",
    },
    Entry {
        id: "handle-creation-crash",
        severity: Error,
        confidence: Low,
        patterns: &[
            r"rocblas_create_handle",
            r"miopenCreate(?:WithStream)?\b",
            r"(?:HIPBLAS|CUBLAS)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        ],
        also: &[],
        cause: "A library could not set up its handle: no memory left for its workspace, or caching switched off with PYTORCH_NO_HIP_MEMORY_CACHING.",
        fix: &[
            "unset PYTORCH_NO_HIP_MEMORY_CACHING PYTORCH_NO_CUDA_MEMORY_CACHING",
            "leave some hundred MiB of the GPU free",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
    },
    Entry {
        id: "hipblaslt-unsupported",
        severity: Info,
        confidence: High,
        patterns: &[
            r"(?i)hipBLASLt on an unsupported architecture",
            r"(?i)Overriding blas backend to hipblas",
        ],
        also: &[],
        cause: "hipBLASLt has no kernels for this GPU and torch takes hipBLAS instead: information, not an error.",
        fix: &[],
        source: "PyTorch, aten/src/ATen/Context.cpp",
    },
    Entry {
        id: "hipblaslt-crash",
        severity: Error,
        confidence: Medium,
        patterns: &[
            r"HIPBLAS(?:LT)?_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|INVALID_VALUE|NOT_SUPPORTED)",
            r"(?i)(?:segfault|segmentation fault|core dumped).*hipblaslt",
            r"libhipblaslt\.so.*\+0x",
        ],
        also: &[],
        cause: "A fault within hipBLASLt.",
        fix: &[
            "TORCH_BLAS_PREFER_HIPBLASLT=0",
            "ROCBLAS_USE_HIPBLASLT=0",
            "DISABLE_ADDMM_CUDA_LT=1",
        ],
        source: "https://github.com/ROCm/rocm-libraries/issues/11878",
    },
    Entry {
        id: "aotriton-no-kernel",
        severity: Error,
        confidence: High,
        patterns: &[r"No available kernel\. Aborting execution"],
        also: &[],
        cause: "Attention was restricted to kernels that this build lacks for this GPU: the experimental AOTriton switch without images for the architecture.",
        fix: &[
            "unset TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
            "allow the math kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        ],
        source: "https://github.com/pytorch/pytorch/pull/166397",
    },
    Entry {
        id: "aotriton-experimental",
        severity: Info,
        confidence: High,
        patterns: &[
            r"(?i)attention(?: support)? on .{1,40} GPU is still experimental",
            r"Enable it with TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
        ],
        also: &[],
        cause: "Flash and memory-efficient attention are switched off for this architecture; the math path is used, which is right but slower and needs far more memory.",
        fix: &[
            "optional: TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 before Python starts, after `surefoot probe` has compared the results; builds without images for the GPU then end in \"No available kernel. Aborting execution.\"",
        ],
        source: "https://github.com/unslothai/unsloth/pull/8821",
    },
    Entry {
        id: "rccl-error",
        severity: Error,
        confidence: Low,
        patterns: &[r"(?i)NCCL error|ncclUnhandledCudaError|ncclSystemError|RCCL.*error"],
        also: &[],
        cause: "A collective operation between GPUs failed; the line of RCCL above says which.",
        fix: &[
            "NCCL_DEBUG=INFO",
            "unify the GPUs: all visible ones of one architecture",
        ],
        source: "https://rocm.docs.amd.com/projects/rccl/en/latest/",
    },
    Entry {
        id: "deepspeed-bf16-nan",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)deepspeed.*\bnan\b", r"(?i)\bnan\b.*deepspeed"],
        also: &[],
        cause: "DeepSpeed reduces gradients in bf16, which gives NaN weights on ROCm without a message.",
        fix: &["\"communication_data_type\": \"fp32\" in the DeepSpeed config"],
        source: "https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/dataclasses.py",
    },
];
