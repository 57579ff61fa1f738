"""Traverses modules and containers, and moves every tensor in them."""

import collections
import collections.abc
import copy
import dataclasses
import types

import torch

from ._parts import take_apart
from ._report import PlacementError, PlacementReport
from ._transfer import TransferEngine, synchronize


class Mover:
    """One call of :func:`surefoot_placement.to_device`."""

    def __init__(self, device, dtype, verify, report, stay_on_cpu):
        self.device, self.dtype, self.report = device, dtype, report
        self.engine = TransferEngine(device, verify, report, stay_on_cpu)
        self.moved = {}
        # Containers that are being traversed, to notice one that contains itself.
        self.inside = set()

    def module(self, module):
        """Moves parameters and buffers one by one; the parameters stay the same objects, so optimizers stay valid."""
        outside, self.engine.lasting = self.engine.lasting, True
        self.engine.expect_new_names()
        aliases = _Aliases(module)
        seen = {}
        for prefix, child in module.named_modules():
            for name, parameter in child._parameters.items():
                path = f"{prefix}.{name}" if prefix else name
                if parameter is None:
                    continue
                if _moves_itself(parameter) or torch.nn.parameter.is_lazy(parameter):
                    # For example weights that are quantised while they are moved: new objects, as `Module.to` would create them.
                    if id(parameter) not in seen:
                        seen[id(parameter)] = (parameter, self.by_itself(parameter, path))
                    child._parameters[name] = seen[id(parameter)][1]
                elif id(parameter) not in seen:
                    seen[id(parameter)] = (parameter, parameter)
                    with torch.no_grad():
                        parameter.data = aliases.once(parameter.data, lambda data: self.tensor(data, path))
                        if parameter.grad is not None:
                            parameter.grad.data = self.tensor(parameter.grad.data, f"{path}.grad")
        buffers = {}
        for prefix, child in module.named_modules():
            for name, buffer in child._buffers.items():
                if buffer is not None:
                    path = f"{prefix}.{name}" if prefix else name
                    if id(buffer) not in buffers:
                        # The old buffer is kept until the end: a new one could get its id.
                        buffers[id(buffer)] = (buffer, aliases.once(buffer, lambda data: self.tensor(data, path)))
                    child._buffers[name] = buffers[id(buffer)][1]
        self.engine.lasting = outside
        return module

    def nested(self, obj, path):
        if isinstance(obj, torch.Tensor):
            if id(obj) not in self.moved:
                # The tensor is kept until the end: a new one could get its id.
                self.moved[id(obj)] = (obj, self.with_gradient(obj, path or "tensor"))
            return self.moved[id(obj)][1]
        if isinstance(obj, torch.nn.Module):
            return self.module(obj)
        if isinstance(obj, (str, bytes, int, float, complex, type(None), type)):
            return obj
        if id(obj) in self.inside:
            raise PlacementError(f"{path or 'it'} contains itself, and cannot be recreated on {self.device}")
        self.inside.add(id(obj))
        try:
            return self.container(obj, path)
        finally:
            self.inside.discard(id(obj))

    def container(self, obj, path):
        if isinstance(obj, torch.nn.utils.rnn.PackedSequence):
            # The sizes stay on the CPU, as PyTorch requires.
            names = ("data", "sorted_indices", "unsorted_indices")
            data, to_sorted, from_sorted = (self.nested(getattr(obj, name), f"{path}.{name}") for name in names)
            return type(obj)(data, obj.batch_sizes, to_sorted, from_sorted)
        if isinstance(obj, collections.abc.Mapping):
            return _refilled(obj, {key: self.nested(value, f"{path}[{key!r}]") for key, value in obj.items()})
        if isinstance(obj, tuple) and hasattr(obj, "_fields"):
            return type(obj)._make(self.nested(value, f"{path}.{name}") for name, value in zip(obj._fields, obj))
        if isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
            return _remade(obj, [self.nested(value, f"{path}[{index}]") for index, value in enumerate(obj)])
        if isinstance(obj, types.GeneratorType):
            return self.generator(obj, path)
        if dataclasses.is_dataclass(obj):
            moved = copy.copy(obj)
            for field in dataclasses.fields(obj):
                if hasattr(obj, field.name):
                    value = self.nested(getattr(obj, field.name), f"{path}.{field.name}")
                    object.__setattr__(moved, field.name, value)  # works for frozen dataclasses too
            return moved
        if isinstance(obj, types.SimpleNamespace):
            return type(obj)(**{name: self.nested(value, f"{path}.{name}") for name, value in vars(obj).items()})
        if callable(getattr(obj, "to", None)):
            return self.by_itself(obj, path)
        if any(isinstance(value, torch.Tensor) for value in getattr(obj, "__dict__", {}).values()):
            self.report.left.append(f"{path or 'it'} ({type(obj).__name__})")
        return obj

    def generator(self, generator, path):
        """Yields the items of a generator, each moved when it is requested; earlier items are not kept."""
        engine = self.engine
        for index, value in enumerate(generator):
            mover = Mover(self.device, self.dtype, engine.verify, self.report, engine.stay_on_cpu)
            yield mover.nested(value, f"{path}[{index}]")

    def by_itself(self, obj, path):
        """Moves an object by its own `to` method, and lists it in the report."""
        self.report.unknown.append(f"{path or 'it'} ({type(obj).__name__})")
        moved = obj.to(self.device)
        synchronize(self.device)
        return obj if moved is None else moved

    def with_gradient(self, tensor, path):
        """The tensor on the target device, connected to the autograd graph."""
        if _moves_itself(tensor):
            return self.by_itself(tensor, path)
        if not tensor.requires_grad:
            return self.tensor(tensor, path)
        if not tensor.is_leaf:
            return _Carried.apply(tensor, self, path) if torch.is_grad_enabled() else self.tensor(tensor, path)
        moved = self.tensor(tensor, path)
        if moved is tensor:
            return tensor
        leaf = torch.nn.Parameter(moved.detach()) if isinstance(tensor, torch.nn.Parameter) else moved.detach().requires_grad_()
        if tensor.grad is not None:
            leaf.grad = self.tensor(tensor.grad, f"{path}.grad")
        return leaf

    def tensor(self, tensor, path):
        """The tensor's values on the target device, in the requested type."""
        return self.values(tensor, self.dtype if self.dtype is not None and tensor.is_floating_point() else tensor.dtype, path)

    def values(self, tensor, dtype, path):
        if tensor.device == self.device and tensor.dtype == dtype:
            return tensor
        if tensor.is_meta:
            raise PlacementError(f"{path} is on the meta device: it has no data to move (load the weights first)")
        tensor = tensor.detach()
        if tensor.device == self.device:
            return tensor.to(dtype)
        if taken := take_apart(tensor, path):
            moved = {name: self.part(part, f"{path}.{name}") for name, part in taken.parts.items()}
            if any(part.device != self.device for part in moved.values()):
                return tensor.to(dtype)  # a part had to stay on the CPU, so the whole tensor does
            return taken.put_together(moved, self.device).to(dtype)
        if hasattr(tensor, "device_mesh"):
            return self.by_itself(tensor, path)
        if tensor.device.type != "cpu":
            # Direct copies from one device to another are reported to arrive as zeros.
            tensor = self.engine.to_host(tensor, path)
            if self.device.type == "cpu":
                return tensor.to(dtype)
        # With the dimensions in memory order nothing has to be rearranged.
        order = sorted(range(tensor.dim()), key=lambda number: (-tensor.stride(number), number))
        if not tensor.is_contiguous() and tensor.permute(order).is_contiguous():
            there = self.engine.to_device(tensor.permute(order), dtype, path)
            return there.permute([order.index(number) for number in range(tensor.dim())])
        return self.engine.to_device(tensor, dtype, path)

    def part(self, part, path):
        """Moves a part of a tensor; a part that several tensors share (the offsets of ragged tensors) stays shared."""
        if id(part) not in self.moved:
            self.moved[id(part)] = (part, self.values(part, part.dtype, path))
        return self.moved[id(part)][1]


class _Carried(torch.autograd.Function):
    """A move through which gradients flow back."""

    @staticmethod
    def forward(context, tensor, mover, path):
        context.device, context.dtype = tensor.device, tensor.dtype
        moved = mover.tensor(tensor, path)
        return moved.view_as(moved) if moved is tensor else moved

    @staticmethod
    def backward(context, gradient):
        back = Mover(context.device, context.dtype, "first", PlacementReport(), False)
        return back.nested(gradient, "gradient"), None, None


class _Aliases:
    """The tensors of a module that share memory with another one without being the same object: tied by `.data` or `detach`."""

    def __init__(self, module):
        tensors = {id(each): each for each in (*module.parameters(), *module.buffers())}
        self.shared = collections.Counter(filter(None, map(_memory, tensors.values())))
        self.moved = {}

    def once(self, tensor, move):
        memory = _memory(tensor)
        if self.shared[memory] < 2 or memory is None:
            return move(tensor)
        if memory not in self.moved:
            # The old one is kept until the end: a new one could get its memory.
            self.moved[memory] = (tensor, move(tensor))
        return self.moved[memory][1]


def _memory(tensor):
    """The memory of a plain tensor with its shape and strides; None if it has none, or none that is accessible."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested or torch.nn.parameter.is_lazy(tensor):
        return None
    if tensor.is_quantized or not tensor.numel() or hasattr(tensor, "__tensor_flatten__"):
        return None
    return tensor.data_ptr(), tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride()


def _moves_itself(tensor):
    """Whether its class overrides how it is moved to a device, for example to quantise it."""
    return type(tensor).to is not torch.Tensor.to


def _refilled(original, moved):
    """A mapping of the original's type with its other attributes: dictionaries of every kind, and Hugging Face's batches."""
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


def _remade(original, values):
    """A sequence or set of the original's type, also of types that are not constructed from their items."""
    kind = type(original)
    if isinstance(original, (tuple, frozenset)):
        try:
            remade = kind(values)
        except TypeError:
            remade = (tuple if isinstance(original, tuple) else frozenset).__new__(kind, values)
        getattr(remade, "__dict__", {}).update(getattr(original, "__dict__", {}))
        return remade
    remade = copy.copy(original)
    remade.clear()
    getattr(remade, "extend", getattr(remade, "update", None))(values)
    return remade
