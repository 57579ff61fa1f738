"""Every tensor arrives on the device, or you know why.

    from surefoot_placement import to_device, safe_prepare

    model = to_device(model, "cuda")                       # one tensor at a time, each verified
    batch = to_device(batch, "cuda", verify="always")      # dicts, lists, tuples, dataclasses
    model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader)

On some AMD GPUs copies are reported to arrive as zeros or NaN, and one large
`.to(device)` dies as a whole. Here each tensor climbs a ladder until a rung works:

    direct copy -> once more -> through pinned memory -> in chunks -> cast on the host first

What arrives is compared with what was sent, by a checksum of its bytes that every
changed, missing or swapped byte changes; on a device that computes nonsense it is
read back and compared instead. Errors after which the device is unusable end the
move at once, since carrying on corrupts training.

Needs PyTorch only; works with any device type. Verification modes:

    off      trust every copy
    first    verify what belongs to a module, and the first tensor on each way to a device
    sample   also every eighth tensor after that
    always   verify every tensor
"""

import collections
import dataclasses
import itertools
import warnings

import torch

__all__ = ["DeviceLost", "PlacementError", "PlacementReport", "safe_prepare", "to_device"]

VERIFY = ("off", "first", "sample", "always")
SAMPLE_EVERY = 8
CHUNK_BYTES = 64 << 20
SMALL_BYTES = 1 << 20

# Runtime errors after which the device still works: invalid argument, out of
# memory, unmapped or refused memory, not supported. CUDA and HIP number them alike.
RECOVERABLE = {1, 2, 205, 304, 712, 713, 801}


class PlacementError(RuntimeError):
    """A tensor did not arrive on any way; names it and says what each way did."""


class DeviceLost(RuntimeError):
    """The device failed in a way that leaves it unusable in this process."""


@dataclasses.dataclass
class PlacementReport:
    """What happened to each tensor that did not arrive at once, and totals."""

    tensors: int = 0
    bytes: int = 0
    verified: int = 0
    troubles: list = dataclasses.field(default_factory=list)

    def __str__(self):
        lines = [f"{self.tensors} tensors, {self.bytes / 2**20:.1f} MiB, {self.verified} verified"]
        return "\n".join(lines + [f"{name}: {'; '.join(steps)}" for name, steps in self.troubles])


def to_device(obj, device=None, dtype=None, verify="first", report=None, stay_on_cpu=False):
    """Moves a tensor, a module (in place) or anything nested of tensors, and returns it.

    `dtype` casts floating-point tensors only, as `Module.to` does. Tied weights are
    moved once and stay tied. With `stay_on_cpu` a tensor that arrives on no way is
    left where it is, with a warning; otherwise PlacementError is raised.
    """
    if verify not in VERIFY:
        raise ValueError(f"verify={verify!r}: expected one of {', '.join(VERIFY)}")
    device = _concrete(device)
    report = PlacementReport() if report is None else report
    mover = _Mover(device, dtype, verify, report, stay_on_cpu)
    if isinstance(obj, torch.nn.Module):
        return mover.module(obj)
    return mover.nested(obj, "")


def safe_prepare(accelerator, *objects, dtype=None, verify="first", report=None):
    """`accelerator.prepare`, with models placed and batches moved by :func:`to_device`.

    Nothing is moved by Accelerate itself; order and number of what is returned are
    those of the arguments.
    """
    for model in (each for each in objects if isinstance(each, torch.nn.Module)):
        to_device(model, accelerator.device, dtype, verify, report)
    prepared = accelerator.prepare(
        *objects, device_placement=[False if isinstance(each, torch.nn.Module) else None for each in objects]
    )
    for each in prepared if len(objects) > 1 else (prepared,):
        if isinstance(each, torch.utils.data.DataLoader):
            _place_batches(each, verify, report)
    return prepared


class _Mover:
    """One call of :func:`to_device`."""

    def __init__(self, device, dtype, verify, report, stay_on_cpu):
        self.device, self.dtype, self.verify, self.report, self.stay_on_cpu = device, dtype, verify, report, stay_on_cpu
        self.lasting = False

    def module(self, module):
        """Moves parameters and buffers one by one; the parameters stay the same objects, so optimizers stay valid."""
        self.lasting = True
        seen = set()
        for prefix, child in module.named_modules():
            for name, parameter in child._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    path = f"{prefix}.{name}" if prefix else name
                    with torch.no_grad():
                        parameter.data = self.tensor(parameter.data, path)
                        if parameter.grad is not None:
                            parameter.grad.data = self.tensor(parameter.grad.data, f"{path}.grad")
        buffers = {}
        for prefix, child in module.named_modules():
            for name, buffer in child._buffers.items():
                if buffer is not None:
                    if id(buffer) not in buffers:
                        # The old buffer is kept until the end: a new one could get its id.
                        buffers[id(buffer)] = (buffer, self.tensor(buffer, f"{prefix}.{name}" if prefix else name))
                    child._buffers[name] = buffers[id(buffer)][1]
        return module

    def nested(self, obj, path):
        if isinstance(obj, torch.Tensor):
            return self.tensor(obj, path or "tensor")
        if isinstance(obj, dict):
            moved = {key: self.nested(value, f"{path}[{key!r}]") for key, value in obj.items()}
            return _rebuilt(obj, moved)
        if isinstance(obj, tuple) and hasattr(obj, "_fields"):
            return type(obj)(*(self.nested(value, f"{path}.{name}") for name, value in zip(obj._fields, obj)))
        if isinstance(obj, (list, tuple)):
            return type(obj)(self.nested(value, f"{path}[{index}]") for index, value in enumerate(obj))
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            fields = {field.name for field in dataclasses.fields(obj) if field.init}
            return dataclasses.replace(obj, **{name: self.nested(getattr(obj, name), f"{path}.{name}") for name in fields})
        return obj

    def tensor(self, tensor, path):
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype
        if tensor.device == self.device and tensor.dtype == dtype:
            return tensor
        if tensor.is_meta:
            raise PlacementError(f"{path} is on the meta device: it has no data to move (load the weights first)")
        if tensor.device.type != "cpu" or tensor.is_sparse or tensor.is_quantized:
            return tensor.to(self.device, dtype)
        return self.climb(tensor, dtype, path)

    def climb(self, tensor, dtype, path):
        """Tries one rung after the other, and keeps what each said."""
        source = _readable(tensor)
        wanted = self.wants_verification()
        steps, trimmed = [], False
        rungs = collections.deque(_RUNGS if dtype == tensor.dtype else (*_RUNGS, ("cast on the host", None)))
        while rungs:
            name, rung = rungs.popleft()
            try:
                if rung is None:
                    source, rung = source.to(dtype), _direct
                arrived = rung(source, self.device)
                _synchronize(self.device)
                if not wanted or _arrived_intact(source, arrived):
                    self.count(source, wanted, steps, path)
                    return arrived.to(dtype)
                steps.append(f"{name}: arrived damaged")
            except torch.OutOfMemoryError as problem:
                # No way needs less memory than another, but what nobody uses can go.
                if trimmed:
                    raise
                trimmed = True
                steps.append(f"{name}: {_first_line(problem)}")
                _trim(self.device)
                rungs.appendleft((name, rung))
            except RuntimeError as problem:
                _raise_if_lost(problem, path)
                steps.append(f"{name}: {_first_line(problem)}")
            wanted = wanted or self.verify != "off"
        self.report.troubles.append((path, steps))
        cost = f"{path} ({tensor.numel() * tensor.element_size()} bytes) did not arrive on {self.device}"
        if not self.stay_on_cpu:
            raise PlacementError(f"{cost}: {'; '.join(steps)}")
        warnings.warn(f"{cost} and stays on the CPU, where every use of it is slow: {'; '.join(steps)}", stacklevel=4)
        return tensor.to(dtype)

    def wants_verification(self):
        if self.verify == "off":
            return False
        if self.verify == "always" or self.lasting:
            return True
        number = next(_arrivals[self.device])
        return number == 0 or (self.verify == "sample" and number % SAMPLE_EVERY == 0)

    def count(self, tensor, verified, steps, path):
        self.report.tensors += 1
        self.report.bytes += tensor.numel() * tensor.element_size()
        self.report.verified += verified
        if steps:
            self.report.troubles.append((path, steps))


# How many tensors of batches went to each device.
_arrivals = collections.defaultdict(itertools.count)


def _direct(source, device):
    return source.to(device)


def _pinned(source, device):
    staging = torch.empty_like(source, pin_memory=True)
    staging.copy_(source)
    return staging.to(device)


def _in_chunks(source, device):
    arrived = torch.empty_like(source, device=device)
    flat, target = source.view(-1), arrived.view(-1)
    step = max(CHUNK_BYTES // source.element_size(), 1)
    for start in range(0, flat.numel(), step):
        target[start : start + step].copy_(flat[start : start + step])
        _synchronize(device)
    return arrived


_RUNGS = (("direct copy", _direct), ("once more", _direct), ("through pinned memory", _pinned), ("in chunks", _in_chunks))


def _arrived_intact(source, arrived):
    if _computes(arrived.device):
        return _checksum(source) == _checksum(arrived)
    return torch.equal(_bytes(source), _bytes(arrived.cpu()))


_WORDS = 1 << 20


def _checksum(tensor):
    """A sum of all bytes, each word weighed by an odd number that is its place's own.

    Integer arithmetic wraps alike everywhere, so both sides agree to the bit; an odd
    weight loses no change of a word, and different weights notice words that moved.
    """
    data = _bytes(tensor)
    whole = data.numel() // 8 * 8
    words = data[:whole]
    words = (words if words.data_ptr() % 8 == 0 else words.clone()).view(torch.int64)
    weights = torch.arange(1, 2 * min(_WORDS, max(words.numel(), 8)), 2, device=data.device)
    total = (data[whole:].to(torch.int64) * weights[: data.numel() - whole]).sum()
    for number, chunk in enumerate(words.split(_WORDS)):
        total = total + (chunk * weights[: chunk.numel()]).sum() * (2 * number + 3)
    return total.item()


def _bytes(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


_computing = {}


def _computes(device):
    """Whether the device's own sums can be believed: found out once, by a sum whose result is known."""
    if device not in _computing:
        known = torch.arange(4099, dtype=torch.int32)
        try:
            _computing[device] = _checksum(known.to(device)) == _checksum(known)
        except RuntimeError as problem:
            _raise_if_lost(problem, "a first sum")
            _computing[device] = False
    return _computing[device]


def _readable(tensor):
    """The tensor in contiguous memory of the process's own: copies straight from mapped files hang on some APUs."""
    source = tensor.detach().contiguous()
    return source if source.data_ptr() != tensor.data_ptr() else _unmapped(source)


def _unmapped(source):
    if source.numel() * source.element_size() < SMALL_BYTES:
        return source.clone()  # cheaper than finding out
    address = source.data_ptr()
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                bounds, _, _, _, inode, *_ = line.split(maxsplit=5)
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                if start <= address < end:
                    return source.clone() if inode != "0" else source
    except OSError:
        pass
    return source


def _raise_if_lost(problem, path):
    """Only errors of the runtime's own that leave the device usable are worth another try."""
    code = getattr(problem, "error_code", None)
    text = str(problem)
    if code is None and "CUDA error" not in text and "HIP error" not in text:
        return
    if code not in RECOVERABLE:
        raise DeviceLost(
            f"the device failed while {path} was moved and cannot be used any more in this process: {_first_line(problem)}"
        ) from problem


def _first_line(problem):
    return str(problem).strip().split("\n")[0]


def _synchronize(device):
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def _trim(device):
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()


def _concrete(device):
    """`cuda` means the current device of that type."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type != "cpu" and device.index is None:
        device = torch.device(device.type, getattr(torch, device.type).current_device())
    return device


def _rebuilt(original, moved):
    """A mapping of the original's type: dictionaries, ordered ones, and those of Hugging Face libraries."""
    if type(original) is dict:
        return moved
    if isinstance(original, collections.defaultdict):
        return type(original)(original.default_factory, moved)
    return type(original)(moved)


def _place_batches(loader, verify, report):
    """Has a loader that Accelerate prepared move its batches through :func:`to_device`.

    Accelerate moves whatever has a method `to`, so batches leave the loader in a
    wrapper with one. It lives in the loader's collate function, which also the
    loaders derived from it keep (`skip_first_batches`).
    """
    base = getattr(loader, "base_dataloader", None)
    if base is None or type(loader).__name__ == "DataLoaderDispatcher":
        raise PlacementError(f"cannot place the batches of a {type(loader).__name__}: prepare it with dispatch_batches=False")
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
    """A batch on its way to the device."""

    content: object
    key: int

    def to(self, device, **_options):
        verify, report = _loaders[self.key]
        return to_device(self.content, device, verify=verify, report=report)

    def pin_memory(self):
        return _Batch(torch.utils.data._utils.pin_memory.pin_memory(self.content), self.key)
