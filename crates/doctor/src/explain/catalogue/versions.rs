//! Python packages that are missing, too old or too new for each other or for the Python that runs.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "quantization-needs-accelerate",
        confidence: Medium,
        patterns: &[
            r"(?i)load_in_[48]bit\S* requires accelerate",
            r"(?i)(?:bitsandbytes.?|quantization|low_cpu_mem_usage\S*|device_map\S*,?.{0,40}|Trainer.? with .?PyTorch.?) requires .?accelerate",
        ],
        cause: "accelerate is not installed in this environment, or older than transformers asks for; for 4 and 8 bits bitsandbytes as well. Older versions of transformers also say so where both are installed but torch sees no GPU (they count bitsandbytes as missing then).",
        fix: &[
            "pip install -U accelerate bitsandbytes, then start Python (or the notebook) anew",
            "if both are there: python -c \"import torch; print(torch.version.hip, torch.cuda.is_available())\" must print a version and True; else torch is not the ROCm build",
        ],
        ask: &[
            "pip list | grep -iE 'accelerate|bitsandbytes|transformers|torch'",
            "python -c \"import torch; print(torch.version.hip, torch.cuda.is_available())\"",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/quantization/bitsandbytes",
        ..BASE
    },
    Entry {
        id: "sentencepiece-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)requires the SentencePiece library",
            r"(?i)Cannot instantiate this tokenizer from a slow version",
            r"(?i)Couldn't instantiate the backend tokenizer from",
            r"(?i)need to have sentencepiece\b.{0,20}installed",
            r"(?i)sentencepiece_processor\.cc|model_proto->ParseFromArray",
        ],
        covers: &["tokenizer-missing"],
        cause: "The tokenizer of this model needs the package sentencepiece (or tiktoken) to be read, and it is not installed, or the tokenizer's file (tokenizer.model) is missing or damaged. It has nothing to do with the GPU.",
        fix: &[
            "pip install sentencepiece tiktoken protobuf, then start Python anew",
            "ls -l on tokenizer.model: some hundred bytes are a pointer of Git LFS (git lfs pull)",
            "a Python too new for its wheels: Python 3.12",
        ],
        source: "https://github.com/google/sentencepiece#installation",
        ..BASE
    },
    Entry {
        id: "protobuf-versions",
        patterns: &[
            r"(?i)Descriptors cannot (?:not )?be created directly",
            r"cannot import name 'builder' from 'google\.protobuf",
            r"(?i)Detected (?:incompatible|mismatched) Protobuf Gencode",
            r"'MessageFactory' object has no attribute 'GetPrototype'",
            r"(?i)requires the protobuf library but it was not found",
        ],
        covers: &["name-not-in-package"],
        cause: "The installed protobuf is missing, or newer or older than a package was generated for (tensorboard, wandb, sentencepiece, onnx). It has nothing to do with the GPU.",
        fix: &[
            "pip install \"protobuf<=3.20.3\" for old packages, or update the package that the traceback names",
            "VersionError: pip install -U protobuf; the runtime must be at least as new as the generated code",
            "for once: PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python",
        ],
        source: "https://protobuf.dev/news/2022-05-06/#python-updates",
        ..BASE
    },
    Entry {
        id: "numpy-names-removed",
        patterns: &[
            r"module 'numpy' has no attribute '",
            r"(?i)was removed in the NumPy 2\.0 release",
            r"(?i)All ufuncs must have type .numpy\.ufunc",
            r"cannot import name '\w+' from 'numpy\b",
            r"No module named 'numpy\._?core\b",
        ],
        covers: &["name-not-in-package", "python-package-missing", "numpy-two"],
        cause: "A package or a saved file was made for another NumPy than the installed one: NumPy 1.24 removed names such as np.bool, NumPy 2 others (np.float_, np.Inf), and numpy._core exists from NumPy 2 on only. It has nothing to do with the GPU.",
        fix: &[
            "a newer version of the package that the traceback names",
            "or an older NumPy: pip install \"numpy<2\" (for np.bool, np.int and np.float: \"numpy<1.24\")",
            "`numpy._core` is missing: the file was saved with NumPy 2: pip install \"numpy>=2\"",
        ],
        ask: &["pip list | grep -iE 'numpy|scipy|torch'"],
        source: "https://numpy.org/doc/stable/numpy_2_0_migration_guide.html",
        ..BASE
    },
    Entry {
        id: "setuptools-missing",
        patterns: &[
            r"No module named '(?:pkg_resources|distutils)\b",
            r"cannot import name '\w+' from '(?:pkg_resources|setuptools)\b",
            r"module 'pkgutil' has no attribute 'ImpImporter'",
        ],
        covers: &[
            "python-package-missing",
            "name-not-in-package",
            "wheel-build-failed",
        ],
        cause: "A package needs modules of setuptools that this environment does not have: Python 3.12 no longer has distutils, new environments come without setuptools, and its newer versions are without parts of pkg_resources (70), or all of it. It has nothing to do with the GPU.",
        fix: &[
            "pip install -U pip wheel \"setuptools<70\" in the environment (and --no-build-isolation for the package that is built)",
            "or Python 3.11 or 3.10 for an old program",
        ],
        source: "https://docs.python.org/3/whatsnew/3.12.html#distutils",
        ..BASE
    },
    Entry {
        id: "python-too-old",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"unsupported operand type\(s\) for \|: '(?:type|NoneType|_GenericAlias|\w*Meta|_TensorMeta)' and",
            r"SyntaxError: f-string: (?:expecting '}'|unmatched|expression part cannot)",
            r"cannot import name '(?:Self|NotRequired|Required|override|StrEnum|TypeAlias|ParamSpec|Unpack|Annotated)' from '(?:typing|enum)'",
            r"No module named 'tomllib'",
        ],
        covers: &["name-not-in-package", "python-package-missing"],
        cause: "The program is written for a newer Python than the one that runs it. It has nothing to do with the GPU.",
        fix: &[
            "an environment with Python 3.12 (3.10 or newer at least), in which everything is installed anew",
        ],
        ask: &["python --version"],
        source: "https://devguide.python.org/versions/",
        ..BASE
    },
    Entry {
        id: "typing-extensions-old",
        severity: Warning,
        patterns: &[r"cannot import name '\w+' from 'typing_extensions'"],
        covers: &["name-not-in-package", "package-versions-differ"],
        cause: "The installed typing_extensions is older than a package needs. It has nothing to do with the GPU.",
        fix: &["pip install -U typing_extensions, then start Python anew"],
        source: "https://typing-extensions.readthedocs.io/en/latest/",
        ..BASE
    },
    Entry {
        id: "two-openmp",
        patterns: &[
            r"(?i)OMP: Error #15|libiomp5\w*\.\w+, but found lib\w+\.\w+ already initialized",
        ],
        cause: "Two copies of the OpenMP runtime are loaded into one process (libiomp5 or libomp): that of torch and that of NumPy, conda's MKL, OpenCV or scikit-learn. It has nothing to do with the GPU.",
        fix: &[
            "KMP_DUPLICATE_LIB_OK=TRUE in the environment lets it go on",
            "better: a fresh environment in which all of them come from pip, or all from conda",
        ],
        source: "https://github.com/meta-pytorch/csprng/issues/115",
        ..BASE
    },
    Entry {
        id: "mkl-mismatch",
        patterns: &[r"(?i)MKL FATAL ERROR", r"undefined symbol: iJIT_\w+"],
        covers: &["undefined-symbol", "undefined-symbol-torch"],
        cause: "Intel's MKL, with which NumPy and torch compute on the CPU, is incomplete or of another version than torch was built with (MKL 2024.1 and newer lack a function that older builds call). It has nothing to do with the GPU.",
        fix: &[
            "conda: conda install \"mkl<2024.1\"; or numpy and torch both from pip in a fresh environment",
            "unset LD_LIBRARY_PATH, where another MKL is found first",
        ],
        scope: NotWindows,
        source: "https://github.com/pytorch/pytorch/issues/123097",
        ..BASE
    },
    Entry {
        id: "tkinter-missing",
        severity: Warning,
        patterns: &[
            r"No module named '_?tkinter'|libtk8\.\d\.so",
            r"(?i)no display name and no \$DISPLAY|_tkinter\.TclError: couldn't connect to display",
        ],
        covers: &["python-package-missing", "missing-library"],
        cause: "The program opens a window with Tk, and this Python has no Tk (tkinter), or there is no display (SSH, a container, WSL without WSLg). It has nothing to do with the GPU.",
        fix: &[
            "Linux, WSL: sudo apt install python3-tk (of the Python version that runs; Fedora: python3-tkinter, Arch: tk)",
            "no display: the program's command line instead of its window, or ssh -X",
        ],
        source: "https://docs.python.org/3/library/tkinter.html",
        ..BASE
    },
    Entry {
        id: "desktop-library-missing",
        severity: Warning,
        patterns: &[
            r"lib(?:GL|EGL|gthread-2\.0|glib-2\.0|SM|ICE|Xext|Xrender|X11|xcb)\.so\.\d: cannot open shared object",
        ],
        covers: &["missing-library"],
        scope: NotWindows,
        cause: "A library of the desktop is missing, which OpenCV (cv2) and the like load: servers and containers come without it. It has nothing to do with the GPU.",
        fix: &[
            "sudo apt install libgl1 libglib2.0-0 libsm6 libxext6 (Fedora: mesa-libGL glib2; Arch: libglvnd glib2)",
            "or pip install opencv-python-headless in place of opencv-python",
        ],
        source: "https://pypi.org/project/opencv-python/",
        ..BASE
    },
    Entry {
        id: "gradio-start",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)When localhost is not accessible, a shareable link must be created",
            r"PydanticImportError|pydantic\.errors\.Pydantic\w+Error",
            r#"gradio_client[\\/]utils\.py", line \d+, in (?:get_type|_json_schema_to_python_type)"#,
        ],
        cause: "Gradio, the web interface of the program, could not start: mostly the installed pydantic (or starlette, huggingface_hub) is newer than this gradio, sometimes a proxy hides localhost. It has nothing to do with the GPU.",
        fix: &[
            "the versions that the program's requirements name: pip install -r requirements.txt; pip install pydantic==2.10.6 for gradio before 5.23",
            "a proxy: NO_PROXY=localhost,127.0.0.1",
        ],
        ask: &["pip list | grep -iE 'gradio|pydantic|starlette|hub'"],
        source: "https://github.com/gradio-app/gradio/issues/10649",
        ..BASE
    },
    Entry {
        id: "wandb-login",
        severity: Warning,
        patterns: &[
            r"(?i)\bwandb\b.{0,60}api_key not configured|wandb: ERROR .{0,40}(?:API key|not logged in)",
        ],
        cause: "The run is to be logged at Weights & Biases, and there is no key for it.",
        fix: &["wandb login, or without it: report_to=\"none\" (WANDB_MODE=disabled)"],
        source: "https://docs.wandb.ai/ref/cli/wandb-login/",
        ..BASE
    },
    Entry {
        id: "optional-package-missing",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)requires the [\w -]{1,40} library but it was not found in your environment",
            r"(?i)(?:ImportError|RuntimeError|PackageNotFoundError|Exception): .*\b(?:pip3? install|[Pp]lease install|is not installed|(?:is|are) not available in your environment)",
            r"(?i)\w+ (?:is )?(?:not installed|required).{0,30} (?:=>|please) (?:run )?.?pip install",
            r"ImportError: No (?:\w+) / \w+",
            r"(?:Import|Value|Runtime)Error: .*(?:kernels are not installed|version \(.*\) is not available|but \S+ >= [\d.]+ is not available)",
            r"(?:Import|Value)Error: You need to install `",
            r"(?i)importlib\.metadata\.PackageNotFoundError: |No package metadata was found for",
        ],
        covers: &["python-package-missing"],
        cause: "The settings or the model ask for a package that is not installed in the environment that runs, or that is too old: the line names it. It has nothing to do with the GPU, unless it is a package with code for one.",
        fix: &[
            "pip install the package of the line in the environment of the program (where it is optional: another setting, such as another optimizer, attention or logger)",
            "look afterwards whether torch is still the ROCm build: python -c \"import torch; print(torch.version.hip)\"",
        ],
        ask: &["which python; pip list"],
        source: "https://packaging.python.org/en/latest/tutorials/installing-packages/",
        ..BASE
    },
    Entry {
        id: "name-not-in-package",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?:Error\b|[Ee]rror running|[Ff]ailed).*: cannot import name '\w+' from (?:partially initialized module )?'",
            r"AttributeError: (?:partially initialized )?module '[\w.]+' has no attribute '",
        ],
        cause: "A package does not have a name that another one takes from it: the two are of different versions, only a part of one is installed, or a file of one's own has the name of the package (a circular import). It has nothing to do with the GPU.",
        fix: &[
            "install the versions that the program's requirements name, in a fresh environment; the line shows which package it is",
            "no file or folder of that name beside the script (torch.py, random.py)",
        ],
        ask: &["pip list"],
        source: "https://pip.pypa.io/en/stable/topics/dependency-resolution/",
        ..BASE
    },
    Entry {
        id: "command-not-found",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r#"(?i)["'][\w.-]+["'] is not recognized as an internal or external command"#,
            r"(?i)The term '[^']+' is not recognized as (?:the name of|a name of) a cmdlet",
            r"(?i)^(?:\S+: )?(?:line \d+: )?[\w.-]+: command not found|command not found: \w",
        ],
        cause: "A command was not found: its program is not installed in the environment that is active, that environment is not active, or the folder of its commands is not on the PATH.",
        fix: &[
            "activate the environment (venv, conda) of the program in this terminal, then install it there again",
            "python -m <the package> … does without the PATH, where the package allows it",
        ],
        ask: &[
            "Linux, WSL: which -a python; echo $PATH",
            "Windows: where python",
        ],
        source: "https://docs.python.org/3/library/venv.html",
        ..BASE
    },
    Entry {
        id: "name-not-in-object",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[r"AttributeError: '(?:[A-MO-Za-z]\w+)' object has no attribute '"],
        also: &[
            r"(?:site|dist)-packages[\\/](?:transformers|diffusers|accelerate|peft|trl|unsloth\w*|torchao|optimum|bitsandbytes|xformers|flash_attn|liger_kernel|datasets)\b",
        ],
        cause: "An object of one package does not have what another asks of it: mostly transformers, diffusers, accelerate, peft, trl or an extension of them are of different ages. It has nothing to do with the GPU.",
        fix: &[
            "install the versions that the program's requirements name, in a fresh environment; the traceback shows which two packages meet",
            "look afterwards whether torch is still the ROCm build: python -c \"import torch; print(torch.version.hip)\"",
        ],
        ask: &["pip list | grep -iE 'torch|transformers|diffusers|accelerate|peft|trl'"],
        source: "https://pip.pypa.io/en/stable/topics/dependency-resolution/",
        ..BASE
    },
    Entry {
        id: "rocm-torch-replaced",
        patterns: &[
            r"(?i)Package (?:wrong version|version mismatch): torch \S+\+rocm\S* required \S+\+cu",
        ],
        covers: &["package-versions-differ"],
        cause: "The start script of the program compares torch with its list of requirements, which asks for the CUDA build (+cu), and replaces the ROCm build that works by it. The CUDA build does not run on an AMD GPU.",
        fix: &[
            "start without the check of the requirements, where the program has an option for it (kohya_ss: --noverify; SD.Next: --skip-requirements), or take its list of requirements for ROCm",
            "then put the ROCm build back:",
            "{install}",
        ],
        source: "https://github.com/bmaltais/kohya_ss/issues/2228",
        ..BASE
    },
    Entry {
        id: "rocm-torch-uninstalled",
        confidence: Medium,
        patterns: &[r"Uninstalling torch-\S+\+rocm"],
        also: &[r"(?i)(?:Successfully installed|Installing collected packages:) .*nvidia-cu"],
        cause: "pip took the ROCm build of torch away and installed the one for CUDA in its place (with the nvidia packages): a requirement asked for another version, and PyPI has only the CUDA build. It does not run on an AMD GPU.",
        fix: &[
            "put the ROCm build back, and take the nvidia packages away:",
            "{install}",
            "next time: pip install --no-deps <package>, or a constraints file with the torch that is installed",
        ],
        ask: &["pip list | grep -iE 'torch|nvidia|rocm'"],
        source: "https://pip.pypa.io/en/stable/user_guide/#constraints-files",
        ..BASE
    },
];
