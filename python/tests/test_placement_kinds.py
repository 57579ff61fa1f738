"""surefoot_placement with tensors of every kind, on the simulated device, where the first copy of each arrives damaged."""

import collections
import dataclasses
import types

import pytest
import torch
from device import configure

from surefoot_placement import PlacementError, PlacementReport, to_device


class Labelled(torch.Tensor):
    """A tensor subclass that does not override `to`, like torchvision's images."""


def kinds():
    """Tensors of at least 2 KiB, by their special property."""
    torch.manual_seed(0)
    whole, rows = torch.randn(64, 64), [torch.randn(700), torch.randn(40)]
    scales, zeros = torch.rand(64).double() + 0.1, torch.randint(5, (64,))
    return {
        "quantized": torch.quantize_per_tensor(whole, 0.05, 3, torch.quint8),
        "quantized, transposed": torch.quantize_per_tensor(whole, 0.05, 3, torch.qint8).t(),
        "quantized by channel": torch.quantize_per_channel(whole, scales, zeros, 0, torch.qint8),
        "nested": torch.nested.nested_tensor(rows),
        "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        "sparse": torch.eye(256).to_sparse(), "rows": torch.eye(256).to_sparse_csr(),
        "columns": torch.eye(256).to_sparse_csc(), "blocks": torch.eye(256).to_sparse_bsr((2, 2)),
        "bool": whole.repeat(2, 2) > 0, "complex": torch.complex(whole, whole.t()), "int8": (whole * 40).to(torch.int8),
        "float8": whole.to(torch.float8_e4m3fn), "bfloat16": whole.bfloat16(), "double": whole.double(),
        "transposed": whole.t(), "every other": whole[:, ::2], "flipped later": whole.conj(),
        "expanded": whole[:1].expand(64, 64), "part of a view": whole.view(-1)[7:3000], "read as others": whole.view(torch.int16),
        "labelled": whole.as_subclass(Labelled), "learns": whole.clone().requires_grad_(), "parameter": torch.nn.Parameter(whole.clone()),
    }


def numbers(tensor):
    """The contents of a tensor on the CPU, in a form that can be compared bit by bit."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return torch.cat([each.flatten() for each in tensor.unbind()])
    tensor = tensor.int_repr() if tensor.is_quantized else tensor.to_dense()
    return tensor.resolve_conj().contiguous().view(-1).view(torch.uint8)


def every_kind():
    to_device(torch.ones(4), "cuda")  # the device is found out about before copies go wrong
    seen = {}
    for name, tensor in kinds().items():
        configure("copy=h2d>=1K@1:zeros")
        there, back = PlacementReport(), PlacementReport()
        moved = to_device(tensor, "cuda", verify="always", report=there)
        configure("reset_faults")
        configure("copy=d2h>=1K@1:zeros")
        returned = to_device(moved, "cpu", verify="always", report=back)
        configure("reset_faults")
        seen[name] = {
            "device": moved.device.type, "kind": type(moved) is type(returned) is type(tensor),
            "shape": moved.is_nested or moved.shape == tensor.shape, "dtype": moved.dtype == returned.dtype == tensor.dtype,
            "layout": moved.layout == tensor.layout, "learns": moved.requires_grad == tensor.requires_grad,
            "equal": torch.equal(numbers(returned), numbers(tensor)), "unseen": there.unknown + back.unknown,
            "failures": [len(there.failures), len(back.failures)], "verified": there.verified == there.tensors > 0,
        }
        if tensor.is_quantized:
            seen[name]["equal"] &= torch.equal(returned.dequantize(), tensor.dequantize())
    return seen


def test_every_kind_of_tensor_is_verified_and_repaired_both_ways(run):
    expected = {
        "device": "cuda", "kind": True, "shape": True, "dtype": True, "layout": True, "learns": True, "equal": True, "unseen": [],
        "failures": [1, 1], "verified": True,
    }
    for name, seen in run(every_kind).items():
        assert seen == expected, name


def small_ones():
    things = [torch.empty(0, 3), torch.tensor(2.5), torch.tensor(True), torch.empty(0, dtype=torch.complex64), torch.eye(2).to_sparse()]
    report = PlacementReport()
    moved = to_device(things, "cuda", verify="always", report=report)
    back = to_device(moved, "cpu", verify="always", report=report)
    return [report.unknown == [], all(each.device.type == "cuda" for each in moved),
            all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(back, things))]


def test_nothing_is_too_small(run):
    assert run(small_ones) == [True, True, True]


def ragged_together():
    """Ragged tensors can be added only if their offsets are one object."""
    rows = [torch.randn(3), torch.randn(5)]
    one = torch.nested.nested_tensor(rows, layout=torch.jagged)
    other = torch.nested.nested_tensor_from_jagged(torch.randn(8), one.offsets())
    moved = to_device({"one": one, "other": other}, "cuda")
    return [moved["one"].offsets() is moved["other"].offsets(), (moved["one"] + moved["other"]).device.type]


def test_ragged_tensors_of_one_shape_stay_of_one_shape(run):
    assert run(ragged_together) == [True, "cuda"]


def refused_devices():
    said = []
    for device in ("cuda:7", "xpu", "hip"):
        try:
            to_device(torch.ones(1), device)
        except (PlacementError, ValueError) as problem:
            said.append(str(problem))
    return said


def test_devices_that_are_not_there_are_named(run):
    seven, other, hip = run(refused_devices)
    assert seven == "this machine has no device cuda:7: PyTorch sees 1 of that type"
    assert "has no device xpu" in other and "PyTorch uses the name cuda for AMD devices" in hip


def tied_by_data():
    """Two parameters and a buffer that share memory, which `Module.to` would separate."""
    model = torch.nn.ModuleDict({"tokens": torch.nn.Embedding(100, 8), "head": torch.nn.Linear(8, 100, bias=False)})
    model["head"].weight = torch.nn.Parameter(model["tokens"].weight.data)
    model["tokens"].weight.grad = torch.ones(100, 8)
    model.register_buffer("shown", model["head"].weight.detach())
    report = PlacementReport()
    to_device(model, "cuda", report=report)
    places = {each.data_ptr() for each in (model["tokens"].weight, model["head"].weight, model.shown)}
    return [len(places), report.tensors, model["tokens"].weight.grad.device.type, model["head"].weight.grad is None]


def test_parameters_of_one_memory_move_once_and_stay_of_one_memory(run):
    assert run(tied_by_data) == [1, 2, "cuda", True]


# Tests without a device.


@pytest.mark.parametrize(
    "device, dtype, message",
    [
        ("cud", None, "device='cud': .* did you mean cuda"),
        ("meta", None, "nothing can be moved there"),
        (3.5, None, "device=3.5: expected a device such as cpu"),
        ("cpu", "floa16", "dtype='floa16': .* did you mean float16"),
        ("cpu", torch.int8, "only floating-point tensors are cast"),
        ("cpu", 16, "dtype=16: expected a type such as float32"),
    ],
)
def test_what_is_no_device_or_type_is_refused_by_name(device, dtype, message):
    with pytest.raises(ValueError, match=message):
        to_device(torch.ones(1), device, dtype)


@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16"])
def test_a_type_may_be_given_by_its_name(name):
    assert to_device(torch.ones(1), "cpu", name).dtype == torch.bfloat16


def test_a_layout_that_only_the_cpu_has_is_refused_with_a_way_out():
    from surefoot_placement._parts import take_apart

    with pytest.raises(PlacementError, match="weight has the layout torch._mkldnn.*to_dense"):
        take_apart(torch.randn(3, 3).to_mkldnn(), "weight")


@pytest.mark.parametrize("contains_itself", [[], {}, collections.deque(), types.SimpleNamespace()])
def test_what_contains_itself_is_refused(contains_itself):
    if isinstance(contains_itself, dict):
        contains_itself["again"] = contains_itself
    elif hasattr(contains_itself, "append"):
        contains_itself.append(contains_itself)
    else:
        contains_itself.again = contains_itself
    with pytest.raises(PlacementError, match="again.* contains itself|\\[0\\] contains itself"):
        to_device(contains_itself, "cpu")


def test_what_occurs_twice_side_by_side_does_not_contain_itself():
    inner = [torch.ones(1)]
    moved = to_device([inner, inner], "cpu", "float64")
    assert moved[0][0] is moved[1][0]


class Pages(list):
    def __init__(self, pages, title):
        super().__init__(pages)
        self.title = title


class Span(tuple):
    def __new__(cls, first, last):
        return super().__new__(cls, (first, last))


class Picture:
    def __init__(self):
        self.pixels = torch.ones(2)


@dataclasses.dataclass(slots=True)
class Slotted:
    values: torch.Tensor


def test_containers_that_are_made_in_another_way_keep_their_type():
    one = torch.ones(2)
    things = [Pages([one], "cover"), Span(one, one), types.SimpleNamespace(x=one), Slotted(one), torch.ones(2, 2).max(0)]
    pages, span, namespace, slotted, maximum = moved = to_device(things, "cpu", "float64")
    assert [type(each) for each in moved] == [type(each) for each in things]
    assert pages.title == "cover" and things[0][0] is one
    inside = (pages[0], *span, namespace.x, slotted.values, maximum.values)
    assert {each.dtype for each in inside} == {torch.float64} and maximum.indices.dtype == torch.int64


def test_a_generator_moves_what_it_yields_and_keeps_nothing():
    asked = []
    lazily = to_device(({"x": asked.append(n) or torch.ones(1)} for n in range(3)), "cpu", "float64")
    assert asked == []
    assert next(lazily)["x"].dtype == torch.float64 and asked == [0]
    assert [each["x"].dtype for each in lazily] == [torch.float64] * 2


def test_what_is_left_where_it_was_is_told():
    report, picture = PlacementReport(), Picture()
    assert to_device({"a": picture}, "cpu", "float64", report=report)["a"] is picture
    assert report.left == ["['a'] (Picture)"] and "although they contain tensors: ['a'] (Picture)" in str(report)


def test_the_gradient_of_a_leaf_comes_with_it():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    moved = to_device(weight, "cpu", "float64")
    assert moved.grad.tolist() == [3.0, 3.0] and moved.grad.dtype == torch.float64


def test_weights_that_are_not_made_yet_wait_for_their_shape():
    lazy = to_device(torch.nn.LazyLinear(3), "cpu", "float64")
    assert lazy(torch.ones(2, 5)).shape == (2, 3)
