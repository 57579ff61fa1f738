"""Accelerate's `prepare`, with all transfers done by :func:`to_device`."""

import dataclasses

import torch

from ._mover import Mover
from ._options import checked
from ._report import PlacementError, PlacementReport


def safe_prepare(accelerator, *objects, dtype=None, verify="first", report=None):
    """`accelerator.prepare`, with models, the state of optimizers and batches moved by :func:`to_device`.

    Accelerate itself moves nothing; the results have the same order and number
    as the arguments. Optimizers that were created before their model moved stay
    valid, and their state is moved to the device of the parameters. Objects may be
    prepared more than once.

    Works with one process, and with several that each have the whole model (DDP), which first
    copies the weights of process 0 to the others. Features of Accelerate that divide or move a
    model themselves are refused with PlacementError before anything moves: FSDP,
    DeepSpeed, Megatron-LM, XLA (TPU), tensor and context parallelism, and models whose
    `device_map` lists several devices.
    """
    device, dtype = checked(accelerator.device, dtype, verify)
    _refuse_what_moves_by_itself(accelerator, objects)
    report = PlacementReport() if report is None else report
    models = [each for each in objects if isinstance(each, torch.nn.Module)]
    optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
    before = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
    for model in models:
        Mover(device, dtype, verify, report, False).nested(model, "")
    replaced = {}
    for model, old in zip(models, before):
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if parameter is not old[name]:
                replaced[id(old[name])] = (old[name], parameter)
    for optimizer in optimizers:
        _follow(optimizer, replaced)
        _place_state(optimizer, verify, report)
    prepared = accelerator.prepare(
        *objects,
        device_placement=[False if isinstance(each, (torch.nn.Module, torch.optim.Optimizer)) else None for each in objects],
    )
    for each in prepared if len(objects) > 1 else (prepared,):
        if isinstance(each, torch.utils.data.DataLoader):
            _place_batches(each, verify, report)
    return prepared


# Their names in Accelerate, their usual names, and what they do to a model.
_DIVIDE = {
    "FSDP": ("FSDP", "shards the model over the processes"),
    "DEEPSPEED": ("DeepSpeed", "creates its own model and optimizer, and moves them"),
    "MEGATRON_LM": ("Megatron-LM", "builds its own model in parts"),
    "XLA": ("XLA (TPU)", "creates new weights on its device"),
}


def _refuse_what_moves_by_itself(accelerator, objects):
    """Raises PlacementError for objects that others would move without verification."""
    kind = getattr(accelerator.distributed_type, "value", accelerator.distributed_type)
    if kind in _DIVIDE:
        name, deed = _DIVIDE[kind]
        raise PlacementError(
            f"safe_prepare does not support {name}, which {deed}: use accelerator.prepare, or train in one process or with DDP"
        )
    parallel = getattr(accelerator, "parallelism_config", None)
    for flag, name in (("tp_enabled", "tensor"), ("cp_enabled", "context"), ("sp_enabled", "sequence"), ("dp_shard_enabled", "sharded data")):
        if getattr(parallel, flag, False):
            raise PlacementError(f"safe_prepare does not support {name} parallelism, which divides the model: use accelerator.prepare")
    for number, each in enumerate(objects):
        places = getattr(each, "hf_device_map", None) or {}
        if len(set(map(str, places.values()))) > 1:
            raise PlacementError(
                f"safe_prepare does not support a model on several devices (argument {number}, a {type(each).__name__} with"
                f" device_map {places}): its hooks move it themselves; load it without device_map, or use accelerator.prepare"
            )


def _follow(optimizer, replaced):
    """Weights that override how they are moved become new objects: the optimizer must update those."""
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            if id(parameter) in replaced:
                old, new = replaced[id(parameter)]
                group["params"][index] = new
                if old in optimizer.state:
                    optimizer.state[new] = optimizer.state.pop(old)


def _place_state(optimizer, verify, report):
    """Moves the state of an optimizer to the device of its parameters. Step counters stay on the CPU if the optimizer keeps them there."""
    for number, group in enumerate(optimizer.param_groups):
        counts_there = group.get("capturable") or group.get("fused")
        for index, parameter in enumerate(group["params"]):
            # `get`, since indexing would create a state for a parameter that has none.
            state = optimizer.state.get(parameter, {})
            mover = Mover(parameter.device, None, verify, report, False)
            mover.engine.lasting = True
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and (name != "step" or counts_there):
                    state[name] = mover.nested(value, f"optimizer.{number}.{index}.{name}")


def _place_batches(loader, verify, report):
    """Makes a loader that Accelerate prepared move its batches through :func:`to_device`.

    Accelerate moves whatever has a method `to`, so batches leave the loader in a
    wrapper with one. It lives in the loader's collate function, which also the
    loaders derived from it keep (`skip_first_batches`).
    """
    base = getattr(loader, "base_dataloader", None)
    if base is None or type(loader).__name__ == "DataLoaderDispatcher":
        raise PlacementError(f"cannot place the batches of a {type(loader).__name__}: prepare it with dispatch_batches=False")
    if isinstance(base.collate_fn, _Collate):  # prepared before
        _loaders[base.collate_fn.key] = (verify, report)
        return
    key = len(_loaders)
    _loaders.append((verify, report))
    base.collate_fn = _Collate(base.collate_fn, key)


# How the batches of each loader are placed. Batches carry the index only, since
# they may come from worker processes, where a report would be a copy.
_loaders = []


@dataclasses.dataclass
class _Collate:
    """A collate function whose batches are moved by :func:`to_device`."""

    collate: object
    key: int

    def __call__(self, samples):
        return _Batch(self.collate(samples), self.key)


@dataclasses.dataclass
class _Batch:
    """A batch that is being moved to the device."""

    content: object
    key: int

    def to(self, device, **_options):
        verify, report = _loaders[self.key]
        return Mover(checked(device, None, verify)[0], None, verify, report, False).nested(self.content, "")

    def pin_memory(self):
        return _Batch(torch.utils.data._utils.pin_memory.pin_memory(self.content), self.key)
