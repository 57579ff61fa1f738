"""Implements the memory functions of `torch.cuda`.

With any pluggable allocator these raise ("does not yet support getDeviceStats").
The replacements are made below `torch.cuda.memory`, at the functions of `torch._C`
that it calls, so everything built on them works: `memory_allocated`,
`max_memory_allocated`, `memory_reserved`, `memory_stats`, `memory_summary`,
`memory_snapshot`, `set_per_process_memory_fraction`, the `torch.accelerator` forms, and
callers that go straight to `torch._C`.
"""

import functools

from . import _library, _summary
from ._features import find
from ._history import History
from ._pools import of_pool


def answer(torch, library):
    """Replaces the functions that a pluggable allocator cannot serve."""

    beginnings = {}

    def known(device):
        """The library numbers devices differently, including the host: programs use PyTorch's device numbers."""
        count = torch.cuda.device_count()
        if not 0 <= device < count:
            raise RuntimeError(f"Invalid device argument {device}: there are {count} devices, numbered from 0")
        return device

    def stats(device):
        return as_nested_dict(library.stats(known(device)), beginnings.get(device, _library.Stats()))

    def reset_totals(device):
        beginnings[device] = library.stats(known(device))

    def reset_peaks(device):
        library.reset_peaks(known(device))

    def memory_info(device):
        return library.memory_info(known(device))

    history = History(library)

    def snapshot(pool=None, **_options):
        """Of a pool, if two numbers identify one; in PyTorch 2.13 a flag follows that also requests traces."""
        snapshot = history.snapshot()
        if pool is not None and any(pool[:2]):
            snapshot["segments"] = of_pool(snapshot["segments"], pool[:2])
        return snapshot

    fractions = {}

    def set_fraction(fraction, device):
        if not 0 <= fraction <= 1:  # PyTorch's own check accepts NaN
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0 to 1")
        library.set_memory_fraction(known(device), fraction)
        fractions[device] = fraction

    for name, function in {
        "_cuda_memoryStats": stats,
        "_accelerator_getDeviceStats": stats,
        "_cuda_resetPeakMemoryStats": reset_peaks,
        "_accelerator_resetPeakStats": reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": reset_totals,
        "_accelerator_resetAccumulatedStats": reset_totals,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": history.record,
        "_cuda_record_memory_history_legacy": history.record_by_old_names,
        "_cuda_allocationTraceback": history.traceback,
        "_cuda_isHistoryEnabled": history.is_enabled,
        "_cuda_setMemoryMetadata": history.set_metadata,
        "_cuda_getMemoryMetadata": history.get_metadata,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda device: fractions.get(known(device), 1.0),
        "_accelerator_getMemoryInfo": memory_info,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
    }.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)

    def memory_summary(device=None, abbreviated=False):
        device = index_of(torch, device)
        return _summary.summary(device, torch.cuda.memory_stats_as_nested_dict(device))

    def mem_get_info(device=None):
        torch.cuda.init()
        return memory_info(index_of(torch, device))

    for function in (memory_summary, mem_get_info):
        if original := find(torch, f"cuda.memory.{function.__name__}"):
            answer = functools.wraps(original)(function)
            setattr(torch.cuda.memory, function.__name__, answer)
            setattr(torch.cuda, function.__name__, answer)


def index_of(torch, device):
    """The index of a device in any form that PyTorch accepts; the current one for None."""
    if isinstance(device, int):
        return device
    if isinstance(device, torch.cuda.device):
        index = device.idx
        return torch.cuda.current_device() if index is None or index < 0 else index
    device = None if device is None else torch.device(device)
    if device is not None and device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    index = None if device is None else device.index
    return torch.cuda.current_device() if index is None else index


def as_nested_dict(stats, since):
    """hip-alloc's numbers under PyTorch's names; totals count from `since`, earlier statistics of the same device.

    Allocated and requested mean live memory, active adds memory that was freed but may
    still be in use by another stream, reserved is memory allocated from the driver. There is only one
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
    # Each byte is added to the slack when it is allocated from the driver or freed by the program, and
    # removed when it is allocated by the program or released to the driver.
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
        num_alloc_retries=stats.alloc_retries - since.alloc_retries, num_ooms=stats.out_of_memory - since.out_of_memory,
        num_sync_all_streams=stats.stream_syncs - since.stream_syncs, max_split_size=-1,
        num_oom_rejections=0,  # those of PyTorch's throw_on_cudamalloc_oom, which is not supported
        num_device_alloc=blocks["allocated"], num_device_free=blocks["freed"],
        hip_alloc={  # what PyTorch does not count
            "driver_alloc_bytes": stats.driver_alloc_bytes, "driver_free_bytes": stats.driver_free_bytes,
            "driver_nanoseconds": stats.driver_nanoseconds, "give_backs": stats.give_backs,
        },
    )
    return nested


def _freed_bytes(stats):
    return stats.allocated_bytes - stats.live_bytes


def _returned_bytes(stats):
    return stats.driver_alloc_bytes - stats.held_bytes


def _stat(current, peak=None, allocated=0, freed=0):
    return {"current": current, "peak": current if peak is None else max(peak, current), "allocated": allocated, "freed": freed}
