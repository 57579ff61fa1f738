"""surefoot_placement on the simulated device, with damaged copies, and with real Accelerate."""

import collections
import dataclasses
import tempfile
from pathlib import Path

import pytest
import torch
from device import Gpt, calls, order, train

import surefoot_placement
from surefoot_placement import DeviceLost, PlacementError, PlacementReport, safe_prepare, to_device

LARGE = 1 << 20  # elements


def damaged(fault, **options):
    """Moves one tensor while copies to the device go wrong; returns how it arrived and what was reported."""
    source = torch.randn(LARGE)
    to_device(torch.ones(4), "cuda")  # the device is found out about before copies go wrong
    order(f"copy=h2d>=1K{fault}")
    report = PlacementReport()
    arrived = to_device(source, "cuda", verify="always", report=report, **options)
    order("reset_faults")
    return [torch.equal(arrived.cpu(), source), report.troubles]


def damaged_once():
    return {kind: damaged(f"@1:{kind}") for kind in ("zeros", "nan", "truncate", "flip", "late(50ms)")}


def test_a_copy_that_arrives_damaged_is_made_again(run):
    for kind, (equal, troubles) in run(damaged_once).items():
        assert equal, kind
        assert troubles == [["tensor", ["direct copy: arrived damaged"]]], kind


def damaged_until_chunks():
    surefoot_placement.CHUNK_BYTES = 1 << 20
    order("copy=h2d>=2M:nan")
    report = PlacementReport()
    source = torch.randn(LARGE)
    arrived = to_device(source, "cuda", report=report)
    return [torch.equal(arrived.cpu(), source), report.troubles[0][1]]


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
        order("copy=h2d>=1K:zeros")
        stayed = to_device({"weight": torch.ones(LARGE)}, "cuda", stay_on_cpu=True)["weight"]
    return [str(stayed.device), str(caught[0].message)]


def test_a_tensor_may_stay_on_the_cpu_if_asked(run):
    device, warning = run(left_on_cpu)
    assert device == "cpu"
    assert "['weight'] (4194304 bytes)" in warning and "stays on the CPU" in warning


def unverified():
    to_device(torch.ones(4), "cuda")
    order("copy=h2d>=1K:zeros")
    return to_device(torch.ones(LARGE), "cuda", verify="off").cpu().sum().item()


def test_off_trusts_every_copy(run):
    assert run(unverified) == 0.0


def verified_in_modes():
    seen = {}
    for mode in ("first", "sample", "always"):
        surefoot_placement._arrivals.clear()
        report = PlacementReport()
        for _ in range(17):
            to_device([torch.ones(10)], "cuda", verify=mode, report=report)
        to_device(torch.nn.Linear(3, 3), "cuda", verify=mode, report=report)
        seen[mode] = [report.tensors, report.verified]
    return seen


def test_modes_verify_what_they_say(run):
    # 17 of batches and 2 of a module, which every mode verifies.
    assert run(verified_in_modes) == {"first": [19, 1 + 2], "sample": [19, 3 + 2], "always": [19, 19]}


def refused_copy():
    to_device(torch.ones(4), "cuda")
    order("fail=cudaMemcpyAsync@1:invalid_value")
    report = PlacementReport()
    arrived = to_device(torch.ones(LARGE), "cuda", report=report)
    return [arrived.cpu().sum().item(), report.troubles[0][1]]


def test_a_refused_copy_is_tried_again(run):
    total, steps = run(refused_copy)
    assert total == LARGE
    assert steps == ["direct copy: CUDA error: invalid argument"]


def lost():
    order("lose=cudaMemcpyAsync@1:illegal_address")
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
        readable = surefoot_placement._readable(mapped)
        own = torch.randn(LARGE)
        return [readable.data_ptr() != mapped.data_ptr(), surefoot_placement._readable(own).data_ptr() == own.data_ptr(),
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
    order("copy=h2d>=1K@1:zeros")
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
    return {"intact": intact, "seen": seen, "kinds": kinds, "troubles": report.troubles, "remaining": remaining,
            "verified": [report.tensors, report.verified]}


def test_accelerate_trains_on_what_was_placed_safely(run):
    seen = run(accelerated)
    sums = [sum(range(start, start + 512)) for start in range(0, 2048, 512)]
    assert seen["seen"] == [item for total in sums for item in (float(total), "cuda")]
    assert seen["intact"]
    assert seen["troubles"] == [["0.weight", ["direct copy: arrived damaged"]]]
    assert seen["kinds"] == ["Sequential", "AcceleratedOptimizer", True, 4]
    assert seen["remaining"] == ["cuda"]
    assert seen["verified"] == [4 + 5 * 2, 4 + 5 * 2], "four parameters, and every tensor of every batch"


# What needs no device.

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
    intact = surefoot_placement._checksum(data)
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
    assert all(surefoot_placement._checksum(each) != intact for each in damaged)
    assert surefoot_placement._checksum(data.clone()) == intact


def test_a_checksum_does_not_depend_on_where_a_tensor_lies():
    data = torch.arange(1000, dtype=torch.uint8)
    assert surefoot_placement._checksum(data[3:]) == surefoot_placement._checksum(data[3:].clone())
