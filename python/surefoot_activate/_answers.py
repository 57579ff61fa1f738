"""Answers what programs ask `torch.cuda` about memory.

Under any pluggable allocator these raise ("does not yet support getDeviceStats").
The answers are given below `torch.cuda.memory`, at the functions of `torch._C`
that it calls, so everything built on them works: `memory_allocated`,
`max_memory_allocated`, `memory_reserved`, `memory_stats`, `memory_summary`,
`memory_snapshot`, `set_per_process_memory_fraction`, the `torch.accelerator` forms, and
callers that go straight to `torch._C`.
"""

import functools
import warnings

from . import _library, _summary


def answer(torch, library):
    """Replaces the functions that a pluggable allocator cannot serve."""

    beginnings = {}

    def stats(device):
        return as_nested_dict(library.stats(device), beginnings.get(device, _library.Stats()))

    def reset_totals(device):
        beginnings[device] = library.stats(device)

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
        "_cuda_resetAccumulatedMemoryStats": reset_totals,
        "_accelerator_resetAccumulatedStats": reset_totals,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": functools.partial(record_history, library),
        "_cuda_record_memory_history_legacy": functools.partial(record_history_by_old_names, library),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda device: fractions.get(device, 1.0),
        "_accelerator_getMemoryInfo": library.memory_info,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
    }.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)

    original = torch.cuda.memory.memory_summary

    @functools.wraps(original)
    def memory_summary(device=None, abbreviated=False):
        device = torch.cuda._utils._get_device_index(device, optional=True)
        return _summary.summary(device, torch.cuda.memory_stats_as_nested_dict(device))

    torch.cuda.memory.memory_summary = torch.cuda.memory_summary = memory_summary

    original = torch.cuda.memory.mem_get_info

    @functools.wraps(original)
    def mem_get_info(device=None):
        torch.cuda.init()
        return library.memory_info(torch.cuda._utils._get_device_index(device, optional=True))

    torch.cuda.memory.mem_get_info = torch.cuda.mem_get_info = mem_get_info


def record_history(library, enabled, context="all", _stacks="all", max_entries=2**63 - 1, clear_history=False, *_rest, **_others):
    """`torch._C._cuda_record_memory_history`: a snapshot then shows requests and frees over time, without their stacks."""
    if enabled not in (None, "state", "all"):
        raise ValueError(f"enabled={enabled!r}: expected None, 'state' or 'all'")
    if clear_history:
        library.record_history(0)
    # With 'state' PyTorch notes where what is live comes from, and keeps one entry.
    library.record_history({None: 0, "state": 1, "all": max_entries}[enabled])
    if enabled is not None and context is not None:
        warnings.warn(
            "under HIP_ALLOC=1 the memory history has no stacks; pass context=None to leave them out on purpose, "
            "or run with HIP_ALLOC=0 to see where memory comes from",
            stacklevel=4,
        )


def record_history_by_old_names(library, enabled, record_context=True, max_entries=1, *_rest, **_others):
    """The form that takes True and False."""
    record_history(library, "all" if enabled else None, "all" if record_context else None, max_entries=max_entries)


def as_nested_dict(stats, since):
    """hip-alloc's numbers under PyTorch's names; totals count from `since`, earlier statistics of the same device.

    Allocated and requested is what is live, active adds what was freed but may
    still be in use by another stream, reserved is what the driver gave. There is one
    kind of memory, for requests of every size: what PyTorch calls the large pool. So
    the small one is empty, and no request is oversized.
    """
    live = _stat(
        stats.live_bytes, stats.live_peak_bytes,
        stats.allocated_bytes - since.allocated_bytes,
        _freed_bytes(stats) - _freed_bytes(since),
    )
    active = {**live, "current": stats.live_bytes + stats.pending_bytes, "peak": stats.active_peak_bytes}
    held = _stat(
        stats.held_bytes, stats.held_peak_bytes,
        stats.driver_alloc_bytes - since.driver_alloc_bytes,
        _returned_bytes(stats) - _returned_bytes(since),
    )
    # Every byte enters the slack when the driver gives it or the program frees it, and
    # leaves it when it is allocated or goes back.
    slack = _stat(
        max(held["current"] - active["current"], 0), None,
        held["allocated"] + live["freed"], held["freed"] + live["allocated"],
    )
    requests = _stat(
        stats.live_allocations, stats.live_allocations_peak,
        stats.allocations - since.allocations, stats.frees - since.frees,
    )
    blocks = _stat(
        stats.driver_allocs - stats.driver_frees, stats.driver_blocks_peak,
        stats.driver_allocs - since.driver_allocs, stats.driver_frees - since.driver_frees,
    )
    pooled = {
        "allocated_bytes": live, "requested_bytes": live, "active_bytes": active, "reserved_bytes": held,
        "inactive_split_bytes": slack, "allocation": requests, "active": requests, "segment": blocks,
        "inactive_split": _stat(0),  # not counted
    }
    nested = {name: {"all": stat, "small_pool": _stat(0), "large_pool": dict(stat)} for name, stat in pooled.items()}
    nested.update(oversize_allocations=_stat(0), oversize_segments=_stat(0))
    nested.update(
        num_alloc_retries=0, num_ooms=stats.out_of_memory - since.out_of_memory, num_sync_all_streams=0, max_split_size=-1,
        num_device_alloc=blocks["allocated"], num_device_free=blocks["freed"],
    )
    return nested


def _freed_bytes(stats):
    return stats.allocated_bytes - stats.live_bytes


def _returned_bytes(stats):
    return stats.driver_alloc_bytes - stats.held_bytes


def _stat(current, peak=None, allocated=0, freed=0):
    return {"current": current, "peak": current if peak is None else max(peak, current), "allocated": allocated, "freed": freed}
