"""`torch.cuda.MemPool`, `use_mem_pool` and captured graphs: memory pools in addition to the default one of the device.

`use_mem_pool` and graph captures direct requests to a pool for a while, and a graph that is deleted or captured again releases
its pool. PyTorch's pluggable allocator has setters for the functions that do this (`SETTERS`); hip-alloc implements them.
There is no setter for `createOrIncrefPool`, which creates a pool without a graph, so PyTorch's own `MemPool` raises. The
replacement here takes an id from PyTorch, as the original does, and tells hip-alloc that the pool is in use.
"""

import functools
import weakref

from ._errors import NotUnderHipAlloc
from ._features import find

# The setters of PyTorch's allocator object, and the hip-alloc function for each.
SETTERS = {
    "set_begin_allocate_to_pool": "hip_alloc_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "hip_alloc_end_allocate_to_pool",
    "set_release_pool": "hip_alloc_release_pool",
}


def are_known(torch):
    """Whether this PyTorch supports pools in the way that hip-alloc expects."""
    return all(find(torch, f"_C._CUDAPluggableAllocator.{setter}") is not None for setter in SETTERS)


def connect(native, library):
    """Registers hip-alloc's functions, which PyTorch calls when requests should go to a pool."""
    for setter, function in SETTERS.items():
        getattr(native, setter)(library.address(function))


def replace(torch, library):
    """Replaces PyTorch's `MemPool`, if it exists, with our own class."""
    original = find(torch, "cuda.memory.MemPool")
    handle = find(torch, "_C._graph_pool_handle")
    if original is None or handle is None:
        return
    pool = _pool_class(torch, library, original, handle)
    for owner in (torch.cuda.memory, torch.cuda):
        if hasattr(owner, "MemPool"):
            owner.MemPool = pool


def _pool_class(torch, library, original, handle):
    @functools.wraps(original, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
    class MemPool:
        def __init__(self, allocator=None, use_on_oom=False, no_split=False):
            if allocator is not None:
                raise NotUnderHipAlloc(
                    "torch.cuda.MemPool does not accept an allocator under HIP_ALLOC=1 (the memory of every pool comes from "
                    "hip-alloc; PyTorch passes a pool's allocator to createOrIncrefPool, which its pluggable allocators do not "
                    "support: pytorch/pytorch#98481): do not pass an allocator, or run with HIP_ALLOC=0"
                )
            if no_split:
                raise NotUnderHipAlloc(
                    "torch.cuda.MemPool(no_split=True) does not work under HIP_ALLOC=1 (hip-alloc always splits blocks): "
                    "do not pass no_split, or run with HIP_ALLOC=0"
                )
            torch.cuda.init()
            self._device = torch.cuda.current_device()
            self._id = tuple(handle())
            library.retain_pool(self._device, self._id, use_on_oom)
            # Not at process exit, when the memory is released anyway.
            weakref.finalize(self, library.release_pool, self._device, self._id).atexit = False

        @property
        def id(self):
            """The ID of the pool, a tuple of two numbers, as expected by the argument `pool` of `torch.cuda.graph`."""
            return self._id

        @property
        def device(self):
            """The index of the device."""
            return self._device

        def use_count(self):
            """The number of users: this object, graphs captured into the pool, and active `use_mem_pool` contexts."""
            return library.pool_users(self._device, self._id)

        def snapshot(self, include_traces=True):
            """The segments of the pool, in the format of `torch.cuda.memory_snapshot`."""
            return of_pool(torch.cuda.memory_snapshot(), self._id)

    return MemPool


def of_pool(segments, pool):
    """The segments that belong to a pool."""
    return [segment for segment in segments if tuple(segment["segment_pool_id"]) == tuple(pool)]
