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
import collections.abc
import copy
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
    """What happened to each tensor that did not arrive at once, and totals.

    `unknown` names what has a method `to` of its own and was moved by that, unseen.
    """

    tensors: int = 0
    bytes: int = 0
    verified: int = 0
    troubles: list = dataclasses.field(default_factory=list)
    unknown: list = dataclasses.field(default_factory=list)

    def __str__(self):
        lines = [f"{self.tensors} tensors, {self.bytes / 2**20:.1f} MiB, {self.verified} verified"]
        if self.unknown:
            lines.append(f"moved by their own means, not verified: {', '.join(self.unknown)}")
        return "\n".join(lines + [f"{name}: {'; '.join(steps)}" for name, steps in self.troubles])


def to_device(obj, device=None, dtype=None, verify="first", report=None, stay_on_cpu=False):
    """Moves a tensor, a module (in place) or anything nested of tensors, and returns it.

    Containers keep their types, dimensions their order in memory (`channels_last`). A
    tensor that occurs twice is moved once, as tied weights are; views of one memory
    become tensors of their own. A leaf that requires a gradient arrives as a leaf that
    does; through anything else gradients flow back to where it came from.

    `dtype` casts floating-point tensors only, as `Module.to` does. With `stay_on_cpu` a
    tensor that arrives on no way is left where it is, with a warning; otherwise
    PlacementError is raised.
    """
    if verify not in VERIFY:
        raise ValueError(f"verify={verify!r}: expected one of {', '.join(VERIFY)}")
    device = _concrete(device)
    report = PlacementReport() if report is None else report
    mover = _Mover(device, dtype, verify, report, stay_on_cpu)
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
        self.moved = {}

    def module(self, module):
        """Moves parameters and buffers one by one; the parameters stay the same objects, so optimizers stay valid."""
        outside, self.lasting = self.lasting, True
        seen = {}
        for prefix, child in module.named_modules():
            for name, parameter in child._parameters.items():
                path = f"{prefix}.{name}" if prefix else name
                if parameter is None:
                    continue
                if _moves_itself(parameter):
                    # Such as weights that are quantised on their way: new objects, as `Module.to` would make them.
                    if id(parameter) not in seen:
                        seen[id(parameter)] = (parameter, self.by_itself(parameter, path))
                    child._parameters[name] = seen[id(parameter)][1]
                elif id(parameter) not in seen:
                    seen[id(parameter)] = (parameter, parameter)
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
        self.lasting = outside
        return module

    def nested(self, obj, path):
        if isinstance(obj, torch.Tensor):
            if id(obj) not in self.moved:
                # The tensor is kept until the end: a new one could get its id.
                self.moved[id(obj)] = (obj, self.with_gradient(obj, path or "tensor"))
            return self.moved[id(obj)][1]
        if isinstance(obj, torch.nn.Module):
            return self.module(obj)
        if isinstance(obj, torch.nn.utils.rnn.PackedSequence):
            # The sizes stay on the CPU, where PyTorch wants them.
            names = ("data", "sorted_indices", "unsorted_indices")
            data, to_sorted, from_sorted = (self.nested(getattr(obj, name), f"{path}.{name}") for name in names)
            return type(obj)(data, obj.batch_sizes, to_sorted, from_sorted)
        if isinstance(obj, collections.abc.Mapping):
            return _refilled(obj, {key: self.nested(value, f"{path}[{key!r}]") for key, value in obj.items()})
        if isinstance(obj, tuple) and hasattr(obj, "_fields"):
            return type(obj)(*(self.nested(value, f"{path}.{name}") for name, value in zip(obj._fields, obj)))
        if isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
            values = [self.nested(value, f"{path}[{index}]") for index, value in enumerate(obj)]
            return type(obj)(values, obj.maxlen) if isinstance(obj, collections.deque) else type(obj)(values)
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            moved = copy.copy(obj)
            for field in dataclasses.fields(obj):
                if hasattr(obj, field.name):
                    value = self.nested(getattr(obj, field.name), f"{path}.{field.name}")
                    object.__setattr__(moved, field.name, value)  # also where the class is frozen
            return moved
        if callable(getattr(obj, "to", None)) and not isinstance(obj, type):
            return self.by_itself(obj, path)
        return obj

    def by_itself(self, obj, path):
        """Something with a way of its own to the device: that is taken, and said in the report."""
        self.report.unknown.append(f"{path or 'it'} ({type(obj).__name__})")
        moved = obj.to(self.device)
        _synchronize(self.device)
        return obj if moved is None else moved

    def with_gradient(self, tensor, path):
        """The tensor where it is wanted, with its place in the graph of gradients."""
        if _moves_itself(tensor):
            return self.by_itself(tensor, path)
        if not tensor.requires_grad:
            return self.tensor(tensor, path)
        if not tensor.is_leaf:
            return _Carried.apply(tensor, self, path) if torch.is_grad_enabled() else self.tensor(tensor, path)
        moved = self.tensor(tensor, path)
        if moved is tensor:
            return tensor
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(moved.detach())
        return moved.detach().requires_grad_()

    def tensor(self, tensor, path):
        dtype = self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype
        if tensor.device == self.device and tensor.dtype == dtype:
            return tensor
        if tensor.is_meta:
            raise PlacementError(f"{path} is on the meta device: it has no data to move (load the weights first)")
        tensor = tensor.detach()
        if tensor.device == self.device:
            return tensor.to(dtype)
        if tensor.layout != torch.strided:
            return self.sparse(tensor, dtype, path)
        if tensor.is_quantized or tensor.is_nested:
            return self.by_itself(tensor, path)
        if tensor.device.type != "cpu":
            # Copies from one device straight to another are reported to arrive as zeros.
            tensor = self.fetch(tensor, path)
            if self.device.type == "cpu":
                return tensor.to(dtype)
        # With its dimensions in the order in which they lie in memory nothing has to be rearranged.
        order = sorted(range(tensor.dim()), key=lambda number: (-tensor.stride(number), number))
        if not tensor.is_contiguous() and tensor.permute(order).is_contiguous():
            return self.climb(tensor.permute(order), dtype, path).permute([order.index(number) for number in range(tensor.dim())])
        return self.climb(tensor, dtype, path)

    def sparse(self, tensor, dtype, path):
        """The parts of a sparse tensor, each by the same ladder."""
        move = lambda part, name, kind: self.tensor_as(part, kind, f"{path}.{name}")
        if tensor.layout == torch.sparse_coo:
            indices, values = tensor._indices(), tensor._values()
            indices, values = move(indices, "indices", indices.dtype), move(values, "values", dtype)
            return torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=tensor.is_coalesced())
        by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
        parts = [move(part, name, part.dtype) for name in names for part in [getattr(tensor, name)()]]
        return torch.sparse_compressed_tensor(*parts, move(tensor.values(), "values", dtype), tensor.shape, layout=tensor.layout)

    def tensor_as(self, tensor, dtype, path):
        mover = _Mover(self.device, dtype, self.verify, self.report, self.stay_on_cpu)
        mover.lasting = self.lasting
        return mover.tensor(tensor, path)

    def fetch(self, tensor, path):
        """From a device to the CPU, looked at as arrivals on a device are."""
        steps = []
        for _ in range(3):
            try:
                arrived = tensor.to("cpu")
                if self.verify == "off" or _arrived_intact(tensor, arrived):
                    self.count(tensor, self.verify != "off", steps, path)
                    return arrived
                steps.append("copy to the CPU: arrived damaged")
            except RuntimeError as problem:
                _raise_if_lost(problem, path)
                steps.append(f"copy to the CPU: {_first_line(problem)}")
        self.report.troubles.append((path, steps))
        raise PlacementError(f"{path} did not arrive on the CPU: {'; '.join(steps)}")

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


class _Carried(torch.autograd.Function):
    """A move that gradients follow backwards."""

    @staticmethod
    def forward(context, tensor, mover, path):
        context.device, context.dtype = tensor.device, tensor.dtype
        moved = mover.tensor(tensor, path)
        return moved.view_as(moved) if moved is tensor else moved

    @staticmethod
    def backward(context, gradient):
        return to_device(gradient, context.device, context.dtype), None, None


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
    if all(_computes(side.device) for side in (source, arrived)):
        return _checksum(source) == _checksum(arrived)
    return torch.equal(_bytes(source.cpu()), _bytes(arrived.cpu()))


def _moves_itself(tensor):
    """Whether its class has a way of its own to a device, such as one that quantises meanwhile."""
    return type(tensor).to is not torch.Tensor.to


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
    return _plain(tensor).view(-1).view(torch.uint8)


def _plain(tensor):
    """The values as they lie in contiguous memory: a conjugate or a negative that was only noted is computed."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


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
    source = _plain(tensor)
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


def _refilled(original, moved):
    """A mapping of the original's type, with what else it knows: dictionaries of every kind, and Hugging Face's batches."""
    if type(original) is dict:
        return moved
    if not isinstance(original, collections.abc.MutableMapping):
        return type(original)(moved)
    refilled = copy.copy(original)
    if isinstance(original, collections.UserDict):
        refilled.data = moved
    else:
        for key, value in moved.items():
            refilled[key] = value
    return refilled


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
