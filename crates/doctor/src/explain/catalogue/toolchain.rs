//! Compilers and code generators that do not fit the host, the GPU or each other.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "host-cpp-library-missing",
        patterns: &[r"(?:unable to find library|cannot find) -lstdc\+\+"],
        scope: NotWindows,
        covers: &["compiler-test-failed", "extension-build-failed"],
        cause: "ROCm's clang takes the newest GCC that it finds, and the C++ library (libstdc++) of that GCC is not installed: Ubuntu brings gcc-12 with newer kernels, without the library.",
        fix: &[
            "sudo apt install libstdc++-12-dev (the highest number in `ls /usr/lib/gcc/x86_64-linux-gnu`), or g++-12",
            "Fedora: sudo dnf install gcc-c++ libstdc++-devel",
        ],
        ask: &[
            "ls /usr/lib/gcc/x86_64-linux-gnu",
            "echo | clang++ -v -x c++ - 2>&1 | grep 'Selected GCC'",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/2031",
        ..BASE
    },
    Entry {
        id: "compiler-test-failed",
        confidence: Medium,
        patterns: &[
            r"(?i)Check for working (?:HIP|CXX|C) compiler: \S*(?:rocm|llvm|clang|hipcc)\S* - broken",
            r"(?i)The HIP compiler identification is unknown",
        ],
        scope: NotWindows,
        cause: "CMake calls the compiler of ROCm broken: it cannot compile and link a simple test program. Mostly the C++ library (libstdc++) of the newest GCC is missing, or parts of ROCm are.",
        fix: &[
            "the error of the test program is in the lines below this one, and in CMakeFiles/CMakeConfigureLog.yaml (CMakeError.log)",
            "Linux, WSL: sudo apt install build-essential libstdc++-12-dev (the highest number in `ls /usr/lib/gcc/x86_64-linux-gnu`)",
            "all of ROCm from one release: HIPCXX=\"$(hipconfig -l)/clang\" HIP_PATH=\"$(hipconfig -R)\" cmake …, in an empty build folder",
        ],
        ask: &[
            "the 30 lines below `broken`",
            "ls /usr/lib/gcc/x86_64-linux-gnu",
        ],
        source: "https://github.com/ggml-org/llama.cpp/issues/5128",
        ..BASE
    },
    Entry {
        id: "rocwmma-mismatch",
        patterns: &[
            r"(?i)no matching function for call to '(?:mma_sync|load_matrix_sync|fill_fragment)'",
            r"(?i)(?:static assertion|static_assert) failed.{0,40}Unsupported architecture",
        ],
        also: &[r"(?i)rocwmma|wmma::"],
        covers: &["extension-build-failed"],
        cause: "rocWMMA, the headers for matrix instructions, does not support {gpu} or does not fit this source: its version is older than the GPU, or the GPU has no such instructions (before RX 7000).",
        fix: &[
            "build without it: -DGGML_HIP_ROCWMMA_FATTN=OFF",
            "a newer rocWMMA (rocwmma-dev), of the ROCm that supports the GPU; only the GPUs of this machine in GPU_TARGETS",
        ],
        source: "https://github.com/ggml-org/llama.cpp/issues/13110",
        ..BASE
    },
    Entry {
        id: "bitcode-of-other-llvm",
        patterns: &[
            r"Unknown attribute kind \(\d+\)",
            r"\(Producer: '[^']*' Reader: '",
            r"Opaque pointers are only supported in -opaque-pointers mode",
        ],
        covers: &[
            "hiprtc-compilation",
            "miopen-unknown-error",
            "triton-compile-failed",
        ],
        cause: "A compiler reads bitcode (device libraries) that a newer LLVM has written: parts of two ROCm releases, or of ROCm and another LLVM, are mixed.",
        fix: &[
            "all parts of ROCm of the same release; remove the others, and the variables that name their folders",
            "a compiler of your own: the device libraries of its release, named with --rocm-device-lib-path",
        ],
        ask: &["Linux: ls -d /opt/rocm*; dpkg -l | grep -iE 'rocm|comgr|llvm'"],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/hip_rtc.html",
        ..BASE
    },
    Entry {
        id: "triton-target-unsupported",
        patterns: &[r"(?i)error: unsupported target: '?gfx\w+"],
        covers: &["triton-compile-failed", "torch-compile-failed"],
        cause: "This Triton makes no code for {gpu}: old architectures (Vega and before) are not among its targets.",
        fix: &[
            "without Triton: eager mode (--enforce-eager, TORCHDYNAMO_DISABLE=1) and another attention (VLLM_USE_TRITON_FLASH_ATTN=0, SDPA)",
            "a fork of Triton for gfx906 (triton-gcn5, triton-gfx906), or an older release",
        ],
        source: "https://github.com/Said-Akbar/triton-gcn5/issues/4",
        ..BASE
    },
    Entry {
        id: "triton-of-cuda",
        patterns: &[
            r"(?i)Internal Triton PTX codegen error",
            r"(?i)ptxas (?:fatal|error)",
            r"(?i)Cannot find ptxas",
        ],
        also: &[r"(?i)rocm|radeon|instinct|\bgfx\d|\bHIP\b"],
        covers: &["torch-compile-failed", "triton-compile-failed"],
        cause: "The installed Triton makes code for NVIDIA's GPUs (PTX): the package for CUDA took the place of the one that belongs to the ROCm build of torch.",
        fix: &[
            "pip uninstall torch triton pytorch-triton pytorch-triton-rocm, then install torch from its ROCm index again, which brings the right one",
            "install nothing afterwards that asks for another triton (xformers, flash-attn); pip check shows it",
        ],
        ask: &["pip list | grep -iE 'triton|torch'"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/3060",
        ..BASE
    },
    Entry {
        id: "hip-with-other-compiler",
        patterns: &[r"(?i)Only LLVM is supported for HIP"],
        covers: &["wheel-build-failed"],
        cause: "CMake took another compiler (Microsoft's MSVC, or GCC) for sources that only ROCm's own clang compiles: the generator of Visual Studio always takes MSVC.",
        fix: &[
            "Windows: from the x64 Native Tools prompt, with the bin folder of the HIP SDK first on PATH: set CC=clang, set CXX=clang++, set CMAKE_GENERATOR=Ninja, then CMAKE_ARGS=\"-DGGML_HIP=ON -DGPU_TARGETS=<gfx>\" pip install --no-cache-dir …",
            "Linux, WSL: CC=/opt/rocm/llvm/bin/clang CXX=/opt/rocm/llvm/bin/clang++ before cmake or pip, in an empty build folder",
            "a wheel or release that is built for ROCm already",
        ],
        ask: &["the lines `The CXX compiler identification is …` of CMake"],
        source: "https://github.com/abetlen/llama-cpp-python/issues/1009",
        ..BASE
    },
    Entry {
        id: "cmake-rocm-root",
        patterns: &[r"(?i)Failed to find ROCm root directory"],
        scope: NotWindows,
        covers: &["compiler-test-failed", "cmake-finds-no-hip"],
        cause: "CMake found a HIP compiler but not the folder of the ROCm that it belongs to: it asks hipconfig beside the compiler, or looks for hip-lang-config.cmake, and neither is there.",
        fix: &[
            "name both: HIPCXX=<ROCm>/lib/llvm/bin/clang++ cmake -DCMAKE_HIP_COMPILER_ROCM_ROOT=<ROCm> -DCMAKE_PREFIX_PATH=<ROCm> …, and ROCM_PATH and HIP_PATH to the same folder",
            "the development packages of HIP (hip-dev, hipcc); a newer CMake",
            "NixOS and others with parts of ROCm in several folders: their merged package (rocmPackages.clr, rocm-merged)",
        ],
        ask: &["hipconfig --full; ls <ROCm>/lib/cmake"],
        source: "https://cmake.org/cmake/help/latest/envvar/HIPCXX.html",
        ..BASE
    },
    Entry {
        id: "hipcc-takes-nvidia",
        patterns: &[
            r#"(?i)Can't exec "\S*nvcc""#,
            r"(?i)hipcc.{0,160}\bnvcc.{0,20}(?:not found|No such file)",
            r"(?i)hipcc.{0,200}cannot find (?:CUDA|nvcc)",
            r"(?i)HIP[ _]Platform\W{1,3}(?:nvcc|nvidia)\b",
        ],
        covers: &["cuda-home-missing"],
        cause: "hipcc compiles for NVIDIA and looks for CUDA's nvcc: it finds no clang of ROCm beside itself, or HIP_PLATFORM=nvidia is set.",
        fix: &[
            "export HIP_PLATFORM=amd HIP_CLANG_PATH=<ROCm>/llvm/bin ROCM_PATH=<ROCm>",
            "hipcc with its compiler: rocm-llvm and hip-dev of the same version; NixOS: rocmPackages.clr, which has the wrapped hipcc, instead of rocmPackages.hipcc",
        ],
        ask: &["hipconfig --platform; hipconfig --full"],
        source: "https://github.com/NixOS/nixpkgs/issues/265095",
        ..BASE
    },
    Entry {
        id: "tensorflow-other-rocm",
        patterns: &[
            r"(?i)ROCm Configuration Error: ",
            r"(?i)Cannot find rocm (?:library|header|toolkit)",
        ],
        scope: NotWindows,
        cause: "The build of TensorFlow looks for the libraries and headers of ROCm by the names and places of the version that it was made for: the installed ROCm is newer or older (hip_hcc became amdhip64 with 3.5, the folders moved with 5.2), or not all of it is installed.",
        fix: &[
            "the TensorFlow release that AMD's table names for this ROCm version, or the ROCm release of its age",
            "all development packages (rocm-dev, rocm-libs), and ROCM_PATH to their folder",
            "a ready package: tensorflow-rocm from repo.radeon.com, or the container rocm/tensorflow",
        ],
        ask: &["cat /opt/rocm/.info/version; ls /opt/rocm/lib | head"],
        source: "https://github.com/rocm-arch/tensorflow-rocm/issues/5",
        ..BASE
    },
    Entry {
        id: "hip-runtime-assertion",
        confidence: Medium,
        patterns: &[
            r"rocclr/\S+:\d+: .*Assertion",
            r"\bamd::Os::currentStackInfo\b.*Assertion",
            r"(?:clr|hipamd|rocr-runtime|ROCR-Runtime)\S*/\S+\.(?:cpp|hpp):\d+: .*Assertion",
        ],
        scope: NotWindows,
        covers: &["native-abort", "segmentation-fault", "program-check-failed"],
        cause: "The HIP runtime checked itself and stopped: it was built with assertions, as packages of some distributions are. The one about the stack (currentStackInfo) fails in threads that move their stack: coroutines, Julia's tasks, llamafile; it says nothing about the GPU.",
        fix: &[
            "a newer version of the distribution's HIP runtime, or one that is built without assertions (AMD's packages, or a wheel that brings its own)",
            "a newer version of the program, or calls of HIP from ordinary threads alone",
        ],
        ask: &["the name and version of the package that has libamdhip64.so"],
        source: "https://bugs.gentoo.org/895286",
        ..BASE
    },
    Entry {
        id: "hip-sources-differ",
        confidence: Medium,
        patterns: &[
            r"(?i)no viable conversion from '[^']*__half\d?'(?: \(aka '[^']*'\))? to '",
            r"(?i)error: cannot (?:initialize|convert) .{0,60}'(?:hip|rocblas|hipblas)\w*'.{0,60}'(?:hip|rocblas|hipblas)\w*'",
            r"(?i)error: no matching function for call to '(?:hip|hipblas|rocblas|rocwmma|__h)\w+'",
            r"(?i)error: (?:use of undeclared identifier|unknown type name) '(?:hipblas|HIPBLAS_|rocblas_|hip[A-Z])\w*'",
            r"(?i)error: no member named '\w+' in '(?:hip\w*|rocprim|thrust|at::cuda|c10::hip)\b",
        ],
        covers: &["extension-build-failed", "wheel-build-failed"],
        cause: "The source and the headers of this ROCm (or torch) do not fit each other: types and functions of HIP and hipBLAS, the half type among them, changed between releases, and the source was written for another one, or for CUDA.",
        fix: &[
            "a newer version of the extension or program, or the one that its notes name for this ROCm version",
            "a ready wheel for this torch and ROCm, or the ROCm release of the source's age",
            "without it, where it only makes things faster",
        ],
        ask: &[
            "the first line with `error:`",
            "Linux, WSL: cat /opt/rocm/.info/version; pip list | grep -i torch",
        ],
        source: "https://github.com/AutoGPTQ/AutoGPTQ/issues/510",
        ..BASE
    },
    Entry {
        id: "compiler-option-unknown",
        confidence: Medium,
        patterns: &[
            r"(?i)error: unknown warning option '-W\S+'",
            r"(?i)(?:clang|hipcc|cc1\S*|g\+\+|gcc)\S*: error: (?:unknown argument|unsupported option|unrecognized command.line option)",
            r"(?i)cl : Command line (?:error|warning) D\d+ : .*(?:invalid|unknown) (?:numeric argument|option) '/?-?-?offload",
        ],
        covers: &["extension-build-failed", "wheel-build-failed"],
        cause: "The compiler does not know an option that it was given: it is another compiler, or an older or newer version of it, than the program or library that calls it expects (one of the distribution instead of ROCm's clang, or an option of CUDA's nvcc).",
        fix: &[
            "the compiler and the program of one ROCm release: ROCm's own clang (llvm/bin in the folder of ROCm) first on PATH, no other one in CC, CXX and HIP_CLANG_PATH",
            "a newer version of the program, which asks what the compiler knows; or the option taken out of its setup file",
        ],
        ask: &["which hipcc clang; hipcc --version"],
        source: "https://clang.llvm.org/docs/ClangCommandLineReference.html",
        ..BASE
    },
    Entry {
        id: "migraphx-failed",
        confidence: Medium,
        patterns: &[
            r"migraphx::version_\w+::exception",
            r"(?i)(?:what\(\): +|Error: )\S*MIGraphX/src/\S+:\d+: ",
            r"(?i)\bmigraphx.{0,120}(?:No configs to tune|Invalid MLIR|Unknown hip compiler|failed to (?:call|compile))",
        ],
        covers: &["native-abort"],
        cause: "MIGraphX could not compile the model for the GPU: this version has a defect with the model or with {gpu}, was built without knowing which compiler to use (ROCm's clang), or does not fit the installed ROCm.",
        fix: &[
            "a newer MIGraphX, of the same release as ROCm; built here: with CXX=/opt/rocm/llvm/bin/clang++",
            "another way to export the model (fixed input sizes, another opset), fp32 instead of fp16; MIGRAPHX_DISABLE_MLIR=1 where the line names mlir",
            "without MIGraphX: PyTorch, or ONNX Runtime on the CPU or with DirectML",
        ],
        ask: &["migraphx-driver --version; cat /opt/rocm/.info/version"],
        source: "https://rocm.docs.amd.com/projects/AMDMIGraphX/en/latest/",
        scope: NotWindows,
        ..BASE
    },
    Entry {
        id: "cmake-too-new",
        patterns: &[
            r"(?i)Compatibility with CMake < 3\.5 has been removed",
            r"(?i)Update the VERSION argument <min> value|-DCMAKE_POLICY_VERSION_MINIMUM=3\.5",
        ],
        covers: &["wheel-build-failed", "extension-build-failed"],
        cause: "The sources are older than CMake 4, which no longer accepts what they were written for (before 3.5). It has nothing to do with the GPU.",
        fix: &[
            "CMAKE_POLICY_VERSION_MINIMUM=3.5 in the environment (-DCMAKE_POLICY_VERSION_MINIMUM=3.5), or pip install \"cmake<4\"",
            "a newer version of the package, or Python 3.12, for which ready wheels exist (sentencepiece)",
        ],
        source: "https://cmake.org/cmake/help/latest/release/4.0.html",
        ..BASE
    },
];
