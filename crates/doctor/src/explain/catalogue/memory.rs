//! Memory errors without numbers (those with numbers are in `oom.rs`).

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "hip-malloc-async",
        confidence: Medium,
        patterns: &[
            r"hipMalloc(?:Async|FromPoolAsync)\b.*(?i:out ?of ?memory|error|fault|fail|not supported)",
            r"(?i)(?:error|fail|out ?of ?memory).*hipMalloc(?:Async|FromPoolAsync)\b",
        ],
        covers: &[
            "out-of-memory",
            "segmentation-fault",
            "stream-create-out-of-memory",
            "program-out-of-memory",
        ],
        cause: "hipMallocAsync and its memory pools (stream-ordered allocation) fail although there is memory: before ROCm 7.0 by a bug of the runtime, and with ROCm 7 on a kernel driver that is older than it.",
        fix: &[
            "Linux: ROCm 7.0 or newer together with a kernel driver of its time (a newer kernel, or its amdgpu-dkms)",
            "WSL: ROCm 7.0 or newer together with the Adrenalin driver of its time on Windows",
            "Windows: ROCm 7.0 or newer together with the Adrenalin driver of its time",
            "or without it: allocate with hipMalloc (Kokkos_ENABLE_IMPL_HIP_MALLOC_ASYNC=OFF, no backend:cudaMallocAsync, JULIA_AMDGPU_DISABLE_MALLOC_ASYNC)",
        ],
        ask: &[
            "uname -r",
            "Linux: modinfo -F version amdgpu; dkms status",
            "Linux, WSL: cat /opt/rocm/.info/version",
        ],
        source: "https://github.com/kokkos/kokkos/issues/8008",
        ..BASE
    },
    Entry {
        id: "ggml-out-of-memory",
        patterns: &[
            r"(?i)memory layout cannot be allocated with num_gpu",
            r"(?i)failed to allocate the compute buffer|alloc compute (?:buffer|graph) failed",
            r"(?i)(?:ROCm|CUDA) error: out of memory",
            r"(?i)(?:cuda|hip)Malloc failed: out of memory",
            r"(?i)failed to allocate (?:ROCm|CUDA|Vulkan)\d* (?:buffer|memory)",
            r"(?i)unable to allocate (?:ROCm|CUDA|Vulkan)\d* buffer",
            r"(?i)ErrorOutOfDeviceMemory",
            r"(?i)ggml_gallocr_reserve\w*: failed to allocate",
            r"(?i)failed to allocate compute (?:pp )?buffers",
            r"(?i)failed to allocate buffer for (?:the )?kv cache",
            r"(?i)(?:ROCm|CUDA) error: the resource allocation failed",
        ],
        covers: &[
            "out-of-memory",
            "vae-out-of-memory",
            "program-out-of-memory",
        ],
        cause: "Not enough memory on the GPU for the model, its context and its buffers: more layers were put on it than its free memory holds, and other programs use some of it.",
        fix: &[
            "fewer layers on the GPU (-ngl, num_gpu), or a smaller context (-c, num_ctx)",
            "a smaller quantisation; -ctk q8_0 -ctv q8_0 halves the cache",
            "close other programs on the GPU (browser, desktop effects)",
            "on an APU: `surefoot doctor` tells whether its limit can be raised",
        ],
        ask: &[
            "Linux: rocm-smi --showmeminfo vram gtt",
            "the lines of the log that name buffer sizes and free memory",
        ],
        source: "https://github.com/ollama/ollama/issues/3765",
        ..BASE
    },
    Entry {
        id: "stream-create-out-of-memory",
        patterns: &[
            r"(?i)hipStreamCreate\w*.*out of memory",
            r"(?i)failed to create (?:HIP )?stream.*out of memory",
        ],
        cause: "A stream needs host memory that the GPU can see. With a carve-out of 96 GiB hardly any is left, although the GPU has room.",
        fix: &[
            "make the carve-out (UMA frame buffer) small in the BIOS and raise ttm.pages_limit instead",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5902",
        ..BASE
    },
    Entry {
        id: "ggml-stream-refused",
        confidence: Medium,
        patterns: &[r"(?i)hipStreamCreate\w*\(&streams\[|in function stream at "],
        also: &[r"(?i)(?:ROCm|CUDA) error: out of memory"],
        covers: &[
            "ggml-out-of-memory",
            "program-check-failed",
            "runner-crash",
            "program-out-of-memory",
        ],
        cause: "The runtime could not create a stream on one of the GPUs, which needs hardly any memory of it: mostly on an integrated GPU that is visible beside the card (`current device` is its number), or with a carve-out so large that no host memory is left.",
        fix: &[
            "leave the card alone visible: HIP_VISIBLE_DEVICES=0 (or the index of the card; ROCR_VISIBLE_DEVICES on Linux)",
            "an APU alone: a small carve-out (UMA frame buffer) in the BIOS; its Vulkan backend",
        ],
        ask: &["the lines of ggml_cuda_init, which number the devices"],
        source: "https://github.com/ggml-org/llama.cpp/issues/8618",
        ..BASE
    },
    Entry {
        id: "vae-out-of-memory",
        confidence: Medium,
        patterns: &[
            r"(?i)\b(?:vae|autoencoder_?kl|first_stage_model|decode_first_stage)\b",
            r"(?i)autoencoder\w*\.py",
        ],
        also: &[r"(?i)out of memory|hipErrorOutOfMemory|unspecified launch failure"],
        cause: "The convolutions of the VAE ask MIOpen for workspaces of many gigabytes.",
        fix: &[
            "use a tiled VAE",
            "MIOPEN_FIND_MODE=FAST",
            "torch.backends.cudnn.enabled = False around the VAE",
        ],
        source: "https://github.com/comfyanonymous/ComfyUI/issues/5759",
        ..BASE
    },
    Entry {
        id: "ttm-smaller-than-gtt",
        severity: Warning,
        patterns: &[r"GTT size has been set as \d+ but TTM size has been set as \d+"],
        cause: "amdgpu.gttsize was raised and ttm.pages_limit was not: HIP can use only the smaller TTM size.",
        fix: &[
            "set ttm.pages_limit (pages of 4 KiB) on the kernel command line and remove amdgpu.gttsize",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5595",
        scope: BareMetal,
        ..BASE
    },
    Entry {
        id: "gtt-size-typo",
        severity: Warning,
        patterns: &[r"unknown parameter 'gtt_size' ignored"],
        cause: "amdgpu has no parameter `gtt_size`: the setting has no effect.",
        fix: &["remove it and set ttm.pages_limit"],
        source: "https://github.com/ROCm/ROCm/issues/5595",
        ..BASE
    },
    Entry {
        id: "killed-by-the-kernel",
        patterns: &[
            r"(?i)out of memory: killed process",
            r"(?i)oom-kill(?:er)?\b",
            r"(?i)memory cgroup out of memory",
        ],
        covers: &["killed"],
        cause: "The kernel ran out of RAM and killed the process. On an APU, GPU memory is RAM and counts: what the BIOS carves out for the GPU is gone for the system, and a large carve-out leaves it too little.",
        fix: &[
            "load checkpoints without a second copy (safetensors with mmap), fewer data loader workers; more swap",
            "APU with a large carve-out (UMA frame buffer) in the BIOS: make it small (512 MiB) and raise ttm.pages_limit instead, to at least 8 GiB below the RAM",
            "Linux, WSL: `surefoot run --alloc -- …` refuses what cannot fit before the kernel has to act",
        ],
        ask: &[
            "free -h",
            "Linux: dmesg | grep -iE 'VRAM memory ready|GTT memory ready|Killed process'",
        ],
        source: "https://docs.kernel.org/admin-guide/mm/concepts.html",
        ..BASE
    },
    Entry {
        id: "killed",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:terminated|exited): signal: killed",
            r"^\W*Killed\W*$",
            r"^\S+: line \d+: +\d+ Killed\b",
            r"^\[\d+\] +[-+]? *\d* *(?:Killed|killed)\b",
            r"(?i)process of this unit has been killed by the OOM killer|Failed with result 'oom-kill'|Main process exited, code=killed, status=9/KILL",
            r"^\w+: killed\b",
            r"^make(?:\[\d+\])?: \*\*\* .*\bError 137\b",
            r"(?i)\b(?:died with|terminated by|exited with signal:?) <?(?:Signals\.)?SIGKILL|exit(?:ed with)? code:? ?137\b|\bexitcode *: -9\b|(?i:Detected \d+ oom.kill event)",
        ],
        scope: NotWindows,
        covers: &["runner-crash"],
        cause: "The process was ended from outside (SIGKILL), which on Linux nearly always is the kernel that ran out of RAM, or the memory limit of a container. On an APU, GPU memory is RAM and counts.",
        fix: &[
            "load checkpoints without a second copy (safetensors with mmap), fewer data loader workers; close other programs; add swap",
            "APU with a large carve-out (UMA frame buffer) in the BIOS: make it small, so that the system has more RAM",
            "container: a larger --memory",
        ],
        ask: &[
            "free -h",
            "Linux: dmesg | grep -iE 'killed process|oom' | tail -n 5",
        ],
        source: "https://docs.kernel.org/admin-guide/mm/concepts.html",
        ..BASE
    },
    Entry {
        id: "host-out-of-memory",
        confidence: Medium,
        patterns: &[
            r"(?i)unable to allocate (?:Vulkan|ROCm|CUDA)_Host buffer",
            r"^\W*MemoryError\b",
            r"(?i)\[Errno 12\] Cannot allocate memory",
            r"(?i)_ArrayMemoryError|Unable to allocate [\d.]+ [KMGT]iB for an array",
            r"(?i)DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        ],
        cause: "The RAM of the host ran out, not the memory of the GPU (on an APU they are the same): loading a model in full precision or twice, many workers, or a limit of the container.",
        fix: &[
            "safetensors and low_cpu_mem_usage=True, so that weights are mapped and not copied; fewer data loader workers",
            "more swap (Windows: a larger page file); a larger limit of the container",
            "APU with a large carve-out in the BIOS: a smaller one leaves more RAM",
        ],
        ask: &["Linux, WSL: free -h; ulimit -a"],
        source: "https://docs.kernel.org/admin-guide/mm/concepts.html",
        ..BASE
    },
    Entry {
        id: "too-many-threads",
        patterns: &[
            r"(?i)pthread_create failed.{0,20}Resource temporarily unavailable|can't start new thread|fork: (?:retry: )?Resource temporarily unavailable",
        ],
        scope: NotWindows,
        cause: "The system refuses another thread or process: the limit of the user (ulimit -u) or of the container (pids) is reached, or RAM is.",
        fix: &[
            "ulimit -u unlimited; container: --pids-limit -1",
            "OMP_NUM_THREADS=<cores>; fewer data loader workers",
        ],
        ask: &["ulimit -a; ps -eLf | wc -l"],
        source: "https://man7.org/linux/man-pages/man2/getrlimit.2.html",
        ..BASE
    },
    Entry {
        id: "dataloader-worker-died",
        confidence: Medium,
        patterns: &[
            r"(?i)DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by signal: [A-AC-Z])",
        ],
        covers: &["launcher-reports", "killed", "segmentation-fault"],
        cause: "A process that prepares data died: mostly since RAM or shared memory (/dev/shm) ran out, else by an error of the data set, which it could not report.",
        fix: &[
            "num_workers=0 once: then the error itself is shown",
            "Linux, WSL: a container with --ipc=host or --shm-size=16g; fewer workers",
        ],
        ask: &["Linux, WSL: df -h /dev/shm; free -h"],
        source: "https://docs.pytorch.org/docs/stable/data.html",
        ..BASE
    },
    Entry {
        id: "shared-memory-too-small",
        patterns: &[
            r"DataLoader worker .*killed by signal: Bus error",
            r"(?i)insufficient shared memory \(shm\)",
            r"unable to (?:open|write to|allocate) shared memory",
            r"unable to write to file </torch_",
            r"(?i)Error while creating shared memory segment",
        ],
        covers: &["disk-full", "server-shared-memory"],
        cause: "Data loader workers hand batches over through /dev/shm, and ranks on one machine exchange data there (RCCL); it is too small (64 MiB in a container).",
        fix: &[
            "start the container with --ipc=host or --shm-size=16g",
            "or num_workers=0",
        ],
        source: "https://github.com/pytorch/pytorch#docker-image",
        ..BASE
    },
    Entry {
        id: "too-many-open-files",
        patterns: &[
            r"(?i)too many open files",
            r"\bEMFILE\b",
            r"received 0 items of ancdata",
        ],
        covers: &["shared-memory-too-small", "server-shared-memory"],
        cause: "The process reached its limit of open files; every handle of virtual memory and every shared tensor is one.",
        fix: &[
            "Linux, WSL: ulimit -n 65536",
            "fewer data loader workers, or torch.multiprocessing.set_sharing_strategy('file_system')",
        ],
        source: "https://pytorch.org/docs/stable/multiprocessing.html",
        ..BASE
    },
    Entry {
        id: "paging-file-too-small",
        patterns: &[r"(?i)paging file is too small", r"\[?WinError 1455\]?"],
        cause: "Windows promised more memory than RAM and paging file hold.",
        fix: &["set the paging file to 16 to 32 GB more than the largest checkpoint needs"],
        source: "https://learn.microsoft.com/windows/win32/debug/system-error-codes--1300-1699-",
        ..BASE
    },
    Entry {
        id: "wsl-no-memory",
        confidence: Medium,
        patterns: &[r"(?i)\b0 bytes free\b", r"(?i)wsl.*pool size.*\b0\b"],
        also: &[r"(?i)\bwsl|librocdxg|/dev/dxg|microsoft-standard"],
        cause: "Under WSL the pool of an APU follows the memory that .wslconfig gives to Linux.",
        fix: &[
            "update the Adrenalin driver and librocdxg",
            "raise `memory=` in .wslconfig and run `wsl --shutdown`",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6022",
        ..BASE
    },
    Entry {
        id: "expandable-segments-unsupported",
        severity: Info,
        patterns: &[r"expandable_segments not supported on this platform"],
        cause: "This torch was built without virtual memory management, so expandable_segments is ignored. Nothing is corrupted by that.",
        fix: &["remove expandable_segments from PYTORCH_ALLOC_CONF and its older names"],
        source: "https://github.com/ROCm/TheRock/issues/2844",
        ..BASE
    },
    Entry {
        id: "pinned-memory-refused",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)(?:hipHostMalloc|cudaHostAlloc|hipHostRegister|cudaHostRegister|pin(?:ned)?[_ ]memory).{0,80}(?:fail|error|out of memory|invalid|exited unexpectedly)",
        ],
        cause: "Pinning host memory was refused: too much of the RAM is pinned, or a limit (of locked memory, of a container, of the memory given to WSL) is lower than what was asked for.",
        fix: &[
            "pin_memory=False, or fewer pinned buffers (ComfyUI: --disable-pinned-memory)",
            "Linux: ulimit -l unlimited",
            "WSL: raise `memory=` in .wslconfig",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers",
        ..BASE
    },
    Entry {
        id: "out-of-memory-without-numbers",
        confidence: Medium,
        patterns: &[
            r"(?i)Failed to allocate memory for requested buffer of size",
            r"(?i)No executable batch size found, reached zero",
            r"(?i)Insufficient VRAM for model",
            r"(?i)System is out of GPU (?:and shared host )?memory|Torch GPU out-of-memory error",
            r"(?i)Allocation on device(?: \d+)?\b(?:.{0,40}would exceed allowed memory)?",
            r"(?i)Could not allocate tensor with \d+ bytes\. There is not enough GPU video memory",
            r"(?i)torch\.(?:cuda\.)?OutOfMemoryError|(?:HIP|CUDA) driver error: out of memory",
            r"(?i)RESOURCE_EXHAUSTED: Out of memory",
        ],
        unless: &[r"(?i)(?:HIP|CUDA|XPU) out of memory|hipErrorOutOfMemory|hipMallocAsync"],
        cause: "The memory of the GPU is full: model, activations and what other programs hold need more than it has.",
        fix: &[
            "a smaller batch, image or context; a tiled VAE; weights in 8 or 4 bits",
            "ComfyUI: --lowvram, or --reserve-vram 1; close other programs on the GPU",
            "gradient checkpointing and LoRA instead of all weights",
            "on an APU: `surefoot doctor` tells whether its limit can be raised",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        ..BASE
    },
    Entry {
        id: "allocator-settings",
        patterns: &[
            r"(?i)Unrecognized (?:CachingAllocator option|key '.*' in (?:Accelerator|CUDA) allocator config)",
            r"(?i)CachingAllocator option \w+ (?:too small|too large|must)",
            r"(?i)Error,? expecting .*(?:allocator|garbage_collection_threshold|max_split_size|expandable_segments)",
        ],
        cause: "torch does not understand the settings of its allocator: PYTORCH_ALLOC_CONF (PYTORCH_HIP_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF) has a word that this version does not know, or a value out of range. The GPU is not concerned.",
        fix: &[
            "unset PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF, or correct it: pairs such as garbage_collection_threshold:0.8,max_split_size_mb:512, without spaces and quotes",
        ],
        ask: &["env | grep ALLOC_CONF"],
        source: "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
        ..BASE
    },
    Entry {
        id: "program-out-of-memory",
        confidence: Medium,
        patterns: &[
            r"(?i)\b(?:HIP\w*|GPU|CUDA) ?(?:error|failure|assert)\w*\b.{0,60}\bout of memory\b",
            r"(?i)\berror\b[^'\x22]{0,20}['\x22]out of memory['\x22] ?(?:\(2\)|at \S+:\d)",
        ],
        unless: &[r"(?i)(?:HIP|CUDA|XPU) out of memory|ggml_|ROCm error: out of memory"],
        covers: &["hip-error-other", "cuda-error-other"],
        cause: "A program asked the HIP runtime for more memory than the GPU has free.",
        fix: &[
            "a smaller problem or batch; close other programs on the GPU",
            "on an APU: `surefoot doctor` tells whether its limit can be raised",
        ],
        ask: &["Linux: rocm-smi --showmeminfo vram gtt"],
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html",
        ..BASE
    },
];
