"""hip-alloc on the simulated device itself: its memory, its limits, its streams."""

import json
import os
import sys

import torch
from device import report
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


def use_one_of_several():
    """`empty_cache` and the statistics of all devices, after the first one was used."""
    kept = torch.ones(10, device="cuda:0")
    torch.cuda.empty_cache()
    sums = [torch.cuda.memory_allocated(device) for device in range(3)]
    torch.cuda.reset_peak_memory_stats(2)
    torch.cuda.set_per_process_memory_fraction(0.5, 1)
    before = [device["held_bytes"] > 0 for device in report()["devices"]]
    contexts = [device["context"] for device in report()["devices"]]
    try:
        torch.empty(6 << 30, dtype=torch.uint8, device="cuda:1")
        limited = False
    except torch.OutOfMemoryError:
        limited = True
    return sums[0] >= kept.nbytes and sums[1:] == [0, 0], before, contexts, limited


def test_a_device_that_was_not_used_is_left_alone(run):
    told, held, contexts, limited = run(use_one_of_several, hip_alloc=True, DEVICE_SIM_DEVICES="3", DEVICE_SIM_CAPACITY="8G")
    assert told and limited, "what was set before its first use holds"
    assert held == contexts == [True, False, False]


def fail_to_trim():
    from device import configure

    kept = [torch.empty(64 * MIB, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
    kept.clear()
    import surefoot_activate._library as library

    trim = library.Library.trim

    def failing(self, device, keep=0):
        if device == 0:
            raise RuntimeError("hip_alloc_trim failed")
        trim(self, device, keep)

    library.Library.trim = failing
    try:
        torch.cuda.empty_cache()
        seen = None
    except RuntimeError as problem:
        seen = str(problem)
    configure("reset_faults")
    return seen, [torch.cuda.memory_reserved(device) for device in range(2)]


def test_an_error_of_empty_cache_is_raised_after_all_devices_were_trimmed(run):
    seen, [first, second] = run(fail_to_trim, hip_alloc=True, DEVICE_SIM_DEVICES="2")
    assert seen == "hip_alloc_trim failed"
    assert first >= 64 * MIB and second == 0


LORA_STEPS = "SUREFOOT_LORA_STEPS"


def lora(steps):
    """A LoRA of frozen layers of several widths, whose backward pass reads each of their weights."""
    torch.manual_seed(0)
    # Weights and, at full length, activations of 12 MiB, each of which fills a segment of PyTorch's allocator.
    widths = [1536, 4096, 1536, 4096]
    layers = [torch.randn(out, into, device="cuda", dtype=torch.bfloat16) for into, out in zip(widths, widths[1:], strict=False)]
    adapters = []
    for weight in layers:
        down = torch.randn(8, weight.shape[1], device="cuda", dtype=torch.bfloat16, requires_grad=True)
        up = torch.zeros(weight.shape[0], 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        adapters.append((down, up))
    optimizer = torch.optim.SGD([each for pair in adapters for each in pair], lr=1e-4)
    for step in range(steps):
        hidden = torch.randn(1536 - 64 * (step % 5), widths[0], device="cuda", dtype=torch.bfloat16)
        for weight, (down, up) in zip(layers, adapters, strict=True):
            hidden = hidden @ weight.T + (hidden @ down.T) @ up.T
        hidden.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return steps


def lora_of_some_steps():
    return lora(300)


def lora_of_many_steps():
    return lora(int(os.environ[LORA_STEPS]))


def test_kernels_that_read_behind_an_operand_fault_without_a_guard_and_never_with_one(run):
    """hipBLASLt's on gfx12 do. CUDA's names have no architecture of AMD's, so the guard is switched on by name here;
    that gfx12 does so is tested in `crates/hip-alloc/tests/guard.rs`."""
    overread = {"DEVICE_SIM_OVERREAD": "4K", "DEVICE_SIM_CAPACITY": "8G"}
    theirs = run(lora_of_some_steps, fails=True, **overread)
    assert theirs.returncode != 0 and "Memory access fault" in theirs.stderr
    off = run(lora_of_some_steps, fails=True, hip_alloc=True, HIP_ALLOC_CONF="guard:off", **overread)
    assert off.returncode != 0 and "Memory access fault" in off.stderr
    steps = int(os.environ.get(LORA_STEPS, "2000"))
    many = {LORA_STEPS: str(steps), **overread}
    assert run(lora_of_many_steps, hip_alloc=True, HIP_ALLOC_CONF="guard:on", **many) == steps
