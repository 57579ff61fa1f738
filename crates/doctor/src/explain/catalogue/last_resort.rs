//! Messages of which only the part of the stack that failed is known.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "hip-error-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)\b(?:HIP|ROCm|hip runtime|HIP driver) error\b[:(]? ?\S",
            r"\bhipError(?:[A-Z]\w+)\b",
            r"(?i)hipcheck.{0,20}(?:failed|error)|checkHipErrors",
            r"\bhip[A-Z]\w+(?:\(.{0,40}\))? (?:failed|returned)\b.{0,30}\b[1-9]\d{0,3}\b",
            r"(?i)\bHIP API error\b|\berror: '[a-z_][a-z _-]{4,60}' ?\(\d{1,4}\) at \S+:\d+",
        ],
        cause: "The HIP runtime reported an error that says little by itself. Most often driver, ROCm and the program are of different ages, this build has no code for {gpu}, or the GPU crashed before.",
        fix: &[
            "the first error of the log is the cause, where there is one before this",
            "driver and ROCm build of torch of one age; one GPU visible (HIP_VISIBLE_DEVICES=<index>); no HSA_OVERRIDE_GFX_VERSION where the wheel has code for the GPU",
            "`surefoot probe` tries one operation after the other",
        ],
        ask: &[
            "AMD_LOG_LEVEL=3 <your program> 2>&1 | tail -n 50",
            "Linux: dmesg | grep -iE 'amdgpu|kfd' | tail -n 40",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
    Entry {
        id: "cuda-error-other",
        last_resort: true,
        confidence: Low,
        patterns: &[r"(?i)\bCUDA error: \w"],
        also: &[r"(?i)\brocm|radeon|\bgfx\d|\bhip\w*\b|zluda|instinct"],
        cause: "The GPU runtime reported an error that says little by itself (ROCm builds of torch print `CUDA error`, too). Most often driver, ROCm and the program are of different ages, this build has no code for {gpu}, or the GPU crashed before.",
        fix: &[
            "the first error of the log is the cause, where there is one before this",
            "driver and ROCm build of torch of one age; one GPU visible (HIP_VISIBLE_DEVICES=<index>)",
            "AMD_SERIALIZE_KERNEL=3 (`surefoot run --debug -- …` sets it) names the call",
        ],
        ask: &[
            "AMD_LOG_LEVEL=3 <your program> 2>&1 | tail -n 50",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "hsa-error-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"HSA_STATUS_ERROR\w*",
            r"HSAKMT_STATUS_(?:[A-RT-Z]\w+)|rocr::AMD::hsa_exception",
        ],
        cause: "The ROCm runtime (ROCr, HSA) reported an error: kernel driver and ROCm do not fit together, the GPU crashed, or this release does not support it.",
        fix: &[
            "Linux: kernel and ROCm of one age: a newer kernel and linux-firmware, the newest ROCm build",
            "WSL: Windows driver and ROCm of one age: a newer Adrenalin driver, the newest ROCm build",
            "Windows: driver and ROCm of one age: a newer Adrenalin driver, the newest ROCm build",
            "unset HSA_OVERRIDE_GFX_VERSION; one GPU visible",
        ],
        ask: &[
            "Linux: dmesg | grep -iE 'amdgpu|kfd' | tail -n 40",
            "Linux, WSL: uname -r; rocminfo | head -n 20",
        ],
        source: "https://rocm.docs.amd.com/projects/ROCR-Runtime/en/latest/",
        ..BASE
    },
    Entry {
        id: "rocm-math-error-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)rocBLAS error|hipBLAS(?:Lt)? error|\b(?:HIPBLAS|ROCBLAS|HIPSOLVER|ROCSOLVER|HIPSPARSE|HIPRAND|ROCRAND)_STATUS_(?:[A-RT-Z]\w+)",
            r"\broc(?:blas|sparse|solver)_status_(?:[a-rt-z]\w+|size\w+)",
        ],
        cause: "A library of ROCm for matrices (rocBLAS, hipBLAS and their kin) failed: this build has no kernel for {gpu} or this shape, its files are of two versions, or memory ran out.",
        fix: &[
            "another version or build of ROCm and torch; TORCH_BLAS_PREFER_HIPBLASLT=0",
            "free memory on the GPU; one ROCm only",
        ],
        ask: &[
            "pip list | grep -iE 'torch|rocm'",
            "Linux, WSL: ls /opt/rocm/lib/rocblas/library | head",
        ],
        source: "https://rocm.docs.amd.com/projects/rocBLAS/en/latest/",
        ..BASE
    },
    Entry {
        id: "miopen-error-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[r"(?i)MIOpen Error|MIOpen\(HIP\): Error|miopenStatus(?:[A-RT-Z]\w+)"],
        cause: "MIOpen, ROCm's library for convolutions, failed: its cached database is of another version, it has no kernel for this convolution on {gpu}, or it could not compile one.",
        fix: &[
            "delete ~/.cache/miopen and ~/.config/miopen; update the wheel",
            "torch.backends.cudnn.enabled = False, or MIOPEN_FIND_MODE=FAST",
        ],
        ask: &["MIOPEN_LOG_LEVEL=5 <your program> 2>&1 | tail -n 50"],
        source: "https://rocm.docs.amd.com/projects/MIOpen/en/latest/how-to/debug-log.html",
        ..BASE
    },
    Entry {
        id: "onnxruntime-error-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"\[ONNXRuntimeError\] : \d+ : \w+",
            r"(?i)\[E:onnxruntime:.*(?:Non-zero status code|Exception during initialization)",
        ],
        cause: "ONNX Runtime refused the model or failed while it ran it; the words after the number name the reason. If they name a provider (ROCm, MIGraphX, DML), that one is to blame: its build is for another version of ROCm or of the program, or it does not know this operator or shape.",
        fix: &[
            "the same model with CPUExecutionProvider alone: if it fails as well, it is the model, its input or the version of ONNX Runtime",
            "one onnxruntime package only, in the version that the program asks for and that fits the installed ROCm",
        ],
        ask: &[
            "pip list | grep -i onnx",
            "python -c 'import onnxruntime as o; print(o.__version__, o.get_available_providers())'",
        ],
        source: "https://onnxruntime.ai/docs/execution-providers/MIGraphX-ExecutionProvider.html",
        ..BASE
    },
    Entry {
        id: "kernel-driver-error-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)\[drm:\w+(?:\.\w+)* \[amdgpu\]\] \*ERROR\*",
            r"(?i)amdgpu \S+: amdgpu: .*(?:\*ERROR\*|failed|timed out)",
            r"(?i)\bkfd kfd: .*(?:failed|error)",
            r"(?i)amdgpu.*IH ring buffer overflow",
            r"(?i)\bamdgpu: (?:\[\w+\] ?)?failed to (?:notify|create|init|evict|restore|enable|disable|get|load|add|suspend|resume|start|send)",
        ],
        cause: "The kernel's amdgpu driver reported an error of the GPU. Which one, the line says; kernel, firmware and BIOS of different ages are the usual reason.",
        fix: &[
            "a newer kernel and linux-firmware (of one age), a newer BIOS",
            "power the machine off (not restart) and on again",
        ],
        scope: BareMetal,
        ask: &[
            "dmesg | grep -iE 'amdgpu|kfd' | tail -n 60",
            "uname -r; dpkg -l linux-firmware",
        ],
        source: "https://docs.kernel.org/gpu/amdgpu/debugging.html",
        ..BASE
    },
    Entry {
        id: "smi-error-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[r"\b(?:AMDSMI|RSMI)_STATUS_[A-RT-Z]\w+|AmdSmi\w*Exception"],
        cause: "amd-smi or rocm-smi, or a program that asks their library, failed. They only read statistics (use, temperature, clocks); whether the GPU can compute, PyTorch tells.",
        fix: &[
            "the program, its Python package (amdsmi, pyrsmi) and the ROCm of one release",
            "Linux: a newer kernel, where a value is not there; as root, or in the group that owns /dev/dri/renderD*",
        ],
        ask: &["Linux: rocminfo | grep gfx; ls -ln /dev/kfd /dev/dri; id"],
        source: "https://rocm.docs.amd.com/projects/amdsmi/en/latest/",
        ..BASE
    },
    Entry {
        id: "extension-build-failed",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)Error compiling objects for extension",
            r"Error building extension '",
            r"object has no attribute 'ds_opt_\w+'",
            r"(?i)ninja: build stopped: subcommand failed",
            r"(?i)\bg?make(?:\[\d+\])?: \*\*\* \[.{1,200}\] Error [12]\b|==> ERROR: A failure occurred in \w+\(\)",
            r"(?i)error: command '\S*(?:hipcc|clang\+*|g\+\+|gcc|cl\.exe)' failed with exit (?:code|status)",
            r"(?i)\bhipcc\b.*(?:failed with exit code|returned non-zero)",
        ],
        cause: "Native code did not compile. These lines only report it: the first `error:` above them says why, such as a header that is missing, code that is for CUDA alone, or a compiler that does not know {gpu}.",
        fix: &[
            "look for the first `error:` above",
            "a ready wheel of the package for ROCm instead of a build, or a version that supports this ROCm",
            "name the architecture: PYTORCH_ROCM_ARCH=<gfx>, and install with --no-build-isolation so that the build sees this torch",
        ],
        ask: &["the output from the first `error:` on", "hipconfig --full"],
        source: "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        ..BASE
    },
    Entry {
        id: "linker-failed-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)collect2: (?:fatal )?error: ld returned \d+|linker command failed with exit code",
            r"(?i)/ld(?:\.\w+)?: (?:fatal )?error: |\b(?:ld\.)?lld: error: ",
        ],
        cause: "The linker could not put the program together. Its first line above says why: a library or function that is missing or of another version, objects of two compilers, or a program too large for it.",
        fix: &[
            "the line of the linker (ld, lld) above names the library or function: install the package that has it, of the ROCm in use",
            "one compiler and one ROCm for all parts, in an empty build folder; -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld where another linker gives up",
        ],
        ask: &["the output from the first line of the linker on"],
        source: "https://lld.llvm.org/",
        ..BASE
    },
    Entry {
        id: "cmake-failed-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"CMake Error(?: at \S+(?::\d+)?)?(?: \(\w+\))?:\s*$|CMake Error: \S",
            r"-- Configuring incomplete, errors occurred",
            r"(?i)Performing Test HAS_HIP - Failed",
        ],
        cause: "CMake could not set up the build. The lines below `CMake Error` say what it misses: a package (its development part), a path or an option that must be given, or another version of CMake or of a compiler.",
        fix: &[
            "give what the message asks for: an option as -D<name>=<value>, a folder of packages in CMAKE_PREFIX_PATH (Linux: /opt/rocm)",
            "code for HIP needs ROCm's compiler, which the system's gcc is not: CXX=<ROCm>/llvm/bin/clang++ (CMAKE_CXX_COMPILER, CMAKE_HIP_COMPILER)",
            "an empty build folder after each change; the versions that the project's page names",
        ],
        ask: &["the output from the first `CMake Error` on"],
        source: "https://cmake.org/cmake/help/latest/guide/user-interaction/index.html",
        ..BASE
    },
    Entry {
        id: "container-failed-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)docker: Error response from daemon: \w|OCI runtime (?:create failed|error)|Error: crun: ",
            r"(?i)Error: building at STEP|failed to solve: |The command '.{1,200}' returned a non-zero code",
            r"\b(?:CrashLoopBackOff|ImagePullBackOff|CreateContainerError|RunContainerError)\b",
        ],
        scope: NotWindows,
        cause: "The container could not be built or started, or its program ended at once. What stands behind the last colon, or the log of the container, says why; an AMD GPU needs its devices to be there on the host and to be passed.",
        fix: &[
            "the log: docker logs <container> (kubectl logs --previous <pod>)",
            "Linux: --device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd) --security-opt seccomp=unconfined",
        ],
        ask: &["Linux: ls -ln /dev/kfd /dev/dri; docker version"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html",
        ..BASE
    },
    Entry {
        id: "package-manager-other",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"^E: [A-Z]\w+ ",
            r"(?i)error: failed to (?:prepare|commit) transaction|^Error: Transaction |none of the providers can be installed|dpkg: error processing (?:package|archive)",
            r"(?i)Sub-process /usr/bin/dpkg returned an error code",
        ],
        also: &[r"(?i)rocm|amdgpu|\bhip\b|radeon"],
        scope: NotWindows,
        cause: "The package manager stopped: a package or repository that the lines above name is missing, conflicts with another one, or its script failed.",
        fix: &[
            "look at the first error above; then the package lists anew (sudo apt update; sudo pacman -Syu) and again",
            "packages of ROCm from one origin only: AMD's repository for this very release of the distribution, or the distribution's own",
            "a torch wheel brings its ROCm and needs none of these packages",
        ],
        ask: &["cat /etc/os-release | head -n 4; ls /etc/apt/sources.list.d"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/",
        ..BASE
    },
    Entry {
        id: "windows-crash-other",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)Faulting module (?:name|path): \S|Problem Event Name:\s+(?:APPCRASH|BEX64)",
        ],
        cause: "Windows recorded that the program crashed within the module that the line names (ntdll.dll and ucrtbase.dll only report it). On AMD GPUs mostly the driver and the ROCm packages do not fit together, or the card has no code in them.",
        fix: &[
            "a newer driver and newer packages of torch and ROCm, updated together",
            "HIP_VISIBLE_DEVICES=<index of the card>, where there is an integrated GPU as well",
        ],
        ask: &[
            "the lines `Faulting module` and `Exception code` of the event",
            "hipInfo",
        ],
        source: "https://learn.microsoft.com/windows/win32/wer/windows-error-reporting",
        ..BASE
    },
    Entry {
        id: "python-package-missing",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)ImportError: Using .+ requires \w+: .?pip install",
            r"ModuleNotFoundError: No module named '?[\w.-]+",
        ],
        cause: "A Python package is not installed in the environment that runs the program; the line names it. It has nothing to do with the GPU.",
        fix: &[
            "activate the environment of the program, then pip install the package (its name there can differ from that of the module)",
            "look afterwards whether torch is still the ROCm build: python -c \"import torch; print(torch.version.hip)\"",
        ],
        ask: &["which python; pip list"],
        source: "https://packaging.python.org/en/latest/tutorials/installing-packages/",
        ..BASE
    },
    Entry {
        id: "launcher-reports",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"multiprocessing\.errors\.ChildFailedError",
            r"(?i)failed \(exitcode: \d+\) local_rank: \d",
            r"subprocess\.CalledProcessError: Command .* returned non-zero exit status \d",
        ],
        cause: "A launcher (accelerate, torchrun, a graphical interface) reports that the process it started has failed. It does not know why: the error of that process stands above these lines.",
        fix: &[
            "look above, at the first traceback of the process itself; collect that part of the log",
        ],
        ask: &["the 50 lines above the first `Traceback`"],
        source: "https://docs.pytorch.org/docs/stable/elastic/errors.html",
        ..BASE
    },
    Entry {
        id: "native-abort",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"terminate called after throwing an instance of",
            r"Fatal Python error: (?:Aborted|Segmentation fault|Bus error|Illegal instruction)",
            r"(?i)\b(?:Aborted|Bus error|Floating point exception) \(core dumped\)|\*\*\* stack smashing detected",
            r"status=6/ABRT|Failed with result 'core-dump'",
        ],
        cause: "Native code ended the program: a library met an error that nobody handled. The `what():` below, or the last lines above, say which; a crash without any is mostly one of the driver, or of libraries of different builds.",
        fix: &[
            "torch, torchvision and torchaudio of one index; rebuild extensions with that torch",
            "a newer driver and ROCm build of one age",
            "python -X faulthandler <your program> shows which call it was",
        ],
        ask: &["python -X faulthandler <your program> 2>&1 | tail -n 40"],
        source: "https://docs.python.org/3/library/faulthandler.html",
        ..BASE
    },
    Entry {
        id: "feature-for-nvidia",
        last_resort: true,
        confidence: Medium,
        patterns: &[
            r"(?i)(?:Error|Exception): .*\b(?:requires?|needs?|only (?:works|supported|supports|available|runs)|supports? only|is not supported|minimum)\b.*(?:\b(?:Hopper|Blackwell|Ampere|Ada Lovelace|Turing|Volta)\b|\bsm_?\d{2,3}\b|NVIDIA (?:CUDA )?GPU|compute capability)",
            r"(?i)(?:Error|Exception): .*\bnot (?:yet )?(?:supported|available|compatible|implemented) (?:on|for|with|in) (?:the )?(?:AMD|ROCm|HIP|Radeon)\b",
            r"(?i)(?:Error|Exception): .*\b(?:AMD|ROCm|HIP)\b.{0,40}\b(?:is|are) not (?:yet )?supported",
        ],
        covers: &["feature-refused"],
        cause: "The program refuses: this feature (a kernel, an attention, a quantisation, a data type) is written for NVIDIA's GPUs, or for some generations of them alone, and this version of the program has none of it for AMD's. The GPU and its driver are fine.",
        fix: &[
            "the setting that does without it: attention sdpa, bf16 or fp16 in place of fp8 and other quantisations (nf4 of bitsandbytes runs on ROCm), no tf32, no fused kernels",
            "a newer version of the program or package, or its branch for ROCm",
        ],
        ask: &[
            "the lines of the traceback that name the package",
            "pip list | grep -iE 'torch|rocm'",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
];
