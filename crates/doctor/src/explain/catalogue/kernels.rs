//! Code that ran on the GPU, and how it crashed.

use super::Scope::{BareMetal, Windows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "tensile-memory-fault",
        confidence: Medium,
        patterns: &[r"(?i)ShaderName ?: ?Cijk_", r"(?i)Kernel Name: Cijk_"],
        also: &[r"(?i)page fault|Memory access fault|aborting with error"],
        covers: &["memory-access-fault", "gfxhub-page-fault"],
        cause: "A matrix kernel of rocBLAS or hipBLASLt (its name begins with Cijk_) touched memory that is not mapped: an error of that library version, not of the program.",
        fix: &[
            "another ROCm version, newer or older, which brings other kernels",
            "another library for matrix products: TORCH_BLAS_PREFER_HIPBLASLT=0, or =1; ROCBLAS_USE_HIPBLASLT=0",
        ],
        source: "https://github.com/ROCm/rocm-libraries/issues/7992",
        ..BASE
    },
    Entry {
        id: "gfxhub-page-fault",
        confidence: Medium,
        patterns: &[
            r"(?i)\[(?:gfxhub|mmhub)\d*\] (?:no-retry |retry )?page fault",
            r"(?i)(?:GC|MM)?VM_(?:L2|CONTEXT\d+)_PROTECTION_FAULT_STATUS",
            r"(?i)amdgpu.*GPU fault detected:? \d+",
            r"Faulty UTCL2 client ID|\bMORE_FAULTS: 0x|\bPERMISSION_FAULTS: 0x",
        ],
        covers: &["memory-access-fault"],
        cause: "A page fault: the kernel saw the GPU read memory that is not mapped (a memory access at a wrong address). Usual causes: an override on a GPU with native code, a bug of a library or of the kernel driver, an overclocked or undervolted card; on gfx1151 kernels before 6.18.4 and linux-firmware 20251125 do this to correct programs.",
        fix: &[
            "gfx1151: kernel 6.18.4 or newer, and linux-firmware 20260110 or newer (or 20251111)",
            "unset HSA_OVERRIDE_GFX_VERSION",
            "another GPU: a newer kernel and linux-firmware",
            "another version of ROCm and torch, newer or older: other kernels; a fault in a matrix product (hipBLASLt): TORCH_BLAS_PREFER_HIPBLASLT=0",
            "no overclock, no undervolt",
            "to find the kernel that does it: `surefoot run --debug -- …` (slow; for diagnosis only)",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5991",
        scope: BareMetal,
        ..BASE
    },
    Entry {
        id: "memory-access-fault",
        confidence: Medium,
        patterns: &[
            r"Memory access fault by GPU node-\d+",
            r"Page not present or supervisor privilege",
            r"(?i)Memory (?:critical error|access fault) by agent",
        ],
        cause: "A kernel on the GPU touched memory that is not mapped; node-N is the KFD node. Usual causes, in this order: an override on a GPU with native code, kernel driver, firmware and ROCm that do not fit together, a bug in a library, an overclocked or undervolted card (sporadic, under load).",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "Linux: gfx1151: kernel 6.18.4 or newer and a linux-firmware other than 20251125",
            "another ROCm version; a fault in a matrix product (hipBLASLt; in training on RX 9000 and R9700 above all): TORCH_BLAS_PREFER_HIPBLASLT=0",
            "stock clocks and voltage: no overclocking, no undervolting",
            "to find the kernel that does it: `surefoot run --debug -- …` (slow; for diagnosis only)",
        ],
        ask: &[
            "Linux, WSL: env | grep -E 'HSA_|HIP_'",
            "Linux: uname -r; dpkg -l linux-firmware",
            "Linux: dmesg | grep -iE 'amdgpu|fault' | tail -n 30",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5405",
        ..BASE
    },
    Entry {
        id: "out-of-registers",
        confidence: Medium,
        patterns: &[
            r"(?i)OUT_OF_REGISTERS",
            r"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",
            r"HSA_STATUS_ERROR_INVALID_CODE_OBJECT",
        ],
        covers: &["invalid-image", "ggml-no-code", "queue-error"],
        cause: "The GPU was given code of another chip, or built for another ROCm version than the runtime: an override on a GPU that has native code, or a build for another architecture.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "rebuild the program (llama.cpp: AMDGPU_TARGETS=<gfx>), or reinstall the wheel, for this GPU and the installed ROCm",
        ],
        ask: &[
            "Linux, WSL: env | grep HSA_OVERRIDE",
            "Linux, WSL: rocminfo | grep gfx",
            "Linux, WSL: cat /opt/rocm/.info/version; ls /opt",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5824",
        ..BASE
    },
    Entry {
        id: "illegal-address",
        confidence: Medium,
        patterns: &[
            r"(?i)an illegal memory access was encountered",
            r"(?:hip|cuda)ErrorIllegalAddress",
            r"(?i)\bHIP (?:runtime |API )?error(?: code)?[ :=#(]{1,3}0?700\b",
        ],
        cause: "A kernel read or wrote memory that is not its own. From here on nothing on this GPU works in this process; the call that is named is only the one that noticed.",
        fix: &[
            "`surefoot run --debug -- …` names the kernel",
            "unset HSA_OVERRIDE_GFX_VERSION; a newer wheel",
            "an index out of range in the program does this too: try the same step on the CPU",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "invalid-argument",
        confidence: Low,
        patterns: &[
            r"(?i)(?:HIP|CUDA|ROCm) error: invalid argument",
            r"hipErrorInvalidValue",
        ],
        cause: "The runtime refused a call. In `.to(\"cuda\")` this is a fault of the driver and runtime pair (mostly Windows), a visible GPU that is not supported, or pinned memory at its limit. It is not caused by Accelerate.",
        fix: &[
            "make only the card visible",
            "update driver and wheel together",
            "`surefoot probe` repeats the copies without any framework around them",
        ],
        source: "https://github.com/ROCm/TheRock/issues/2707",
        ..BASE
    },
    Entry {
        id: "unspecified-launch-failure",
        confidence: Low,
        patterns: &[
            r"(?i)unspecified launch failure|the function failed to launch on the GPU",
            r"(?i)(?:HIP|CUDA|ROCm) error: the launch timed out and was terminated",
            r"hipErrorLaunchTimeOut|hipErrorPriorLaunchFailure",
            r"hipErrorLaunchFailure",
            r"(?i)\bHIP (?:runtime |API )?error(?: code)?[ :=#(]{1,3}0?719\b",
        ],
        cause: "A kernel crashed or the GPU hung, and the driver reset it: from here on the context is lost. Seen when memory was exhausted in a video VAE on Windows, with kernels that MIOpen tries out on a new GPU, and with ROCm builds, drivers or firmware that are too old for the card.",
        fix: &[
            "a newer driver and ROCm build, updated together",
            "in a convolution (MIOpen in the log): MIOPEN_FIND_MODE=FAST, or torch.backends.cudnn.enabled = False",
            "tiled or CPU VAE, a smaller batch",
            "AMD_SERIALIZE_KERNEL=3 (`surefoot run --debug -- …` sets it) names the kernel",
            "llama.cpp and ollama: the Vulkan build does without ROCm",
        ],
        ask: &[
            "Linux: dmesg | grep -iE 'amdgpu|reset|fault' | tail -n 40",
            "Windows: the driver version in the Device Manager, and hipInfo",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "AMD-Strix-Halo-AI-Guide, issue 4",
        ..BASE
    },
    Entry {
        id: "heap-corruption",
        confidence: Medium,
        patterns: &[
            r"(?i)double free or corruption",
            r"(?i)free\(\): (?:invalid (?:pointer|size|next size)|double free)",
            r"(?i)malloc\(\): (?:corrupted|invalid|unaligned)",
            r"(?i)corrupted (?:size vs\. prev_size|double-linked list)",
            r"(?i)munmap_chunk\(\): invalid pointer",
            r"0xC0000374|\b3221226356\b|-1073740940\b",
        ],
        covers: &["segmentation-fault", "nightly-crash"],
        cause: "The heap of the process is corrupted: in a ROCm program mostly because two copies of one library are loaded (amd_smi or rocm_smi of the system and of the wheel, two ROCm versions), and both free the same object at the end.",
        fix: &[
            "pip uninstall amdsmi: torch works without it",
            "one ROCm only, and no folder of another in the search path: remove the system's ROCm libraries or the wheel's",
            "at exit only, after all results: harmless for them",
        ],
        ask: &[
            "pip list | grep -iE 'amdsmi|torch|rocm'",
            "Linux: LD_DEBUG=libs python -c 'import torch' 2>&1 | grep -E 'calling init.*(smi|hsa|amdhip)'",
        ],
        source: "https://github.com/ROCm/TheRock/issues/2269",
        ..BASE
    },
    Entry {
        id: "crash-in-triton",
        confidence: Medium,
        patterns: &[
            r"(?i)libtriton\.(?:pyd|so)\W?.{0,4}\+0x[0-9a-f]+",
            r"(?i)Triton Error \[HIP\]",
        ],
        covers: &[
            "torch-compile-failed",
            "segmentation-fault",
            "unspecified-launch-failure",
        ],
        cause: "Triton failed on {gpu}: its compiler crashed, or the kernel that it made cannot be launched there. This version of Triton does not support the chip well, or does not belong to this torch.",
        fix: &[
            "a newer torch with the Triton that belongs to it",
            "run without torch.compile and without kernels of Triton: TORCHDYNAMO_DISABLE=1, another attention, UNSLOTH_COMPILE_DISABLE=1",
        ],
        ask: &[
            "pip list | grep -iE 'triton|torch'",
            "Linux, WSL: rocminfo | grep gfx",
        ],
        source: "https://github.com/unslothai/unsloth/issues/7922",
        ..BASE
    },
    Entry {
        id: "windows-fatal-breakpoint",
        confidence: Medium,
        patterns: &[r"(?i)Windows fatal exception: code 0x8\w+"],
        cause: "The process was ended by its own check in native code, at the first kernel mostly because this build has no code for {gpu} (the wheel is for another architecture), or because packages of two versions are mixed.",
        fix: &[
            "install the wheel for this GPU's architecture, with torch and the rocm packages of one version:",
            "{install}",
            "HIP_VISIBLE_DEVICES=<index of the card>, where an integrated GPU is visible too",
        ],
        ask: &["hipInfo", "pip list | findstr -i \"torch rocm\""],
        scope: Windows,
        source: "https://github.com/ROCm/TheRock/issues/1079",
        ..BASE
    },
    Entry {
        id: "segfault-in-library",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:torch_hip|c10_hip|amdhip64\w*|rocblas|hipblaslt|MIOpen|amd_comgr\w*)\.dll(?:\(0x[0-9a-f]+\))? ?\+ ?0x[0-9a-f]+",
            r"(?i)(?:SIGSEGV|segmentation fault|segfault).{0,80}lib(?:hsa-runtime64|amdhip64|rocblas|MIOpen|rccl|amd_comgr|torch_hip)\b",
            r"(?:segfault at|general protection fault|trap invalid opcode) .*in lib(?:hsa-runtime64|amdhip64|rocblas|MIOpen|hipblaslt|rccl|amd_comgr|torch_hip|c10_hip|rocsolver|hiprtc|rocprofiler\w*)\b?",
        ],
        covers: &["segmentation-fault", "nightly-crash"],
        cause: "The process crashed within the ROCm runtime or one of its libraries, which the line names (libhsa-runtime64 is ROCr): that version of it crashes on this machine.",
        fix: &[
            "a newer ROCm build of torch, or another version of the wheel",
            "one GPU visible: HIP_VISIBLE_DEVICES=<index>",
            "unset HSA_OVERRIDE_GFX_VERSION",
        ],
        ask: &[
            "pip list | grep -iE 'torch|rocm'",
            "Linux, WSL: uname -r; rocminfo | grep gfx",
        ],
        source: "https://github.com/ROCm/TheRock/issues/3081",
        ..BASE
    },
    Entry {
        id: "segmentation-fault",
        confidence: Low,
        patterns: &[
            r"(?i)\bsegmentation fault\b",
            r"\bSIGSEGV\b",
            r"exit(?:ed with)? ?code ?:? ?(?:-11|139)\b|(?i:got signal:? 11|signal 11)\b|status=11/SEGV",
        ],
        cause: "The process crashed in native code, outside Python. With AMD GPUs mostly: an override on a GPU with native code, two visible GPUs of different architecture, ROCm libraries of the program without code for this GPU or of two versions, or a broken nightly wheel.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION and make one GPU visible (HIP_VISIBLE_DEVICES=<index>)",
            "a newer build of the program or wheel, with code for this GPU; llama.cpp, ollama and LM Studio: the Vulkan build does without ROCm",
            "Python: python -X faulthandler … shows the line; `surefoot probe` shows the operation",
            "pin a release instead of a nightly",
        ],
        ask: &[
            "python -X faulthandler <your program>",
            "Linux: dmesg | grep segfault",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5853",
        ..BASE
    },
    Entry {
        id: "illegal-instruction",
        confidence: Medium,
        patterns: &[
            r"(?i)\bIllegal instruction\b",
            r"\bSIGILL\b",
            r"(?i)trap invalid opcode",
        ],
        unless: &[
            r"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION|(?i:illegal shader instruction|an illegal instruction was encountered)",
        ],
        covers: &["nightly-crash"],
        cause: "The processor does not know an instruction of the program (an illegal instruction on the CPU, not on the GPU): the wheel or build was made for processors with AVX or AVX2 (or AVX-512), and this one has none, as Pentium, Celeron and old Xeon processors and some virtual machines.",
        fix: &[
            "lscpu | grep avx: nothing means that ready-made wheels do not run on this CPU; an older version, or a build of your own",
            "in a virtual machine: pass the host's CPU through (cpu type `host`)",
            "a CPU with AVX2: another version of the wheel, and no HSA_OVERRIDE_GFX_VERSION",
        ],
        ask: &[
            "Linux, WSL: lscpu | grep -i -o 'avx[^ ]*' | sort -u",
            "Linux: dmesg | grep -i 'invalid opcode'",
        ],
        source: "https://github.com/pytorch/pytorch/issues/125310",
        ..BASE
    },
    Entry {
        id: "gpu-illegal-instruction",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:CUDA|HIP) error: an illegal instruction was encountered",
            r"hipErrorIllegalInstruction",
            r"(?i)amdgpu.{0,40}\*ERROR\* Illegal (?:opcode|instruction|register access) in command stream",
        ],
        cause: "The GPU was given an instruction that it does not have: code of another chip (an override), or a miscompiled kernel.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "another build of the wheel, with code for this GPU",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
    Entry {
        id: "launch-too-large",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:HIP|CUDA|ROCm) error: (?:invalid configuration argument|too many resources requested for launch|too many blocks in cooperative launch|invalid resource handle|file not found|__global__ function call is not configured)",
            r"hipError(?:InvalidConfiguration|LaunchOutOfResources|CooperativeLaunchTooLarge|InvalidHandle|InvalidResourceHandle|FileNotFound|MissingConfiguration)\b",
        ],
        cause: "The runtime refused to launch a kernel: it asks for more threads, registers or shared memory than {gpu} has, for a kernel or file that is not in this build, or for a handle of another device. Code written for a GPU with another wave size or more shared memory does this.",
        fix: &[
            "a newer version of the program or extension, with a build for <gfx>",
            "the first error of the log is the cause, where there is one before this",
            "one GPU visible: HIP_VISIBLE_DEVICES=<index>; another attention or without the custom kernel",
        ],
        ask: &[
            "AMD_LOG_LEVEL=3 <your program> 2>&1 | tail -n 50",
            "pip list | grep -iE 'torch|rocm|triton'",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
    Entry {
        id: "fft-failed",
        confidence: Medium,
        patterns: &[
            r"HIPFFT_\w+|(?i:create a (?:hip|cu|roc)FFT plan|cuFFT error: CUFFT_\w+|rocfft.{0,40}(?:fail|error)|rocfft_status_(?:fail|invalid)\w*)",
        ],
        cause: "A Fourier transform failed within hipFFT (rocFFT), which compiles its kernels at run time: its cache is damaged or not writable, libraries of two ROCm versions are mixed, or memory ran out.",
        fix: &[
            "ROCFFT_RTC_CACHE_PATH=<a new file on a local disk>, or delete the old one",
            "one ROCm only: reinstall torch; free memory on the GPU",
        ],
        source: "https://rocm.docs.amd.com/projects/rocFFT/en/latest/",
        ..BASE
    },
    Entry {
        id: "queue-error",
        confidence: Low,
        patterns: &[
            r"HSA_STATUS_ERROR(?:_EXCEPTION)?\b.*(?:queue|callback)",
            r"(?i)queue .* (?:aborting|aborted) with error",
        ],
        cause: "ROCr ended a queue after an error of the GPU. The first error above this line is the cause.",
        fix: &[
            "`surefoot run --debug -- …` serialises the launches, so that the message names the right call",
        ],
        ask: &["the 50 lines above this one"],
        source: "https://rocm.docs.amd.com/projects/ROCR-Runtime/en/latest/",
        ..BASE
    },
    Entry {
        id: "nightly-crash",
        confidence: Low,
        patterns: &[
            r"(?i)\bsegmentation fault\b",
            r"\bSIGSEGV\b",
            r"(?i)core dumped",
        ],
        also: &[r"\.dev20\d{6}|\brocm\d+\.\d+\.\d+a20\d{6}|\ba20\d{6}\b"],
        last_resort: true,
        cause: "The wheel is a nightly, and single nightlies crash on any access to GPU memory (gfx1151).",
        fix: &[
            "pin a release instead of a nightly",
            "or another date of it; `surefoot probe` tells in a minute whether one works",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5853",
        ..BASE
    },
    Entry {
        id: "device-assert",
        patterns: &[
            r"(?i)native/(?:hip|cuda)/\w+\.(?:hip|cuh?):\d+:.*assertion",
            r"(?i)device-side assert triggered|hipErrorAssert",
            r"(?i)Assertion .?(?:srcIndex|idx|index|t|ind|target_val)\b.*failed",
        ],
        covers: &["illegal-address", "unspecified-launch-failure"],
        cause: "A kernel checked its input and found it wrong: nearly always an index out of range (a token id beyond the embedding, a label beyond the classes). The GPU is well; its context is lost.",
        fix: &[
            "the same step on the CPU names the line",
            "compare the ids with the size of the vocabulary (a tokenizer of another model, added tokens without resize_token_embeddings)",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "hsa-exception",
        confidence: Low,
        patterns: &[
            r"HSA_STATUS_ERROR_(?:MEMORY_APERTURE_VIOLATION|MEMORY_FAULT|EXCEPTION|INVALID_QUEUE\w*|INVALID_PACKET_FORMAT|INVALID_ALLOCATION|FATAL)",
            r"(?i)HSA exception: ",
        ],
        covers: &["queue-error"],
        cause: "A kernel on the GPU touched memory that is not its own, or raised a hardware exception, and ROCr ended its queue. Usual causes: an override, a bug in a library of this ROCm version, kernel driver and firmware that do not fit it, an overclocked or undervolted card.",
        fix: &[
            "unset HSA_OVERRIDE_GFX_VERSION",
            "another ROCm version",
            "Linux: a newer kernel and linux-firmware",
            "stock clocks and voltage",
            "`surefoot run --debug -- …` serialises the launches, so that the message names the right call",
        ],
        ask: &[
            "env | grep -E 'HSA_|HIP_'",
            "Linux: dmesg | grep -iE 'amdgpu|fault' | tail -n 30",
            "Linux, WSL: uname -r; pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://rocm.docs.amd.com/projects/ROCR-Runtime/en/latest/",
        ..BASE
    },
    Entry {
        id: "hip-unknown-error",
        confidence: Low,
        patterns: &[
            r"(?i)(?:HIP|CUDA|ROCm) error: (?:unknown error|initialization error|operation not supported|the operation cannot be performed in the present state|mapping of buffer object failed|context is destroyed|OS call failed|runtime (?:memory )?call)",
            r"hipError(?:Unknown|NotInitialized|NotSupported|IllegalState|RuntimeOther|RuntimeMemory|MapFailed|ContextIsDestroyed|OperatingSystem)\b",
        ],
        cause: "The HIP runtime gave up without saying why: the kernel driver is older or newer than it can use, the GPU was reset before, or the runtime does not support the card.",
        fix: &[
            "Linux: kernel driver and ROCm of one age: a newer kernel, another wheel",
            "WSL: driver and ROCm of one age: a newer Adrenalin driver on Windows, another wheel",
            "Windows: driver and ROCm of one age: a newer Adrenalin driver, another wheel",
            "restart, and look at the first error of the log",
            "one visible GPU, without HSA_OVERRIDE_GFX_VERSION",
        ],
        ask: &[
            "Linux: dmesg | grep -iE 'amdgpu|kfd' | tail -n 40",
            "Windows: the driver version in the Device Manager, and hipInfo",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
];
