//! Python environments: wheels that leave something out, paths, encodings, and tools of Windows.

use super::Scope::Windows;
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "torch-without-distributed",
        patterns: &[
            r"module 'torch\.distributed(?:\.\w+)*' has no attribute '(?:is_initialized|init_process_group|is_nccl_available|get_rank|get_world_size|barrier|broadcast|all_reduce|all_gather\w*|_all_gather_base|_reduce_scatter_base|reduce_scatter\w*|ReduceOp|ProcessGroup|Store|group|P2POp)'",
            r"'_OpNamespace' '_?c10d(?:_functional)?' object has no attribute",
            r"No module named 'torch\._C\._distributed_c10d",
            r"No module named 'torch\.distributed'",
            r"cannot import name '\w+' from 'torch\._C\._distributed_c10d'",
        ],
        covers: &["package-versions-differ", "launcher-reports"],
        cause: "This torch was built without torch.distributed, as many ROCm wheels for Windows are, and the program calls it although it runs as one process. It has nothing to do with the GPU.",
        fix: &[
            "a newer version of the package that the traceback names: newer ones ask torch.distributed.is_available() first",
            "a newer ROCm wheel of torch for Windows; an older release of the package that worked",
            "training in several processes: Linux or WSL",
        ],
        ask: &[
            "python -c \"import torch; print(torch.__version__, torch.distributed.is_available())\"",
        ],
        source: "https://github.com/ROCm/TheRock/issues/1179",
        ..BASE
    },
    Entry {
        id: "rocm-sdk-devel-missing",
        patterns: &[
            r"(?i)rocm_sdk_devel module .{0,60}not installed",
            r"(?i)Could not load the .rocm(?:-sdk)?\[devel\]. package",
            r"(?i)ROCm SDK development package is not installed",
            r"No module named '_?rocm_sdk_devel",
        ],
        covers: &["python-package-missing"],
        cause: "The development part of AMD's ROCm wheels (compiler, headers, CMake files) is not installed in this environment. torch runs without it; only what compiles for the GPU needs it.",
        fix: &[
            "pip install \"rocm[devel]\" (rocm[libraries,devel]) from the index and of the version of the other ROCm packages, then rocm-sdk init",
            "Linux: or an installation in /opt/rocm of the same release, with ROCM_PATH=/opt/rocm",
        ],
        ask: &["pip list | grep -iE 'rocm|torch'"],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
        ..BASE
    },
    Entry {
        id: "rocm-sdk-missing",
        severity: Warning,
        patterns: &[
            r"(?i)(?:FileNotFoundError|cannot find the (?:path|file)).*\b_rocm_sdk_(?:core|libraries)",
            r"(?i)'rocm-sdk' (?:is not recognized|no se reconoce|n'est pas reconnu)|rocm-sdk: (?:command )?not found",
            r"No module named '_?rocm_sdk(?:_core|_libraries\w*)?'",
        ],
        covers: &["python-package-missing", "rocm-tools-missing"],
        cause: "The Python packages of ROCm (rocm, rocm-sdk-core, rocm-sdk-libraries) are not installed in the environment that runs: another one is active, or torch was installed without what it depends on (pip --no-deps, another index).",
        fix: &[
            "activate the environment; python -m rocm_sdk test checks it",
            "install torch from AMD's index again, with its dependencies:",
            "{install}",
        ],
        ask: &["pip list | grep -iE 'rocm|torch'"],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
        ..BASE
    },
    Entry {
        id: "environment-moved",
        patterns: &[
            r"(?i)Fatal error in launcher: Unable to create process using",
            r"(?i)/bin/(?:pip|python|accelerate|torchrun|huggingface-cli)\S*: bad interpreter: No such file",
        ],
        cause: "The Python environment was moved or renamed, or the Python that it was made with is gone: its launchers (pip, accelerate, rocm-sdk) contain the old path.",
        fix: &[
            "create the environment anew in its final folder, and install everything again",
            "until then: python -m pip … instead of pip …",
        ],
        source: "https://docs.python.org/3/library/venv.html",
        ..BASE
    },
    Entry {
        id: "long-path",
        patterns: &[
            r"(?i)this system does not have Windows Long Path support enabled",
            r"\[WinError 206\]",
            r"(?i)libraries file\(s\) missing from devel",
        ],
        covers: &["wheel-build-failed"],
        cause: "A path is longer than the 260 characters that Windows allows by default. The libraries of ROCm (rocBLAS, hipBLASLt) and the sources of flash-attn have long file names.",
        fix: &[
            "an environment in a short folder, such as C:\\venv",
            "enable long paths, in an administrator's PowerShell: Set-ItemProperty HKLM:\\SYSTEM\\CurrentControlSet\\Control\\FileSystem LongPathsEnabled 1; then restart",
            "a newer rocm package, if rocm-sdk left files out",
        ],
        source: "https://github.com/ROCm/TheRock/issues/7537",
        ..BASE
    },
    Entry {
        id: "space-in-path",
        patterns: &[
            r"binary '[^']*' not prefixed by 'amd'",
            r"(?i)Unknown command line argument '.*(?:_rocm_sdk|offload-arch|site-packages|\\ROCm\\)",
            r"(?i)error: no such file or directory: '(?:Files|\(x86\))[\\/]",
            r"(?i)error: no such file or directory: '[^'./\\:-][^'./\\:]*[\\/][^']*(?:site-packages|venv|[\\/]rocm)",
        ],
        covers: &["rocm-device-library-missing", "hiprtc-compilation"],
        cause: "A path with a space was cut at the space: compilers and launchers of ROCm are called with unquoted paths, and a folder of the environment, the user or ROCm (Program Files) has a space in its name.",
        fix: &[
            "an environment in a folder without spaces; caches there as well (TEMP, TRITON_CACHE_DIR)",
            "Windows: the short name in a variable: HIP_PATH=C:\\PROGRA~1\\AMD\\ROCm\\<version>",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/4329",
        ..BASE
    },
    Entry {
        id: "console-encoding",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"UnicodeDecodeError: '(?:utf-?8|gbk|gb18030|big5|cp\d+|charmap|mbcs|euc_kr|shift_jis)' codec can't decode byte",
        ],
        also: &[r"(?i)triton|inductor|rocm|hip(?:cc|info|config)|cpp_extension|subprocess"],
        covers: &["torch-compile-failed"],
        cause: "Python read what a tool printed (a compiler, hipconfig) in another encoding than the tool wrote: its message is in the code page of the system's language, not in UTF-8. If a compiler failed, this hides its message.",
        fix: &[
            "PYTHONUTF8=1 in the environment; if that is set, without it",
            "Windows: chcp 65001 before the command, or the system's setting `Beta: Use Unicode UTF-8 for worldwide language support`",
            "a newer version of the package that the traceback names",
        ],
        source: "https://github.com/ROCm/TheRock/issues/1074",
        ..BASE
    },
    Entry {
        id: "file-in-use",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"\[WinError (?:5|32)\].*(?:site-packages|\.dll|\.pyd)"],
        cause: "Windows does not replace a file that a program uses: a Python of this environment still runs (a web UI, a notebook), or the folder needs other rights.",
        fix: &[
            "end every Python of this environment, and run pip again",
            "delete folders in site-packages whose names begin with `~`",
        ],
        scope: Windows,
        source: "https://github.com/zalandoresearch/pytorch-ts/issues/56",
        ..BASE
    },
    Entry {
        id: "windows-compiler-missing",
        severity: Warning,
        patterns: &[r"Compiler: cl is not found"],
        covers: &["torch-compile-failed"],
        cause: "torch.compile compiles C++ code as well, and finds no compiler of Visual Studio (cl.exe).",
        fix: &[
            "install Build Tools for Visual Studio with the C++ workload, and start the program from its `x64 Native Tools` prompt",
            "or run without torch.compile (TORCHDYNAMO_DISABLE=1)",
        ],
        source: "https://docs.pytorch.org/tutorials/unstable/inductor_windows.html",
        ..BASE
    },
    Entry {
        id: "extension-not-built",
        confidence: Medium,
        patterns: &[
            r"NameError: name '\w+_(?:ext|kernels|cuda(?:_\d+)?)' is not defined",
            r"No module named '(?:mmcv|apex|detectron2|groundingdino|torch_(?:scatter|sparse|cluster|spline_conv)|pytorch3d|exllamav2|natten|nvdiffrast|spconv|pointnet2_ops|gsplat|diff_gaussian_rasterization|causal_conv1d|mamba_ssm|selective_scan)(?:\._\w+|_(?:cuda|ext)\w*)'",
            r"name 'amp_C' is not defined",
            r"No module named '(?:exllamav2_ext|exllama_ext|causal_conv1d_cuda|selective_scan_cuda|amp_C|fused_layer_norm_cuda|awq_ext|quant_cuda)'",
        ],
        covers: &["python-package-missing"],
        cause: "The package was installed without its compiled part: its build did not see this torch (pip builds in an environment of its own), found no compiler for the GPU, or has code for CUDA alone.",
        fix: &[
            "build it against the installed ROCm build of torch: pip install -v --no-build-isolation <package or folder>, with the development part of ROCm installed",
            "a ready wheel of the package for ROCm, or a fork for it",
        ],
        ask: &[
            "python -c 'import torch; print(torch.version.hip)'",
            "which hipcc",
        ],
        source: "https://github.com/open-mmlab/mmcv/issues/3313",
        ..BASE
    },
    Entry {
        id: "torchcodec",
        patterns: &[
            r"(?i)Could not load libtorchcodec",
            r"(?i)torchcodec is not installed correctly",
        ],
        covers: &[
            "cuda-library-missing",
            "missing-library",
            "undefined-symbol-torch",
            "windows-dll-missing",
        ],
        cause: "torchcodec, through which torchaudio 2.9 and newer read files, does not fit: that of PyPI is built for CUDA or for another torch than this one, or ffmpeg is missing.",
        fix: &[
            "torchcodec for the CPU and this torch: pip install torchcodec --index-url https://download.pytorch.org/whl/cpu; it needs no GPU",
            "Linux, WSL: ffmpeg and its libraries: sudo apt install ffmpeg",
            "Windows: the `full-shared` build of ffmpeg, with its DLLs on the PATH",
            "or read audio with soundfile instead, or a torchaudio before 2.9 with its torch",
        ],
        ask: &["pip list | grep -iE 'torch'", "ffmpeg -version"],
        source: "https://github.com/ROCm/TheRock/issues/1490",
        ..BASE
    },
    Entry {
        id: "windows-file-locked",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[r"PermissionError: \[WinError (?:5|32)\]"],
        cause: "Windows lets nobody rename, replace or delete a file that a program has open: another program (an editor, a synchronised folder, a virus scanner, an earlier run) or this one itself still uses it, or the folder needs other rights.",
        fix: &[
            "end what uses the file of the line; an output folder outside of OneDrive and of Program Files",
            "transformers that fails to rename tmp-checkpoint-…: a newer version",
        ],
        scope: Windows,
        source: "https://github.com/huggingface/transformers/issues/28904",
        ..BASE
    },
    Entry {
        id: "python-version-refused",
        severity: Warning,
        patterns: &[
            r"(?i)INCOMPATIBLE PYTHON VERSION|Python: version=\S+ required=\S.*incompatible",
            r"(?i)(?:requires|needs) Python (?:>=|<|==|version )?\s?3\.\d+.*(?:but|you have|found|current)",
            r"(?i)Python (?:version )?3\.\d+(?:\.\d+)? is (?:not supported|too (?:new|old))",
            r"(?i)(?:unsupported|incompatible) python version",
            r"(?i)This program is tested with [\d.]+ Python, but you have",
        ],
        cause: "The program, or the packages that it needs, are not made for the Python version that runs it: newer ones often have no wheels of torch and its extensions yet. It has nothing to do with the GPU.",
        fix: &[
            "the Python version that the message names (else 3.12), in a new environment: delete the old one (venv), and install everything again",
            "Windows: py -3.12 -m venv venv; Linux: uv venv --python 3.12, conda, or the distribution's package python3.12-venv",
        ],
        ask: &["python --version"],
        source: "https://github.com/Nerogar/OneTrainer#installation",
        ..BASE
    },
];
