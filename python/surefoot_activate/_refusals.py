"""Says plainly what does not work under hip-alloc, instead of failing somewhere inside PyTorch."""

import functools
import warnings

from . import _pools
from ._errors import NotUnderHipAlloc
from ._features import find


def refuse(torch):
    """Puts clear messages in front of what hip-alloc cannot do."""
    if not _pools.are_known(torch):
        _refuse_pools(torch)
    trees = (
        "the graph trees of torch.compile (mode reduce-overhead or max-autotune, backend cudagraphs) do not work under HIP_ALLOC=1 (they "
        "have the allocator go back to an earlier state of a pool, and ask what is live in it, checkPoolLiveAllocations, which PyTorch's "
        "pluggable allocators lack: pytorch/pytorch#163257): set torch._inductor.config.triton.cudagraph_trees = False, which captures "
        "each graph by itself (a call then overwrites what the call before it returned), compile with mode default or "
        "max-autotune-no-cudagraphs, or run with HIP_ALLOC=0"
    )
    for name in ("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_cuda_checkPoolLiveAllocations"):
        _raise_from(find(torch, "_C"), name, trees)
    pool = (
        "torch._C._MemPool does not work under HIP_ALLOC=1 (what makes it, createOrIncrefPool, is one of the functions that "
        "PyTorch's pluggable allocators lack: pytorch/pytorch#98481): take torch.cuda.MemPool, or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "_C._MemPool"), "__init__", pool)
    sharing = (
        "tensors on the device cannot be shared with other processes under HIP_ALLOC=1 (PyTorch's pluggable allocators have no "
        "shareIpcHandle and no getIpcDevPtr: pytorch/pytorch#98481): "
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
        "nothing can be called at the moment when memory ends under HIP_ALLOC=1 (PyTorch's pluggable allocators have no "
        "attachOutOfMemoryObserver: pytorch/pytorch#98481): catch torch.OutOfMemoryError and call "
        "torch.cuda.memory._dump_snapshot there, or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "_C"), "_cuda_attach_out_of_memory_observer", observer)

    if torch.version.hip is None:
        _leave_cudnn_benchmark_off(torch)


def _refuse_pools(torch):
    """For a PyTorch that does not say where requests go in the way that is known here."""
    lacks = f"this PyTorch has no {', '.join(_pools.SETTERS)} on its pluggable allocator"
    graph = (
        f"graph capture does not work under HIP_ALLOC=1 with PyTorch {torch.__version__} ({lacks}): leave out torch.cuda.graph and "
        "make_graphed_callables, compile with mode default or max-autotune-no-cudagraphs, or run with HIP_ALLOC=0"
    )
    # The class in C++ too, for those who go past the one in Python.
    for owner in ("cuda.CUDAGraph", "_C._CUDAGraph"):
        _raise_from(find(torch, owner), "capture_begin", graph)
    pool = (
        f"torch.cuda.MemPool does not work under HIP_ALLOC=1 with PyTorch {torch.__version__} ({lacks}): leave the pool out, or run "
        "with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "cuda.memory.MemPool"), "__init__", pool)


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
