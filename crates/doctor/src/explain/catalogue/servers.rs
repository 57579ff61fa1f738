//! Servers of language models other than ollama and vLLM: Text Generation Inference, SGLang, whisper.cpp, LM Studio.

use super::Scope::NotWindows;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "server-shared-memory",
        patterns: &[
            r"(?i)signaled to shutdown with signal (?:7\b|SIGBUS)",
            r"(?i)Bus error.{0,80}(?:shared memory|shm)",
            r"(?i)unable to (?:mmap|write|open) .{0,80}shared memory|It is possible that dataloader's workers are out of shared memory",
            r"(?i)(?:NCCL|RCCL) WARN .{0,120}(?:/dev/shm|posix_fallocate)",
        ],
        covers: &["server-shard-failed"],
        cause: "The processes of a program share memory in /dev/shm, and there is too little of it: a container gets 64 MB.",
        fix: &[
            "docker run --shm-size 8g …, or --ipc=host; Kubernetes: an emptyDir with medium Memory, mounted at /dev/shm",
            "fewer processes: num_workers=0, one shard",
        ],
        ask: &["Linux, WSL: df -h /dev/shm"],
        source: "https://github.com/IBM/text-generation-inference/pull/34",
        ..BASE
    },
    Entry {
        id: "server-out-of-ram",
        confidence: Medium,
        patterns: &[
            r"(?i)killed due to (?:memory pressure|the node running low on memory)",
            r"(?i)signaled to shutdown with signal 9\b",
        ],
        covers: &["server-shard-failed"],
        cause: "The process that holds the model was killed (signal 9), mostly by the kernel because RAM ran out while the weights were loaded, or by the memory limit of its container.",
        fix: &[
            "more RAM or swap, a higher limit of the container (resources.limits.memory, --memory)",
            "a smaller model, a quantised one, or fewer shards at once",
        ],
        ask: &["Linux: dmesg | grep -iE 'oom|killed process' | tail -n 5; free -h"],
        source: "https://docs.kernel.org/admin-guide/mm/concepts.html",
        ..BASE
    },
    Entry {
        id: "tgi-no-flash-attention",
        confidence: Medium,
        patterns: &[
            r"(?i)Could not import Flash Attention enabled models",
            r"(?i)Sharded \w+ requires Flash Attention enabled models",
            r"(?i)No module named 'vllm_cache_ops'|install flash attention v2 with `cd server",
        ],
        covers: &["server-shard-failed", "flash-attention-for-cuda"],
        cause: "This Text Generation Inference has no flash or paged attention for the GPU: its kernels (flash attention, those from vLLM) were not built or cannot be loaded, or are not made for this card. On AMD they are for Instinct MI200 and MI300; sharding over several GPUs needs them.",
        fix: &[
            "the image that has the kernels built: ghcr.io/huggingface/text-generation-inference:<version>-rocm on an Instinct card, and a newer version of it",
            "installed from source: cd server && make install-flash-attention-v2-rocm install-vllm-rocm, in the environment that runs the server",
            "a consumer card: one GPU without --num-shard, or another server (vLLM, llama.cpp)",
        ],
        ask: &[
            "the first `WARN` of text_generation_launcher, which names the module that is missing",
        ],
        source: "https://github.com/huggingface/text-generation-inference/issues/663",
        ..BASE
    },
    Entry {
        id: "server-shard-failed",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"\bShardCannotStart\b|\bShardFailed\b",
            r"(?i)text_generation_launcher: (?:Shard \d+ failed to start|Shard complete standard error output)",
            r"(?i)(?:sglang|scheduler).{0,80}Rank \d+ scheduler (?:died|is dead)|Received sigquit from a child process",
        ],
        cause: "A process of the server (the shard or scheduler, which holds the model) ended before it was ready. These lines only say so: the first error or traceback of that process, above them, is the cause.",
        fix: &[
            "look above for `Shard complete standard error output` or the first `Traceback`; its last line names the cause",
            "on an AMD GPU: the image for ROCm (TGI: the tag that ends with -rocm); consumer cards are often not among its GPUs",
            "Linux: container: --device /dev/kfd --device /dev/dri",
            "one GPU, without sharding, tells whether it is the connection between GPUs",
        ],
        ask: &["the log from the first `ERROR` on"],
        source: "https://huggingface.co/docs/text-generation-inference/installation_amd",
        ..BASE
    },
    Entry {
        id: "sglang-architecture",
        patterns: &[
            r"(?i)Could not load any common_ops library",
            r"(?i)Unsupported GPU architecture detected '?gfx\w+",
            r"(?i)sgl[-_]kernel.{0,80}(?:unsupported|not supported|only supports).{0,40}gfx",
            r"(?i)sgl-kernel is not available on Non-NV platforms",
        ],
        scope: NotWindows,
        cause: "The kernels of SGLang (sgl-kernel) are built for the architectures of Instinct cards alone (gfx942, gfx950), and {gpu} is not among those that this version accepts.",
        fix: &[
            "add <gfx> to the list of architectures in sgl-kernel/setup_rocm.py and build it (AMDGPU_TARGET=<gfx>); a newer SGLang supports consumer cards",
            "without its kernels and AITER: --attention-backend triton, SGLANG_USE_AITER=0",
            "or another server: vLLM or llama.cpp",
        ],
        source: "https://github.com/sgl-project/sglang/issues/27519",
        ..BASE
    },
    Entry {
        id: "ggml-runtime-call",
        confidence: Medium,
        patterns: &[r"GGML_ASSERT\(.{0,60}(?:cudaSuccess|hipSuccess)"],
        covers: &[
            "program-check-failed",
            "runner-crash",
            "segmentation-fault",
            "native-abort",
        ],
        cause: "A call of the HIP runtime failed inside of llama.cpp (ggml). Mostly the runtime, which on Windows comes with the graphics driver, is older than this build expects, or a graph of kernels could not be made.",
        fix: &[
            "Windows: a newer graphics driver (Adrenalin)",
            "Linux: a newer ROCm and kernel driver, of the age of the program",
            "GGML_CUDA_DISABLE_GRAPHS=1, where graphs are the reason",
            "the Vulkan backend (OLLAMA_VULKAN=1), a newer version of the program",
        ],
        ask: &["the 20 lines above the assertion"],
        source: "https://github.com/ollama/ollama/issues/11421",
        ..BASE
    },
    Entry {
        id: "ggml-without-gpu",
        confidence: Medium,
        patterns: &[
            r"(?i)load_backend: failed to load \S*ggml-(?:hip|vulkan|cuda)",
            r"(?i)no backends are loaded\. hint: use ggml_backend_load",
            r"(?i)whisper_backend_init_gpu: no GPU found",
            r"(?i)no usable GPU found, --(?:gpu-layers|n-gpu-layers) option will be ignored",
            r"(?i)not compiled with GPU offload support, --(?:gpu-layers|n-gpu-layers) option will be ignored",
        ],
        severity: Warning,
        cause: "This build of llama.cpp or whisper.cpp has no backend for a GPU that it could use: it was built without HIP or Vulkan (an option with an old name is ignored without a word: GGML_HIPBLAS, LLAMA_HIPBLAS and WHISPER_HIPBLAS are now GGML_HIP), or the backend's library beside it could not be loaded. It runs on the CPU.",
        fix: &[
            "build with -DGGML_HIP=ON -DGPU_TARGETS=<gfx> (or -DGGML_VULKAN=ON) in an empty folder",
            "backends as separate libraries (GGML_BACKEND_DL): libggml-hip.so beside the program; ldd shows what it misses",
        ],
        ask: &["the lines of ggml at the start; Linux: ldd <the program> | grep -iE 'hip|vulkan'"],
        source: "https://github.com/NixOS/nixpkgs/issues/548188",
        ..BASE
    },
    Entry {
        id: "lmstudio-survey",
        confidence: Medium,
        patterns: &[
            r"(?i)GPU survey (?:software was )?unsuccessful",
            r"(?i)Error surveying hardware",
            r"(?i)Error trying to query ROCm GPUs: Failed to get memory info",
        ],
        covers: &["windows-no-hip-device", "no-hip-device"],
        cause: "LM Studio's ROCm runtime could not ask the GPU (the hardware survey): its libraries and the graphics driver do not fit together, or this version of the runtime has nothing for the card. Some driver releases broke it (Adrenalin 26.5.1).",
        fix: &[
            "another version of the ROCm runtime in LM Studio (Ctrl+Shift+R), a newer one first",
            "the Vulkan runtime, which works on every card",
            "Windows: a newer graphics driver, or the one before, where it began with an update",
        ],
        source: "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1899",
        ..BASE
    },
    Entry {
        id: "vulkan-feature-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)\bVkResult\W{0,4}(?:is )?-[678]\b|\bvk(?:Create|Enumerate)\w+ .{0,30}(?:error|failed|returned).{0,15} -[678]\b|VK_ERROR_FORMAT_NOT_SUPPORTED",
            r"(?i)ggml_vulkan: Error: Shared memory size too small",
            r"(?i)ggml_vulkan: device \S+ does not support 16-bit storage",
            r"(?i)Error(?:Extension|Feature|Layer)NotPresent|VK_ERROR_(?:EXTENSION|FEATURE|LAYER)_NOT_PRESENT",
        ],
        cause: "The Vulkan driver lacks an extension or feature that the program asks for: the driver is old, or it is another one than meant (a software renderer, AMDVLK in place of RADV).",
        fix: &[
            "Linux: a newer Mesa (RADV), and AMDVLK removed",
            "Windows: a newer Adrenalin driver",
            "an older version of the program",
        ],
        ask: &["vulkaninfo --summary"],
        source: "https://docs.vulkan.org/guide/latest/loader.html",
        ..BASE
    },
];
