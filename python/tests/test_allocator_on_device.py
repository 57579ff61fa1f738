"""hip-alloc on the simulated device itself: its memory, its limits, its streams."""

import json
import sys

import torch
from test_activation import MIB, info, train_and_look


def test_memory_comes_from_the_device(run):
    result = run(train_and_look, hip_alloc=True)
    assert result["held"] >= result["reserved"] > 0


def test_memory_info_is_honest_where_the_runtime_is_not(run):
    for free, total in run(info, hip_alloc=True, DEVICE_SIM_UNIFIED="8G", DEVICE_SIM_REPORT_TOTAL="4G"):
        assert 0 < free <= total <= 8 << 30


def exhaust():
    kept = torch.arange(1000.0).to("cuda")
    try:
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        again = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        return [str(problem), again.numel(), kept.cpu().sum().item(), torch.cuda.memory_stats()["num_ooms"]]


def test_out_of_memory_is_pytorchs_own_error_and_leaves_all_intact(run):
    message, again, kept, count = run(exhaust, hip_alloc=True, DEVICE_SIM_CAPACITY="1G")
    assert "Tried to allocate 2.00 GiB" in message
    assert (again, kept, count) == (100 * MIB, sum(range(1000)), 1)


def streams():
    """Memory that is freed on one stream while another still uses it must not be reused."""
    from device import configure

    side = torch.cuda.Stream()
    configure("device_time=kernel:300ms")
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    with torch.cuda.stream(side):
        tensor.add_(1)
        tensor.record_stream(side)
    del tensor
    while_busy = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").data_ptr()
    torch.cuda.synchronize()
    afterwards = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    return [address == while_busy, address in [tensor.data_ptr() for tensor in afterwards]]


def test_record_stream_keeps_memory_until_the_stream_is_done(run):
    early, late = run(streams, hip_alloc=True)
    assert not early
    assert late


def holes():
    """Frees most tensors, so that each block keeps one; values must survive."""
    from device import calls

    tensors = [torch.full((4 * MIB,), number, dtype=torch.uint8).to("cuda") for number in range(240)]
    kept = tensors[::30]
    del tensors
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    again = [torch.full((4 * MIB,), 255, dtype=torch.uint8).to("cuda") for _ in range(50)]
    values = [tensor.cpu().unique().tolist() for tensor in kept + again]
    return {
        "held": held, "values": values, "live": 4 * MIB * len(kept),
        "mapped": calls("cuMemMap", "hipMemMap"), "unmapped": calls("cuMemUnmap", "hipMemUnmap"),
    }


def test_mapped_memory_gives_back_holes_and_keeps_what_is_between(run):
    off = run(holes, hip_alloc=True, HIP_ALLOC_CONF="mapped:off,warmup_mb:1024", DEVICE_SIM_CAPACITY="8G")
    on = run(holes, hip_alloc=True, HIP_ALLOC_CONF="mapped:on,warmup_mb:1024", DEVICE_SIM_CAPACITY="8G")
    assert on["values"] == off["values"] == [[number] for number in range(0, 240, 30)] + [[255]] * 50
    assert off["mapped"] == 0 and on["mapped"] > 2
    assert on["live"] <= on["held"] < off["held"] / 2


def test_where_memory_cannot_be_mapped_it_is_had_without(run):
    result = run(holes, hip_alloc=True, HIP_ALLOC_CONF="mapped:on,warmup_mb:1024", DEVICE_SIM_FAIL="*MemMap@1:not_supported")
    assert result["unmapped"] == 0 and result["mapped"] == 1 and result["held"] >= 900 * MIB
    assert result["values"][0] == [0]


def lose_the_device():
    from device import configure

    tensors = [torch.ones(1 << 20, device="cuda") for _ in range(100)]
    side = torch.cuda.Stream()
    for tensor in tensors:
        tensor.record_stream(side)
    configure("lose=*@1+:illegal_address")
    seen = []
    for use in [torch.cuda.synchronize, tensors.clear] + [lambda: torch.empty(1 << 29, device="cuda")] * 20:
        try:
            use()
        except torch.OutOfMemoryError as problem:
            seen.append(f"out of memory: {problem}")
        except RuntimeError as problem:
            seen.append(str(problem))
    print(json.dumps(seen))
    sys.exit(1)


def test_a_lost_device_is_told_once_and_is_no_lack_of_memory(run):
    """A program that retries with smaller batches when memory runs out must not retry forever."""
    process = run(lose_the_device, fails=True, hip_alloc=True)
    seen = json.loads(process.stdout)
    assert len(seen) >= 20 and not any("out of memory" in message for message in seen)
    lines = [line for line in process.stderr.splitlines() if line.startswith("hip-alloc:")]
    assert len(lines) == 1 and "device 0 is lost" in lines[0], lines


def holes_filled_again():
    tensors = [torch.full((4 * MIB,), number, dtype=torch.uint8).to("cuda") for number in range(240)]
    kept = tensors[::30]
    del tensors
    torch.cuda.empty_cache()
    again = [torch.full((4 * MIB,), 255, dtype=torch.uint8).to("cuda") for _ in range(240)]
    return [tensor.cpu().unique().tolist() for tensor in kept + again]


def test_memory_that_does_not_go_back_as_it_should_is_not_given_out(run):
    """Addresses that are no longer mapped must not be allocated."""
    failing = "*MemUnmap@6:unknown,*MemRelease@4+:unknown,*MemAddressFree@2+:unknown"
    values = run(holes_filled_again, hip_alloc=True, HIP_ALLOC_CONF="mapped:on,warmup_mb:1024", DEVICE_SIM_CAPACITY="8G", DEVICE_SIM_FAIL=failing)
    assert values == [[number] for number in range(0, 240, 30)] + [[255]] * 240


def fraction():
    total = torch.cuda.mem_get_info()[1]
    kept = torch.arange(1000.0).to("cuda")
    torch.cuda.set_per_process_memory_fraction(0.5)
    seen = {
        "told": torch.cuda.get_per_process_memory_fraction(),
        "total": torch.cuda.mem_get_info()[1] / total,
        "within": torch.empty(int(0.4 * total), dtype=torch.uint8, device="cuda").numel() > 0,
    }
    try:
        torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        seen["beyond"] = str(problem)
    pieces = []
    try:
        while len(pieces) < 1000:
            pieces.append(torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        seen["pieces"] = len(pieces) * 16 * MIB / total
    seen["held"] = torch.cuda.memory_reserved() / total
    pieces.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    seen["lifted"] = torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda").numel() > 0
    seen["intact"] = kept.cpu().sum().item() == sum(range(1000))
    return seen


def test_a_memory_fraction_is_a_limit(run):
    seen = run(fraction, hip_alloc=True, DEVICE_SIM_CAPACITY="8G")
    assert seen["told"] == 0.5 and abs(seen["total"] - 0.5) < 0.001
    assert seen["within"] and seen["lifted"] and seen["intact"]
    assert "4.00 GiB" in seen["beyond"] and "set_per_process_memory_fraction" in seen["beyond"]
    assert 0.45 < seen["pieces"] <= seen["held"] <= 0.5


def benchmarked_convolutions():
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.backends.cudnn.benchmark = True
        with torch.backends.cudnn.flags(benchmark=True):
            inside = torch.backends.cudnn.benchmark
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1)
    ).to("cuda")
    between = []
    for size in (32, 48, 32, 48, 32, 48):
        model(torch.randn(4, 3, size, size).to("cuda")).sum().backward()
        model.zero_grad()
        between.append(torch.cuda.memory_allocated())
    return [[str(warning.message) for warning in caught], inside, between]


def test_a_program_that_wants_cudnn_to_benchmark_is_told_and_runs(run):
    """Without this the first convolution raises an error: the trials need `cacheInfo`."""
    warned, inside, between = run(benchmarked_convolutions, hip_alloc=True)
    assert len(warned) == 2 and all("HIP_ALLOC=1" in warning for warning in warned)
    assert not inside
    assert between == [between[0]] * 6
