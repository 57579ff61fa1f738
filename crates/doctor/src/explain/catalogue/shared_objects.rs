//! Shared libraries that are missing, or of another version.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "cuda-library-missing",
        patterns: &[
            r"lib(?:cudart|cublas\w*|cudnn\w*|cufft\w*|curand|cusparse\w*|cusolver\w*|cupti|nvrtc\w*|nvToolsExt|nvJitLink|nvinfer\w*|torch_cuda\w*|c10_cuda|nccl|cuda|cufile|nvshmem\w*)(?:-\w+)?\.so\S*: cannot open shared object file",
            r"(?i)lib(?:cudart|cublas|cudnn|c10_cuda|torch_cuda)\w*\.so\S* (?:not found|=> not found)",
        ],
        unless: &[r"level=(?:DEBUG|INFO|WARN).*libcud"],
        covers: &["missing-library", "bad-alloc-on-import"],
        cause: "A package beside torch (torchaudio, torchvision, an extension), or torch itself, is the CUDA build: it was built for NVIDIA's libraries, which are not there on a machine with an AMD card.",
        fix: &[
            "reinstall torch, torchvision and torchaudio from one ROCm index: pip install --force-reinstall torch torchvision torchaudio --index-url https://download.pytorch.org/whl/rocm<version>",
            "an extension: its ROCm build, or rebuild it with the ROCm build of torch",
        ],
        ask: &["pip list | grep -iE 'torch|nvidia|rocm'"],
        source: "https://github.com/pytorch/pytorch/issues/139410",
        ..BASE
    },
    Entry {
        id: "torch-hip-library-missing",
        patterns: &[r"lib(?:c10_hip|torch_hip)\.so\S*: cannot open shared object file"],
        covers: &["rocm-library-mismatch", "missing-library"],
        cause: "This extension was built for a ROCm build of torch (PyTorch), and the torch in use is not one: it was replaced by the build for the CPU or for CUDA.",
        fix: &[
            "install torch from the ROCm index (`surefoot doctor` prints the command), of the version that the extension was built with",
            "python -c 'import torch; print(torch.__version__, torch.version.hip)': None means the wrong build",
        ],
        source: "https://github.com/Looong01/pyg-rocm-build/issues/1",
        ..BASE
    },
    Entry {
        id: "rocm-major-version",
        patterns: &[
            r"lib(?:hip_hcc|hcc\w*)\.so\S*: cannot open shared object file",
            r"lib(?:amdhip64|rocblas|hipblas|MIOpen|rccl|hipsparse|rocsolver|hipfft|hiprand|roctx64|rocm_smi64|hipsolver|hipblaslt|roctracer64|rocsparse|hiprtc)\.so\.\d+(?:: cannot open shared object file| => not found)",
        ],
        covers: &["rocm-library-mismatch", "missing-library"],
        scope: BareMetal,
        confidence: Medium,
        cause: "A library of ROCm is missing in the version that this wheel was built for (the number behind .so): another ROCm version is installed, none is, or its folder is not in the search path.",
        fix: &[
            "install the wheel that was made for the installed ROCm, or reinstall torch with its own libraries: torch, torchvision and torchaudio from one index",
            "or install the ROCm that the wheel names; LD_LIBRARY_PATH or /etc/ld.so.conf.d must name its lib folder (then sudo ldconfig)",
            "no link from one number to the other: it crashes later",
        ],
        ask: &[
            "ls /opt | grep rocm; cat /opt/rocm/.info/version",
            "pip list | grep -iE 'torch|tensorflow|rocm'",
            "ldconfig -p | grep -E 'amdhip|hsa|rocblas'",
        ],
        source: "https://github.com/ROCm/tensorflow-upstream/issues/1207",
        ..BASE
    },
    Entry {
        id: "rocprofiler-library-missing",
        patterns: &[
            r"lib(?:rocprofiler\S*|roctracer\S*|roctx\S*|rocprof\S*|hsa-amd-aqlprofile\S*)\.so\S*: cannot open shared object file",
        ],
        covers: &[
            "rocm-library-mismatch",
            "missing-library",
            "rocm-major-version",
        ],
        scope: BareMetal,
        cause: "The wheel needs a library of ROCm's profiler that is missing: a nightly that forgets to bring it, or a ROCm that was installed without it.",
        fix: &[
            "install another build: a stable release, or another, newer or older nightly",
            "or install the library: sudo apt install rocprofiler-sdk roctracer (with pip: rocm[libraries] of the same version)",
        ],
        source: "https://github.com/ROCm/TheRock/issues/4150",
        ..BASE
    },
    Entry {
        id: "rocm-library-mismatch",
        confidence: Medium,
        patterns: &[
            r"lib(?:hip\w*|roc\w+|amdhip\w*|MIOpen|hsa\w*|rccl|amd_comgr\w*|amd_smi|hiprtc\w*|rocm[-\w]*|migraphx\w*|rocfft\w*)(?:-\w+)*\.so\S*: cannot open shared object file",
            r"lib(?:hip|roc|amdhip|MIOpen|hsa|rccl|amd_comgr)\w*\.so\S*: (?:version|undefined symbol)",
            r"undefined symbol: (?:hip|roc|miopen|hsa_|rsmi_|amdsmi_|amd_comgr|hiprtc|nccl|roctx)",
            r"undefined symbol: \w+, version (?:ROCR|hip|HIP|rocblas|roc)\w*",
            r"(?i)version .(?:ROCR|hip|amd_comgr|rocblas)_[\d.]+. not found",
        ],
        covers: &["missing-library", "undefined-symbol-torch"],
        cause: "A library of ROCm is missing where the loader looks, or one of another ROCm version is found first: two ROCm versions are mixed (that of the wheel, that in /opt/rocm, or copies in torch/lib), or none is installed.",
        fix: &[
            "unset LD_LIBRARY_PATH, so that a wheel takes its own libraries",
            "reinstall torch, torchvision and torchaudio from one index; rebuild extensions with that torch and the same ROCm",
            "a program that wants the system's ROCm: install it, and let /etc/ld.so.conf.d or LD_LIBRARY_PATH name its lib folder (sudo ldconfig)",
        ],
        scope: NotWindows,
        ask: &[
            "ldd <the library of the message> | grep -E 'rocm|hip|hsa|not found'",
            "ls /opt | grep rocm; echo $LD_LIBRARY_PATH",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5339",
        ..BASE
    },
    Entry {
        id: "two-hsa-runtimes",
        patterns: &[
            r"undefined reference to .(?:hsa_\w+|hsaKmt\w+)(?:@+ROCR_\d)?",
            r"libhsa-runtime64\.so\.1, needed by .* may conflict with",
        ],
        cause: "Two HSA runtimes are installed: that of ROCm and an older one of the distribution (libhsa-runtime64-1 in /usr/lib), and the linker takes the wrong one.",
        fix: &[
            "sudo apt remove libhsa-runtime64-1 libhsakmt1",
            "or put ROCm first: LD_LIBRARY_PATH=/opt/rocm/lib, or an rpath to it when you link",
        ],
        scope: NotWindows,
        ask: &[
            "ldconfig -p | grep hsa-runtime",
            "dpkg -S $(ldconfig -p | grep -o '/.*hsa-runtime.*')",
        ],
        source: "https://github.com/pytorch/pytorch/issues/137858",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-symbol",
        patterns: &[
            r"libbitsandbytes_\w+\.so: undefined symbol",
            r"(?i)bitsandbytes.*undefined symbol",
        ],
        scope: NotWindows,
        covers: &["undefined-symbol-torch", "undefined-symbol"],
        cause: "This build of bitsandbytes is broken or of another version than its Python files: its library lacks a function of its own or of the C++ library it was compiled against. Early ROCm builds (0.45, the multi-backend branch) forgot the optimizers for bfloat16.",
        fix: &[
            "pip uninstall bitsandbytes, then pip install -U bitsandbytes (0.49 and newer bring ROCm builds)",
            "built here: delete the build folder, and compile again with the hipcc of the ROCm that torch uses (cmake -DCOMPUTE_BACKEND=hip -DBNB_ROCM_ARCH=<gfx>)",
        ],
        ask: &["pip show bitsandbytes | head -n 2; pip list | grep -iE 'torch|rocm'"],
        source: "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1519",
        ..BASE
    },
    Entry {
        id: "undefined-symbol-torch",
        patterns: &[
            r"undefined symbol: _ZN?K?\d?(?:St)?\S*(?:c10|2at|5torch|at4_ops)\S*",
            r"undefined symbol: (?:_Z\w+|aoti_torch_\w+|PyObject_\w+|THP\w+)",
            r"(?i)DLL load failed.*The specified procedure could not be found",
        ],
        cause: "An extension was built for another version of torch (or for its CUDA build) than the one that loads it: the symbol it wants is not there.",
        fix: &[
            "reinstall the extension for the installed torch, or rebuild it: pip install --no-build-isolation --force-reinstall --no-binary :all: <package>",
            "torch, torchvision and torchaudio from one index and of one version",
        ],
        ask: &["pip list | grep -iE 'torch|rocm'"],
        source: "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        ..BASE
    },
    Entry {
        id: "undefined-symbol",
        severity: Warning,
        confidence: Low,
        patterns: &[r"\bundefined symbol: \w+"],
        unless: &[
            r"undefined symbol: (?:hip|roc|miopen|hsa_|rsmi_|amdsmi_|amd_comgr|hiprtc|nccl|roctx|_Z|aoti|PyObject|THP)",
            r"undefined symbol: \w+, version (?:ROCR|hip|HIP|rocblas|roc)",
        ],
        cause: "A library was built against another version of one that it uses, which is found instead: two versions are mixed.",
        fix: &[
            "unset LD_LIBRARY_PATH and LD_PRELOAD",
            "reinstall the package that the line names; rebuild it if it was built here",
        ],
        ask: &["ldd -r <the library of the message>"],
        source: "https://github.com/ROCm/ROCm/issues/5339",
        scope: NotWindows,
        ..BASE
    },
    Entry {
        id: "libstdcxx-too-old",
        patterns: &[
            r"version .GLIBCXX_[\d.]+. not found",
            r"version .CXXABI_[\d.]+. not found",
            r"undefined reference to .{0,200}@GLIBCXX_",
        ],
        cause: "The C++ library (libstdc++) that is found first is older than the one this library was built with: mostly that of conda in front of the system's.",
        fix: &[
            "conda install -c conda-forge libstdcxx-ng, or LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            "or a newer distribution",
        ],
        source: "https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html",
        ..BASE
    },
    Entry {
        id: "executable-stack",
        patterns: &[r"cannot enable executable stack as shared object requires"],
        covers: &["rocm-library-mismatch", "missing-library"],
        cause: "From glibc 2.41 on, a library that asks for an executable stack is not loaded any more, and this one was linked so: ROCm libraries of old wheels (libamdhip64, librccl) are.",
        fix: &[
            "a newer torch and ROCm, whose libraries do not ask for it",
            "clear the flag in the library that the line names: patchelf --clear-execstack <library> (or execstack -c <library>)",
            "for one program: GLIBC_TUNABLES=glibc.rtld.execstack=2",
        ],
        source: "https://github.com/easydiffusion/easydiffusion/issues/1921",
        ..BASE
    },
    Entry {
        id: "static-tls-full",
        patterns: &[
            r"cannot allocate memory in static TLS block",
            r"cannot load any more object with static TLS",
        ],
        covers: &["missing-library"],
        cause: "A library was loaded too late: it needs thread-local memory that the C library reserves when a program starts, and others have used it up. It has nothing to do with the GPU's memory.",
        fix: &[
            "import the package that fails first, before torch, cv2 or sklearn",
            "LD_PRELOAD=<the library that the line names>",
        ],
        scope: NotWindows,
        source: "https://github.com/pytorch/pytorch/issues/2575",
        ..BASE
    },
    Entry {
        id: "glibc-too-old",
        patterns: &[r"version .GLIBC_2\.\d+. not found"],
        cause: "The wheel or library was built on a newer distribution: this system's C library (glibc) is older than what it was built with.",
        fix: &[
            "a newer distribution (or a container with one), or an older version of the package",
        ],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
        ..BASE
    },
    Entry {
        id: "missing-library",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"\b(?:ImportError|OSError|error while loading shared libraries): .*lib[\w+.-]+\.so\S*: cannot open shared object file",
        ],
        unless: &[r"(?i)libbitsandbytes"],
        cause: "A library is not installed, or not where the loader looks; the line names it.",
        fix: &[
            "install the package that has it: apt-file search <name>, or dnf provides '*/<name>'",
            "NixOS: ready-made wheels find no libraries of the system: programs.nix-ld.enable with the libraries, or LD_LIBRARY_PATH with those of stdenv.cc.cc.lib",
            "a library of a Python package: reinstall that package; one in a folder of its own: LD_LIBRARY_PATH, or /etc/ld.so.conf.d and sudo ldconfig",
        ],
        scope: NotWindows,
        ask: &["ldd <the library or program of the message> | grep 'not found'"],
        source: "https://man7.org/linux/man-pages/man8/ld.so.8.html",
        ..BASE
    },
    Entry {
        id: "amd-smi-versions",
        patterns: &[
            r"libamd_smi\.so\S*: undefined symbol: amdsmi_",
            r"module 'amdsmi\S*' has no attribute '",
            r"(?i)cannot import name '\w+' from 'amdsmi",
        ],
        scope: NotWindows,
        covers: &[
            "rocm-library-mismatch",
            "undefined-symbol",
            "package-versions-differ",
        ],
        cause: "amd-smi, the Python package amdsmi and the library libamd_smi.so are of different ROCm versions: an older amdsmi is left in Python's folders, or that of another ROCm is found first. Only this tool is affected; the GPU computes without it.",
        fix: &[
            "pip uninstall amdsmi (as root as well, for /usr/local/lib/python3*), then that of the installed version: pip install /opt/rocm/share/amd_smi",
            "several ROCm versions: PYTHONPATH=/opt/rocm-<version>/share/amd_smi for the one in use, and LD_LIBRARY_PATH without the others",
        ],
        ask: &[
            "python3 -c 'import amdsmi; print(amdsmi.__file__)'; pip show amdsmi",
            "ls -d /opt/rocm*",
        ],
        source: "https://github.com/ROCm/amdsmi/issues/186",
        ..BASE
    },
    Entry {
        id: "amd-smi-python-module",
        severity: Warning,
        patterns: &[r"(?i)No module named '(?:yaml|argcomplete|setuptools)'"],
        also: &[r"(?i)amd-?smi"],
        scope: NotWindows,
        cause: "amd-smi is a Python program, and a module that it needs is not installed for the system's Python: PyYAML (yaml), argcomplete or setuptools. The GPU computes without amd-smi.",
        fix: &[
            "install the packages: sudo apt install python3-yaml python3-argcomplete python3-setuptools (Fedora, RHEL: python3-pyyaml python3-argcomplete)",
        ],
        source: "https://github.com/ROCm/amdsmi/issues/19",
        ..BASE
    },
    Entry {
        id: "rocm-package-incomplete",
        confidence: Medium,
        patterns: &[
            r"rocm_sdk_core/_cli\.py",
            r"(?i)Could not find rocm library '\w+' at path",
            r"(?i)Unknown rocm library '\w+'|_dist_info\.ALL_LIBRARIES\[",
            r"(?i)rocm_sdk\S*.{0,80}(?:no match found|is not installed|FileNotFoundError)",
        ],
        also: &[r"(?i)FileNotFoundError|no match found|ModuleNotFoundError|KeyError"],
        covers: &["windows-rocm-dll"],
        cause: "A file that the rocm packages (wheels) should bring is not there, or has another name than this torch asks for: the build of that day is incomplete, or torch and the rocm packages are of different dates.",
        fix: &[
            "another nightly, or a release: all of rocm, torch, torchvision and torchaudio of one date, in a fresh environment",
            "the parts that were left out: pip install \"rocm[libraries,devel]\" of the same version",
        ],
        ask: &["pip list | grep -iE 'rocm|torch'"],
        source: "https://github.com/ROCm/TheRock/issues/1552",
        ..BASE
    },
    Entry {
        id: "library-damaged",
        patterns: &[r"\.so[\w.]*: (?:file too short|invalid ELF header|wrong ELF class)"],
        covers: &["missing-library"],
        cause: "A shared library is damaged or not one for this machine: the file is empty or a text (a download or unpacking that broke off, a link that was copied as a file), or it is for 32 bits.",
        fix: &[
            "install the package that owns the file again (pip install --force-reinstall --no-cache-dir …; sudo apt install --reinstall <package>)",
            "ls -l <the file>: a few bytes mean a symbolic link that was copied as text (zip files and disks of Windows do that); a full disk leaves empty files",
        ],
        ask: &["ls -l <the file of the message>; file <the file>; df -h"],
        scope: NotWindows,
        source: "https://man7.org/linux/man-pages/man3/dlopen.3.html",
        ..BASE
    },
    Entry {
        id: "two-llvms",
        confidence: Medium,
        patterns: &[
            r"(?i)CommandLine Error: Option '.{1,60}' registered more than once",
            r"(?i)LLVM ERROR: (?:inconsistency in registered CommandLine options|Option '.{1,60}' already exists)",
        ],
        cause: "Two copies of LLVM are loaded into one process, and each registers its options: that of ROCm (comgr, the OpenCL driver) and that of Mesa, of the distribution or of another Python package.",
        fix: &[
            "one of the two out of the process: for OpenCL the ICD that is not needed (OCL_ICD_VENDORS=<the file of AMD's>; Mesa's rusticl removed), for Python the package that brings its own LLVM imported in a process of its own",
            "ROCm and Mesa from one origin (both of the distribution), or torch's own ROCm without LD_LIBRARY_PATH to the system's",
        ],
        ask: &["ls /etc/OpenCL/vendors; env | grep LD_LIBRARY_PATH"],
        scope: NotWindows,
        source: "https://github.com/rocm-arch/python-pytorch-rocm/issues/1",
        ..BASE
    },
    Entry {
        id: "mapping-refused",
        confidence: Medium,
        patterns: &[
            r"(?i)failed to map segment from shared object",
            r"(?i)SELinux is preventing .{0,120}\bexec(?:mod|mem|stack)\b",
        ],
        covers: &["torch-compile-failed", "missing-library"],
        cause: "The system does not let code be loaded from that file: the folder (mostly /tmp or the home folder, where torch.compile, Triton and extensions build their libraries) is mounted with noexec, or a security module forbids it; \"Cannot allocate memory\" means a limit of memory.",
        fix: &[
            "another folder, on a disk that is mounted without noexec: TMPDIR before the program; TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR, TORCH_EXTENSIONS_DIR, MIOPEN_USER_DB_PATH for caches",
            "memory: ulimit -v unlimited, or a larger limit of the container",
            "mount | grep noexec shows which; SELinux: the command that its message suggests (ausearch, audit2allow)",
        ],
        ask: &["mount | grep -E 'noexec'; ls -ldZ /tmp"],
        scope: NotWindows,
        source: "https://man7.org/linux/man-pages/man8/mount.8.html",
        ..BASE
    },
    Entry {
        id: "library-version-info",
        severity: Info,
        patterns: &[r"\.so[\w.]*: no version information available \(required by"],
        cause: "The library that was found is another build than the one that the program was linked with, without the marks of its versions. It mostly works; if a function is missing, an error names it.",
        fix: &["one ROCm only: the libraries and the program from one origin"],
        scope: NotWindows,
        source: "https://man7.org/linux/man-pages/man8/ld.so.8.html",
        ..BASE
    },
    Entry {
        id: "smi-crashed",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)\b(?:rocm_smi|amd_smi)\w*\.(?:cc|cpp):\d+:.{0,400}Assertion",
            r"(?i)detected dead process, and making mutex /rocm_smi",
        ],
        covers: &["native-abort", "hip-runtime-assertion"],
        cause: "rocm-smi (amd-smi) itself crashed while it read a value: mostly one that an integrated GPU or a new card does not have, or what a run that was killed left behind. It only reads statistics; the GPU can compute all the same.",
        fix: &[
            "ask for the one value that is needed (rocm-smi --showuse, --showtemp, --showmeminfo vram), or for one card (-d <index>)",
            "Linux: sudo rm /dev/shm/rocm_smi_card* after a run that was killed",
            "a newer rocm-smi or amd-smi",
        ],
        ask: &["rocm-smi --version; rocminfo | grep gfx"],
        scope: NotWindows,
        source: "https://github.com/ROCm/rocm_smi_lib/issues/232",
        ..BASE
    },
    Entry {
        id: "rocm-smi-no-answer",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)ROCm SMI returned \d+ \(the expected value is 0\)"],
        scope: BareMetal,
        cause: "rocm-smi could not start its library: it is of another version than the tool or is not found (LD_LIBRARY_PATH), or the library sees no GPU through the driver (8: not initialised). It only shows statistics; whether the GPU can compute, rocminfo tells.",
        fix: &[
            "rocm-smi and librocm_smi64 of one release; unset LD_LIBRARY_PATH that names another one",
            "container: pass all of /dev/dri and /dev/kfd",
        ],
        ask: &["rocminfo | grep gfx; ls -l /dev/kfd /dev/dri"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/1274",
        ..BASE
    },
    Entry {
        id: "lapack-missing",
        patterns: &[
            r"undefined symbol: (?:[sdcz](?:getr[fsi]|gemm|gemv|trsm|potr[fs]|gesvd?|gesdd|geqrf|orgqr|ungqr|he?e?v\w?|heev\w?|syev\w?)_?\b|cblas_\w+|LAPACKE_\w+)",
        ],
        scope: NotWindows,
        covers: &["undefined-symbol"],
        cause: "The missing function is one of BLAS or LAPACK, the libraries for linear algebra on the CPU: this torch was built against another one (OpenBLAS, MKL) than the one that is found. It has nothing to do with the GPU.",
        fix: &[
            "install the library that it was built with, mostly OpenBLAS with LAPACK: sudo apt install libopenblas0 liblapack3 (Arch: blas-openblas in place of blas, cblas and lapack; Fedora: openblas)",
            "or a wheel of torch from its ROCm index, which brings its own",
        ],
        ask: &["ldd <the library of the message> | grep -iE 'blas|lapack|mkl'"],
        source: "https://wiki.debian.org/DebianScience/LinearAlgebraLibraries",
        ..BASE
    },
];
