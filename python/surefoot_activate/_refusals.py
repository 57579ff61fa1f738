"""Clear errors for features that hip-alloc does not support, instead of failures somewhere inside PyTorch."""

import functools
import warnings

from . import _pools
from ._errors import NotUnderHipAlloc
from ._features import find


def refuse(torch):
    """Makes PyTorch functions that hip-alloc does not support raise an error with advice."""
    if not _pools.are_known(torch):
        _refuse_pools(torch)
    trees = (
        "the graph trees of torch.compile (mode reduce-overhead or max-autotune, backend cudagraphs) do not work under HIP_ALLOC=1 (they "
        "restore an earlier state of a memory pool and check its live allocations, checkPoolLiveAllocations, which PyTorch's "
        "pluggable allocators do not support: pytorch/pytorch#163257): set torch._inductor.config.triton.cudagraph_trees = False, which "
        "captures each graph separately (each call then overwrites the result of the previous one), compile with mode default or "
        "max-autotune-no-cudagraphs, or run with HIP_ALLOC=0"
    )
    for name in ("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_cuda_checkPoolLiveAllocations"):
        _raise_from(find(torch, "_C"), name, trees)
    pool = (
        "torch._C._MemPool does not work under HIP_ALLOC=1 (it needs createOrIncrefPool, which PyTorch's pluggable allocators "
        "do not support: pytorch/pytorch#98481): use torch.cuda.MemPool, or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "_C._MemPool"), "__init__", pool)
    sharing = (
        "tensors on the device cannot be shared with other processes under HIP_ALLOC=1 (PyTorch's pluggable allocators do not "
        "support shareIpcHandle and getIpcDevPtr: pytorch/pytorch#98481): "
        "send a copy on the CPU (tensor.cpu()), or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "UntypedStorage"), "_share_cuda_", sharing)
    another = (
        "the allocator of PyTorch cannot be replaced under HIP_ALLOC=1 (hip-alloc is already installed): "
        "remove the call of torch.cuda.memory.change_current_allocator, or run with HIP_ALLOC=0"
    )
    # Not in C++, where PyTorch refuses it with its own error.
    for owner in ("cuda.memory", "cuda"):
        _raise_from(find(torch, owner), "change_current_allocator", another)
    observer = (
        "out-of-memory observers do not work under HIP_ALLOC=1 (PyTorch's pluggable allocators do not support "
        "attachOutOfMemoryObserver: pytorch/pytorch#98481): catch torch.OutOfMemoryError and call "
        "torch.cuda.memory._dump_snapshot there, or run with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "_C"), "_cuda_attach_out_of_memory_observer", observer)

    if torch.version.hip is None:
        _leave_cudnn_benchmark_off(torch)


def _refuse_pools(torch):
    """For a PyTorch whose pluggable allocator does not support memory pools in the known way."""
    lacks = f"this PyTorch has no {', '.join(_pools.SETTERS)} on its pluggable allocator"
    graph = (
        f"graph capture does not work under HIP_ALLOC=1 with PyTorch {torch.__version__} ({lacks}): do not use torch.cuda.graph and "
        "make_graphed_callables, compile with mode default or max-autotune-no-cudagraphs, or run with HIP_ALLOC=0"
    )
    # Also the C++ class, for programs that use it directly.
    for owner in ("cuda.CUDAGraph", "_C._CUDAGraph"):
        _raise_from(find(torch, owner), "capture_begin", graph)
    pool = (
        f"torch.cuda.MemPool does not work under HIP_ALLOC=1 with PyTorch {torch.__version__} ({lacks}): do not use pools, or run "
        "with HIP_ALLOC=0"
    )
    _raise_from(find(torch, "cuda.memory.MemPool"), "__init__", pool)


def _leave_cudnn_benchmark_off(torch):
    """Its trials query the largest possible workspace (`cacheInfo`), which only PyTorch's own allocator supports.

    MIOpen, which replaces cuDNN in ROCm builds, does not use this.
    """
    original = find(torch, "_C._set_cudnn_benchmark")
    backend = find(torch, "backends.cudnn")
    switch = vars(type(backend)).get("benchmark")
    if original is None or not hasattr(switch, "setter"):
        return  # the trials then fail with PyTorch's own error

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
        return  # this PyTorch lacks the function, or has renamed it and raises its own error

    @functools.wraps(original)
    def refused(*_arguments, **_options):
        raise NotUnderHipAlloc(message)

    setattr(owner, name, refused)
