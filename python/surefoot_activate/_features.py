"""What the activation uses of PyTorch, looked for before anything is changed.

Most of it is private, and a release may move it. Versions are not compared for that: a name
is there or it is not. Without one of `NEEDED` hip-alloc cannot be PyTorch's allocator, and the
program ends with a message that says so; without one of `ASKED` one question stays unanswered,
and a line on standard error names it.
"""

import ctypes
import os

from ._errors import ActivationError, say

NEEDED = (
    "cuda.memory.CUDAPluggableAllocator",
    "cuda.memory.CUDAPluggableAllocator.allocator",
    "cuda.memory.change_current_allocator",
    "cuda.memory.get_allocator_backend",
    "cuda.is_initialized",
    "cuda.device_count",
    # Without these two memory would be reused while a stream still works on it.
    "_C._CUDAPluggableAllocator.set_record_stream_fn",
    "_C._CUDAPluggableAllocator.set_reset_fn",
)

# What programs call, and what has to be replaced for it: one of the names for each.
ASKED = {
    "torch.cuda.memory_stats": ("_C._cuda_memoryStats", "_C._accelerator_getDeviceStats"),
    "torch.cuda.reset_peak_memory_stats": ("_C._cuda_resetPeakMemoryStats", "_C._accelerator_resetPeakStats"),
    "torch.cuda.memory_snapshot": ("_C._cuda_memorySnapshot",),
    "torch.cuda.memory._record_memory_history": ("_C._cuda_record_memory_history",),
    "torch.cuda.set_per_process_memory_fraction": ("_C._cuda_setMemoryFraction",),
    "torch.cuda.memory_summary": ("cuda.memory.memory_summary",),
    "torch.cuda.mem_get_info": ("cuda.memory.mem_get_info",),
}


# c10::memoryProfilingEnabled and c10::reportMemoryUsageToProfiler.
PROFILER_HOOK = ("_ZN3c1022memoryProfilingEnabledEv", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")


def check(torch, tested):
    """Raises where hip-alloc cannot be installed; says what will not be answered."""
    missing = [name for name in NEEDED if find(torch, name) is None]
    if missing:
        raise ActivationError(
            f"PyTorch {torch.__version__} has no {', '.join(f'torch.{name}' for name in missing)}, "
            f"which hip-alloc is installed with: take PyTorch {tested}, or set HIP_ALLOC=0"
        )
    silent = [asked for asked, names in ASKED.items() if not any(find(torch, name) for name in names)]
    if not _has_profiler_hook():
        silent.append("torch.profiler.profile(profile_memory=True)")
    if silent:
        say(
            f"PyTorch {torch.__version__} has moved what {', '.join(silent)} ask: under hip-alloc they "
            f"do not answer here, as they do with PyTorch {tested}"
        )


def _has_profiler_hook():
    """Whether hip-alloc will find what it tells PyTorch's profiler with (`crates/hip-alloc/cpp/profiler.cpp`)."""
    try:
        libc10 = ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return all(hasattr(libc10, name) for name in PROFILER_HOOK)


def find(torch, name):
    """What `torch.NAME` is, or None."""
    found = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
