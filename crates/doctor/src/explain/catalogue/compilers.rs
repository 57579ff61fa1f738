//! What compiles kernels and extensions: hiprtc, comgr, Triton, setup scripts.

use super::Scope::{NotWindows, Windows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "cmake-finds-no-hip",
        patterns: &[
            r#"(?i)By not providing "Find(?:hip|rocblas|hipblas|hipblaslt|rocsolver|miopen|rccl|amd_comgr|hsa-runtime64|rocprim|hipcub)\.cmake""#,
            r#"(?i)Could not find a package configuration file provided by "(?:hip|rocblas|hipblas|hipblaslt|rocsolver|miopen|rccl|amd_comgr|hsa-runtime64|rocprim|hipcub)""#,
            r"(?i)does not contain the HIP runtime CMake package|imported target \x22(?:hip|roc|hsa|MIOpen|amd_comgr)\w*::\w+\x22 references the file",
            r"(?i)lib(?:hip|roc|amdhip|MIOpen|rccl)\S*', needed by .{0,120} missing and no known rule",
            r"(?i)Could not find ROCM_PATH|CMAKE_HIP_COMPILER.{0,30}(?:not set|not found|not able)|Failed to find (?:a default )?HIP (?:compiler|architecture)",
            r"(?i)Can't find CUDA or HIP installation",
            r"(?i)No CMAKE_HIP_COMPILER could be found",
            r"(?i)\bHIP_(?:ROOT_DIR|HIPCC_EXECUTABLE|PATH)\b.{0,40}NOTFOUND|NOTFOUND:? ?HIP_",
        ],
        covers: &["hip-headers-missing"],
        cause: "CMake does not find HIP or a library of ROCm: the development packages are not installed, or its folder is not in CMake's search path.",
        fix: &[
            "Linux, WSL: the development packages: sudo apt install rocm-hip-sdk (or rocm-dev); wheels: pip install \"rocm[devel,libraries]\" of the same version, then rocm-sdk init",
            "Linux, WSL: CMAKE_PREFIX_PATH=/opt/rocm (wheels: the output of rocm-sdk path --cmake), ROCM_PATH and HIP_PATH to the same folder",
            "Windows: the HIP SDK, and -DCMAKE_PREFIX_PATH=\"%HIP_PATH%\"",
        ],
        ask: &["Linux, WSL: hipconfig --full; ls /opt | grep rocm"],
        source: "https://rocm.docs.amd.com/en/latest/conceptual/cmake-packages.html",
        ..BASE
    },
    Entry {
        id: "device-libraries-differ",
        confidence: Medium,
        patterns: &[
            r"(?i)undefined (?:hidden )?symbol: __oc(?:kl|ml)_\w+",
            r"(?i)error: unsupported architecture '?gfx\w+",
            r"(?i)was built using hcc \S+, but you are using",
        ],
        cause: "The compiler and the device libraries (or tools) beside it are of different ages: one of them does not know {gpu} or a function that the other uses.",
        fix: &[
            "compiler, device libraries and headers of one ROCm: no mixture of an installed ROCm, packages of the distribution and those of a wheel",
            "a newer ROCm, where the architecture is newer than it",
        ],
        ask: &["Linux, WSL: hipconfig --full; ls /opt | grep rocm"],
        source: "https://github.com/ROCm/llvm-project/tree/amd-staging/amd/device-libs",
        ..BASE
    },
    Entry {
        id: "triton-type-unsupported",
        confidence: Medium,
        patterns: &[
            r"(?i)Unsupported conversion from \w+ to \w+|type fp8\w* not supported in this architecture",
        ],
        cause: "This Triton cannot convert between these data types on {gpu}: 8-bit floats and the like exist only on newer GPUs, or in a newer Triton.",
        fix: &[
            "another data type (bf16 or fp16 instead of fp8), or a model in another quantisation",
            "a newer torch with the triton that belongs to it",
        ],
        ask: &["pip list | grep -iE 'torch|triton'"],
        source: "https://triton-lang.org/main/index.html",
        ..BASE
    },
    Entry {
        id: "assembly-of-nvidia",
        patterns: &[
            r"(?i)couldn't allocate (?:input|output) reg(?:ister)? for constraint",
            r"(?i)error: (?:unknown token in expression|invalid instruction|not a valid operand).{0,80}(?:mov\.[bu]\d+|ld\.(?:global|shared)|cvt\.)",
        ],
        cause: "A kernel has inline assembly for NVIDIA (PTX), which the compiler for AMD GPUs does not know: this version of triton, of torch.compile or of the library was not made for ROCm, or torch and triton are not of one release.",
        fix: &[
            "the triton that belongs to this torch: torch and pytorch-triton-rocm together from one ROCm index, of a newer version",
            "without torch.compile (TORCHDYNAMO_DISABLE=1), or without the library whose kernel it is",
        ],
        ask: &["pip list | grep -iE 'torch|triton'"],
        source: "https://github.com/pytorch/pytorch/issues/98510",
        ..BASE
    },
    Entry {
        id: "cpp-headers-missing-windows",
        patterns: &[
            r"(?:fatal error:|^) *'(?:limits|cmath|type_traits|cstdint|algorithm|utility|cstdlib|io\.h|stdio\.h|stdlib\.h|stddef\.h|windows\.h|vcruntime\.h|math\.h|string\.h|assert\.h|corecrt\.h)' file not found",
            r"fatal error: '(?:stdio\.h|stdlib\.h|stddef\.h|windows\.h|vcruntime\.h|math\.h|string\.h|assert\.h|corecrt\.h|cmath|limits|cstdlib)' file$",
        ],
        scope: Windows,
        covers: &[
            "miopen-unknown-error",
            "hiprtc-compilation",
            "triton-helper-failed",
        ],
        cause: "A kernel or a helper is compiled at run time (by MIOpen or Triton), and the compiler finds no C++ standard headers: on Windows they come with the Windows SDK and MSVC, which are missing.",
        fix: &[
            "install Build Tools for Visual Studio with the C++ workload (MSVC and the Windows SDK), and start from its command prompt",
            "or a newer ROCm build, whose own headers are complete",
        ],
        ask: &["where cl", "pip list | findstr -i \"torch rocm triton\""],
        source: "https://github.com/patientx/ComfyUI-Zluda/issues/394",
        ..BASE
    },
    Entry {
        id: "cpp-headers-missing",
        patterns: &[
            r"fatal error: '(?:limits|cmath|type_traits|cstdint|algorithm|utility|cstdlib|cstddef|iostream|string|vector|stdlib\.h|math\.h|stdio\.h)' file not found",
            r"fatal error: (?:limits|cmath|type_traits|cstdint|iostream|cstddef): No such file",
        ],
        scope: NotWindows,
        covers: &["miopen-unknown-error", "hiprtc-compilation"],
        cause: "ROCm's clang takes the newest GCC that it finds, and the C++ standard headers (libstdc++) of that GCC are not installed. MIOpen and hiprtc meet this at run time, when they compile a kernel.",
        fix: &[
            "install the headers of the newest GCC on the machine: sudo apt install libstdc++-14-dev (12 on Ubuntu 22.04; `ls /usr/lib/gcc/x86_64-linux-gnu` shows the number), or g++ (build-essential)",
            "Fedora: sudo dnf install libstdc++-devel gcc-c++",
            "Arch: sudo pacman -S gcc",
        ],
        ask: &[
            "ls /usr/lib/gcc/x86_64-linux-gnu /usr/include/c++",
            "clang --version; gcc --version",
        ],
        source: "https://github.com/ROCm/MIOpen/issues/2049",
        ..BASE
    },
    Entry {
        id: "hip-headers-missing",
        patterns: &[
            r"(?i)HIP hipcc compiler not found",
            r"fatal error: .?rocwmma/\w+\.hpp",
            r"fatal error: .?(?:hip/\w+|hipblas\w*|rocblas|rocrand|hiprand|hipsparse|hipcub|thrust|rocprim|miopen|rccl|rocm_smi)[/\w]*\.h(?:pp)?\b",
            r"(?i)Could NOT find (?:HIP|ROC[TR]|rocblas|hipblas\w*|hipsolver|hipsparse|hipfft|hiprand|MIOpen|rocm\w*|hsa\w*|amd_comgr|rccl|rocprim|rocrand)\b",
            r"(?i)CMake Error.*(?:hip-config|hip-lang|hipConfig)\.cmake|(?:hip|rocblas|hipblas|rocwmma)-config\.cmake",
            r#"(?i)package configuration file provided by "(?:hip|rocblas|hipblas|hipblaslt|rocwmma|miopen|rocm|hsa-runtime64|amd_comgr|AMDDeviceLibs)\w*""#,
            r"(?:cannot find|unable to find library) -l(?:amdhip64|hip\w+|rocblas|rocm\w+|rocrand|rocfft|rocsparse|rocsolver|roctx\w*|MIOpen|rccl|hsa-runtime64|hsakmt)\b",
            r"\bhipcc: (?:command )?not found|\bhipcc not found",
        ],
        covers: &["rocm-tools-missing"],
        cause: "The HIP headers or their CMake files (the development part of ROCm, hip-dev) are not installed, or not where the compiler looks.",
        fix: &[
            "install the development packages: sudo apt install hip-dev hipblas-dev rocblas-dev (rocm-hip-sdk has all); on Windows the HIP SDK",
            "let ROCM_PATH (HIP_PATH) name the folder, or CPATH its include folder: export ROCM_PATH=/opt/rocm CPATH=/opt/rocm/include",
        ],
        scope: NotWindows,
        ask: &[
            "ls /opt/rocm/include/hip | head; which hipcc",
            "dpkg -l | grep -E 'hip-dev|rocm-hip-sdk'",
        ],
        source: "https://github.com/agrocylo/bitsandbytes-rocm/issues/4",
        ..BASE
    },
    Entry {
        id: "rocm-compiler-missing",
        patterns: &[
            r#"(?i)Can't exec "\S*llvm/bin/clang"#,
            r#"(?i)package configuration file provided by "(?:Clang|LLVM|LLD)""#,
            r"(?i)(?:rocm|llvm)\S*/bin/(?:amd)?clang(?:\+\+)?: (?:No such file|not found|command not found)",
        ],
        cause: "ROCm's own compiler (LLVM, clang) or its development files are not where this build looks: the package is not installed, or the path is that of another ROCm version.",
        fix: &[
            "sudo apt install rocm-llvm rocm-llvm-dev (the second has ClangConfig.cmake and LLVMConfig.cmake)",
            "export ROCM_PATH=/opt/rocm HIP_CLANG_PATH=/opt/rocm/llvm/bin, and -DCMAKE_PREFIX_PATH=/opt/rocm/llvm;/opt/rocm for CMake",
        ],
        scope: NotWindows,
        ask: &["ls -d /opt/rocm* /opt/rocm/llvm/bin/clang++"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/3121",
        ..BASE
    },
    Entry {
        id: "bf16-without-hardware",
        patterns: &[r"(?i)Cannot select: intrinsic %llvm\.amdgcn\.\S*bf16"],
        covers: &[
            "triton-compile-failed",
            "torch-compile-failed",
            "compiler-too-old-for-gpu",
        ],
        cause: "A kernel computes with bf16, and {gpu} has no such instruction: RDNA 1 and 2 have no arithmetic for bf16, whatever torch.cuda.is_bf16_supported() says.",
        fix: &[
            "fp16 in place of bf16 (mixed_precision: fp16, with a gradient scaler), or fp32",
            "without torch.compile (TORCHDYNAMO_DISABLE=1), torch computes bf16 with conversions, slowly",
        ],
        source: "https://github.com/unslothai/unsloth/pull/7682",
        ..BASE
    },
    Entry {
        id: "flash-attention-composable-kernels",
        patterns: &[
            r"fatal error: '?(?:fmha_\w+|ck_tile/[\w/]+|ck/[\w/]+)\.hpp",
            r"(?:composable_kernel|ck_tile|flash_attn_ck)/\S+: error: ",
            r"undeclared identifier 'CK_\w+'",
        ],
        also: &[r"(?i)flash[_-]?att"],
        covers: &[
            "extension-build-failed",
            "wheel-build-failed",
            "flash-attention-for-cuda",
        ],
        cause: "flash-attn builds its composable-kernel backend, which is for Instinct cards (MI200, MI300) only, and whose sources are not complete here or do not know this GPU. On consumer GPUs such as {gpu} its Triton backend runs.",
        fix: &[
            "FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE pip install flash-attn --no-build-isolation, and the same variable when it runs",
            "or without flash-attn: PyTorch's own sdpa has it built in (TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 where it is experimental)",
        ],
        source: "https://github.com/Dao-AILab/flash-attention/issues/1105",
        ..BASE
    },
    Entry {
        id: "flash-attention-for-cuda",
        patterns: &[
            r"(?i)module 'flash_attn' has no attribute",
            r"(?i).flash-attn. package must be installed first",
            r"(?i)cannot import name 'flash_attn\w*' from 'flash_attn",
            r"(?i)flash_attn was requested, but nvcc was not found",
            r"(?i)(?:building wheel for|Failed to build) .?flash[-_]attn",
            r"(?i)FlashAttention only supports (?:Ampere|AMD MI|MI)",
            r"(?i)FlashAttention is only supported on CUDA|FlashAttention is not supported on this platform",
            r"Expected is_sm\d+ (?:\|\| is_sm\d+ )*to be true, but got false",
            r"(?i)No module named '?flash_attn'?",
            r"flash_attn_2_cuda\S*: undefined symbol",
            r"(?i)FlashAttention[234] has been toggled on, but it cannot be used",
            r"(?i)Could not build wheels for flash[-_]attn",
        ],
        covers: &["cuda-home-missing", "undefined-symbol-torch"],
        cause: "flash-attn (flash attention) from PyPI is the extension for CUDA: it was not built for ROCm, because its setup saw no ROCm build of torch (build isolation) or its version knows no ROCm. No CUDA toolkit is needed on an AMD card.",
        fix: &[
            "the Triton backend on an RX card: FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE pip install flash-attn --no-build-isolation, with the ROCm build of torch installed before",
            "or without flash-attn: PyTorch's own attention (attn_implementation=\"sdpa\") has flash kernels from AOTriton",
        ],
        ask: &["python -c 'import torch; print(torch.__version__, torch.version.hip)'"],
        source: "https://github.com/Dao-AILab/flash-attention/issues/1635",
        ..BASE
    },
    Entry {
        id: "deepspeed-cuda-home",
        patterns: &[
            r"(?i)MissingCUDAException",
            r"CUDA_HOME does not exist, unable to compile CUDA op",
            r"(?i)deepspeed.*CUDA_HOME",
        ],
        covers: &["cuda-home-missing"],
        cause: "DeepSpeed looks for a CUDA toolkit to compile its ops with: it sees no ROCm. Either torch is not a ROCm build here (a build in isolation has its own), or hipcc is missing, or the check of this version forgets ROCm.",
        fix: &[
            "install the ROCm build of torch first, then pip install deepspeed --no-build-isolation",
            "Linux, WSL: install hipcc and the ROCm development packages, and export ROCM_HOME=/opt/rocm",
            "no ops built ahead: DS_BUILD_OPS=0; DS_SKIP_CUDA_CHECK=1; a newer version of DeepSpeed",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip)'",
            "Linux, WSL: which hipcc; echo $ROCM_HOME",
        ],
        source: "https://github.com/deepspeedai/DeepSpeed/issues/3091",
        ..BASE
    },
    Entry {
        id: "cuda-home-missing",
        confidence: Medium,
        patterns: &[
            r"CUDA_HOME environment variable is not set",
            r"(?i)nvcc(?:\.exe)? (?:was )?not found|Could not find nvcc|No such file or directory: '[^']*nvcc'",
        ],
        cause: "torch's builder of extensions found neither ROCm nor a CUDA toolkit: the torch that it used is not a ROCm build (a build in isolation installs its own), or the ROCm development files are not where it looks.",
        fix: &[
            "install the ROCm build of torch (`surefoot doctor` prints the command), then build the extension with --no-build-isolation",
            "Linux, WSL: export ROCM_HOME=/opt/rocm (ROCM_PATH), with hipcc and the development packages (rocm-dev) installed",
            "no CUDA toolkit: it would not help an AMD card",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip)'",
            "Linux, WSL: which hipcc; echo $ROCM_HOME $ROCM_PATH",
        ],
        source: "https://github.com/ROCm/DeepEP/issues/1",
        ..BASE
    },
    Entry {
        id: "cuda-sources-not-hipified",
        patterns: &[
            r"(?i)(?:use of undeclared identifier|unknown type name) '(?:__nv_\w+|nv_bfloat16\w*|cudaStream_t|cudaError_t|cublas\w+|cudnn\w+|CUDA_R_\w+)'",
            r"(?:fatal )?error: '?(?:cuda_runtime(?:_api)?|cuda|cuda_fp16|cuda_bf16|cublas_v2|cublasLt|curand\w*|cusparse|cudnn|nvToolsExt|nvtx3/\w+|cuda_profiler_api|cooperative_groups|mma)\.(?:h|hpp|cuh)\b",
        ],
        cause: "CUDA sources are compiled as they are: this version of the extension does not support ROCm, or did not translate (hipify) its sources to HIP.",
        fix: &[
            "a header in /usr/include/thrust is that of the distribution, for CUDA: sudo apt remove libthrust-dev; ROCm has its own (rocthrust-dev)",
            "a version or fork of the extension that supports ROCm (DeepSpeed: a newer one)",
            "without its compiled parts: DeepSpeed DS_BUILD_OPS=0",
        ],
        source: "https://github.com/deepspeedai/DeepSpeed/issues/3304",
        ..BASE
    },
    Entry {
        id: "warp-functions-of-cuda",
        patterns: &[
            r"(?i)(?:undeclared identifier|no matching function for call to) '__(?:shfl(?:_\w+)?|ballot|any|all|match_any|match_all|syncwarp|activemask|reduce_\w+)(?:_sync)?'",
            r"(?i)The mask must be a 64-bit integer",
            r"(?i)no member named '__shfl\w*'",
        ],
        cause: "The source uses CUDA's functions for a warp (__shfl_sync, __ballot_sync and their kin). HIP has those with _sync from ROCm 7 on, before only when they are switched on, and their masks have 64 bits.",
        fix: &[
            "a newer version of the program, which translates them for HIP, or one that is made for ROCm",
            "ROCm 7 or newer; with ROCm 6.2 to 6.4 -DHIP_ENABLE_WARP_SYNC_BUILTINS=1 among the compiler's flags",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/hip_cpp_language_extensions.html",
        ..BASE
    },
    Entry {
        id: "hip-source-as-cuda",
        patterns: &[
            r"(?i)unsupported CUDA gpu architecture: '?gfx",
            r"(?i)Unsupported gpu architecture '(?:compute|sm)_gfx",
            r"(?i)cannot find CUDA installation.{0,40}--cuda-path",
        ],
        covers: &["compiler-too-old-for-gpu", "extension-build-failed"],
        cause: "The compiler takes the sources (.cu) for CUDA and not for HIP, so an AMD architecture means nothing to it: plain clang reads .cu as CUDA.",
        fix: &[
            "compile with hipcc, or with ROCm's clang and -x hip; in CMake the language HIP for these files, CMAKE_HIP_COMPILER and CMAKE_HIP_ARCHITECTURES (llama.cpp: -DGGML_HIP=ON and no CMAKE_CXX_COMPILER of your own)",
            "a newer version of the program, whose CMake files say so",
        ],
        source: "https://clang.llvm.org/docs/HIPSupport.html",
        ..BASE
    },
    Entry {
        id: "triton-lld-missing",
        patterns: &[
            r"(?i)ROCm linker \S+ld\.lld not found",
            r"Set 'TRITON_HIP_LLD_PATH'",
            r"(?i)triton.{0,80}ld\.lld.{0,40}not found",
        ],
        covers: &["torch-compile-failed", "lld-missing"],
        cause: "Triton (torch.compile) links its kernels with ROCm's linker, ld.lld, and looks for it in /opt/rocm only; this ROCm is in a wheel or elsewhere, or without its compiler.",
        fix: &[
            "TRITON_HIP_LLD_PATH=<path of ld.lld>; with the wheels of AMD: $(rocm-sdk path --root)/lib/llvm/bin/ld.lld",
            "or install ROCm's compiler: sudo apt install rocm-llvm",
            "or run without torch.compile: TORCHDYNAMO_DISABLE=1",
        ],
        scope: NotWindows,
        source: "https://github.com/ROCm/TheRock/issues/2006",
        ..BASE
    },
    Entry {
        id: "lld-missing",
        patterns: &[
            r"(?i)Failed to find ld\.lld",
            r"(?i)ld\.lld(?: execution)? failed|Unable to find lld in PATH",
            r"(?i)(?:ld\.lld|lld)\S*: (?:not found|No such file|command not found)",
        ],
        scope: NotWindows,
        cause: "Kernels are linked at run time with ROCm's linker, ld.lld (lld), which is not installed here or not on PATH.",
        fix: &[
            "install rocm-llvm (sudo apt install rocm-llvm), and add /opt/rocm/llvm/bin to PATH",
            "container: take the image with the compiler (the one for development)",
        ],
        source: "https://github.com/ROCm/rocm-install-on-linux/issues/685",
        ..BASE
    },
    Entry {
        id: "triton-stale",
        patterns: &[
            r"cannot import name 'triton_key'",
            r"(?i)ImportError: cannot import name '\w+' from 'triton\b",
            r"AttributeError: .*(?:triton\.\w+|'triton')",
            r"AttributeError: 'HIP(?:Driver|Utils|Backend|Options)' object has no attribute",
            r"(?i)No module named 'triton\.(?:compiler|runtime|backends|language|tools|_C)\b",
        ],
        unless: &[r"(?i)No module named 'triton\.ops"],
        covers: &["torch-compile-failed", "triton-missing"],
        cause: "The installed Triton does not belong to this torch: two of them are installed over each other (triton from PyPI and pytorch-triton-rocm), or one is left from an older torch.",
        fix: &[
            "pip uninstall -y triton pytorch-triton-rocm triton-windows, then reinstall torch from its ROCm index, which brings the matching one",
            "or run without torch.compile: TORCHDYNAMO_DISABLE=1",
        ],
        ask: &["pip list | grep -iE 'triton|torch'"],
        source: "https://github.com/unslothai/unsloth/issues/3526",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-triton-ops",
        patterns: &[r"(?i)No module named 'triton\.ops"],
        covers: &["triton-missing"],
        cause: "This bitsandbytes is too old for the Triton beside it: it imports triton.ops, which Triton 3 removed.",
        fix: &[
            "pip install -U bitsandbytes: a newer version of bitsandbytes does not need it (0.45 or newer)",
        ],
        source: "https://github.com/lamikr/rocm_sdk_builder/issues/202",
        ..BASE
    },
    Entry {
        id: "triton-compile-failed",
        confidence: Medium,
        patterns: &[
            r"PassManager::run failed",
            r"(?i)triton\.compiler\.errors\.\w+|triton\.runtime\.errors\.\w+",
            r"(?i)type fp8e4\w+ not supported in this architecture",
            r"(?i)LLVM ERROR: .*(?:Cannot select|unsupported|triton)",
            r"error: .*failed to legalize operation",
            r"LLVM ERROR: Do not know how to|error: operand #\d+ must be",
            r"(?i)triton\.runtime.*OutOfResources|out of resource: shared memory",
            r"(?:llvm|mlir)::\S+.*: Assertion .* failed|Assertion .isa<\w+>",
            r"(?i)fatal error: error in backend: (?:Cannot select|Unsupported|unsupported)",
        ],
        covers: &["torch-compile-failed", "device-assert"],
        cause: "The installed Triton cannot compile this kernel for {gpu}: a data type that the chip lacks (fp8 before RX 9000), more shared memory than it has, or a bug of this version.",
        fix: &[
            "a newer torch with the Triton that belongs to it",
            "run without torch.compile (TORCHDYNAMO_DISABLE=1), or without the node that calls it",
            "fp8 weights: bf16 instead on a card without fp8",
        ],
        ask: &[
            "pip list | grep -iE 'triton|torch'",
            "Linux: rocminfo | grep gfx",
        ],
        source: "https://github.com/chengzeyi/Comfy-WaveSpeed/issues/54",
        ..BASE
    },
    Entry {
        id: "torch-compile-failed",
        confidence: Low,
        patterns: &[
            r"(?i)torch\._dynamo\.exc\.\w+",
            r"(?i)torch\._inductor\.exc\.\w+",
            r"backend='inductor' raised",
        ],
        cause: "torch.compile could not compile the model: the Triton that it uses is missing, of another version than torch, or cannot build kernels for {gpu}.",
        fix: &[
            "run without torch.compile: TORCHDYNAMO_DISABLE=1",
            "reinstall torch from its ROCm index, which brings the matching Triton",
        ],
        ask: &[
            "pip list | grep -iE 'triton|torch'",
            "TORCHDYNAMO_VERBOSE=1 <your program>",
        ],
        source: "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        ..BASE
    },
    Entry {
        id: "comgr-other-version",
        patterns: &[
            r"amd_comgr_\w+'? .*(?:INVALID_ARGUMENT|ERROR)",
            r"(?i)comgr status = (?:INVALID_ARGUMENT|ERROR|OUT_OF_RESOURCES)|AMD_COMGR_STATUS_ERROR\w*",
            r"(?i)Failed to load COMGR library|cannot load \S*amd_comgr",
            r"(?i)Error \[SetIsaName\]",
            r"(?i)Cannot find (?:the )?comgr|comgr.*(?:version mismatch|not compatible)",
        ],
        covers: &[
            "miopen-unknown-error",
            "hiprtc-compilation",
            "miopen-no-database",
        ],
        cause: "comgr, which compiles kernels at run time, is missing or does not understand what it is asked for (the name of the architecture): two ROCm versions are mixed, the library's and comgr's.",
        fix: &[
            "one ROCm only: torch and the system's libraries of the same version, no foreign folder of libraries in the search path",
            "reinstall torch, or take a newer release of it",
        ],
        ask: &[
            "Linux, WSL: cat /opt/rocm/.info/version; ls /opt",
            "pip list | grep -iE 'torch|rocm'",
            "Linux, WSL: env | grep -E 'LD_LIBRARY_PATH|ROCM'",
        ],
        source: "https://github.com/ROCm/MIOpen/issues/1254",
        ..BASE
    },
    Entry {
        id: "hiprtc-compilation",
        confidence: Medium,
        patterns: &[
            r"HIPRTC_ERROR_(?:COMPILATION|INVALID_OPTION|BUILTIN_OPERATION_FAILURE|INTERNAL_ERROR|LINKING|PROGRAM_CREATION_FAILURE|INVALID_INPUT)",
            r"(?i)Code object build failed|Failed to compile opencl source",
            r"(?i)hiprtc.*(?:compilation failed|error: )",
        ],
        covers: &["miopen-unknown-error"],
        cause: "A kernel could not be compiled at run time: headers are missing (those of C++ or of HIP), or compiler and headers are of two ROCm versions. The line with `error:` above says which.",
        fix: &[
            "Linux: headers of C++: sudo apt install libstdc++-14-dev (of the newest GCC on the machine), or g++",
            "Windows: Build Tools for Visual Studio, or a newer ROCm build with complete headers",
            "Linux, WSL: one ROCm only: unset LD_LIBRARY_PATH ROCM_PATH HIP_PATH, and install torch and its ROCm from one index",
            "Windows: one ROCm only: no ROCM_PATH and HIP_PATH, and torch and its ROCm from one index",
            "delete ~/.cache/miopen ~/.cache/comgr",
        ],
        source: "https://github.com/ROCm/MIOpen/issues/2049",
        ..BASE
    },
    Entry {
        id: "rocm-device-library-missing",
        patterns: &[
            r"cannot find ROCm device library",
            r"cannot find HIP (?:runtime|device library)",
            r"(?i)cannot find (?:ROCm|HIP) .*'--rocm-(?:path|device-lib-path)'",
        ],
        cause: "The compiler finds no ROCm: its device libraries (rocm-device-libs) or the HIP runtime's headers are not installed, or of another version than the compiler.",
        fix: &[
            "install rocm-device-libs and hip-dev of the compiler's own ROCm version (rocm-hip-sdk has all)",
            "or name the folder: export ROCM_PATH=/opt/rocm, or --rocm-path=… and --rocm-device-lib-path=…/amdgcn/bitcode",
        ],
        scope: NotWindows,
        ask: &[
            "ls /opt/rocm/amdgcn/bitcode | head -n 3; which clang hipcc",
            "cat /opt/rocm/.info/version; ls /opt",
        ],
        source: "https://clang.llvm.org/docs/HIPSupport.html",
        ..BASE
    },
    Entry {
        id: "rocm-tools-missing",
        severity: Warning,
        patterns: &[
            r"(?i)\b(?:hipcc|hipconfig|rocminfo|rocm_agent_enumerator|amdgpu-arch|hipify-perl|rocm-smi|amd-smi|rocm-sdk)\b['\x22]?:? (?:command )?not found",
            r"(?i)No such file or directory: '(?:\S*/)?(?:hipcc|hipconfig|rocminfo|rocm_agent_enumerator)'",
            r"(?i)'(?:hipcc|hipconfig|rocminfo|hipinfo|rocm-sdk|amd-smi|rocm-smi)' is not recognized",
            r"(?i)Command '(?:hipcc|hipconfig|rocminfo|rocm-smi|amd-smi)' not found",
        ],
        cause: "A tool of ROCm is not installed or not on PATH. A torch wheel needs none of them to run; building extensions does.",
        fix: &[
            "Linux: install it (sudo apt install rocminfo hipcc), and add /opt/rocm/bin to PATH",
            "Windows: the HIP SDK, or the environment whose rocm package brings hipInfo",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/",
        ..BASE
    },
    Entry {
        id: "triton-no-compiler",
        patterns: &[
            r"(?i)Failed to find C compiler",
            r"fatal error: '?Python\.h",
            r"(?i)CalledProcessError: Command '\['?\S*(?:gcc|cc|clang)\S*'.*(?:triton|hip_utils|cuda_utils|__triton_launcher)",
        ],
        covers: &["torch-compile-failed", "cpp-headers-missing-windows"],
        cause: "Triton builds a small helper in C at run time, and there is no C compiler, or the headers of Python (Python.h) are missing.",
        fix: &[
            "Linux: sudo apt install gcc python3-dev (of the Python version that runs)",
            "Windows: Build Tools for Visual Studio with the C++ workload, or triton-windows, which brings a compiler",
            "or run without torch.compile: TORCHDYNAMO_DISABLE=1",
        ],
        source: "https://github.com/triton-lang/triton",
        ..BASE
    },
    Entry {
        id: "triton-no-driver",
        patterns: &[
            r"0 active drivers \(\[\]\)",
            r"(?i)libcuda\.so cannot found|AssertionError: libcuda\.so",
            r"(?i)Cannot find (?:a )?(?:working )?(?:libamdhip64|HIP).*triton|triton.*libamdhip64\S* (?:not found|cannot)",
        ],
        covers: &["torch-compile-failed"],
        cause: "The installed Triton finds no GPU that it has a driver for: it is the build for CUDA beside a ROCm build of torch, or torch itself sees no GPU.",
        fix: &[
            "pip uninstall -y triton pytorch-triton-rocm triton-windows, then reinstall torch from its ROCm index, which brings the matching Triton",
            "torch.cuda.is_available() must be True first: `surefoot doctor` tells why it is not",
        ],
        ask: &[
            "pip list | grep -iE 'triton|torch'",
            "python -c 'import torch; print(torch.version.hip, torch.cuda.is_available())'",
        ],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
        ..BASE
    },
    Entry {
        id: "triton-too-many-threads",
        patterns: &[
            r"(?i)out of resource: threads\b",
            r"Triton Error \[HIP\]:\s+Code: 1\b",
        ],
        covers: &[
            "triton-compile-failed",
            "torch-compile-failed",
            "crash-in-triton",
        ],
        cause: "The launch of a Triton kernel was refused, most likely because it asks for more threads than a block may have: written for NVIDIA's warps of 32 threads it takes num_warps=32, and on GPUs with waves of 64 (Instinct, Vega) these are 2048 threads, with 1024 allowed.",
        fix: &[
            "a newer version of the library whose kernel it is (the traceback names it), which takes half as many warps on AMD GPUs",
            "in the kernel itself: num_warps=16 at most",
            "or without that kernel: another attention or loss, TORCHDYNAMO_DISABLE=1",
        ],
        ask: &[
            "pip list | grep -iE 'triton|torch'",
            "Linux, WSL: rocminfo | grep -E 'gfx|Wavefront'",
        ],
        source: "https://github.com/triton-lang/triton/pull/6125",
        ..BASE
    },
    Entry {
        id: "compile-cache-broken",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:file too short|invalid ELF header|FileNotFoundError|WinError 183).*(?:torchinductor_|\.triton\W{1,4}cache)",
            r"(?i)torchinductor_.*(?:file too short|invalid ELF header)",
        ],
        covers: &["torch-compile-failed", "file-not-found", "library-damaged"],
        cause: "A file in the cache of torch.compile or Triton is missing, cut short or was being written: several processes share the cache, an earlier start was ended while it wrote, or the disk is full. It is not the GPU.",
        fix: &[
            "delete the cache: the folder torchinductor_<user> in the folder for temporary files, and .triton/cache in the home folder",
            "several processes or users: a cache for each (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR), on a local disk with space",
            "Windows: a newer torch; or without torch.compile (TORCHDYNAMO_DISABLE=1)",
        ],
        source: "https://github.com/pytorch/pytorch/issues/102539",
        ..BASE
    },
];
