//! Lines that look like errors and stop nothing.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Info;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "amdgpu-ids-harmless",
        severity: Info,
        patterns: &[r"(?i)amdgpu\.ids['\x22]?: No such file|amdgpu\.ids (?:not found|is missing)"],
        cause: "Harmless: libdrm looks for a table of product names where AMD's driver packages put it, and it is not there. Without it the GPU is called \"AMD Radeon Graphics\"; it computes all the same.",
        fix: &[
            "Linux: nothing is needed; to be rid of the line, link the system's file to where it is looked for: sudo mkdir -p /opt/amdgpu/share/libdrm && sudo ln -s /usr/share/libdrm/amdgpu.ids /opt/amdgpu/share/libdrm/",
        ],
        source: "https://github.com/ROCm/pytorch/issues/984",
        scope: NotWindows,
        ..BASE
    },
    Entry {
        id: "drm-descriptors-harmless",
        severity: Info,
        patterns: &[
            r"os_same_file_description couldn't determine if two DRM fds",
            r"(?i)amdgpu.{0,80}\[drm\] Cannot find any crtc or sizes",
            r"(?i)amdgpu: Failed to map remapped mmio page on gpu_mem",
        ],
        cause: "Harmless for computing: a container or kernel without the call that compares file descriptors, a GPU without a monitor, or a register page that a virtual machine does not map. The GPU computes without.",
        fix: &["nothing is needed"],
        source: "https://docs.mesa3d.org/envvars.html",
        ..BASE
    },
    Entry {
        id: "xnack-harmless",
        severity: Info,
        patterns: &[
            r"(?i)xnack '(?:Off|On)' was requested for a processor that does not support it",
        ],
        cause: "Harmless: the build names XNACK for a chip that does not have it; the compiler ignores it.",
        fix: &["nothing is needed"],
        source: "https://llvm.org/docs/AMDGPUUsage.html#target-features",
        ..BASE
    },
    Entry {
        id: "flash-attention-not-built-in",
        severity: Info,
        patterns: &[
            r"(?i)Torch was not compiled with (?:flash|memory efficient) attention",
            r"(?i)Torch was not compiled with flash_attention",
        ],
        cause: "Harmless: this torch has no flash attention for {gpu}, and scaled_dot_product_attention takes a slower way that needs more memory. The results are the same.",
        fix: &[
            "Linux: TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1, with a wheel that has AOTriton for this GPU",
            "Windows: a newer ROCm wheel, with AOTriton for this GPU",
        ],
        source: "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        ..BASE
    },
    Entry {
        id: "amdgpu-arch-harmless",
        severity: Info,
        patterns: &[
            r"(?i)failed to run (?:amdgpu-arch|offload-arch|rocm_agent_enumerator)\b",
            r"(?i)\[WARNING\].{0,20}(?:amdgpu-arch|offload-arch)\S*: (?:binary )?not found",
        ],
        cause: "Harmless: a helper that names the architecture (amdgpu-arch) is not in this build of ROCm, or not on PATH; the program goes on without it. A crash beside it has another cause.",
        fix: &["nothing is needed"],
        source: "https://github.com/Comfy-Org/ComfyUI/issues/11524",
        ..BASE
    },
    Entry {
        id: "llvm-target-unknown",
        severity: Info,
        confidence: Medium,
        patterns: &[
            r"(?i)Cannot find target for triple amdgcn",
            r"(?i)Unable to find target for this triple \(no targets are registered\)",
        ],
        cause: "A program with a window (a browser, an editor) loads a Mesa or an LLVM that does not know AMD GPUs: packages of AMD's graphics driver and of the distribution are mixed. Computing does not use it.",
        fix: &[
            "Mesa and its LLVM from one origin: remove AMD's graphics packages (sudo amdgpu-install --uninstall, then --usecase=rocm --no-dkms) and reinstall the distribution's Mesa packages",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/3701",
        scope: BareMetal,
        ..BASE
    },
    Entry {
        id: "torchao-extensions-skipped",
        severity: Info,
        patterns: &[r"(?i)Skipping import of cpp extensions due to incompatible torch version"],
        cause: "Harmless: torchao has compiled kernels for another torch than this one (and none for ROCm), and goes on without them. An error after it has another cause.",
        fix: &["nothing is needed"],
        source: "https://github.com/pytorch/ao/issues/2919",
        ..BASE
    },
    Entry {
        id: "compile-remarks-harmless",
        severity: Info,
        patterns: &[
            r"(?i)torch\._dynamo hit config\.(?:recompile_limit|cache_size_limit)",
            r"(?i)Not enough SMs to use max_autotune_gemm mode",
            r"(?i)TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled",
        ],
        cause: "A remark of torch.compile about speed: it compiled a function for many shapes and no longer does, or leaves out a way of tuning that this GPU is too small for. The results are the same.",
        fix: &["optional: dynamic=True in torch.compile, or batches of one shape"],
        source: "https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
        ..BASE
    },
    Entry {
        id: "training-remarks-harmless",
        severity: Info,
        patterns: &[
            r"(?i)async_io requires the dev libaio|async_io: please install the libaio",
            r"(?i)Redirects are currently not supported in Windows",
            r"(?i)OVERFLOW! Rank \d+ Skipping step",
        ],
        cause: "Harmless: DeepSpeed can do without libaio unless it offloads to NVMe; torchrun writes no log files on Windows; and a loss scale that is lowered in the first steps of fp16 is how it is found.",
        fix: &["nothing is needed, as long as it does not go on for all steps"],
        source: "https://www.deepspeed.ai/docs/config-json/#fp16-training-options",
        ..BASE
    },
    Entry {
        id: "mxfp4-unpacked",
        severity: Info,
        patterns: &[r"(?i)MXFP4 quantization requires .*we will default to dequantizing"],
        cause: "The model is stored in 4 bits (MXFP4), and without a Triton and the package kernels that can compute with it transformers unpacks it to bf16: it runs, and needs about four times the memory.",
        fix: &[
            "not enough memory: a GGUF in llama.cpp or ollama, or a 4-bit version for bitsandbytes",
            "pip install -U kernels, with the Triton of a newer ROCm build of torch",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/quantization/mxfp4",
        ..BASE
    },
    Entry {
        id: "hub-cache-without-links",
        severity: Info,
        patterns: &[r"(?i)cache-system uses symlinks by default.*(?:does not|doesn't) support"],
        cause: "Harmless: the cache of the Hugging Face hub copies files where Windows allows no symbolic links, which costs space.",
        fix: &[
            "optional: developer mode of Windows; HF_HUB_DISABLE_SYMLINKS_WARNING=1 hides the line",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/guides/manage-cache",
        ..BASE
    },
];
