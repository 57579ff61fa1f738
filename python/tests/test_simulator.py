"""The simulated device under real PyTorch, with PyTorch's own allocator."""

import signal
import time

import torch
from device import Gpt, calls, configure, report, train

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def random(dtype, *shape):
    return torch.randint(0, 255, shape).to(dtype) if dtype is torch.bool else torch.randint(-100, 100, shape).to(dtype)


def copy_values():
    wrong = []
    stream = torch.cuda.Stream()
    for dtype in DTYPES:
        for size in (1, 3, 1000, 1 << 20):
            source = random(dtype, size)
            routes = {
                "plain": lambda: source.to("cuda").cpu(),
                "pinned": lambda: source.pin_memory().to("cuda", non_blocking=True).cpu(),
                "on device": lambda: source.to("cuda").clone().cpu(),
            }
            with torch.cuda.stream(stream):
                routes["stream"] = lambda: source.to("cuda").cpu()
                wrong += [(str(dtype), size, name) for name, route in routes.items() if not torch.equal(route(), source)]
    filled = torch.zeros(1 << 20, device="cuda").cpu()
    wrong += [] if filled.count_nonzero() == 0 else ["zeros"]
    return wrong


def test_values_survive_every_way_through_the_device(run):
    assert run(copy_values) == []


def state_dict_round_trip():
    torch.manual_seed(0)
    model = Gpt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("cuda")
    after = {name: value.cpu() for name, value in model.state_dict().items()}
    return all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_comes_back_from_the_device_bit_by_bit(run):
    assert run(state_dict_round_trip)


def train_with_native_allocator():
    between = list(train(Gpt().to("cuda"), steps=6))
    device = report()["devices"][0]
    return {
        "between": between, "reserved": torch.cuda.memory_reserved(), "held": device["held_bytes"],
        "launches": calls("cudaLaunchKernel", "__cudaLaunchKernel", "cudaLaunchKernelExC"),
        "mallocs": calls("cudaMalloc"), "maps": calls("cuMemMap"),
    }


def test_a_whole_training_loop_runs(run):
    result = run(train_with_native_allocator)
    assert result["launches"] > 500
    assert result["between"][1:] == [result["between"][1]] * 5, "the same memory between steps once states exist"
    assert result["held"] >= result["reserved"] > result["between"][-1]
    assert result["maps"] == 0


def train_convolutions():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3, stride=2),
    ).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        images = torch.randn(4, 3, 32, 32).to("cuda", memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [calls("cudnnBackendExecute"), torch.backends.cudnn.version() is not None]


def test_convolutions_go_through_cudnn(run):
    executed, has_version = run(train_convolutions)
    assert executed >= 3 * 5, "two forward; two filter gradients and one data gradient back"
    assert has_version


def test_expandable_segments_map_virtual_memory(run):
    result = run(train_with_native_allocator, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert result["maps"] > 0
    assert result["held"] >= result["reserved"]


def exhaust():
    kept = torch.zeros(1000, device="cuda")
    try:
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        again = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        return [str(problem), again.numel(), kept.cpu().count_nonzero().item()]


def test_beyond_the_capacity_pytorch_is_out_of_memory_and_goes_on(run):
    message, again, kept = run(exhaust, DEVICE_SIM_CAPACITY="1G")
    assert "Tried to allocate 2.00 GiB" in message
    assert (again, kept) == (100 << 20, 0)


def memory_info():
    return torch.cuda.mem_get_info()


def test_free_may_exceed_the_total_as_on_some_apus(run):
    assert run(memory_info, DEVICE_SIM_UNIFIED="32G", DEVICE_SIM_REPORT_TOTAL="16G") == [32 << 30, 16 << 30]


def damaged_copies():
    source = torch.arange(1, 1001, dtype=torch.float32)
    arrived = {}
    for damage in ("zeros", "nan", "truncate", "flip"):
        target = torch.full((1000,), 7.0).to("cuda")
        configure(f"copy=h2d@2:{damage}")
        target.copy_(source)
        first = target.cpu()
        target.copy_(source)
        second = target.cpu()
        configure("reset_faults")
        arrived[damage] = [torch.equal(first, source), second.nan_to_num(nan=-1.0).tolist()]
    return arrived


def test_copies_arrive_damaged_when_configured_and_only_then(run):
    source = [float(value) for value in range(1, 1001)]
    arrived = run(damaged_copies)
    assert all(first for first, _ in arrived.values()), "the fault is about the second copy"
    assert arrived["zeros"][1] == [0.0] * 1000
    assert arrived["nan"][1] == [-1.0] * 1000
    assert arrived["truncate"][1][:500] == source[:500]
    assert sum(a != b for a, b in zip(arrived["flip"][1], source)) == 1


def late_copy():
    source, target = torch.ones(1000).pin_memory(), torch.zeros(1000).to("cuda")
    configure("copy=h2d:late(300ms)")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    at_once = target.cpu().sum().item()
    time.sleep(0.5)
    return [at_once, target.cpu().sum().item()]


def test_a_late_copy_arrives_after_the_stream_said_it_was_done(run):
    assert run(late_copy) == [0.0, 1000.0]


def asynchronous_copy():
    configure("device_time=copy:200ms")
    source = torch.ones(1000).pin_memory()
    target = torch.empty(1000).pin_memory()
    stream = torch.cuda.Stream()
    done = torch.cuda.Event()
    with torch.cuda.stream(stream):
        device = source.to("cuda", non_blocking=True)
        target.zero_()
        target.copy_(device, non_blocking=True)
        done.record()
    before = [done.query(), target.sum().item()]
    done.synchronize()
    return before + [done.query(), target.sum().item()]


def test_work_on_a_stream_takes_its_time(run):
    assert run(asynchronous_copy) == [False, 0.0, True, 1000.0]


def replayed_graph():
    source, target = torch.ones(1000).to("cuda"), torch.zeros(1000).to("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    captured = target.cpu().sum().item()
    graph.replay()
    return [captured, target.cpu().sum().item()]


def test_a_captured_copy_happens_when_the_graph_is_replayed(run):
    assert run(replayed_graph) == [0.0, 1000.0]


def allocate_and_free():
    for size in (1, 2, 3):
        torch.empty(size << 25, device="cuda")
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_a_call_fails_when_configured(run):
    process = run(allocate_and_free, fails=True, DEVICE_SIM_FAIL="cudaFree@2:unknown")
    assert "unknown error" in process.stderr


def test_a_lost_device_fails_every_later_call(run):
    process = run(train_with_native_allocator, fails=True, DEVICE_SIM_LOSE="*aunchKernel@50:illegal_address")
    assert "an illegal memory access was encountered" in process.stderr


def test_the_process_crashes_when_configured(run):
    process = run(allocate_and_free, fails=True, DEVICE_SIM_CRASH="cudaMalloc@2")
    assert process.returncode == -signal.SIGABRT
    assert "crashing in cudaMalloc, as configured" in process.stderr


def test_an_invalid_setting_stops_the_program(run):
    process = run(memory_info, fails=True, DEVICE_SIM_CAPACITY="lots")
    assert process.returncode == 2
    assert "DEVICE_SIM_CAPACITY" in process.stderr and "expected a size" in process.stderr


def test_without_devices_pytorch_sees_none(run):
    assert run(is_available, DEVICE_SIM_DEVICES="0") is False
    assert run(is_available) is True


def is_available():
    return torch.cuda.is_available()


def asynchronous_allocator():
    kept = torch.randn(1000).to("cuda")
    return [torch.cuda.memory.get_allocator_backend(), torch.cuda.memory_allocated(), kept.cpu().numel()]


def test_the_stream_ordered_allocator_works_too(run):
    assert run(asynchronous_allocator, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync") == ["cudaMallocAsync", 4096, 1000]


def several_devices():
    torch.cuda.set_device(1)
    source = torch.randn(1000)
    first, second = source.to("cuda:0"), source.to("cuda:1")
    return [torch.cuda.device_count(), torch.equal(first.to("cuda:1").cpu(), second.cpu()), torch.cuda.current_device()]


def test_tensors_move_between_devices(run):
    assert run(several_devices, DEVICE_SIM_DEVICES="2") == [2, True, 1]
