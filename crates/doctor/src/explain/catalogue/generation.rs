//! User interfaces that generate images, what they ask of the GPU, and errors of models and settings in them.

use super::Scope::{NotWindows, Windows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "no-rocm-agent",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)ROCm agent enumerator failed|ROCm: (?:unsupported )?version=None",
            r"(?i)no ROCm agents? (?:was|were) found|ROCm: no agents? (?:was |were )?found|ROCm: agents=\[\]|ROCm agents detected: \[\]",
        ],
        cause: "The program asked ROCm (the HIP SDK on Windows) for its GPUs and got none, and goes on with the CPU or another backend: the HIP SDK or driver is missing or too old, or it does not support this card (RX 400 and 500, Vega).",
        fix: &[
            "Windows: hipInfo of the HIP SDK must list the card: a current Adrenalin driver, the HIP SDK that the program asks for, and its bin folder on PATH",
            "Linux: rocminfo must list it: `surefoot doctor` tells what is missing",
            "a card without support: DirectML or Vulkan",
        ],
        ask: &["Windows: hipInfo", "Linux, WSL: rocminfo | grep gfx"],
        source: "https://github.com/CS1o/Stable-Diffusion-Info/issues/4",
        ..BASE
    },
    Entry {
        id: "attention-for-nvidia",
        patterns: &[r"(?i)cutlass[FB]\w*: no kernel found to launch"],
        cause: "PyTorch's memory-efficient attention was chosen, whose kernels in a CUDA build (cutlass) are for NVIDIA's GPUs: under ZLUDA, or on a GPU too old for them, there is none to launch.",
        fix: &[
            "another attention: sub-quadratic or split in the settings of the program (ComfyUI: --use-quad-cross-attention; web UI: --opt-sub-quad-attention)",
            "in code: torch.backends.cuda.enable_mem_efficient_sdp(False), so that the math kernel is taken",
            "AMD card: a ROCm build of torch, whose attention has kernels for it",
        ],
        source: "https://github.com/AUTOMATIC1111/stable-diffusion-webui/issues/12740",
        ..BASE
    },
    Entry {
        id: "operator-not-in-build",
        confidence: Medium,
        patterns: &[
            r"(?i)NOT_IMPLEMENTED : Could not find an implementation for",
            r"(?i)RuntimeError: Not compiled with GPU support",
            r"(?i)Could not run '[\w:.]+' with arguments from the '(?:CUDA|HIP|Sparse\w+|Quantized\w+)' backend",
        ],
        cause: "The installed build has no such operation for the GPU: torch or the extension that the name belongs to (the part before `::`) is the build for the CPU, or this operation was left out of ROCm builds.",
        fix: &[
            "python -c \"import torch; print(torch.__version__, torch.version.hip)\": None means the wrong build; install torch and what belongs to it (torchvision, torchaudio) from one ROCm index",
            "an operation of an extension: its build for ROCm, or do without it (another attention, another quantisation)",
        ],
        ask: &["pip list | grep -iE 'torch|rocm'"],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "zluda-not-starting",
        confidence: Medium,
        patterns: &[r"(?i)RuntimeError: CUDA unknown error|CUDA error: unknown error"],
        also: &[r"(?i)zluda"],
        scope: Windows,
        covers: &["torch-cuda-build", "torch-cpu-only", "hip-unknown-error"],
        cause: "The CUDA build of torch runs through ZLUDA, and ZLUDA could not start on this GPU: the HIP SDK is missing or of another version than this ZLUDA wants, its libraries have no code for the card, or the driver is too old.",
        fix: &[
            "the HIP SDK that this ZLUDA was made for, with its bin folder (%HIP_PATH%bin) on PATH; then restart",
            "a card that the HIP SDK does not list: the rocBLAS libraries for it, as the instructions of the program say",
            "a current Adrenalin driver; HIP_VISIBLE_DEVICES=<index of the card>, where an integrated GPU is visible as well",
            "without ZLUDA: AMD's ROCm build of torch for Windows, where it has code for the card",
        ],
        ask: &["hipInfo", "echo %HIP_PATH%"],
        source: "https://github.com/LykosAI/StabilityMatrix/issues/1338",
        ..BASE
    },
    Entry {
        id: "host-memory-registered",
        confidence: Medium,
        patterns: &[
            r"hipErrorHostMemory(?:Already|Not)Registered",
            r"(?i)(?:part or all of the requested memory range is already mapped|pointer does not correspond to a registered memory region)",
            r"(?i)HostBuffer\.read_file_slice failed",
        ],
        cause: "The program pins memory of the host, so that the GPU can copy from it, and the runtime refused: that range is pinned already, or as much as allowed is pinned.",
        fix: &[
            "ComfyUI: --disable-pinned-memory (and --disable-async-offload); a newer version, which handles the refusal",
            "data loaders: pin_memory=False",
            "less in RAM at once: on Windows a part of the memory only can be pinned",
        ],
        source: "https://github.com/Comfy-Org/ComfyUI/pull/14252",
        ..BASE
    },
    Entry {
        id: "model-exceeds-ram",
        confidence: Medium,
        patterns: &[
            r"(?i)mmap failed: Cannot allocate memory",
            r"(?i)unable to mmap \d+ bytes from file .*Cannot allocate memory",
            r"(?i)Cannot allocate memory \(os error 12\)",
        ],
        scope: NotWindows,
        cause: "The checkpoint is mapped into the memory of the host, and the system refused: RAM and swap, or the limit on what a process may map (overcommit, a container, ulimit -v), do not suffice. It is not the memory of the GPU.",
        fix: &[
            "more swap, or sudo sysctl vm.overcommit_memory=1; close other programs",
            "load without mmap (--disable-mmap), or one shard after the other",
            "APU with a large carve-out (UMA frame buffer) in the BIOS: make it small, so that the system has more RAM",
        ],
        ask: &["free -h; ulimit -v; sysctl vm.overcommit_memory"],
        source: "https://docs.kernel.org/mm/overcommit-accounting.html",
        ..BASE
    },
    Entry {
        id: "quantized-model-too-large",
        confidence: Medium,
        patterns: &[
            r"(?i)Some modules are dispatched on the CPU or the disk",
            r"(?i)Make sure you have enough GPU RAM to fit the quantized model",
        ],
        cause: "The quantised model does not fit into the memory of the GPU that was free, so that device_map put parts on the CPU, where 4- and 8-bit layers do not work.",
        fix: &[
            "a smaller model, or free memory on the GPU (other programs, a second copy of the model)",
            "device_map={\"\": 0} fails with out of memory instead, and says how much is missing",
            "on an APU torch may report less memory than there is: `surefoot doctor` tells the limit",
            "8 bits: llm_int8_enable_fp32_cpu_offload=True leaves parts on the CPU, slowly",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/quantization/bitsandbytes",
        ..BASE
    },
    Entry {
        id: "operation-lacks-type",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r#"(?i)["'`]\w+["'`] not implemented for ['"`](?:Int|Long|Short|Bool|Byte|Char|BFloat16|Double|Complex\w+|UInt\d+)['"`]"#,
        ],
        cause: "torch has no such operation for this data type on this device: a tensor has another type than the program expects, or it is on the CPU. It is an error of the program or its settings, not a defect of the GPU.",
        fix: &[
            "another data type in the settings (float16 or float32; labels as int64)",
            "a newer torch: support grows with each version",
        ],
        source: "https://docs.pytorch.org/docs/stable/tensor_attributes.html",
        ..BASE
    },
    Entry {
        id: "import-wrapped",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)Failed to import (?:transformers|diffusers|peft|trl)\.\S+ because of the following error",
        ],
        cause: "A package of Hugging Face reports that one of its modules could not be imported. The error behind `because of the following error` is the cause: mostly a package of another version, or one for CUDA.",
        fix: &[
            "look at the last line, and at the traceback above this one",
            "packages that it imports only if they are there (flash-attn, xformers, bitsandbytes, apex, torchao): pip uninstall those that do not fit this torch",
        ],
        ask: &["pip list | grep -iE 'torch|transformers|diffusers|flash|xformers|bitsandbytes'"],
        source: "https://huggingface.co/docs/transformers/main/en/installation",
        ..BASE
    },
    Entry {
        id: "runs-on-cpu",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)\b(?:torch device|GPU device|train device|Torch: device|Device)\W{0,2} ?[=:] ?\W?cpu\W*$",
            r"(?i)Torch: device=\W?cpu\b",
            r"(?i)\bno gpu (?:was )?(?:detected|found|available)\W.{0,40}\bCPU\b",
        ],
        cause: "The program computes on the CPU. Unless it was told to, torch sees no GPU: it is the build for the CPU or for CUDA and not a ROCm build, or the GPU is hidden or may not be opened.",
        fix: &[
            "python -c \"import torch; print(torch.__version__, torch.version.hip)\": None means the wrong build; install the ROCm build in the environment of the program:",
            "{install}",
            "with the right build: `surefoot doctor` tells what hides the GPU",
            "a setting of the program (--cpu, a device that was chosen there)",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip, torch.cuda.is_available())'",
        ],
        source: "https://github.com/CS1o/Stable-Diffusion-Info/issues/57",
        ..BASE
    },
    Entry {
        id: "device-called-hip",
        patterns: &[
            r"(?i)Could not run 'aten::[\w.]+' with arguments from the 'HIP' backend",
            r"(?i)RuntimeError: (?:Invalid device string|Expected one of cpu, cuda,.*device string): '?(?:rocm|amd|gpu)\b",
        ],
        covers: &["operator-not-in-build"],
        cause: "The program names the device `hip` (or rocm, gpu): in a ROCm build of torch an AMD GPU is called `cuda`, as all of torch.cuda serves it; the names hip and rocm are no devices there.",
        fix: &[
            "torch.device(\"cuda\"), .to(\"cuda\"), device=cuda in the settings; a second GPU is cuda:1",
            "torch.version.hip tells a ROCm build from one for CUDA",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
];
