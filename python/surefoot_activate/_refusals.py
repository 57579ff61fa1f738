"""Says plainly what does not work under hip-alloc, instead of failing somewhere inside PyTorch.

Pools of one's own and graph capture need memory that stays put until a graph is
gone; hip-alloc gives every freed range to whoever asks next.
"""

import functools
import warnings

from ._features import find


class NotUnderHipAlloc(RuntimeError):
    """A feature of PyTorch's own allocator was used."""


def refuse(torch):
    """Puts clear messages in front of what hip-alloc cannot do."""
    graph = (
        "graph capture does not work under HIP_ALLOC=1 (what a graph used must stay its own for as long as it can be replayed, and "
        "hip-alloc gives what is freed to whoever asks next; the graphs of torch.compile also ask for checkPoolLiveAllocations, which "
        "PyTorch's pluggable allocators lack: pytorch/pytorch#163257): leave out torch.cuda.graph and make_graphed_callables, "
        "compile with mode default or max-autotune-no-cudagraphs, or run with HIP_ALLOC=0"
    )
    # The class in C++ too, for those who go past the one in Python.
    for owner in ("cuda.CUDAGraph", "_C._CUDAGraph"):
        _raise_from(find(torch, owner), "capture_begin", graph)
    pool = (
        "torch.cuda.MemPool does not work under HIP_ALLOC=1 (what makes a pool, createOrIncrefPool, is one of the functions that "
        "PyTorch's pluggable allocators lack: pytorch/pytorch#163257): leave the pool out, or run with HIP_ALLOC=0"
    )
    for owner in ("cuda.memory.MemPool", "_C._MemPool"):
        _raise_from(find(torch, owner), "__init__", pool)
    sharing = (
        "tensors on the device cannot be shared with other processes under HIP_ALLOC=1 (PyTorch's pluggable allocators have no "
        "shareIpcHandle and no getIpcDevPtr): "
        "send a copy on the CPU (tensor.cpu()), or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "UntypedStorage"), "_share_cuda_", sharing)
    another = (
        "another allocator cannot be put under PyTorch under HIP_ALLOC=1 (hip-alloc is there already): "
        "leave torch.cuda.memory.change_current_allocator out, or run with HIP_ALLOC=0"
    )
    # Not in C++: there PyTorch refuses it too, in words of its own.
    for owner in ("cuda.memory", "cuda"):
        _raise_from(find(torch, owner), "change_current_allocator", another)
    observer = (
        "nothing can be called at the moment when memory ends under HIP_ALLOC=1: catch torch.OutOfMemoryError "
        "and call torch.cuda.memory._dump_snapshot there, or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "_C"), "_cuda_attach_out_of_memory_observer", observer)

    if torch.version.hip is None:
        _leave_cudnn_benchmark_off(torch)


def _leave_cudnn_benchmark_off(torch):
    """Its trials ask how large a workspace may be (`cacheInfo`), which PyTorch's own allocator alone answers.

    MIOpen, which plays cuDNN in ROCm builds, does not ask.
    """
    original = find(torch, "_C._set_cudnn_benchmark")
    backend = find(torch, "backends.cudnn")
    switch = vars(type(backend)).get("benchmark")
    if original is None or not hasattr(switch, "setter"):
        return  # PyTorch's own error says what its trials need

    def set_benchmark(value):
        if value:
            warnings.warn(
                "torch.backends.cudnn.benchmark stays off under HIP_ALLOC=1: "
                "its trials need PyTorch's own allocator (HIP_ALLOC=0)",
                stacklevel=3,
            )
        original(False)

    torch._C._set_cudnn_benchmark = set_benchmark
    switch.setter = set_benchmark


def _raise_from(owner, name, message):
    original = getattr(owner, name, None)
    if owner is None or original is None:
        return  # this PyTorch has no such thing, or calls it otherwise and refuses in its own words

    @functools.wraps(original)
    def refused(*_arguments, **_options):
        raise NotUnderHipAlloc(message)

    setattr(owner, name, refused)
