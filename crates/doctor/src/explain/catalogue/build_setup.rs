//! How a build for the GPU is set up: CMake, the host's compiler, and what is given to them.

use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "hip-architectures-empty",
        patterns: &[
            r"(?i)HIP_ARCHITECTURES is empty for target",
            r"(?i)CMAKE_HIP_ARCHITECTURES .{0,40}(?:must be (?:valid|set|non-empty)|is not set|is empty)",
        ],
        cause: "CMake does not know for which architecture to compile: CMAKE_HIP_ARCHITECTURES is empty, and it found no GPU to ask (as in a container or on a build machine), or its rocm_agent_enumerator is missing.",
        fix: &[
            "-DCMAKE_HIP_ARCHITECTURES=<gfx> (older projects: -DAMDGPU_TARGETS=<gfx> or -DGPU_TARGETS=<gfx>), in an empty build folder",
        ],
        ask: &["Linux, WSL: rocm_agent_enumerator"],
        source: "https://cmake.org/cmake/help/latest/prop_tgt/HIP_ARCHITECTURES.html",
        ..BASE
    },
    Entry {
        id: "triton-runtime-missing",
        patterns: &[
            r"(?i)cannot locate libamdhip64\.so",
            r"TRITON_LIBHIP_PATH.{0,80}does not point to a valid",
        ],
        covers: &["torch-compile-failed"],
        cause: "Triton looks for HIP's runtime (libamdhip64.so) in the folder of torch, in the search path and where ROCm is usually installed, and finds none: this torch is not a ROCm build, or its ROCm is elsewhere.",
        fix: &[
            "Linux, WSL: TRITON_LIBHIP_PATH=<path of libamdhip64.so>, such as that in the rocm packages of this environment or in /opt/rocm/lib",
            "torch and its triton together from one ROCm index",
        ],
        ask: &["pip list | grep -iE 'torch|triton|rocm'"],
        source: "https://github.com/triton-lang/triton/blob/main/third_party/amd/backend/driver.py",
        ..BASE
    },
    Entry {
        id: "cmake-version-refused",
        confidence: Medium,
        patterns: &[
            r"(?i)Could not find a configuration file for package \x22(?:hip|roc|MIOpen|hsa|amd_comgr|LLVM|Clang|AMDDeviceLibs)\w*\x22 that",
            r"(?i)Could NOT find (?:HIP|ROCm|hip\w+|roc\w+): Found unsuitable version .[1-9]",
        ],
        covers: &["hip-headers-missing", "cmake-finds-no-hip"],
        cause: "CMake found the package, but in another version than the project asks for: project and ROCm are of different ages, or packages of two origins (the distribution's and AMD's) are mixed.",
        fix: &[
            "the ROCm version that the project names, or a version of the project for this ROCm",
            "one ROCm only: remove the packages of the other origin, and let CMAKE_PREFIX_PATH name its folder; an empty build folder",
        ],
        ask: &["Linux, WSL: ls -d /opt/rocm*; hipconfig --full"],
        source: "https://github.com/pytorch/pytorch/issues/128313",
        ..BASE
    },
    Entry {
        id: "cmake-hipcc-wrapper",
        patterns: &[
            r"(?i)CMAKE_HIP_COMPILER is set to the hipcc wrapper",
            r"(?i)the hipcc wrapper.{0,40}not supported",
        ],
        covers: &["cmake-finds-no-hip"],
        cause: "CMake takes ROCm's clang as the compiler for HIP, and refuses the wrapper hipcc.",
        fix: &[
            "Linux, WSL: HIPCXX=\"$(hipconfig -l)/clang++\" cmake …, without -DCMAKE_HIP_COMPILER and with no CXX=hipcc, in an empty build folder",
            "Windows: -DCMAKE_HIP_COMPILER=\"%HIP_PATH%bin\\clang++.exe\"",
        ],
        source: "https://cmake.org/cmake/help/latest/envvar/HIPCXX.html",
        ..BASE
    },
    Entry {
        id: "compiler-killed",
        patterns: &[
            r"(?i)fatal error: Killed signal terminated program",
            r"(?i)clang\S*: error: unable to execute command: (?:Killed|Terminated)",
            r"(?i)internal compiler error: Killed",
            r"(?i)LLVM ERROR: out of memory|virtual memory exhausted: Cannot allocate memory",
        ],
        covers: &["killed", "extension-build-failed", "wheel-build-failed"],
        cause: "The machine ran out of RAM while it compiled: each compiler for GPU code takes several gigabytes, and one runs for every processor core.",
        fix: &[
            "fewer at a time: MAX_JOBS=2 pip install …, cmake --build . -j 2",
            "one architecture only: PYTORCH_ROCM_ARCH=<gfx>, -DAMDGPU_TARGETS=<gfx>",
            "more swap; WSL: a larger memory= in .wslconfig",
        ],
        ask: &["Linux, WSL: free -h; nproc"],
        source: "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        ..BASE
    },
    Entry {
        id: "hip-platform-undefined",
        patterns: &[
            r"(?i)Must define exactly one of __HIP_PLATFORM_(?:AMD|HCC|NVIDIA)__",
            r"(?i)HIP_PLATFORM.{0,30}(?:unknown|unsupported|not recogni[sz]ed)",
        ],
        covers: &["extension-build-failed"],
        cause: "HIP's headers do not know for which platform to compile: a compiler other than hipcc (g++, clang++ without -x hip) reads them without __HIP_PLATFORM_AMD__.",
        fix: &[
            "-D__HIP_PLATFORM_AMD__ for the files of the host's compiler (CMake: link them with hip::host), or compile with hipcc",
            "export HIP_PLATFORM=amd",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/hip_porting_guide.html",
        ..BASE
    },
    Entry {
        id: "perl-module-missing",
        severity: Warning,
        patterns: &[
            r"Can't locate (?:File/\w+|URI/\w+|Cwd|Getopt/\w+|FindBin)\.pm in @INC.{0,300}(?:rocm|hip)",
            r"(?i)nothing provides perl\(\S+\) needed by (?:hip|rocm)",
            r"(?i)'perl' is not recognized",
        ],
        covers: &["rpm-dependencies", "apt-repository-refused"],
        cause: "Tools of ROCm (hipcc, hipconfig, hipify) are scripts in Perl, and Perl or a module of it that they use is missing.",
        fix: &[
            "Windows: Strawberry Perl, on PATH",
            "Linux, WSL: sudo apt install perl libfile-which-perl liburi-perl libfile-basedir-perl; RHEL: EPEL and CodeReady Builder first, then sudo dnf install perl-File-BaseDir perl-URI-Encode perl-File-Which; SUSE: zypper addrepo for devel:languages:perl",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "msvc-libraries-missing",
        patterns: &[
            r"(?i)unable to find a Visual Studio installation",
            r"(?i)lld-link: error: could not open '(?:msvcrtd?|libcmtd?|oldnames|kernel32|msvcprtd?|ucrtd?|uuid)\.lib'",
            r"(?i)LINK : fatal error LNK1104: cannot open file '(?:msvcrtd?|libcmtd?|kernel32|ucrtd?)\.lib'",
            r"(?i)Error checking compiler version for cl",
            r"(?i)Could NOT find (?:a )?(?:Visual Studio|MSVC)|Unable to find vcvarsall\.bat",
        ],
        covers: &["extension-build-failed", "compiler-test-failed"],
        cause: "ROCm's clang on Windows links with Microsoft's libraries, and finds neither Visual Studio nor its Build Tools with the Windows SDK.",
        fix: &[
            "install Build Tools for Visual Studio with the C++ workload (MSVC and the Windows SDK), and start from its `x64 Native Tools` prompt",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-windows/en/latest/",
        ..BASE
    },
    Entry {
        id: "msvc-newer-than-clang",
        patterns: &[r"(?i)STL1000: Unexpected compiler version, expected Clang"],
        covers: &["extension-build-failed", "compiler-test-failed"],
        cause: "The C++ library of the installed Visual Studio needs a newer clang than the HIP SDK (ROCm) brings: Visual Studio was updated, and clang was not.",
        fix: &[
            "an older toolset of MSVC beside it (Visual Studio Installer, individual components: MSVC v143 14.38 or 14.42), started with vcvarsall x64 -vcvars_ver=14.38",
            "or a newer HIP SDK or ROCm wheels, whose clang is newer",
            "or -D_ALLOW_COMPILER_AND_STL_VERSION_MISMATCH in the compiler's options, which mostly works",
        ],
        source: "https://github.com/microsoft/STL/blob/main/stl/inc/yvals_core.h",
        ..BASE
    },
    Entry {
        id: "hip-not-linked",
        patterns: &[
            r"(?i)undefined (?:reference to|symbol:?) .{0,40}\b(?:__hip(?:_fatbin|Register\w+|PushCall\w+|PopCall\w+|UnregisterFatBinary)|hip(?:Launch|Malloc|Memcpy|Free|Get|Set|Stream|Event|Device|Module)\w*)\b",
        ],
        unless: &[r"(?i)\.so\S*: undefined symbol|cannot open shared object"],
        covers: &[
            "undefined-symbol",
            "rocm-library-mismatch",
            "extension-build-failed",
        ],
        cause: "The linker was not given HIP's runtime (libamdhip64), or code for the GPU was linked without the step that adds it to the program (__hip_fatbin).",
        fix: &[
            "link with hipcc (or clang++ --hip-link), or add -lamdhip64 with -L<ROCm>/lib; CMake: target_link_libraries(<target> hip::host) and hip::device for files with kernels",
            "objects that were compiled with -fgpu-rdc: link them with hipcc -fgpu-rdc --hip-link",
        ],
        source: "https://clang.llvm.org/docs/HIPSupport.html",
        ..BASE
    },
    Entry {
        id: "build-file-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)needed by '?\S+'?, missing and no known rule to make it",
            r"(?i)No rule to make target '?\S+'?, needed by",
            r"(?i)CMake Error.{0,80}The source directory .{0,200}does not (?:exist|appear to contain CMakeLists)",
            r"(?i)does not contain a CMakeLists\.txt file",
        ],
        covers: &["extension-build-failed", "wheel-build-failed"],
        cause: "A file that the build needs is not there: the sources were not fetched completely (submodules), or a library has moved since the build folder was made (another ROCm, another environment).",
        fix: &[
            "git submodule update --init --recursive (TheRock: python build_tools/fetch_sources.py)",
            "a new, empty build folder, if the missing file is a library or header of ROCm",
        ],
        ask: &["git submodule status | head"],
        source: "https://git-scm.com/docs/git-submodule",
        ..BASE
    },
    Entry {
        id: "cmake-too-old",
        severity: Warning,
        patterns: &[
            r"(?i)CMake \d+\.\d+(?:\.\d+)?(?:\.\.\.\S+)? or higher is required\. +You are running",
        ],
        covers: &["extension-build-failed", "wheel-build-failed"],
        cause: "The installed CMake is older than this project needs (HIP as a language of CMake needs 3.21).",
        fix: &[
            "pip install -U cmake ninja in the environment, or a newer package of the distribution; an empty build folder",
        ],
        source: "https://cmake.org/cmake/help/latest/command/cmake_minimum_required.html",
        ..BASE
    },
    Entry {
        id: "device-code-refused",
        confidence: Medium,
        patterns: &[
            r"(?i)error: .?'?__builtin_amdgcn_\w+'? needs target feature",
            r"(?i)error: (?:instruction|operand) not supported on this GPU",
            r"(?i)local memory \(\d+\) exceeds limit|(?:scratch|local) memory .{0,20}exceeds limit",
            r"(?i)ran out of registers during register allocation",
        ],
        covers: &[
            "extension-build-failed",
            "wheel-build-failed",
            "triton-compile-failed",
        ],
        cause: "The source uses something that {gpu} does not have: matrix instructions of Instinct cards (mfma) or of another generation of Radeon cards (wmma), or more shared memory or registers.",
        fix: &[
            "a version of the program that knows <gfx>, or its option without these kernels (flash attention, rocWMMA and the like off)",
            "compile only for the architectures that the project lists: -DAMDGPU_TARGETS=<gfx>, PYTORCH_ROCM_ARCH=<gfx>",
        ],
        source: "https://llvm.org/docs/AMDGPUUsage.html",
        ..BASE
    },
    Entry {
        id: "wave-size-no-constant",
        confidence: Medium,
        patterns: &[
            r"(?i)__AMDGCN_WAVEFRONT_SIZE_*.{0,60}(?:deprecated|undeclared|removed)",
            r"(?i)undeclared identifier '__AMDGCN_WAVEFRONT_SIZE",
            r"(?i)\bwarpSize\b.{0,100}(?:not a constant expression|constexpr|initializer)",
        ],
        covers: &["extension-build-failed"],
        cause: "The source takes the size of a wave as a constant of the compiler. Since ROCm 7 it is none any more: this version of the program is older than that ROCm.",
        fix: &[
            "a newer version of the program or library that is compiled",
            "or ROCm 6.4, where it is only deprecated",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/hip-7-changes.html",
        ..BASE
    },
];
