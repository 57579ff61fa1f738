//! The build, the override and the GPU do not fit together.

use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

/// Messages of a graph that could not be captured.
const GRAPH_CAPTURE: &[&str] = &[
    r"hipErrorStreamCapture\w*",
    r"hipErrorGraphExecUpdateFailure",
    r"(?i)hipGraph(?:Instantiate|Launch)\w*.{0,60}(?:fail|error|invalid)",
    r"(?i)(?:CUDA|HIP)_?Graph.{0,80}(?:invalid|failed|error)",
    r"(?i)(?:HIP|CUDA|ROCm) error: operation (?:failed due to a previous error|not permitted).*captur",
    r"hipErrorCapturedEvent",
    r"(?i)(?:HIP|CUDA|ROCm) error: operation would make the legacy stream depend on a capturing",
];

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "override-invalid",
        patterns: &[r"HSA_OVERRIDE_GFX_VERSION\s+\S*\s+is invalid"],
        cause: "The value of HSA_OVERRIDE_GFX_VERSION is not `major.minor.stepping` in decimal, so ROCm stops before it lists any GPU.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "if the card needs one, write it as 10.3.0, never as gfx1030",
        ],
        source: "libhsakmt, src/topology.c",
        ..BASE
    },
    Entry {
        id: "xformers-composable-kernels",
        patterns: &[
            r"xformers/third_party/composable_kernel",
            r"(?i)xformers.*(?:invalid device function|no kernel image)",
        ],
        covers: &["invalid-device-function", "no-kernel-image"],
        cause: "xformers brings composable kernels for Instinct cards only: it has no code for consumer GPUs such as {gpu}.",
        fix: &[
            "do without xformers (remove --xformers): PyTorch's own attention, --opt-sdp-attention or --sdpa, does the same",
            "pip uninstall xformers, where the program takes it by itself",
        ],
        source: "https://github.com/facebookresearch/xformers/issues/1265",
        ..BASE
    },
    Entry {
        id: "ggml-no-code",
        patterns: &[
            r"(?i)has no device code compatible with (?:HIP|CUDA) arch",
            r"(?i)ggml_cuda_compute_forward: \w+ failed",
            r"(?i)(?:ROCm|CUDA) error: (?:invalid device function|device kernel image is invalid|no kernel image|shared object init)",
        ],
        also: &[
            r"(?i)ggml|llama",
            r"(?i)invalid device function|device kernel image is invalid|no kernel image|shared object init|has no device code compatible",
        ],
        covers: &[
            "invalid-device-function",
            "invalid-image",
            "no-kernel-image",
            "segmentation-fault",
        ],
        cause: "This build of llama.cpp (ggml) has no code for {gpu}, or was built with another ROCm version than the one that runs it. Exchanging rocBLAS alone does not help: the kernels of ggml itself are missing.",
        fix: &[
            "a build for the GPU: cmake -DGGML_HIP=ON -DAMDGPU_TARGETS=<gfx> with the installed ROCm, or a release that lists <gfx> (lemonade-sdk/llamacpp-rocm, ollama-for-amd)",
            "Linux: HSA_OVERRIDE_GFX_VERSION={override}: the code of a similar GPU runs on it",
            "the Vulkan build runs on every GPU",
        ],
        ask: &[
            "llama-cli --list-devices",
            "Linux: rocminfo | grep gfx",
            "Windows: hipInfo",
        ],
        source: "https://github.com/abetlen/llama-cpp-python/issues/1372",
        ..BASE
    },
    Entry {
        id: "no-binary-for-gpu",
        patterns: &[
            r"(?i)torch-rocm is installed, but none of build targets are available",
            r"hipErrorNoBinaryForGpu|HIP_ERROR_NoBinaryForGpu",
            r"Unable to find code object for all current devices",
            r"Coud?n'?t find binary for current devices",
            r"No compatible code objects found for",
            r"(?i)Cannot find (?:CO|code object) in the bundle",
        ],
        covers: &["segmentation-fault", "nightly-crash"],
        cause: "This build has no code for {gpu}, or none for another visible GPU: one without code stops the whole process, and often that is the integrated one.",
        fix: &[
            "{install}",
            "HSA_OVERRIDE_GFX_VERSION={override}: the code of a similar GPU runs on {gpu}",
            "Linux, WSL: hide the GPU that is not meant: ROCR_VISIBLE_DEVICES=<index> (`surefoot env` prints it)",
            "Windows: hide the GPU that is not meant: HIP_VISIBLE_DEVICES=<index> (`surefoot env` prints it)",
            "gfx803: no current release has code for it. gfx900, gfx906: AMD's device wheels (torch[device-gfx900], torch[device-gfx906]), or an older release that had it (gfx906: up to 6.3)",
        ],
        ask: &[
            "Linux: rocminfo | grep -E 'gfx|Marketing'",
            "Windows: hipInfo",
            "python -c 'import torch; print(torch.__version__, torch.cuda.get_arch_list())'",
        ],
        source: "https://github.com/pytorch/pytorch/issues/73534",
        ..BASE
    },
    Entry {
        id: "invalid-isa",
        confidence: Medium,
        patterns: &[
            r"HSA_STATUS_ERROR_INVALID_ISA",
            r"HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS",
        ],
        covers: &["queue-error"],
        cause: "The GPU was given instructions of another chip: HSA_OVERRIDE_GFX_VERSION names another family (11.0.0 on a gfx115x), or a library carries a wrong kernel for {gpu}.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "{install}",
            "without an override: another version of the wheel, or another data type (bf16 or fp32 instead of fp16)",
        ],
        ask: &["env | grep HSA_OVERRIDE", "Linux: rocminfo | grep gfx"],
        source: "https://github.com/likelovewant/ROCmLibs-for-gfx1103-AMD780M-APU/issues/37",
        ..BASE
    },
    Entry {
        id: "invalid-device-function",
        patterns: &[
            r"(?i)\binvalid device function\b",
            r"hipErrorInvalidDeviceFunction",
            r"error code:? ?98\b",
            r"(?i)\bHIP (?:runtime |API )?error(?: code)?[ :=#(]{1,3}0?98\b",
        ],
        cause: "The wheel, or the extension that failed, has no code for {gpu}, or for the architecture that HSA_OVERRIDE_GFX_VERSION makes it pass for.",
        fix: &[
            "{install}",
            "HSA_OVERRIDE_GFX_VERSION={override}: with an upstream wheel, the code of a similar GPU runs on {gpu}",
            "an integrated GPU beside a card: hide it with HIP_VISIBLE_DEVICES=<index of the card> (Linux: ROCR_VISIBLE_DEVICES)",
            "unset HSA_OVERRIDE_GFX_VERSION, if it is set and the wheel has code for the GPU itself",
            "an extension that was built here (also in a Dockerfile, where no GPU is seen): build it again and name the architecture, PYTORCH_ROCM_ARCH=<gfx>",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.cuda.get_arch_list())'",
            "Linux: rocminfo | grep gfx",
            "Windows: hipInfo",
        ],
        source: "https://github.com/pytorch/pytorch/issues/164346",
        ..BASE
    },
    Entry {
        id: "no-kernel-image",
        patterns: &[
            r"(?i)(?:HIP|ROCm) error: named symbol not found|hipErrorNotFound\b",
            r"no kernel image is available for execution on the device",
            r"hipErrorNoKernelImageForDevice",
            r"(?i)\bHIP (?:runtime |API )?error(?: code)?[ :=#(]{1,3}0?209\b",
        ],
        cause: "A library has no code for {gpu}: torch itself, or an extension such as bitsandbytes that was built for other architectures.",
        fix: &[
            "see in the traceback which library launched the kernel, and install its build for this architecture",
            "{install}",
            "unset HSA_OVERRIDE_GFX_VERSION",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6348",
        ..BASE
    },
    Entry {
        id: "invalid-image",
        confidence: Medium,
        patterns: &[
            r"(?i)device kernel image is invalid",
            r"hipErrorInvalidImage|hipErrorInvalidKernelFile",
            r"(?i)(?:HIP|CUDA) error: invalid kernel file",
            r"(?i)shared object initiali[sz]ation failed",
            r"hipErrorSharedObjectInitFailed",
        ],
        cause: "The code could not be loaded on the GPU: it was built for another architecture or another ROCm version. Typically an older wheel without code for {gpu}, a compiled program from a cache, or an integrated GPU that the wheel does not know and that is device 0.",
        fix: &[
            "hide the integrated GPU: HIP_VISIBLE_DEVICES=<index of the card> (Linux: ROCR_VISIBLE_DEVICES), or switch it off in the BIOS",
            "{install}",
            "HSA_OVERRIDE_GFX_VERSION={override}: with an upstream wheel, the code of a similar GPU runs on {gpu}",
            "a precompiled model (.vmfb, prebuilt libraries): delete the cache and compile it again for this GPU",
            "or install a wheel with the architectures of both GPUs (`torch[device-…]` takes several extras)",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.cuda.get_arch_list())'",
            "Linux: rocminfo | grep -E 'gfx|Marketing'",
            "Windows: hipInfo",
        ],
        source: "https://github.com/ROCm/TheRock/issues/3392",
        ..BASE
    },
    Entry {
        id: "tensile-capabilities",
        patterns: &[
            r"(?i)Cached asm caps differ from derived asm caps",
            r"(?i)Tensile.*(?:assembler|asm caps)",
        ],
        cause: "Tensile asks the assembler what it can do and knows the answers of the Clang of its own ROCm: this compiler (LLVM) is of another version.",
        fix: &[
            "build with the Clang of the same ROCm release (rocm-llvm), not with a newer one of the distribution",
            "or take the version of Tensile and rocBLAS that belongs to this compiler",
        ],
        source: "https://bugs.gentoo.org/953116",
        ..BASE
    },
    Entry {
        id: "tensile-broken-library",
        patterns: &[
            r"(?i)Tensile solution found, but",
            r"kernel not found in any loaded module",
        ],
        covers: &[
            "handle-creation-crash",
            "hipblaslt-crash",
            "cublas-internal-error",
        ],
        cause: "This rocBLAS is a broken build, or was built without the code objects for {gpu}: its table (Tensile) names a kernel that its files do not have.",
        fix: &[
            "reinstall rocBLAS from one source (all its files of one version), or take another version or build of it: AMD's package instead of the distribution's",
            "or build it for this architecture (-DGPU_TARGETS=<gfx>)",
        ],
        ask: &["Linux, WSL: ls /opt/rocm/lib/rocblas/library | grep <gfx>"],
        source: "https://github.com/ROCm/Tensile/issues/1130",
        ..BASE
    },
    Entry {
        id: "tensile-library-missing",
        patterns: &[
            r"(?i)rocBLAS warning: No paths matched",
            r"(?i)Could not initialize Tensile host",
            r"rocBLAS error: (?:Cannot read|Could not load) .*TensileLibrary",
            r"TensileLibrary\w*\.(?:dat|co): (?:Illegal seek|No such file)",
            r"rocBLAS error: Could not initialize Tensile library",
            r"(?i)rocblas.*(?:No such file|not found|cannot).*TensileLibrary",
        ],
        covers: &["segmentation-fault"],
        cause: "rocBLAS has no kernels for {gpu}, or its library folder and its shared library are of two versions.",
        fix: &[
            "{install}",
            "HSA_OVERRIDE_GFX_VERSION={override}: the kernels of a similar GPU run on {gpu}",
            "an integrated GPU beside a card: hide it with HIP_VISIBLE_DEVICES=<index of the card> (Linux: ROCR_VISIBLE_DEVICES)",
            "llama.cpp, ollama: a build that has kernels for <gfx>, or the Vulkan build",
            "a GPU that is newer than the release: a newer ROCm; an older one (Vega, MI50): AMD's device wheels (torch[device-gfx900], torch[device-gfx906]), an older ROCm (gfx906: up to 6.3), or rocBLAS built for it",
            "Windows: with the HIP SDK (ZLUDA, llama.cpp, ollama): the rocBLAS files for <gfx> of its version (ROCmLibs-for-gfx1103-AMD780M-APU has them for many GPUs)",
            "a HIP SDK whose rocBLAS was replaced by hand: rocblas.dll and rocblas/library must come from one build for this SDK version; reinstall both",
            "Linux, WSL: remove a foreign rocBLAS from LD_LIBRARY_PATH",
        ],
        source: "https://github.com/ROCm/ROCm/issues/2719",
        ..BASE
    },
    Entry {
        id: "two-architectures-crash",
        confidence: Medium,
        patterns: &[r"(?i)\bkpack\b.*(?:segmentation fault|abort|failed|error)"],
        cause: "The loader of multi-architecture wheels crashes when two GPUs of different architecture are visible.",
        fix: &[
            "make one GPU visible: ROCR_VISIBLE_DEVICES (Linux) or HIP_VISIBLE_DEVICES (Windows)",
        ],
        source: "https://github.com/ROCm/TheRock/issues/6696",
        ..BASE
    },
    Entry {
        id: "graph-capture",
        confidence: Medium,
        patterns: GRAPH_CAPTURE,
        covers: &["hip-error-other", "rccl-error"],
        cause: "A HIP graph could not be captured: something was called that HIP does not allow during a capture, by this thread or another (a watchdog of torch.distributed, an allocation, a stream that is not part of it). From ROCm 7.0 on HIP refuses more of it, as CUDA does, and some releases refused wrongly.",
        fix: &[
            "without graphs: --enforce-eager (vLLM), --disable-cuda-graph (SGLang), GGML_CUDA_DISABLE_GRAPHS=1 (llama.cpp), no mode=\"reduce-overhead\" in torch.compile",
            "a newer torch and ROCm that belong together",
            "AMD_LOG_LEVEL=3 shows the call that failed first",
        ],
        ask: &["AMD_LOG_LEVEL=3 <your program> 2>&1 | grep -m 5 hipError"],
        source: "https://github.com/ROCm/rccl/issues/2022",
        ..BASE
    },
    Entry {
        id: "hip-graph-with-override",
        confidence: Medium,
        patterns: GRAPH_CAPTURE,
        also: &[r"HSA_OVERRIDE_GFX_VERSION|\bgfx1031\b"],
        covers: &["graph-capture"],
        cause: "A HIP graph could not be captured; known for kernels of gfx1030 on a gfx1031 under an override.",
        fix: &[
            "switch graphs off (no `mode=\"reduce-overhead\"`, no cudagraphs)",
            "install a wheel with native code",
        ],
        source: "https://github.com/pytorch/pytorch/issues/193668",
        ..BASE
    },
    Entry {
        id: "no-wheel-for-old-gpu",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)with CUDA capability sm_\d+ is not compatible|not compatible with the current PyTorch installation",
            r"(?i)nvrtc: error: invalid value for --gpu-architecture",
        ],
        cause: "This torch has no code for the GPU it found: another build, or one for NVIDIA's cards.",
        fix: &["{install}"],
        source: "https://github.com/pytorch/pytorch/issues/164346",
        ..BASE
    },
    Entry {
        id: "compiler-too-old-for-gpu",
        patterns: &[
            r"(?i)(?:clang|hipcc|error).*(?:invalid target ID|unknown target CPU|unsupported HIP gpu architecture|unknown GPU)\W{1,4}gfx\w+",
            r"(?i)cannot determine (?:amdgcn|AMDGPU) architecture",
            r"(?i)LLVM ERROR: .*(?:Cannot select|invalid|unknown|unsupported).*gfx\w+",
            r"(?i)'gfx\w+' is not a recognized processor for this target",
        ],
        cause: "The compiler does not know {gpu}, or cannot ask which GPU there is: this ROCm is older than the chip, or no GPU is visible while it builds.",
        fix: &[
            "a newer ROCm, whose compiler knows the chip",
            "name the architecture: --offload-arch=<gfx>, PYTORCH_ROCM_ARCH=<gfx>, -DAMDGPU_TARGETS=<gfx>",
        ],
        source: "https://llvm.org/docs/AMDGPUUsage.html#processors",
        ..BASE
    },
    Entry {
        id: "program-refuses-gpu",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:Error|Exception): .{0,40}\b(?:unsupported|unknown) (?:AMD |ROCm |HIP )?(?:GPU|device)(?: arch\w*| type| target)?\W{1,4}\S*gfx\d",
            r"(?i)\bunsupported AMD GPU\b",
            r"(?i)(?:Error|Exception): .{0,60}\bgfx\d\w+\W* is not supported",
        ],
        covers: &["cuda-error-other", "hip-error-other"],
        cause: "The program itself refuses {gpu}: it has a list of the AMD GPUs that it supports (mostly Instinct cards), and this one is not on it.",
        fix: &[
            "a newer version of the program, whose list may have the GPU",
            "another backend or setting of it (Triton or PyTorch's own kernels in place of CK, AITER or hipBLASLt; Vulkan)",
            "HSA_OVERRIDE_GFX_VERSION={override}: the code of a neighbour runs on {gpu}",
        ],
        ask: &[
            "Linux, WSL: rocminfo | grep gfx",
            "the version of the program",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
        ..BASE
    },
];
