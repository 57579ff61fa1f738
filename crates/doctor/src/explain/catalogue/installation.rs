//! Installing packages: disks, indexes, Python versions, packages that do not belong together.

use super::Scope::BareMetal;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "amdgpu-module-missing",
        patterns: &[r"(?i)Module amdgpu not found in directory"],
        scope: BareMetal,
        cause: "This kernel{kernel} has no amdgpu driver on disk: kernels for clouds and virtual machines come without it, and Ubuntu has it in a package of its own; or the running kernel is not the installed one.",
        fix: &[
            "Ubuntu: sudo apt install linux-modules-extra-$(uname -r), then sudo modprobe amdgpu",
            "a generic kernel instead of a cloud one; after an update of the kernel: restart",
        ],
        ask: &["uname -r; ls /lib/modules", "dkms status"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "disk-full",
        patterns: &[
            r"(?i)No space left on device|\[Errno 28\]|\bENOSPC\b",
            r"(?i)There is not enough space on the disk|\[?WinError 112\]?",
            r"(?i)Not enough disk space\. Needed|disk quota exceeded|\[Errno 122\]",
        ],
        cause: "The disk is full, or the one that holds temporary files (/tmp, often a small one in RAM), caches or the home folder: pip unpacks gigabytes there before it installs.",
        fix: &[
            "df -h tells which; free space there: pip cache purge, docker system prune, caches of models in ~/.cache",
            "TMPDIR=<folder on a large disk> pip install --no-cache-dir … (models: HF_HOME=<folder>)",
        ],
        ask: &["df -h / /tmp ~ /dev/shm; df -i /"],
        source: "https://github.com/vllm-project/vllm/issues/7025",
        ..BASE
    },
    Entry {
        id: "externally-managed",
        patterns: &[r"(?i)externally-managed-environment"],
        cause: "This Python belongs to the distribution, which does not let pip change it.",
        fix: &["python3 -m venv ~/venv && source ~/venv/bin/activate, then pip install in there"],
        source: "https://peps.python.org/pep-0668/",
        ..BASE
    },
    Entry {
        id: "pip-download-broken",
        confidence: Medium,
        patterns: &[
            r"(?i)THESE PACKAGES DO NOT MATCH THE HASHES",
            r"(?i)pip.*(?:ReadTimeoutError|Read timed out|IncompleteRead)|ReadTimeoutError: HTTPSConnectionPool",
            r"(?i)(?:download\.pytorch\.org|files\.pythonhosted\.org|repo\.radeon\.com|repo\.amd\.com).{0,160}(?:timed out|Max retries exceeded|Connection (?:reset|broken|aborted)|403|404)",
            r"(?i)CERTIFICATE_VERIFY_FAILED",
        ],
        cause: "The download failed: the connection broke, a proxy or firewall is in between, or the server has the file no more. ROCm wheels are several gigabytes, so that this happens often.",
        fix: &[
            "again, with pip install --timeout 300 --retries 10 --no-cache-dir …, or the wheel fetched with a program that resumes (wget -c), then pip install <file>",
            "a 404: a version that the index still lists",
        ],
        source: "https://pip.pypa.io/en/stable/topics/https-certificates/",
        ..BASE
    },
    Entry {
        id: "pip-conflict",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)ResolutionImpossible|these package versions have conflicting dependencies",
            r"(?i)No solution found when resolving dependencies|\w*(?:UnsatisfiableError|ResolvePackageNotFound)|SolverProblemError: ",
            r"(?i)pip's dependency resolver does not currently take into account",
            r"(?i)(?:requires|Requires-Python|requires a different Python).{0,60}(?:but you have|not in '|>=?3\.\d+)",
        ],
        cause: "Packages ask for versions of each other, or of Python, that do not go together: often a requirement pins torch (of CUDA), or the Python is newer than the packages.",
        fix: &[
            "a fresh environment with Python 3.12; first torch from its ROCm index, then the rest, without the lines of the requirements that name torch, xformers or nvidia",
            "pip install --no-deps for a package that would replace torch",
        ],
        ask: &["python --version; pip list | grep -iE 'torch|nvidia|rocm'"],
        source: "https://pip.pypa.io/en/stable/topics/dependency-resolution/",
        ..BASE
    },
    Entry {
        id: "wheel-build-failed",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)(?:ERROR: )?Failed building wheel for \S+",
            r"(?i)can't find Rust compiler|is newer than PyO3's maximum supported version|ERROR: Unknown compiler\(s\): ",
            r"(?i)metadata-generation-failed|subprocess-exited-with-error",
            r"(?i)Could not build wheels for \S+|Failed to build installable wheels",
            r"(?i)Microsoft Visual C\+\+ 14\.\d or greater is required",
        ],
        unless: &[r"(?i)flash[-_]attn|CUDA_HOME|nvcc"],
        cause: "pip found no ready wheel of the package for this Python and platform and tried to build it, which failed: a compiler or headers are missing, or the Python is newer than the package.",
        fix: &[
            "Python 3.12 (3.10 for old packages), for which wheels exist",
            "Linux, WSL: sudo apt install build-essential python3-dev cmake ninja-build; Windows: Build Tools for Visual Studio with the C++ workload",
            "the first `error:` above names what is missing",
        ],
        ask: &["python --version; pip --version"],
        source: "https://packaging.python.org/en/latest/discussions/package-formats/",
        ..BASE
    },
    Entry {
        id: "package-versions-differ",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)ImportError: cannot import name '\w+' from '(?:sgl_kernel|gradio|gradio_client|pydantic|aiter|vllm)\b|allow_fp16_accumulation is not available in this version of torch",
            r"(?i)module '(?:transformers|diffusers|gradio|peft|accelerate|huggingface_hub)(?:\.\w+)*' has no attribute '\w+'",
            r"(?i)'FieldInfo' object has no attribute 'in_'|unexpected keyword argument 'socket_options'|No module named 'pytorch_lightning\.utilities\.distributed'",
            r"(?i)argument of type 'bool' is not iterable",
            r"(?i)ImportError: cannot import name '\w+' from '(?:transformers|diffusers|huggingface_hub|peft|accelerate|torch|torchvision|tokenizers|safetensors|timm|trl|datasets|torchao|xformers|bitsandbytes)\b",
            r"(?i)module 'torch(?:\.\w+)*' has no attribute '\w+'",
            r"(?i)No module named '(?:torchvision\.transforms\.functional_tensor|torch\._custom_ops|torch\.\w+|transformers\.\w+|diffusers\.\w+)",
            r"(?i)[<>=!]=?\d\S* is required for a normal functioning",
            r"(?i)The version of bitsandbytes installed seems to be old",
            r"(?i)Error: .*(?:incompatible version of \w+|version is too old|please (?:upgrade|update) (?:your |the )?`?\w+`?(?: version| to\b| >=|\.| installation))",
            r"(?i)requires a minimum version of \S+ but the version found is",
        ],
        unless: &[
            r"(?i)cannot import name '\w+' from 'triton|partially initialized module 'torch|module 'torch\._C' has no attribute '_cuda",
        ],
        cause: "A package is older or newer than the program that uses it expects: a name was added or taken away between two versions. It has nothing to do with the GPU.",
        fix: &[
            "install the versions that the program's requirements name (pip install -U -r requirements.txt), and torch again from its ROCm index if that replaced it",
            "a name that torch lacks: a newer ROCm build of torch",
        ],
        ask: &["pip list | grep -iE 'torch|transformers|diffusers|accelerate|peft|hub'"],
        source: "https://pip.pypa.io/en/stable/topics/dependency-resolution/",
        ..BASE
    },
    Entry {
        id: "nvidia-tools-asked",
        severity: Warning,
        patterns: &[
            r"(?i)nvidia-smi.{0,3}:? (?:command )?not found|'nvidia-smi' is not recognized|No such file or directory: 'nvidia-smi'",
            r"(?i)NVIDIA-SMI has failed because it couldn't communicate",
            r"(?i)Failed to open libnvidia-ml\.so",
            r"(?i)NVML Shared Library Not Found|NVMLError_(?:LibraryNotFound|DriverNotLoaded)|Failed to initialize NVML|Can't initialize NVML",
        ],
        cause: "The program asks NVIDIA's tools (nvidia-smi, NVML) for the GPU; on a machine with an AMD GPU there are none, and none should be installed. It takes the GPU for one of NVIDIA, or runs on the CPU.",
        fix: &[
            "the option, image or branch of the program for AMD (ROCm), if it has one; rocm-smi and amd-smi are AMD's tools",
            "torch from its ROCm index: `torch.version.hip` must not be None",
        ],
        ask: &["python -c 'import torch; print(torch.__version__, torch.version.hip)'"],
        source: "https://rocm.docs.amd.com/projects/amdsmi/en/latest/",
        ..BASE
    },
    Entry {
        id: "half-precision-needs-gpu",
        patterns: &[
            r"(?i)(?:fp16|bf16) mixed precision requires (?:a )?(?:GPU|PyTorch|device)",
            r"(?i)Your setup doesn't support bf16/gpu",
            r"(?i)FP16 Mixed precision training with AMP .*can only be used on CUDA\b",
            r"(?i)User provided device_type of 'cuda', but CUDA is not available",
            r"(?i)not implemented for 'Half'.*cpu|slow_conv2d_cpu",
        ],
        covers: &["torch-cpu-only"],
        cause: "The program asks for half precision on a GPU, and this torch sees no GPU: it is the build for the CPU or for CUDA and not a ROCm build, or the GPU is hidden or may not be opened.",
        fix: &[
            "python -c \"import torch; print(torch.__version__, torch.version.hip)\": None means the wrong wheel; install torch from the ROCm index, in this environment:",
            "{install}",
            "with the right wheel: `surefoot doctor` tells what hides the GPU",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip, torch.cuda.is_available())'",
        ],
        source: "https://github.com/huggingface/accelerate/issues/1432",
        ..BASE
    },
    Entry {
        id: "bf16-unsupported",
        patterns: &[
            r"(?i)bfloat16 is (?:only|not) supported (?:on|by) (?:GPUs with compute capability|your|this|the current)",
            r"(?i)BFloat16 is not supported on (?:your|this|current)",
            r"(?i)bf16 (?:precision )?(?:was )?requested,? but (?:AMP is )?not (?:available|supported)",
            r"(?i)(?:Device|GPU) (?:does not|doesn't) support b(?:float|f)16",
        ],
        cause: "The program refuses bfloat16 here: this GPU has no fast hardware for it (before RDNA 3 and CDNA), or torch sees no GPU at all (the build for the CPU or CUDA).",
        fix: &[
            "float16 instead (--dtype half, mixed_precision=fp16, bf16: false), or float32",
            "a GPU with bf16 (RX 7000 and newer, Instinct): python -c \"import torch; print(torch.version.hip, torch.cuda.is_available())\" must print a version and True",
        ],
        source: "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        ..BASE
    },
    Entry {
        id: "sage-attention",
        severity: Warning,
        patterns: &[
            r"(?i)Building wheel for sageattention .*error",
            r"(?i).sageattention. package must be installed first|Unsupported CUDA architecture: sm",
            r"(?i)No module named '?sageattention'?",
            r"(?i)sageattn\w*.{0,60}(?:Error|not supported|requires|failed)|Error running sage attention",
            r"(?i)sageattention.{0,80}(?:CUDA|sm_?\d+|nvcc)",
        ],
        covers: &["cuda-home-missing", "triton-missing"],
        cause: "SageAttention 2 is written for CUDA; on AMD GPUs only SageAttention 1 runs, through Triton, where it supports the chip at all.",
        fix: &[
            "without it: --use-pytorch-cross-attention (ComfyUI), or sdpa",
            "pip install sageattention==1.0.6 with a working Triton",
        ],
        source: "https://github.com/thu-ml/SageAttention/issues/68",
        ..BASE
    },
    Entry {
        id: "watchdog-timeout",
        confidence: Medium,
        patterns: &[
            r"(?i)Watchdog caught collective operation timeout",
            r"(?i)ProcessGroup(?:NCCL|Gloo).{0,120}(?:timed? ?out|timeout)",
        ],
        covers: &["rccl-error", "distributed-timeout"],
        cause: "The GPUs waited for each other too long: one process was busy (saving, preparing data), had died, or peer access between the GPUs hangs.",
        fix: &[
            "look for an error of another rank before this one",
            "NCCL_P2P_DISABLE=1 tells whether peer access hangs",
            "Linux: iommu=pt on the kernel command line fixes peer access",
            "a longer timeout (init_process_group(timeout=…)) where one rank works alone",
        ],
        ask: &[
            "NCCL_DEBUG=INFO <your program> 2>&1 | grep -i -E 'warn|error'",
            "Linux: cat /proc/cmdline",
        ],
        source: "https://docs.pytorch.org/docs/stable/distributed.html",
        ..BASE
    },
    Entry {
        id: "hub-unreachable",
        severity: Warning,
        patterns: &[
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|offline mode is enabled",
            r"(?i)curl_easy_perform\(\) failed: (?:SSL|Could|Timeout)|Could not resolve host: (?:huggingface|github|registry|cdn)",
            r"(?i)HTTPSConnectionPool\(host='(?:\w+\.)?huggingface\.co'|We couldn't connect to 'https://huggingface\.co'",
        ],
        cause: "The Hugging Face hub (or the host that the line names) cannot be reached from here, and the file is not in the cache: no network, certificates that are missing, a proxy or firewall, or offline mode (HF_HUB_OFFLINE). It has nothing to do with the GPU.",
        fix: &[
            "download the model where there is a network (hf download <name>), and name its folder instead",
            "HF_HUB_OFFLINE=1 only where the cache already has the files; HF_ENDPOINT for a mirror",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
        ..BASE
    },
    Entry {
        id: "architecture-not-reported",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"has no attribute 'gcnArchName'"],
        covers: &["package-versions-differ"],
        cause: "The program asks torch for the AMD architecture of the GPU, and this torch does not tell it: it is a build for CUDA or the CPU, or older than 2.3.",
        fix: &["{install}"],
        ask: &["python -c \"import torch; print(torch.__version__, torch.version.hip)\""],
        source: "https://github.com/pytorch/pytorch/pull/107477",
        ..BASE
    },
    Entry {
        id: "host-compiler-missing",
        severity: Warning,
        patterns: &[
            r"(?i)error: command '\S*(?:gcc|g\+\+|cc|c\+\+|clang\+*)(?:-\d+)?' failed: No such file",
            r"(?i)unable to execute '?\S*(?:gcc|g\+\+|cc|clang\+*)'?: No such file",
            r"(?i)\b(?:gcc|g\+\+|make|cmake|ninja): (?:command )?not found",
            r"(?i)Ninja is required to load C\+\+ extensions",
        ],
        covers: &["extension-build-failed", "wheel-build-failed"],
        cause: "A package is built from its sources, and the compiler or build tool that the line names is not installed. It has nothing to do with the GPU.",
        fix: &[
            "Linux, WSL: sudo apt install build-essential python3-dev cmake ninja-build (Fedora: gcc-c++ python3-devel cmake ninja-build; Arch: base-devel cmake ninja)",
            "or a version of the package with a ready wheel for this Python",
        ],
        source: "https://packaging.python.org/en/latest/discussions/package-formats/",
        ..BASE
    },
    Entry {
        id: "types-differ",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)expected scalar type \w+ but found \w+|to have one of the following scalar types: ",
            r"(?i)result type \w+ can't be cast to the desired output type|mixed dtype \(CPU\): expect|Got unsupported ScalarType BFloat16",
            r"(?i)Input type \([\w:. ]+\) and (?:bias|weight) type \([\w:. ]+\) should be the same",
            r"(?i)(?:m1 and m2|mat1 and mat2|mat1 and mat3|self and \w+) (?:to|must|should) have the same dtype|Found dtype \w+ but expected \w+",
            r"(?i)Expected attn_mask dtype to be bool or float or to match",
            r"(?i)(?:query|key|value)\S* .{0,40}should (?:all )?have the same dtype|Expected (?:query, key, and value|both) to have the same dtype",
        ],
        cause: "Two parts of the model are in different precisions, such as weights in half and inputs in float: an error of the program or its settings, not of the GPU.",
        fix: &[
            "one precision for all parts (--force-fp32 or fp16 in the settings; mixed_precision of accelerate), or autocast around the call",
            "a newer version of the program or node",
        ],
        source: "https://docs.pytorch.org/docs/stable/amp.html",
        ..BASE
    },
    Entry {
        id: "shapes-differ",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)mat1 and mat2 shapes cannot be multiplied",
            r"(?i)\bshape '\[[-\d, ]+\]' is invalid for input of size|Expected \dD \(.{0,40}input to conv",
            r"(?i)The expanded size of the tensor \(\d+\) must match the existing size",
            r"(?i)Sizes of tensors must match except in dimension \d",
            r"(?i)The size of tensor a \(\d+\) must match the size of tensor b",
            r"(?i)Given groups=\d+, weight of size \[[\d, ]+\], expected input",
            r"(?i)size mismatch for \S+: copying a param",
        ],
        cause: "Two parts do not belong together: a LoRA, text encoder, VAE or checkpoint of another model family. It has nothing to do with the GPU.",
        fix: &[
            "take the files that belong to this model, or choose the right architecture in the settings",
        ],
        source: "https://github.com/comfyanonymous/ComfyUI/discussions",
        ..BASE
    },
    Entry {
        id: "program-not-gpu",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)does not require grad and does not have a grad_fn",
            r"(?i)Trying to backward through the graph a second time",
            r"(?i)one of the variables needed for gradient computation has been modified by an inplace operation",
            r"(?i)Cannot copy out of meta tensor",
            r"(?i)a view of a leaf Variable that requires grad is being used in an in-?place operation",
            r"(?i)Expected to have finished reduction in the prior iteration",
            r"(?i)loaded state dict contains a parameter group that doesn't match",
            r"(?i)cannot perform fine-tuning on purely quantized models|can't train a model that has been loaded in 8-bit or 4-bit precision",
            r"(?i)Error\(s\) in loading state_dict for \w+",
            r"(?i)Boolean value of Tensor with more than one value is ambiguous",
            r"(?i)Attempting to unscale FP16 gradients",
            r"(?i)Target modules .* not found in the base model",
            r"(?i)Weights only load failed|WeightsUnpickler error",
            r"(?i)num_samples should be a positive integer value|No (?:data|images?) found\W|has no images",
            r"(?i)Expected to mark a variable ready only once|Your training graph has changed in this iteration",
            r"(?i)grad can be implicitly created only for scalar outputs",
            r"(?i)unscale_\(\) has already been called|No inf checks were recorded for this optimizer",
            r"(?i)view size is not compatible with input tensor's size|Inference tensors cannot be saved for backward",
            r"(?i)Expected more than 1 value per channel when training|requires all the params to be floating point Tensors of supported devices",
            r"(?i)Recomputed values for the following tensors have different metadata",
            r"(?i)Must flatten tensors with uniform|Could not find the transformer layer class",
            r"(?i)Asking to pad but the tokenizer does not have a padding token",
            r"(?i)requires the save and eval strategy to match",
            r"(?i)Cannot swap more than \d+ blocks|cannot be trained with caching",
            r"(?i)Target module .* is not supported\. Currently, only",
        ],
        cause: "An error of the program, its settings or its data, not of the GPU: the step has nothing to compute gradients for, works on weights that were not loaded or are in the wrong precision, refuses an old checkpoint, or found no data.",
        fix: &[
            "the traceback names the place: look at that setting, path or file",
            "FP16 gradients: train weights in fp32 with mixed precision; a checkpoint that is refused: safetensors",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/autograd.html",
        ..BASE
    },
    Entry {
        id: "repository-gated",
        severity: Warning,
        patterns: &[
            r"(?i)error from HF API, response code: 40[13]",
            r"(?i)You are trying to access a gated repo",
            r"(?i)LocalTokenNotFoundError|Token is required .*but no token found",
            r"(?i)GatedRepoError|Access to model \S+ is restricted|Cannot access gated repo",
            r"(?i)40[13] (?:Client Error: )?(?:Unauthorized|Forbidden) for url: https://huggingface\.co",
            r"(?i)(?:access|trying to access) (?:a|to public) gated repo",
            r"(?i)RepositoryNotFoundError|is not a local folder and is not a valid model identifier",
        ],
        cause: "The model on the Hugging Face hub may not be read: its licence has to be accepted and a token given, or its name is wrong. It has nothing to do with the GPU.",
        fix: &["accept the licence on the model's page, then hf auth login (HF_TOKEN)"],
        source: "https://huggingface.co/docs/hub/models-gated",
        ..BASE
    },
];
