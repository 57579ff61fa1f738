"""surefoot_placement on the simulated device, with damaged copies, and with real Accelerate."""

import collections
import dataclasses
import tempfile
import types
from pathlib import Path

import pytest
import torch
from device import Gpt, calls, configure, train

import surefoot_placement
from surefoot_placement import DeviceLost, PlacementError, PlacementReport, safe_prepare, to_device

LARGE = 1 << 20  # elements


def damaged(fault, **options):
    """Moves one tensor with faulty copies to the device; returns the result and the report."""
    source = torch.randn(LARGE)
    to_device(torch.ones(4), "cuda")  # the device is found out about before copies go wrong
    configure(f"copy=h2d>=1K{fault}")
    report = PlacementReport()
    arrived = to_device(source, "cuda", verify="always", report=report, **options)
    configure("reset_faults")
    return [torch.equal(arrived.cpu(), source), report.failures]


def damaged_once():
    return {kind: damaged(f"@1:{kind}") for kind in ("zeros", "nan", "truncate", "flip", "late(50ms)")}


def test_a_copy_that_arrives_damaged_is_made_again(run):
    for kind, (equal, failures) in run(damaged_once).items():
        assert equal, kind
        assert failures == [["tensor", ["direct copy: arrived damaged"]]], kind


def damaged_until_chunks():
    surefoot_placement._transfer.CHUNK_BYTES = 1 << 20
    configure("copy=h2d>=2M:nan")
    report = PlacementReport()
    source = torch.randn(LARGE)
    arrived = to_device(source, "cuda", report=report)
    return [torch.equal(arrived.cpu(), source), report.failures[0][1]]


def test_chunks_arrive_where_large_copies_do_not(run):
    equal, steps = run(damaged_until_chunks)
    assert equal
    assert [step.split(":")[0] for step in steps] == ["direct copy", "once more", "through pinned memory"]


def damaged_always():
    try:
        damaged(":zeros")
    except PlacementError as problem:
        return str(problem)


def test_what_arrives_on_no_way_is_named_with_what_was_tried(run):
    message = run(damaged_always)
    assert "tensor (4194304 bytes) did not arrive on cuda:0" in message
    assert "in chunks: arrived damaged" in message


def left_on_cpu():
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        configure("copy=h2d>=1K:zeros")
        stayed = to_device({"weight": torch.ones(LARGE)}, "cuda", stay_on_cpu=True)["weight"]
    return [str(stayed.device), str(caught[0].message)]


def test_a_tensor_may_stay_on_the_cpu_if_asked(run):
    device, warning = run(left_on_cpu)
    assert device == "cpu"
    assert "['weight'] (4194304 bytes)" in warning and "stays on the CPU" in warning


def unverified():
    to_device(torch.ones(4), "cuda")
    configure("copy=h2d>=1K:zeros")
    return to_device(torch.ones(LARGE), "cuda", verify="off").cpu().sum().item()


def test_off_trusts_every_copy(run):
    assert run(unverified) == 0.0


def verified_in_modes():
    seen = {}
    for mode in ("first", "sample", "always"):
        surefoot_placement._transfer.trackers.clear()
        report = PlacementReport()
        for _ in range(129):
            to_device([torch.ones(10)], "cuda", verify=mode, report=report)
        to_device(torch.nn.Linear(3, 3), "cuda", verify=mode, report=report)
        seen[mode] = [report.tensors, report.verified]
    return seen


def test_modes_verify_what_they_say(run):
    # 129 of batches and 2 of a module, which every mode verifies.
    assert run(verified_in_modes) == {"first": [131, 1 + 2], "sample": [131, 3 + 2], "always": [131, 131]}


def refused_copy():
    to_device(torch.ones(4), "cuda")
    configure("fail=cudaMemcpyAsync@1:invalid_value")
    report = PlacementReport()
    arrived = to_device(torch.ones(LARGE), "cuda", report=report)
    return [arrived.cpu().sum().item(), report.failures[0][1]]


def test_a_refused_copy_is_tried_again(run):
    total, steps = run(refused_copy)
    assert total == LARGE
    assert steps == ["direct copy: CUDA error: invalid argument"]


def lost():
    configure("lose=cudaMemcpyAsync@1:illegal_address")
    try:
        to_device({"a": torch.ones(LARGE)}, "cuda")
    except DeviceLost as problem:
        return str(problem)


def test_a_lost_device_ends_the_move_at_once(run):
    message = run(lost)
    assert "['a']" in message and "illegal memory access" in message


def too_large():
    hoard = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
    del hoard  # kept by PyTorch's cache until somebody trims it
    report = PlacementReport()
    arrived = to_device(torch.ones(100 << 20), "cuda", report=report)
    try:
        to_device(torch.empty(300 << 20), "cuda")
    except torch.OutOfMemoryError as problem:
        return [arrived.device.type, str(problem)]


def test_out_of_memory_trims_once_and_then_says_so(run):
    device, message = run(too_large, DEVICE_SIM_CAPACITY="1G")
    assert device == "cuda"
    assert "out of memory" in message


def moved_module():
    torch.manual_seed(0)
    model = Gpt()
    model.head.weight = model.tokens.weight
    model.register_buffer("steps", torch.arange(10))
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = PlacementReport()
    to_device(model, "cuda", report=report)
    return {
        "equal": all(torch.equal(value.cpu(), before[name]) for name, value in model.state_dict().items()),
        "tied": model.head.weight is model.tokens.weight,
        "devices": sorted({str(value.device) for value in model.state_dict().values()}),
        "optimizer": all(p.device.type == "cuda" for group in optimizer.param_groups for p in group["params"]),
        "tensors": report.tensors, "names": len(list(model.parameters())) + 1, "verified": report.verified,
        "trains": len(list(train(model, steps=2))),
    }


def test_a_module_arrives_whole_with_tied_weights_and_its_optimizer(run):
    seen = run(moved_module)
    assert seen["equal"] and seen["tied"] and seen["optimizer"]
    assert seen["devices"] == ["cuda:0"]
    assert seen["tensors"] == seen["verified"] == seen["names"]
    assert seen["trains"] == 2


def mapped_file():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.pt")
        torch.save(torch.randn(LARGE), path)
        mapped = torch.load(path, mmap=True)
        readable = surefoot_placement._transfer.readable(mapped)
        own = torch.randn(LARGE)
        return [readable.data_ptr() != mapped.data_ptr(), surefoot_placement._transfer.readable(own).data_ptr() == own.data_ptr(),
                torch.equal(to_device(mapped, "cuda").cpu(), mapped)]


def test_a_mapped_file_is_read_before_it_is_copied(run):
    assert run(mapped_file) == [True, True, True]


def accelerated():
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 2))
    weights = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    data = torch.utils.data.TensorDataset(torch.arange(64 * 32).float().view(64, 32), torch.arange(64) % 2)
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=1, pin_memory=True)
    configure("copy=h2d>=1K@1:zeros")
    report = PlacementReport()
    model, optimizer, loader, scheduler = safe_prepare(
        accelerator, model, optimizer, loader, scheduler, verify="always", report=report
    )
    intact = all(torch.equal(p.cpu(), w) for p, w in zip(model.parameters(), weights))
    seen = []
    for features, labels in loader:
        seen += [features.cpu().sum().item(), features.device.type]
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    remaining = [features.device.type for features, _ in accelerator.skip_first_batches(loader, 3)]
    kinds = [type(model).__name__, type(optimizer).__name__, isinstance(loader, torch.utils.data.DataLoader), len(loader)]
    return {"intact": intact, "seen": seen, "kinds": kinds, "failures": report.failures, "remaining": remaining,
            "verified": [report.tensors, report.verified]}


def test_accelerate_trains_on_what_was_placed_safely(run):
    seen = run(accelerated)
    sums = [sum(range(start, start + 512)) for start in range(0, 2048, 512)]
    assert seen["seen"] == [item for total in sums for item in (float(total), "cuda")]
    assert seen["intact"]
    assert seen["failures"] == [["0.weight", ["direct copy: arrived damaged"]]]
    assert seen["kinds"] == ["Sequential", "AcceleratedOptimizer", True, 4]
    assert seen["remaining"] == ["cuda"]
    assert seen["verified"] == [4 + 5 * 2, 4 + 5 * 2], "four parameters, and every tensor of every batch"


def odd_things():
    """Each arrives on the device with its type and values; composite tensors are compared by their parts."""
    from torch.nn.utils.rnn import pack_sequence
    from transformers import BatchEncoding

    configure("copy=h2d>=1K@1:zeros")  # whatever comes first is damaged, and repaired
    report = PlacementReport()
    move = lambda thing: to_device(thing, "cuda", verify="always", report=report)
    image = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    moved_image = move(image)
    encoding = move(BatchEncoding({"input_ids": torch.arange(600)}))
    packed = move(pack_sequence([torch.randn(40, 8), torch.randn(30, 8)]))
    sparse, compressed = torch.eye(300).to_sparse(), torch.eye(300).to_sparse_csr()
    moved_sparse, moved_compressed = move(sparse), move(compressed)
    complex_values = torch.complex(torch.randn(300), torch.randn(300))
    weight = torch.randn(300, requires_grad=True)
    twice = move([weight, weight])
    back = to_device(moved_image, "cpu", verify="always", report=report)
    everything = [moved_image, encoding["input_ids"], packed.data, moved_sparse._values(), moved_compressed.values(), twice[0]]
    return {
        "devices": sorted({str(each.device) for each in everything}),
        "channels_last": moved_image.is_contiguous(memory_format=torch.channels_last),
        "image": torch.equal(back, image),
        "encoding": [type(encoding).__name__, encoding["input_ids"].cpu().sum().item()],
        "packed": [type(packed).__name__, packed.batch_sizes.device.type],
        "sparse": all(
            torch.equal(there.cpu(), here)
            for there, here in ((moved_sparse._values(), sparse._values()), (moved_sparse._indices(), sparse._indices()))
        ),
        "compressed": torch.equal(moved_compressed.col_indices().cpu(), compressed.col_indices()),
        "conjugate": torch.equal(move(complex_values.conj()).cpu(), complex_values.conj()),
        "leaf": [twice[0].is_leaf, twice[0].requires_grad, twice[0] is twice[1]],
        "failures": report.failures, "unknown": report.unknown,
    }


def test_odd_things_arrive_as_what_they_were(run):
    pytest.importorskip("transformers")
    seen = run(odd_things)
    assert seen["devices"] == ["cuda:0"]
    assert all(seen[name] for name in ("channels_last", "image", "sparse", "compressed", "conjugate")), seen
    assert seen["encoding"] == ["BatchEncoding", 600 * 599 // 2]
    assert seen["packed"] == ["PackedSequence", "cpu"]
    assert seen["leaf"] == [True, True, True]
    assert seen["failures"] == [["tensor", ["direct copy: arrived damaged"]]]
    assert seen["unknown"] == []


def damaged_on_the_way_back():
    there = to_device(torch.arange(LARGE), "cuda")
    configure("copy=d2h>=1M@1:zeros")
    report = PlacementReport()
    back = to_device(there, "cpu", verify="always", report=report)
    return [torch.equal(back, torch.arange(LARGE)), report.failures]


def test_the_way_back_is_verified_too(run):
    equal, failures = run(damaged_on_the_way_back)
    assert equal
    assert failures == [["tensor", ["copy to the CPU: arrived damaged"]]]


# Tests without a device.

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str


def test_nested_things_keep_their_shape():
    batch = {"pair": Pair(torch.ones(2), [torch.zeros(1), None]), "sample": Sample(torch.ones(3), "a"), "n": 3}
    moved = to_device(batch, "cpu", dtype=torch.float64)
    assert isinstance(moved["pair"], Pair) and isinstance(moved["sample"], Sample)
    assert moved["pair"].left.dtype == moved["sample"].image.dtype == torch.float64
    assert (moved["pair"].right[1], moved["sample"].name, moved["n"]) == (None, "a", 3)


class Batch(collections.UserDict):
    """Like those of Hugging Face's libraries: a mapping that is not a dictionary, and has additional attributes."""

    def __init__(self, data, origin):
        super().__init__(data)
        self.origin = origin


@dataclasses.dataclass(frozen=True)
class Frozen:
    image: torch.Tensor
    shape: tuple = dataclasses.field(init=False, default=(3,))
    scale: dataclasses.InitVar[int] = None

    def __post_init__(self, scale):
        assert scale is not None, "made anew instead of copied"


class OwnWay:
    """Neither a container nor a tensor, but with its own method `to`."""

    def to(self, device):
        return ("moved", str(device))


def test_every_kind_of_container_keeps_its_type():
    value = torch.ones(2)
    things = [
        Batch({"x": value}, "here"), Frozen(value, scale=2), collections.deque([value], maxlen=4), {value}, frozenset([value]),
        collections.OrderedDict(x=value), collections.defaultdict(list, x=value), types.MappingProxyType({"x": value}),
    ]
    moved = to_device(things, "cpu", dtype=torch.float64)
    assert [type(each) for each in moved] == [type(each) for each in things]
    assert moved[0].origin == "here" and moved[1].shape == (3,) and moved[2].maxlen == 4
    inside = [moved[0]["x"], moved[1].image, moved[2][0], *moved[3], *moved[4], moved[5]["x"], moved[6]["x"], moved[7]["x"]]
    assert all(each is inside[0] for each in inside), "one tensor moves once"
    assert inside[0].dtype == torch.float64
    assert things[0]["x"] is value and things[1].image is value, "what was given is as it was"


def test_modules_inside_of_containers_move_too():
    assert to_device({"model": torch.nn.Linear(2, 2)}, "cpu", dtype=torch.float64)["model"].weight.dtype == torch.float64


def test_what_moves_itself_is_told_apart_in_the_report():
    report = PlacementReport()
    assert to_device([OwnWay()], "cpu", report=report) == [("moved", "cpu")]
    assert report.unknown == ["[0] (OwnWay)"]
    assert "not verified: [0] (OwnWay)" in str(report)


def test_leaves_stay_leaves_and_parameters_parameters():
    leaf, parameter = torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2))
    moved_leaf, moved_parameter = to_device([leaf, parameter], "cpu", dtype=torch.float64)
    assert moved_leaf.is_leaf and moved_leaf.requires_grad
    assert type(moved_parameter) is torch.nn.Parameter and moved_parameter.requires_grad
    assert to_device(leaf, "cpu") is leaf


def test_gradients_flow_back_through_a_move():
    weight = torch.ones(3, requires_grad=True)
    to_device(weight * 2, "cpu", dtype=torch.float64).sum().backward()
    assert weight.grad.tolist() == [2.0, 2.0, 2.0] and weight.grad.dtype == torch.float32


def test_the_order_of_dimensions_in_memory_is_kept():
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    moved = to_device(image, "cpu", dtype=torch.float64)
    assert moved.stride() == image.stride() and torch.equal(moved, image.double())


def test_noted_conjugates_and_negatives_are_summed_as_what_they_mean():
    values = torch.complex(torch.randn(9), torch.randn(9))
    for lazy in (values.conj(), values.conj().imag):
        assert surefoot_placement._checksum.checksum(lazy) == surefoot_placement._checksum.checksum(lazy.resolve_conj().resolve_neg().clone())


def test_only_floating_point_is_cast():
    assert to_device(torch.arange(3), "cpu", dtype=torch.float16).dtype == torch.int64


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match="expected one of off, first, sample, always"):
        to_device(torch.ones(1), "cpu", verify="maybe")


def test_a_tensor_without_data_is_refused():
    with pytest.raises(PlacementError, match="meta device"):
        to_device(torch.ones(1, device="meta"), "cpu")


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, (1 << 20) * 8 + 13, (1 << 20) * 24])
def test_every_damage_changes_the_checksum(size):
    generator = torch.Generator().manual_seed(size)
    data = torch.randint(1, 256, (size,), dtype=torch.uint8, generator=generator)
    intact = surefoot_placement._checksum.checksum(data)
    half = size // 2
    flipped = data.clone()
    flipped[half] ^= 16
    damaged = [torch.zeros_like(data), torch.full_like(data, 255), flipped]
    if size > 1:
        damaged.append(torch.cat([data[:half], torch.zeros_like(data[half:])]))
    if size >= 16:
        words = data[: size // 8 * 8].view(-1, 8)
        damaged.append(torch.cat([words.flip(0).reshape(-1), data[size // 8 * 8 :]]))
    if size > 16 << 20:
        chunk = 8 << 20
        damaged.append(torch.cat([data[chunk : 2 * chunk], data[:chunk], data[2 * chunk :]]))
    assert all(surefoot_placement._checksum.checksum(each) != intact for each in damaged)
    assert surefoot_placement._checksum.checksum(data.clone()) == intact


def test_a_checksum_does_not_depend_on_where_a_tensor_lies():
    data = torch.arange(1000, dtype=torch.uint8)
    assert surefoot_placement._checksum.checksum(data[3:]) == surefoot_placement._checksum.checksum(data[3:].clone())
