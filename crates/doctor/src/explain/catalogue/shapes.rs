//! Errors that tools print in one shape whatever the reason is: compilers, linkers, package managers, services, Python.
//! What they mean in general, and where the reason stands.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "header-missing",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        covers: &["compile-error-other", "extension-build-failed"],
        patterns: &[
            r"(?i)fatal error: \W{0,3}[\w./+-]{1,80}\W{0,3}(?: file not found|: No such file or directory)",
            r"(?i)fatal error C1083: Cannot open include file",
        ],
        cause: "A header that the build includes is missing: the development package of the library that it belongs to is not installed, or the compiler does not search its folder. The line names the header.",
        fix: &[
            "the project's own script for dependencies, where it has one (such as install.sh -d)",
            "Linux, WSL: install the package with the header (apt-file search <header>, dnf provides '*/<header>', pacman -F <header>): omp.h is in libomp-dev, numa.h in libnuma-dev, headers of ROCm in its -dev packages",
            "Windows: the Build Tools of Visual Studio with the Windows SDK, or the library's development files and their folder in INCLUDE",
        ],
        source: "https://gcc.gnu.org/onlinedocs/cpp/Search-Path.html",
        ..BASE
    },
    Entry {
        id: "compile-error-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        covers: &["extension-build-failed"],
        patterns: &[
            r"(?i)\.(?:c|cc|cpp|cxx|cu|cuh|h|hip|hpp)[:(]\d+(?:[:,]\d+)?\)?: (?:fatal )?error\b",
            r"(?i)\berror: .{0,90}(?:was not declared in this scope|has no member named|does not name a type)",
            r"(?i)\berror: (?:use of undeclared identifier|unknown type name|no (?:member named|matching (?:member )?function)|too (?:many|few) arguments to)",
        ],
        cause: "Source code did not compile; the line says what the compiler did not accept. Mostly the sources are newer or older than the headers that they find (ROCm, torch, a library, the kernel), they are for CUDA alone, or the compiler is too old or too new for them.",
        fix: &[
            "sources that name this release of ROCm and torch, or the release that the sources name; headers, compiler and libraries of one ROCm release; update all packages together",
            "a clean build folder after every change",
            "a ready wheel or package instead of a build",
        ],
        ask: &["the output from the first `error:` on"],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/hip_porting_guide.html",
        ..BASE
    },
    Entry {
        id: "link-error-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        covers: &["extension-build-failed", "linker-failed-other"],
        patterns: &[
            r"(?i)\bundefined reference to\b",
            r"(?i)\bld(?:\.\w+)?: (?:error: )?(?:undefined symbol|cannot find)\b",
            r"\bLNK(?:2001|2019|1120|1181)\b",
        ],
        cause: "The linker found no definition of something: a library is not linked or not installed, is of another version than its headers, or was built by another compiler.",
        fix: &[
            "the library with that symbol in the link command, or its development package; libraries and headers of one ROCm release",
            "code for HIP links with hipcc or amdclang++, or with -lamdhip64 from /opt/rocm/lib",
            "a clean build folder",
        ],
        ask: &["the link command and the first line of the linker"],
        source: "https://sourceware.org/binutils/docs/ld/Options.html",
        ..BASE
    },
    Entry {
        id: "extensions-not-on-windows",
        severity: Warning,
        patterns: &[r"(?i)Building PyTorch extensions using ROCm and Windows is not supported"],
        covers: &[
            "feature-refused",
            "feature-for-nvidia",
            "extension-build-failed",
            "wheel-build-failed",
        ],
        cause: "This torch cannot compile extensions with ROCm on Windows. What is to be built (AITER, flash-attn and others) is mostly for Linux, and for some GPUs, alone.",
        fix: &[
            "go on without the extension (attention: sdpa), or take a ready wheel of it for Windows, where its project has one",
            "Linux or WSL, where it can be built, if it supports {gpu}",
        ],
        source: "https://github.com/ROCm/aiter/issues/1943",
        ..BASE
    },
    Entry {
        id: "feature-refused",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)\b(?:only|not|isn't|aren't)(?: yet| currently)? (?:supported|available|implemented|compatible) (?:on|for|by|with|in) (?:\S+ ){0,3}(?:CUDA|NVIDIA|ROCm|HIP|AMD)\b",
            r"(?i)\b(?:ROCm|HIP|AMD GPUs?) (?:is|are|does) (?:not|n't)(?: yet| currently)? (?:support|supported|implemented)\b",
            r"(?i)\bnot implemented for '?(?:HIP|ROCm)\b",
            r"(?i)\brequires? (?:an? )?(?:NVIDIA|CUDA)(?: \w+)?(?: GPU| device|[.!]?$)",
        ],
        cause: "The program says that it has a feature for other GPUs only: it was written for CUDA, and its port to ROCm does not have it. That is a limit of the program or the package, not a fault of the installation.",
        fix: &[
            "switch the feature off, or take the alternative that runs on ROCm (attention: sdpa; quantisation: bitsandbytes or GGUF instead of formats for NVIDIA's tensor cores; an optimizer of torch)",
            "a newer version of the program or package, or its fork for ROCm",
        ],
        source: "https://rocm.docs.amd.com/en/latest/compatibility/ml-compatibility/pytorch-compatibility.html",
        ..BASE
    },
    Entry {
        id: "rocm-not-found",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)\b(?:ROCm|HIP|HIP/ROCm|HIP SDK) (?:was |were |is )?not (?:found|installed|detected)\b",
            r"(?i)\b(?:could not|cannot|unable to|failed to) (?:find|locate|detect) (?:a |the |any )?(?:ROCm|HIP)\b",
            r"(?i)\bno ROCm (?:runtime|installation|toolkit) (?:is |was )?found",
        ],
        cause: "A program or a build looked for an installed ROCm and found none: it is not installed, is not where the program looks (ROCM_PATH, HIP_PATH), or belongs to a Python environment only. The ROCm wheels of torch bring their own and need none to run; builds and other programs do.",
        fix: &[
            "Linux, WSL: install ROCm (or its development packages), or name its folder: ROCM_PATH=/opt/rocm",
            "Windows: the HIP SDK with HIP_PATH, or the rocm package of the environment (rocm-sdk init)",
        ],
        ask: &[
            "Linux, WSL: ls -d /opt/rocm*; which hipcc rocminfo",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/",
        ..BASE
    },
    Entry {
        id: "package-unknown",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        scope: NotWindows,
        patterns: &[
            r"(?i)Unable to locate package \S",
            r"(?i)\bPackage '?\S+ has no installation candidate",
            r"(?i)error: target not found: \S",
            r"(?i)\bNo match for argument: \S|Unable to find a match: \S",
        ],
        cause: "None of the configured repositories has a package of this name: the repository that has it is not set up or switched off, it is for another release of the distribution, or the package has another name there.",
        fix: &[
            "Linux, WSL: update the lists first (apt update, dnf makecache, pacman -Sy), and look whether the repository is among them",
            "Linux, WSL: search for the name (apt search, dnf search, pacman -Ss); amdgpu-install adds its proprietary packages only with --accept-eula",
        ],
        ask: &["cat /etc/os-release; the whole output of the package manager"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
        ..BASE
    },
    Entry {
        id: "image-not-built",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)^Error: building at STEP|while running runtime: exit status [1-9]",
            r"(?i)failed to (?:solve|build):? .*did not complete successfully: exit code",
        ],
        covers: &["container-failed-other"],
        cause: "Building a container image stopped at a command of its Dockerfile. The line only reports it: the output of that command stands above.",
        fix: &[
            "look at the last lines of the step above; docker build --progress=plain shows them all",
        ],
        ask: &["docker build --progress=plain . 2>&1 | tail -n 60"],
        source: "https://docs.docker.com/build/",
        ..BASE
    },
    Entry {
        id: "service-ended",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        scope: NotWindows,
        patterns: &[
            r"(?i)\bMain process exited, code=\w+, status=\d+",
            r"(?i)\bFailed with result '(?:core-dump|signal|exit-code|timeout|watchdog|start-limit-hit)'",
        ],
        cause: "systemd reports that a service ended. `SEGV`, `ABRT` and `core-dump` are a crash of native code, `KILL` mostly a lack of memory, a small number (`1/FAILURE`) the program's own error: its reason stands in the lines before.",
        fix: &["journalctl -u <service> -b | tail -n 100 shows the lines before"],
        ask: &["journalctl -u <service> -b | tail -n 100"],
        source: "https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html",
        ..BASE
    },
    Entry {
        id: "native-check-failed",
        last_resort: true,
        confidence: Low,
        covers: &["native-abort", "service-ended"],
        patterns: &[
            r"(?i)\bAssertion [`'\x22(].{1,160} failed\b",
            r"(?i)\bAssertion failed: \S",
        ],
        cause: "A check in native code failed: a library or driver met a state that its authors had ruled out. Mostly that is a bug of this version, or parts of different versions (driver, ROCm, the program) work together. The line names the source file, and so the part.",
        fix: &[
            "another version of the part that the line names, newer first; driver and ROCm of one age",
            "one GPU visible (HIP_VISIBLE_DEVICES=<index>), without HSA_OVERRIDE_GFX_VERSION",
        ],
        ask: &["python -X faulthandler <your program> 2>&1 | tail -n 40"],
        source: "https://docs.python.org/3/library/faulthandler.html",
        ..BASE
    },
    Entry {
        id: "python-error-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"^(?:AttributeError|KeyError|TypeError|NameError|UnboundLocalError|IndexError|ZeroDivisionError|AssertionError|ValueError|NotImplementedError|ImportError)\b(?::|$)",
        ],
        also: &[r"Traceback \(most recent call last\)"],
        cause: "The program failed in its own Python code{package}, before or beside any work on the GPU. Mostly the program and its packages are of versions that do not fit, a file or a setting is not what it expects, or it is a bug of this version.",
        fix: &[
            "the versions that the program asks for (its requirements.txt, in a fresh environment, then the ROCm build of torch again), or a newer version of the program and of the package that the traceback ends in",
            "what it was given: the line above the error shows which value or file it could not use",
        ],
        ask: &["the whole traceback", "pip list"],
        source: "https://docs.python.org/3/library/exceptions.html",
        ..BASE
    },
];
