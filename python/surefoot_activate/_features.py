"""Checks which parts of PyTorch are available before anything is changed.

Most of them are private, and a release may move them. So names are looked up instead of comparing
versions. Without one of `NEEDED` hip-alloc cannot be PyTorch's allocator, and the
program exits with an error; without one of `ASKED` one function does not work,
and a warning on standard error names it.
"""

import ctypes
import os
import sys

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

# Functions that programs call, and the names to replace for each, of which one must exist.
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
PROFILER_HOOK = (
    ("?memoryProfilingEnabled@c10@@YA_NXZ", "?reportMemoryUsageToProfiler@c10@@YAXPEAX_J_K2UDevice@1@@Z")
    if sys.platform == "win32"
    else ("_ZN3c1022memoryProfilingEnabledEv", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
)


def check(torch, tested):
    """Raises an error if hip-alloc cannot be installed; warns of functions that will not work."""
    missing = [name for name in NEEDED if find(torch, name) is None]
    if missing:
        raise ActivationError(
            f"PyTorch {torch.__version__} has no {', '.join(f'torch.{name}' for name in missing)}, "
            f"which is required to install hip-alloc: use PyTorch {tested}, or set HIP_ALLOC=0"
        )
    silent = [asked for asked, names in ASKED.items() if not any(find(torch, name) for name in names)]
    if not _has_profiler_hook():
        silent.append("torch.profiler.profile(profile_memory=True)")
    if silent:
        say(
            f"{', '.join(silent)} do not work under hip-alloc with PyTorch {torch.__version__}, "
            f"which has moved the functions they need; they work with PyTorch {tested}"
        )


def _has_profiler_hook():
    """Whether hip-alloc will find the functions with which it reports to PyTorch's profiler (`crates/hip-alloc/cpp/profiler.cpp`)."""
    try:
        libc10 = _loaded_c10()
    except OSError:
        return False
    return all(hasattr(libc10, name) for name in PROFILER_HOOK)


def _loaded_c10():
    """The library that PyTorch has loaded; nothing is loaded or looked for on the disk."""
    if sys.platform == "win32":
        handle_of = ctypes.WinDLL("kernel32", use_last_error=True).GetModuleHandleW
        handle_of.argtypes, handle_of.restype = [ctypes.c_wchar_p], ctypes.c_void_p
        if not (handle := handle_of("c10.dll")):
            raise ctypes.WinError(ctypes.get_last_error())
        return ctypes.CDLL("c10.dll", handle=handle)
    return ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def find(torch, name):
    """The value of `torch.NAME`, or None."""
    found = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
