//! Memory, as far as a message tells it without numbers (those are in `oom.rs`).

use super::Entry;
use crate::explain::Confidence::{High, Medium};
use crate::explain::Severity::{Error, Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "stream-create-out-of-memory",
        severity: Error,
        confidence: High,
        patterns: &[
            r"(?i)hipStreamCreate\w*.*out of memory",
            r"(?i)failed to create (?:HIP )?stream.*out of memory",
        ],
        also: &[],
        cause: "A stream needs host memory that the GPU can see. With a carve-out of 96 GiB hardly any is left, although the GPU has room.",
        fix: &[
            "make the carve-out (UMA frame buffer) small in the BIOS and raise ttm.pages_limit instead",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5902",
    },
    Entry {
        id: "vae-out-of-memory",
        severity: Error,
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
    },
    Entry {
        id: "ttm-smaller-than-gtt",
        severity: Warning,
        confidence: High,
        patterns: &[r"GTT size has been set as \d+ but TTM size has been set as \d+"],
        also: &[],
        cause: "amdgpu.gttsize was raised and ttm.pages_limit was not: HIP can use only the smaller TTM size.",
        fix: &[
            "set ttm.pages_limit (pages of 4 KiB) on the kernel command line and remove amdgpu.gttsize",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5595",
    },
    Entry {
        id: "gtt-size-typo",
        severity: Warning,
        confidence: High,
        patterns: &[r"unknown parameter 'gtt_size' ignored"],
        also: &[],
        cause: "amdgpu has no parameter `gtt_size`: the setting has no effect.",
        fix: &["remove it and set ttm.pages_limit"],
        source: "https://github.com/ROCm/ROCm/issues/5595",
    },
    Entry {
        id: "killed-by-the-kernel",
        severity: Error,
        confidence: High,
        patterns: &[
            r"(?i)out of memory: killed process",
            r"(?i)oom-kill(?:er)?\b",
            r"(?i)memory cgroup out of memory",
        ],
        also: &[],
        cause: "The kernel ran out of RAM and ended the process. On an APU, GPU memory is RAM and counts.",
        fix: &[
            "load checkpoints without a second copy (safetensors with mmap), fewer data loader workers",
            "add swap, or leave the host more room (ttm.pages_limit at least 8 GiB below the RAM)",
            "`surefoot run --alloc -- …` refuses what cannot fit before the kernel has to act",
        ],
        source: "https://docs.kernel.org/admin-guide/mm/concepts.html",
    },
    Entry {
        id: "shared-memory-too-small",
        severity: Error,
        confidence: High,
        patterns: &[
            r"DataLoader worker .*killed by signal: Bus error",
            r"(?i)insufficient shared memory \(shm\)",
            r"unable to (?:open|write to|allocate) shared memory",
        ],
        also: &[],
        cause: "Data loader workers hand batches over through /dev/shm, which is too small (64 MiB in a container).",
        fix: &[
            "start the container with --ipc=host or --shm-size=16g",
            "or num_workers=0",
        ],
        source: "https://github.com/pytorch/pytorch#docker-image",
    },
    Entry {
        id: "too-many-open-files",
        severity: Error,
        confidence: High,
        patterns: &[r"(?i)too many open files", r"\bEMFILE\b"],
        also: &[],
        cause: "The process reached its limit of open files; every handle of virtual memory and every shared tensor is one.",
        fix: &["ulimit -n 65536"],
        source: "https://pytorch.org/docs/stable/multiprocessing.html",
    },
    Entry {
        id: "paging-file-too-small",
        severity: Error,
        confidence: High,
        patterns: &[r"(?i)paging file is too small", r"\[?WinError 1455\]?"],
        also: &[],
        cause: "Windows promised more memory than RAM and paging file hold.",
        fix: &["set the paging file to 16 to 32 GB more than the largest checkpoint needs"],
        source: "https://learn.microsoft.com/windows/win32/debug/system-error-codes--1300-1699-",
    },
    Entry {
        id: "wsl-no-memory",
        severity: Error,
        confidence: Medium,
        patterns: &[r"(?i)\b0 bytes free\b", r"(?i)wsl.*pool size.*\b0\b"],
        also: &[r"(?i)\bwsl|librocdxg|/dev/dxg|microsoft-standard"],
        cause: "Under WSL the pool of an APU follows the memory that .wslconfig gives to Linux.",
        fix: &[
            "update the Adrenalin driver and librocdxg",
            "raise `memory=` in .wslconfig and run `wsl --shutdown`",
        ],
        source: "https://github.com/ROCm/ROCm/issues/6022",
    },
    Entry {
        id: "expandable-segments-unsupported",
        severity: Info,
        confidence: High,
        patterns: &[r"expandable_segments not supported on this platform"],
        also: &[],
        cause: "This torch was built without virtual memory management, so expandable_segments is ignored. Nothing is corrupted by that.",
        fix: &["remove expandable_segments from PYTORCH_ALLOC_CONF and its older names"],
        source: "https://github.com/ROCm/TheRock/issues/2844",
    },
];
