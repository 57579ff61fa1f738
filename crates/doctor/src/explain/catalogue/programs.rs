//! llama.cpp, ollama, vLLM and their kin.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "launcher-no-agent",
        confidence: Medium,
        patterns: &[r"(?i)\bROCm: no agents? (?:was|were) found|\bROCm agents detected: \[\]"],
        covers: &["launcher-reports", "no-rocm-agent"],
        cause: "The launcher asked ROCm for its GPUs, and ROCm found none: on Windows the HIP SDK does not support the card, or its driver is too old; on Linux the driver is not loaded or may not be opened.",
        fix: &[
            "Windows: hipInfo of the HIP SDK must list the card; a current Adrenalin driver, and an SDK whose table of GPUs has the card",
            "Linux: rocminfo must list an agent whose name begins with gfx; `surefoot doctor` tells what keeps it away",
            "then start again with --reinstall, so that the launcher chooses torch anew",
        ],
        ask: &["the lines of the log from the start on", "hipInfo"],
        source: "https://github.com/vladmandic/sdnext/issues/3307",
        ..BASE
    },
    Entry {
        id: "override-quoted",
        patterns: &[
            r#"HSA_OVERRIDE_GFX_VERSION="?\\"|HSA_OVERRIDE_GFX_VERSION=["']?(?:gfx|\\?["'])"#,
        ],
        covers: &[
            "no-hip-device",
            "windows-no-hip-device",
            "wsl-gpu-not-usable",
        ],
        unless: &[r#"HSA_OVERRIDE_GFX_VERSION=['"]\d+\.\d+\.\d+['"]"#],
        cause: "The value of the override contains quotes or a name: HSA_OVERRIDE_GFX_VERSION must be three numbers and nothing else, or HIP finds no device.",
        fix: &[
            "write it without quotes in unit files and compose files: HSA_OVERRIDE_GFX_VERSION=11.0.2 (a chip that the program has code for; 11.0.3 is in no build)",
            "Linux: container: pass /dev/kfd and /dev/dri",
        ],
        scope: NotWindows,
        source: "https://github.com/ollama/ollama/issues/4358",
        ..BASE
    },
    Entry {
        id: "ollama-rocm-missing",
        patterns: &[
            r"amdgpu is not supported \(supported types:\[\]\)",
            r"supported_types=\[\]",
        ],
        covers: &["ollama-unsupported-gpu"],
        cause: "ollama's ROCm libraries are missing: the list of supported types is empty, so that no GPU is supported, whichever it is ({gpu} here). HSA_OVERRIDE_GFX_VERSION changes nothing on Windows.",
        fix: &[
            "reinstall ollama with its ROCm package (Linux: ollama-linux-amd64-rocm.tgz beside the other), so that lib/ollama/rocm holds rocblas and its library folder",
            "a card that it does not support: ollama-for-amd with the libraries for <gfx>, or the Vulkan backend (OLLAMA_VULKAN=1)",
        ],
        ask: &["the list of files in lib/ollama/rocm", "ollama --version"],
        source: "https://github.com/ByronLeeeee/Ollama-For-AMD-Installer/issues/12",
        ..BASE
    },
    Entry {
        id: "ollama-discovery-failed",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)failure during llama-server GPU discovery|GPU discovery watchdog timed out",
            r"(?i)failure during GPU discovery",
            r"(?i)filtering device which didn't fully initialize",
        ],
        unless: &[
            r"(?i)inference compute.*(?:library=(?:ROCm|Vulkan)|compute=gfx)",
            r"(?i)library=CUDA|compute=\d+\.\d",
        ],
        cause: "ollama asks each of its libraries for GPUs in a process of its own, and the one for ROCm crashed or did not answer in time, so that ollama leaves the GPU out and uses the CPU. Mostly its ROCm libraries have no code for {gpu}, or the driver is older than they need.",
        fix: &[
            "its Vulkan backend: OLLAMA_VULKAN=1",
            "a newer ollama and driver; a GPU that newer versions no longer support (Vega): an older one",
            "Linux: HSA_OVERRIDE_GFX_VERSION={override} for the service: the code of a similar GPU runs on {gpu}",
            "OLLAMA_DEBUG=2 shows the messages of the process that failed",
        ],
        ask: &["the server's log from its start, with OLLAMA_DEBUG=2"],
        source: "https://github.com/ollama/ollama/issues/12774",
        ..BASE
    },
    Entry {
        id: "lmstudio-engine",
        patterns: &[
            r"(?i)No LM Runtime found for model format",
            r"(?i)Failed to load LLM engine from path: ",
        ],
        covers: &["windows-dll-missing", "missing-library"],
        cause: "LM Studio could not load its engine: a library (DLL) that it needs is missing or of another version, because the download is incomplete or files in it were replaced; the engine itself is usually there.",
        fix: &[
            "remove the engine in LM Studio (Ctrl+Shift+R, Runtimes) or delete its folder in .lmstudio/extensions/backends, and install it again",
            "a GPU that its ROCm engine does not support: the Vulkan engine",
            "Windows: a newer Adrenalin driver, and Microsoft's Visual C++ runtime",
        ],
        source: "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/711",
        ..BASE
    },
    Entry {
        id: "ollama-not-running",
        severity: Warning,
        patterns: &[
            r"(?i)dial tcp \S+:11434: connect(?:ex)?: (?:connection refused|No connection could be made)",
            r"(?i)could not connect to (?:an? running )?ollama (?:app|server|instance)",
            r"(?i)listen tcp \S*:11434: bind: ",
        ],
        cause: "The ollama server does not run (it crashed, or was not started), or runs twice: the port 11434 belongs to one server. Whether the GPU works, its log tells.",
        fix: &[
            "start it (ollama serve, or systemctl start ollama), or end the other one, if the address is already in use",
            "Linux: its log: journalctl -u ollama --no-pager | tail -n 60",
            "Windows: its log: %LOCALAPPDATA%\\Ollama\\server.log",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/troubleshooting.mdx",
        ..BASE
    },
    Entry {
        id: "ollama-unsupported-gpu",
        patterns: &[
            r"(?i)amdgpu \[\d+\] gfx\w+ is not supported by",
            r"(?i)dropping ROCm device .*no rocblas support",
            r"(?i)amdgpu is not supported",
            r"(?i)no compatible amdgpu devices",
            r"(?i)amdgpu too old gfx\w+",
        ],
        cause: "This ollama does not support {gpu}: its ROCm libraries (rocBLAS) have no kernels for it.",
        fix: &[
            "ollama-for-amd, with the ROCm libraries (rocblas and its library folder) for <gfx>",
            "Linux: HSA_OVERRIDE_GFX_VERSION={override} for the service: the code of a similar GPU runs on {gpu}",
            "a newer ollama with its Vulkan backend (OLLAMA_VULKAN=1), which runs on every GPU",
        ],
        ask: &[
            "ollama --version",
            "the lines of the server's log with `amdgpu` and `supported`",
        ],
        source: "https://github.com/likelovewant/ollama-for-amd/issues/14",
        ..BASE
    },
    Entry {
        id: "vllm-no-device",
        patterns: &[
            r"(?i)Device string must not be empty",
            r"(?i)Failed to import from amdsmi",
            r"(?i)Failed to infer device type",
            r"(?i)No platform detected, vLLM is running on UnspecifiedPlatform",
        ],
        confidence: Medium,
        cause: "vLLM asks amd-smi (the Python package amdsmi) for the GPUs, and amdsmi is missing or does not work here (under WSL it does not), or this vLLM is not a ROCm build.",
        fix: &[
            "Linux, WSL: install amdsmi of the installed ROCm: pip install /opt/rocm/share/amd_smi",
            "a ROCm build of vLLM: its container (rocm/vllm), or build vLLM with VLLM_TARGET_DEVICE=rocm; the wheel of PyPI is for CUDA",
        ],
        ask: &[
            "python -c 'import amdsmi; amdsmi.amdsmi_init(); print(amdsmi.amdsmi_get_processor_handles())'",
            "pip list | grep -iE 'vllm|torch|amdsmi'",
        ],
        source: "https://github.com/vllm-project/vllm/issues/39378",
        ..BASE
    },
    Entry {
        id: "vllm-kernel-missing",
        confidence: Medium,
        patterns: &[
            r"'_OpNamespace' '_C_\w+' object has no attribute",
            r"'_OpNamespace' '_(?:rocm_|moe_)?C' object has no attribute",
        ],
        covers: &["vllm-engine-failed"],
        cause: "vLLM calls a kernel that its compiled extension does not have: the extension could not be loaded (built for CUDA, or for another torch or ROCm), is left from an older build of the source, or this version of vLLM calls a kernel on ROCm that is compiled for CUDA alone.",
        fix: &[
            "the container for ROCm (rocm/vllm, vllm/vllm-openai-rocm), or a clean rebuild: delete build/ and vllm/*.so first",
            "python -c \"import vllm._C\" tells whether it loads",
            "a newer vLLM (or the one before), if it loads and only this kernel is missing",
        ],
        ask: &[
            "python -c 'import torch, vllm._C'",
            "pip list | grep -iE 'vllm|torch|triton'",
        ],
        source: "https://github.com/vllm-project/vllm/issues/28501",
        ..BASE
    },
    Entry {
        id: "vllm-cuda-build",
        patterns: &[
            r"(?i)(?:vllm\._C|vllm/_C\S*|vllm\._rocm_C).*(?:No module named|undefined symbol|cannot open|cannot import)",
            r"(?i)(?:No module named|Failed to import from) .?vllm\._(?:C|rocm_C)",
        ],
        covers: &["vllm-no-device"],
        cause: "The compiled part of vLLM does not fit: it is the CUDA build, or was built for another torch or ROCm than the one installed; in the folder of its sources, Python takes those and not the package that was built.",
        fix: &[
            "the container for ROCm (rocm/vllm), where all versions belong together",
            "or build vLLM from source against the installed ROCm build of torch, with PYTORCH_ROCM_ARCH=<gfx>",
        ],
        ask: &["pip list | grep -iE 'vllm|torch|triton|amdsmi'"],
        source: "https://docs.vllm.ai/en/latest/getting_started/installation/gpu.html",
        ..BASE
    },
];
