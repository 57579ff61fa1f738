//! Wheels, packages and the Python around them.

use super::Entry;
use crate::explain::Confidence::{High, Medium};
use crate::explain::Severity::{Error, Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "torch-cpu-only",
        severity: Error,
        confidence: High,
        patterns: &[
            r"Torch not compiled with CUDA enabled",
            r"torch\.cuda\.is_available\(\)\W{1,8}False",
            r"(?i)No HIP GPUs are available",
            r"Found no NVIDIA driver on your system",
        ],
        also: &[],
        cause: "This torch cannot see an AMD GPU: it is the build for the CPU or for CUDA, or the GPU itself is hidden or not permitted.",
        fix: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip)': None means the wrong wheel",
            "`surefoot doctor` prints the command that installs the right one, or what hides the GPU",
        ],
        source: "https://github.com/ROCm/ROCm/issues/2354",
    },
    Entry {
        id: "rocm-library-mismatch",
        severity: Error,
        confidence: High,
        patterns: &[
            r"lib(?:hip|roc|amdhip|MIOpen|hsa|rccl)\w*\.so(?:\.\d+)*: cannot open shared object file",
            r"lib(?:hip|roc|amdhip|MIOpen|hsa|rccl)\w*\.so\S*: (?:version|undefined symbol)",
        ],
        also: &[],
        cause: "A library of another ROCm version is found first, or one that the wheel expects from the system is missing.",
        fix: &[
            "unset LD_LIBRARY_PATH",
            "install torch, torchvision and torchaudio from one index",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5339",
    },
    Entry {
        id: "bitsandbytes-cuda",
        severity: Error,
        confidence: High,
        patterns: &[
            r"CUDA SETUP: ",
            r"(?i)bitsandbytes.*(?:compiled without GPU support|libbitsandbytes_cpu|CUDA Setup failed)",
            r"libbitsandbytes_cuda\w*\.(?:so|dll)",
        ],
        also: &[],
        cause: "bitsandbytes is the build for CUDA or for the CPU.",
        fix: &[
            "pip install -U bitsandbytes (0.49 and newer bring ROCm builds)",
            "BNB_ROCM_VERSION=<72 for ROCm 7.2>",
            "AdamW instead of AdamW8bit",
        ],
        source: "https://huggingface.co/docs/bitsandbytes/main/en/installation",
    },
    Entry {
        id: "xformers-missing",
        severity: Error,
        confidence: High,
        patterns: &[
            r"No module named '?xformers'?",
            r"(?i)xformers.*(?:can't load C\+\+/CUDA extensions|was built for)",
        ],
        also: &[],
        cause: "The preset asks for xformers, which has no wheels for AMD consumer GPUs.",
        fix: &["use PyTorch's own attention (--sdpa)"],
        source: "https://github.com/bmaltais/kohya_ss/issues/2667",
    },
    Entry {
        id: "windows-arch-tool-missing",
        severity: Info,
        confidence: High,
        patterns: &[r"(?i)could not detect ROCm GPU architecture.*WinError 2"],
        also: &[],
        cause: "A tool calls rocminfo or hipInfo, and on Windows neither is on PATH.",
        fix: &["activate the environment whose wheel brings hipInfo.exe"],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
    },
    Entry {
        id: "bad-alloc-on-import",
        severity: Error,
        confidence: Medium,
        patterns: &[r"std::bad_alloc"],
        also: &[r"(?i)torchaudio|torchvision|import"],
        cause: "torch and torchaudio or torchvision are of different builds.",
        fix: &["install all three from one index, of one date"],
        source: "https://github.com/ostris/ai-toolkit/pull/563",
    },
    Entry {
        id: "compile-time-switch",
        severity: Info,
        confidence: High,
        patterns: &[r"(?:set|export|\$env:)\s*TORCH_USE_HIP_DSA"],
        also: &[],
        cause: "TORCH_USE_HIP_DSA is a switch of the compiler: setting it at run time does nothing.",
        fix: &["remove it"],
        source: "PyTorch, c10/cuda/CUDADeviceAssertionHost.cpp",
    },
    Entry {
        id: "triton-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)No module named '?triton'?",
            r"(?i)cannot find a working triton installation",
        ],
        also: &[],
        cause: "torch.compile and some kernels need the triton that belongs to this torch.",
        fix: &[
            "reinstall torch from its ROCm index, which brings its triton",
            "or run without torch.compile",
        ],
        source: "https://github.com/ROCm/TheRock/blob/main/RELEASES.md",
    },
    Entry {
        id: "import-error-torch",
        severity: Error,
        confidence: Medium,
        patterns: &[r"No module named '?torch'?\s*$"],
        also: &[],
        cause: "There is no torch in the Python that ran.",
        fix: &["activate the right environment; `surefoot doctor` names the one it found"],
        source: "https://pytorch.org/get-started/locally/",
    },
];
