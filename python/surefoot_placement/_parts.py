"""Splits composite tensors into plain ones, which are moved separately and reassembled on the device."""

import dataclasses
from collections.abc import Callable

import torch

from ._report import PlacementError

_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
_COMPRESSED = {torch.sparse_csr: _BY_ROW, torch.sparse_bsr: _BY_ROW, torch.sparse_csc: _BY_COLUMN, torch.sparse_bsc: _BY_COLUMN}


@dataclasses.dataclass
class TakenApart:
    """A tensor's parts by name, and a function that reassembles it on a device."""

    parts: dict
    put_together: Callable


def take_apart(tensor, path):
    """The tensor in plain parts; None if it is plain itself."""
    if hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "device_mesh"):
        return _wrapped(tensor)
    if tensor.layout == torch.sparse_coo:
        return _coordinates(tensor)
    if tensor.layout in _COMPRESSED:
        return _compressed(tensor)
    if tensor.layout != torch.strided:
        raise PlacementError(f"{path} has the layout {tensor.layout}, which works on the CPU only: move its `to_dense()` instead")
    if tensor.is_nested:
        return _nested(tensor)
    if tensor.is_quantized:
        return _quantized(tensor)
    return None


def _wrapped(tensor):
    """A wrapper subclass of tensors: ragged tensors (`torch.jagged`), those of torchao."""
    names, context = tensor.__tensor_flatten__()
    build = lambda parts, _: type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return TakenApart({name: getattr(tensor, name) for name in names}, build)


def _coordinates(tensor):
    build = lambda parts, _: torch.sparse_coo_tensor(
        parts["indices"], parts["values"], tensor.shape, is_coalesced=tensor.is_coalesced()
    )
    return TakenApart({"indices": tensor._indices(), "values": tensor._values()}, build)


def _compressed(tensor):
    names = (*_COMPRESSED[tensor.layout], "values")
    build = lambda parts, _: torch.sparse_compressed_tensor(*parts.values(), tensor.shape, layout=tensor.layout)
    return TakenApart({name: getattr(tensor, name)() for name in names}, build)


def _nested(tensor):
    """A nested tensor: its values are in one buffer, and the offsets of its tensors on the CPU."""
    whole = tensor.contiguous()
    where = (whole._nested_tensor_size(), whole._nested_tensor_strides(), whole._nested_tensor_storage_offsets())
    return TakenApart({"values": whole.values()}, lambda parts, _: torch._nested_view_from_buffer(parts["values"], *where))


def _quantized(tensor):
    """A quantised tensor: its bytes, and the scale and zero point of each channel."""
    whole = tensor.contiguous()
    parts = {"bytes": torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(whole.untyped_storage())}
    by_channel = tensor.qscheme() in (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
    if by_channel:
        parts.update(scales=tensor.q_per_channel_scales(), zero_points=tensor.q_per_channel_zero_points())

    def build(parts, device):
        if by_channel:
            empty = torch._empty_per_channel_affine_quantized(
                tensor.shape, scales=parts["scales"], zero_points=parts["zero_points"],
                axis=tensor.q_per_channel_axis(), dtype=tensor.dtype, device=device,
            )
        else:
            empty = torch._empty_affine_quantized(
                tensor.shape, scale=tensor.q_scale(), zero_point=tensor.q_zero_point(), dtype=tensor.dtype, device=device
            )
        return empty.set_(parts["bytes"].untyped_storage(), 0, whole.shape, whole.stride())

    return TakenApart(parts, build)
