//! MIOpen, BLAS, attention, collectives.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "miopen-kernel-search-failed",
        confidence: Medium,
        patterns: &[
            r"(?i)unspecified launch failure|hipErrorLaunchFailure|an illegal memory access",
        ],
        also: &[
            r"(?i)MIOpen\(HIP\): Info \[EvaluateInvokers\]|MIOpen\(HIP\).*(?:Find|Evaluate|Search)",
        ],
        covers: &["unspecified-launch-failure", "illegal-address"],
        cause: "MIOpen tries out the kernels it has for a convolution, and one of them fails on {gpu} with this ROCm: the GPU's context is lost with it.",
        fix: &[
            "MIOPEN_FIND_MODE=FAST (2), so that it tries out less",
            "torch.backends.cudnn.enabled = False switches MIOpen off",
            "another ROCm build, older or newer",
        ],
        source: "https://github.com/ROCm/TheRock/issues/4214",
        ..BASE
    },
    Entry {
        id: "miopen-elapsed-time",
        patterns: &[r"(?i)Invalid elapsed time", r"elapsed <= 0"],
        cause: "MIOpen 3.6.0, in the ROCm 10.0 wheels, measures times of zero on gfx1151: every convolution fails.",
        fix: &[
            "another wheel (7.14)",
            "torch.backends.cudnn.enabled = False",
        ],
        source: "https://github.com/ROCm/TheRock/issues/6250",
        ..BASE
    },
    Entry {
        id: "miopen-temporary-folder",
        patterns: &[
            r"(?i)filesystem(?:_error|::\w+| error).{0,200}miopen-",
            r"(?i)/miopen-[\w-]+.{0,120}(?:Directory not empty|No such file|Permission denied|Read-only file system|No space left)",
        ],
        covers: &["native-abort", "miopen-error-other", "miopen-unknown-error"],
        cause: "MIOpen compiles its kernels in a temporary folder (miopen-…) and cannot create, use or remove it: TMPDIR (TEMP, or the folder that the program sets) lies on a disk that is full, read-only, a network share, or one whose file system keeps files that are still open (NTFS, FUSE, NFS).",
        fix: &[
            "a temporary folder on a local Linux file system: TMPDIR=/tmp (and TEMP, TMP where the program sets them)",
            "free space there; keep programs and their environments off network and NTFS disks",
        ],
        ask: &["echo $TMPDIR $TEMP; df -hT /tmp \"${TMPDIR:-/tmp}\""],
        source: "https://github.com/ROCm/MIOpen/blob/develop/src/tmp_dir.cpp",
        ..BASE
    },
    Entry {
        id: "cache-not-writable",
        confidence: Medium,
        patterns: &[
            r"(?i)filesystem error: cannot create director\w+: (?:Permission denied|Read-only file system|No space left)",
        ],
        covers: &["native-abort"],
        cause: "A library of ROCm cannot make the folder of its cache: the home folder is not writable or not there (a service, a container with another user), or its disk is full.",
        fix: &[
            "HOME=<a folder that the user may write>, or the folder of the message given to the user (chown)",
            "container: -e HOME=/tmp, or a volume for ~/.cache",
        ],
        ask: &["Linux, WSL: id; ls -ld ~ ~/.cache; df -h ~"],
        source: "https://rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/cache.html",
        ..BASE
    },
    Entry {
        id: "miopen-database-not-writable",
        severity: Warning,
        patterns: &[
            r"(?i)Internal error while accessing SQLite database",
            r"(?i)File is unreadable: \S*\.(?:config|cache)/miopen|Failed to store record to (?:find|perf)-?db",
            r"(?i)MIOpen.*(?:disk I/O error|database is locked|attempt to write a readonly database|unable to open database)",
            r"(?i)(?:Permission denied|Read-only file system).{0,20}(?:\.cache|\.config)/miopen|(?:\.cache|\.config)/miopen\S*.{0,10}(?:Permission denied|Read-only)",
        ],
        covers: &["miopen-no-database", "miopen-unknown-error"],
        cause: "MIOpen cannot use its own database file, where it keeps what it has searched: the home folder is on a network disk, which SQLite cannot lock, or is read-only or full. Each start searches anew.",
        fix: &[
            "MIOPEN_USER_DB_PATH=<folder on a local disk> and MIOPEN_CUSTOM_CACHE_DIR=<the same>",
            "free space and the right to write in ~/.config/miopen and ~/.cache/miopen",
        ],
        source: "https://github.com/ROCm/tensorflow-upstream/issues/1419",
        ..BASE
    },
    Entry {
        id: "miopen-unknown-error",
        confidence: Medium,
        patterns: &[
            r"miopenStatus(?:UnknownError|NotImplemented|BadParm|AllocFailed)",
            r"(?i)unable to find an engine to execute this computation|No suitable algorithm was found",
            r"miopenStatusInternalError",
            r"(?i)MIOpen.*\bstoul\b",
        ],
        cause: "A fault within MIOpen, often a cached database of another version.",
        fix: &[
            "Linux, WSL: delete ~/.cache/miopen and ~/.config/miopen",
            "Windows: delete the folder .miopen in your user folder (%USERPROFILE%)",
            "update the wheel",
            "torch.backends.cudnn.enabled = False",
        ],
        source: "https://github.com/ROCm/TheRock/issues/1229",
        ..BASE
    },
    Entry {
        id: "miopen-no-database",
        severity: Info,
        patterns: &[
            r"ParseAndLoadDb.*File is unreadable|FindRecordUnsafe.*File is unreadable: /opt/\S*/db/",
            r"(?i)MIOpen\(HIP\): Warning.*(?:SQLite|database|perf ?db)",
            r"(?i)Missing system database file",
        ],
        cause: "MIOpen has no tuned kernels for this GPU and searches them: the first step takes minutes, and that is all it means.",
        fix: &[
            "wait once and keep ~/.config/miopen and ~/.cache/miopen",
            "MIOPEN_FIND_MODE=FAST",
        ],
        source: "https://github.com/kohya-ss/musubi-tuner/pull/1013",
        ..BASE
    },
    Entry {
        id: "miopen-workspace",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)MIOpen.*(?:workspace|Workspace).*(?:required|insufficient|not enough)"],
        cause: "The fast algorithm needs a workspace that was not given, and MIOpen falls back to a slow one.",
        fix: &["MIOPEN_FIND_MODE=FAST", "a smaller batch or tile"],
        source: "https://github.com/ROCm/ROCm/issues/5216",
        ..BASE
    },
    Entry {
        id: "handle-creation-crash",
        confidence: Low,
        patterns: &[
            r"rocblas_create_handle",
            r"miopenCreate(?:WithStream)?\b",
            r"(?:HIPBLAS|CUBLAS)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        ],
        cause: "hipBLAS (rocBLAS) or MIOpen could not set up its handle: no memory left for its workspace, files of the ROCm packages that are of different versions, or caching switched off with PYTORCH_NO_HIP_MEMORY_CACHING.",
        fix: &[
            "leave some hundred MiB of the GPU free",
            "with plenty of memory free: reinstall torch and its rocm packages in a fresh environment, all of one version",
            "unset PYTORCH_NO_HIP_MEMORY_CACHING PYTORCH_NO_CUDA_MEMORY_CACHING",
        ],
        ask: &[
            "pip list | grep -iE 'torch|rocm'",
            "python -c 'import torch; print(torch.cuda.mem_get_info())'",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "cudnn-status",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"\bCUDNN_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|NOT_SUPPORTED|EXECUTION_FAILED|MAPPING_ERROR|BAD_PARAM)\w*",
            r"(?i)Unable to find a valid cuDNN algorithm|cuDNN Frontend error|\[cudnn_frontend\] Error",
            r"(?i)panicked at zluda_dnn",
        ],
        cause: "A build of torch for CUDA asks cuDNN, NVIDIA's library for convolutions and attention, which is not there or does not fit. On an AMD card that is ZLUDA, which has no complete cuDNN; a ROCm build uses MIOpen instead.",
        fix: &[
            "torch.backends.cudnn.enabled = False, at the start of the program (UIs for ZLUDA have a setting or node for it)",
            "attention (scaled_dot_product_attention) goes through cuDNN, too: another one, such as ComfyUI's --use-quad-cross-attention, or torch.backends.cuda.enable_cudnn_sdp(False)",
            "AMD card: a ROCm build of torch instead of ZLUDA, where one has code for {gpu}",
            "NVIDIA card: free memory on the GPU; torch and its nvidia-cudnn package of one version, and a newer driver",
        ],
        ask: &["python -c \"import torch; print(torch.__version__, torch.version.hip)\""],
        source: "https://github.com/lshqqytiger/ZLUDA/issues/70",
        ..BASE
    },
    Entry {
        id: "hipblaslt-refused",
        patterns: &[
            r"(?i)(?:Error|Exception).{0,60}Attempting to use hipBLASLt on an? unsupported architecture",
            r"(?i)Attempting to use hipBLASLt on an? unsupported architecture!?\W*$",
        ],
        unless: &[r"(?i)Overriding blas backend to hipblas"],
        covers: &["hipblaslt-unsupported"],
        cause: "This torch insists on hipBLASLt, which has no kernels for {gpu}, instead of taking hipBLAS: a defect of some builds (nightlies of 2.6 among them), or a setting that asks for it.",
        fix: &[
            "TORCH_BLAS_PREFER_HIPBLASLT=0",
            "another build of torch, newer or the release before",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/4437",
        ..BASE
    },
    Entry {
        id: "hipblaslt-fallback",
        severity: Info,
        patterns: &[r"(?i)hipBlasLT failed, falling back to tensile"],
        cause: "rocBLAS tried hipBLASLt, which has no kernel for this product on {gpu}, and takes its own kernels (Tensile) instead: nothing fails, it may be slower.",
        fix: &["optional: ROCBLAS_USE_HIPBLASLT=0, so that it does not try"],
        source: "https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/env-variables.html",
        ..BASE
    },
    Entry {
        id: "hipblaslt-library-missing",
        patterns: &[
            r"(?i)\br?ocblaslt (?:error|warning): (?:Cannot read|Could not load|No paths matched)",
            r"(?i)hipblaslt[\\/]+library\b.*(?:No such file|not found|No error|cannot)",
            r"(?i)hipModuleLoad failed: \S*Kernels\.so-\d+-gfx",
        ],
        unless: &[r"(?i)hipBlasLT failed, falling back to tensile"],
        covers: &[
            "hipblaslt-crash",
            "cublas-internal-error",
            "bitsandbytes-int8",
            "launch-too-large",
            "tensile-library-missing",
        ],
        cause: "hipBLASLt, one of ROCm's libraries for matrix products, has no kernels for {gpu} in this build, or does not find its library folder; layers such as torch.nn.Linear that call it fail. It was made for fewer GPUs than rocBLAS.",
        fix: &[
            "without hipBLASLt: TORCH_BLAS_PREFER_HIPBLASLT=0 and DISABLE_ADDMM_CUDA_LT=1 (the second one also under ZLUDA), so that torch calls hipBLAS (rocBLAS)",
            "bitsandbytes: 4 bits or 16 bits instead of load_in_8bit, whose products go through hipBLASLt",
            "a newer build of torch and ROCm, or another one that has its kernels for this GPU; all packages of one version, in a fresh environment",
        ],
        ask: &[
            "pip list | grep -iE 'torch|rocm'",
            "Linux, WSL: find / -path '*hipblaslt/library*' -name '*gfx*' 2>/dev/null | head",
        ],
        source: "https://github.com/ROCm/TheRock/issues/754",
        ..BASE
    },
    Entry {
        id: "hipblaslt-unsupported",
        severity: Info,
        patterns: &[
            r"(?i)hipBLASLt unavailable agent=",
            r"(?i)hipBLASLt on an? unsupported architecture",
            r"(?i)Overriding blas backend to hipblas",
        ],
        cause: "hipBLASLt has no kernels for this GPU and torch takes hipBLAS instead: information, not an error.",
        source: "PyTorch, aten/src/ATen/Context.cpp",
        ..BASE
    },
    Entry {
        id: "hipblaslt-crash",
        confidence: Medium,
        patterns: &[
            r"HIPBLAS(?:LT)?_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|INVALID_VALUE|NOT_SUPPORTED|UNKNOWN|ARCH_MISMATCH|INVALID_ENUM)",
            r"(?i)\bCUBLAS_STATUS_\w+ when calling .?(?:hip|cu)blasLt",
            r"(?i)^\W*(?:hip|cu)blasLtMatmul\w*\(",
            r"(?i)(?:segfault|segmentation fault|core dumped).*hipblaslt",
            r"libhipblaslt\.so.*\+0x",
        ],
        covers: &["cublas-internal-error"],
        cause: "A matrix product failed within hipBLAS or hipBLASLt: this version has no kernel for {gpu} or for this product, its files are not of the version that torch was built with, or its library crashed.",
        fix: &[
            "without hipBLASLt, if the message names it: TORCH_BLAS_PREFER_HIPBLASLT=0 and DISABLE_ADDMM_CUDA_LT=1; ROCBLAS_USE_HIPBLASLT=0 for rocBLAS",
            "another build of torch and ROCm, newer or older; reinstall all of it in a fresh environment, of one version and from one index",
        ],
        ask: &["pip list | grep -iE 'torch|rocm'"],
        source: "https://github.com/ROCm/rocm-libraries/issues/11878",
        ..BASE
    },
    Entry {
        id: "cublas-internal-error",
        confidence: Low,
        patterns: &[
            r"\b(?:CUBLAS|rocblas)_status_internal_error|CUBLAS_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|NOT_SUPPORTED|ARCH_MISMATCH|INVALID_VALUE|MAPPING_ERROR|UNKNOWN)",
        ],
        cause: "A matrix product failed within hipBLAS (rocBLAS; under CUDA cuBLAS): no kernel for {gpu} or this shape in that build, a library of another version that is found first, a context that an earlier error has broken, or (under ZLUDA) a card older than the RX 5000 series, for which there is no support.",
        fix: &[
            "the first error of the log is the cause, where there is one before this",
            "reinstall rocBLAS, or take another version or build of it (of torch, for a wheel that brings it)",
            "Linux, WSL: unset LD_LIBRARY_PATH, so that a wheel takes its own libraries",
            "an index out of range (a token beyond the embedding) ends here, too: try the same step on the CPU",
        ],
        ask: &[
            "the 50 lines above this one",
            "Linux, WSL: ls /opt/rocm/lib/rocblas/library | head",
        ],
        source: "https://github.com/ggml-org/llama.cpp/issues/10234",
        ..BASE
    },
    Entry {
        id: "aotriton-no-kernel",
        patterns: &[
            r"No available kernel\. Aborting execution",
            r"No viable backend for scaled_dot_product_attention was found",
        ],
        cause: "Attention was restricted to kernels that this build lacks for this GPU: the experimental AOTriton switch without images for the architecture.",
        fix: &[
            "unset TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
            "allow the math kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        ],
        source: "https://github.com/pytorch/pytorch/pull/166397",
        ..BASE
    },
    Entry {
        id: "aotriton-experimental",
        severity: Info,
        patterns: &[
            r"(?i)attention(?: support)? on .{1,40} GPU is still experimental",
            r"Enable it with TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
        ],
        cause: "Flash and memory-efficient attention are switched off for this architecture; the math path is used, which is right but slower and needs far more memory.",
        fix: &[
            "optional: TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 before Python starts, after `surefoot probe` has compared the results; builds without images for the GPU then end in \"No available kernel. Aborting execution.\"",
        ],
        source: "https://github.com/unslothai/unsloth/pull/8821",
        ..BASE
    },
    Entry {
        id: "magma-missing",
        patterns: &[r"(?i)requires compiling PyTorch with MAGMA"],
        cause: "This torch was built without MAGMA, through which ROCm builds compute some linear algebra (cholesky, eigh, lstsq). Wheels from PyTorch's index have it; wheels and containers of AMD and of vLLM may not.",
        fix: &[
            "that one operation on the CPU: x.cpu(), then back",
            "a newer torch: from 2.13 with ROCm 7.14 on, hipSOLVER takes more of them over; or PyTorch's own ROCm wheel",
            "transformers: resize_token_embeddings(n, mean_resizing=False)",
        ],
        ask: &["python -c 'import torch; print(torch.__version__, torch.cuda.has_magma)'"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/5156",
        ..BASE
    },
    Entry {
        id: "float8-arithmetic",
        patterns: &[
            r"(?i)Promotion for Float8 Types is not supported",
            r"(?i)Invalid or unsupported data type Float8",
            r"(?i)not implemented for 'Float8_",
        ],
        cause: "The weights are in 8-bit floats (fp8), with which this backend cannot compute: PyTorch only stores them, a program has to convert them first, and DirectML does not know them at all.",
        fix: &[
            "the model in bf16, fp16 or as GGUF, and no option for fp8 (weight dtype `default`)",
            "a newer version of the node or program that failed",
            "Windows: AMD's ROCm build of torch instead of DirectML",
        ],
        source: "https://github.com/Comfy-Org/ComfyUI/issues/5335",
        ..BASE
    },
    Entry {
        id: "rccl-iommu",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r#"(?i)NCCL WARN Missing \S?(?:amd_iommu=on|iommu=pt)"#,
            r"(?i)NCCL WARN hipIpc(?:Get|Open)MemHandle failed",
        ],
        covers: &["iommu-not-passed"],
        cause: "The GPUs cannot reach each other's memory reliably: RCCL misses iommu=pt on the kernel command line, without which transfers between GPUs (peer access, IPC) fail or hang.",
        fix: &[
            "Linux: iommu=pt on the kernel command line (GRUB_CMDLINE_LINUX), then restart",
            "NCCL_P2P_DISABLE=1 goes without peer access, more slowly",
        ],
        ask: &["Linux: cat /proc/cmdline"],
        scope: BareMetal,
        source: "https://rocm.docs.amd.com/projects/rccl/en/latest/",
        ..BASE
    },
    Entry {
        id: "rccl-error",
        confidence: Low,
        patterns: &[
            r"(?i)NCCL error(?::| in)|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclInvalid(?:Usage|Argument)|ncclRemoteError|RCCL.*\berror\b",
            r"(?i)DistBackendError",
            r"(?i)NCCL WARN (?:HIP|CUDA) failure",
            r"(?i)unhandled (?:cuda|system) error, NCCL version|NCCL error \d+: unhandled",
        ],
        cause: "A collective operation between GPUs (RCCL, ROCm's NCCL) failed: it has no code for the architecture, the GPUs cannot reach each other's memory (peer access, IOMMU), or shared memory is too small. The line of RCCL above says which.",
        fix: &[
            "NCCL_DEBUG=INFO shows the first error",
            "NCCL_P2P_DISABLE=1 goes without peer access",
            "Linux: iommu=pt on the kernel command line fixes peer access",
            "container: --ipc=host, or --shm-size=16g",
            "all visible GPUs of one architecture, which the RCCL of the wheel has code for",
        ],
        ask: &[
            "NCCL_DEBUG=INFO <your program> 2>&1 | grep -i -E 'warn|error'",
            "rocminfo | grep gfx",
            "Linux: cat /proc/cmdline",
        ],
        scope: NotWindows,
        source: "https://rocm.docs.amd.com/projects/rccl/en/latest/",
        ..BASE
    },
    Entry {
        id: "deepspeed-bf16-nan",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)deepspeed.*\bnan\b", r"(?i)\bnan\b.*deepspeed"],
        cause: "DeepSpeed reduces gradients in bf16, which gives NaN weights on ROCm without a message.",
        fix: &["\"communication_data_type\": \"fp32\" in the DeepSpeed config"],
        source: "https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/dataclasses.py",
        ..BASE
    },
    Entry {
        id: "torch-without-lapack",
        patterns: &[
            r"(?i)requires compiling PyTorch with LAPACK|LAPACK library not found in compilation",
            r"(?i)ATen not compiled with MKL support|PyTorch (?:is|was) (?:not )?compiled with(?:out)? MKL",
        ],
        cause: "This torch was built without LAPACK (or MKL), through which it computes linear algebra and Fourier transforms on the CPU: builds of one's own, some ROCm wheels of AMD (TheRock), and packages of distributions. The GPU is not concerned.",
        fix: &[
            "another build of torch, such as PyTorch's own ROCm wheel, or a newer one from AMD's index",
            "that step on the GPU (x.cuda()), or with NumPy or SciPy",
            "a build of one's own: OpenBLAS or MKL with its development files installed before",
        ],
        ask: &["python -c 'import torch; print(torch.__config__.show())'"],
        source: "https://github.com/ROCm/TheRock/issues/2417",
        ..BASE
    },
];
