"""Answers what programs ask `torch.cuda` about memory.

Under any pluggable allocator these raise ("does not yet support getDeviceStats").
The answers are given below `torch.cuda.memory`, at the functions of `torch._C`
that it calls, so everything built on them works: `memory_allocated`,
`max_memory_allocated`, `memory_reserved`, `memory_stats`, `memory_summary`,
`memory_snapshot`, `set_per_process_memory_fraction`, the `torch.accelerator` forms, and callers that go straight to
`torch._C`.
"""

import functools


def answer(torch, library):
    """Replaces the functions that a pluggable allocator cannot serve."""

    def stats(device):
        return as_nested_dict(library.stats(device))

    def reset_peaks(device):
        library.reset_peaks(device)

    def snapshot(*_pool_and_options, **_options):
        return library.snapshot()

    fractions = {}

    def set_fraction(fraction, device):
        library.set_memory_fraction(device, fraction)
        fractions[device] = fraction

    for name, function in {
        "_cuda_memoryStats": stats,
        "_accelerator_getDeviceStats": stats,
        "_cuda_resetPeakMemoryStats": reset_peaks,
        "_accelerator_resetPeakStats": reset_peaks,
        # Totals run from the start of the process; only peaks can start again.
        "_cuda_resetAccumulatedMemoryStats": lambda device: None,
        "_accelerator_resetAccumulatedStats": lambda device: None,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda device: fractions.get(device, 1.0),
        "_accelerator_getMemoryInfo": library.memory_info,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
    }.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)

    original = torch.cuda.memory.mem_get_info

    @functools.wraps(original)
    def mem_get_info(device=None):
        torch.cuda.init()
        return library.memory_info(torch.cuda._utils._get_device_index(device, optional=True))

    torch.cuda.memory.mem_get_info = torch.cuda.mem_get_info = mem_get_info


def as_nested_dict(stats):
    """hip-alloc's numbers under PyTorch's names.

    Allocated and requested is what is live, active adds what was freed but may
    still be in use by another stream, reserved is what the driver gave. Requests
    are not told apart by size, so the pools of PyTorch's own allocator stay at 0,
    as do totals in bytes, which hip-alloc does not keep.
    """
    live = _stat(stats.live_bytes, stats.live_peak_bytes)
    active = _stat(stats.live_bytes + stats.pending_bytes, stats.live_peak_bytes)
    held = _stat(stats.held_bytes, stats.held_peak_bytes)
    slack = _stat(max(stats.held_bytes - stats.live_bytes - stats.pending_bytes, 0))
    requests = _stat(stats.live_allocations, None, stats.allocations, stats.frees)
    blocks = _stat(stats.driver_allocs - stats.driver_frees, None, stats.driver_allocs, stats.driver_frees)
    pooled = {
        "allocated_bytes": live, "requested_bytes": live, "active_bytes": active, "reserved_bytes": held,
        "inactive_split_bytes": slack, "allocation": requests, "active": requests, "segment": blocks,
        "inactive_split": _stat(0),
    }
    nested = {name: {"all": stat, "small_pool": _stat(0), "large_pool": _stat(0)} for name, stat in pooled.items()}
    nested.update(oversize_allocations=_stat(0), oversize_segments=_stat(0))
    nested.update(
        num_alloc_retries=0, num_ooms=stats.out_of_memory, num_sync_all_streams=0, max_split_size=-1,
        num_device_alloc=stats.driver_allocs, num_device_free=stats.driver_frees,
    )
    return nested


def _stat(current, peak=None, allocated=0, freed=0):
    return {"current": current, "peak": current if peak is None else max(peak, current), "allocated": allocated, "freed": freed}
