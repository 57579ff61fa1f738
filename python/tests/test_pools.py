"""Private memory pools and captured graphs under hip-alloc, with real PyTorch on the simulated device."""

import gc
import sysconfig
import threading
from pathlib import Path

import pytest
import torch
from device import calls

MIB = 1 << 20

KEEP = ("keep:auto", "keep:off")


def of_device():
    """Bytes of blocks that belong to no private pool."""
    return sum(segment["total_size"] for segment in torch.cuda.memory_snapshot() if not any(segment["segment_pool_id"]))


def is_in(segments, tensor):
    place = tensor.data_ptr()
    return any(segment["address"] <= place < segment["address"] + segment["total_size"] for segment in segments)


def own_pool():
    pool = torch.cuda.MemPool()
    outside = torch.ones(MIB, device="cuda")
    seen = {"users": [pool.use_count()]}
    with torch.cuda.use_mem_pool(pool):
        seen["users"].append(pool.use_count())
        inside = torch.ones(2 * MIB, device="cuda")
        small = torch.ones(3, device="cuda")
        thread = threading.Thread(target=lambda: seen.update(elsewhere=is_in(pool.snapshot(), torch.ones(5, device="cuda"))))
        thread.start()
        thread.join()
    seen["in"] = [is_in(pool.snapshot(), tensor) for tensor in (inside, small, outside, torch.ones(7, device="cuda"))]
    seen["allocated"] = torch.cuda.memory_allocated()
    first = inside.data_ptr()
    del inside
    torch.cuda.empty_cache()
    others = [torch.ones(2 * MIB, device="cuda") for _ in range(3)]
    seen["for others"] = any(is_in(pool.snapshot(), other) for other in others)
    with torch.cuda.use_mem_pool(pool):
        seen["again"] = torch.empty(2 * MIB, device="cuda").data_ptr() == first
    held = torch.cuda.memory_reserved()
    number = pool.id
    del small, pool
    torch.cuda.empty_cache()
    seen["left"] = [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == number]
    seen["gone"] = torch.cuda.memory_reserved() < held
    return seen


@pytest.mark.parametrize("keep", KEEP)
def test_what_is_asked_for_in_a_pool_stays_in_it(run, keep):
    seen = run(own_pool, hip_alloc=True, HIP_ALLOC_CONF=keep)
    assert seen == {
        "users": [1, 2], "elsewhere": False, "in": [True, True, False, False], "allocated": 4 * 3 * MIB + 12,
        "for others": False, "again": True, "left": [], "gone": True,
    }
    theirs = run(own_pool)
    for name in ("users", "elsewhere", "in", "for others", "again", "left"):
        assert seen[name] == theirs[name], name


def captured_while_memory_comes_and_goes():
    """Operations that would invalidate a capture if they were not handled: memory of this and of another thread is released meanwhile."""
    static = torch.zeros(4, device="cuda")
    before = [torch.ones(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    shared = torch.ones(8 * MIB, device="cuda")
    side = torch.cuda.Stream()
    shared.record_stream(side)
    graph = torch.cuda.CUDAGraph()
    capturing, done = threading.Event(), threading.Event()

    def disturb():
        capturing.wait()
        with torch.cuda.stream(side):
            for size in (3, 70, 300):
                torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
        done.set()

    thread = threading.Thread(target=disturb)
    thread.start()
    torch.cuda.synchronize()
    frees = calls("cudaFree")
    with torch.cuda.graph(graph):
        passing = static.clone()
        large = torch.empty(40 * MIB, device="cuda")
        capturing.set()
        done.wait()
        del before, shared, large
        result = passing.clone()
        del passing
        refilled = torch.empty(30 * MIB, device="cuda")
        meanwhile = calls("cudaFree") - frees
    pool = [segment for segment in torch.cuda.memory_snapshot() if any(segment["segment_pool_id"])]
    thread.join()
    return graph, static, result, refilled, pool, meanwhile


def replayed_beside_others():
    graph, static, result, refilled, pool, meanwhile = captured_while_memory_comes_and_goes()
    seen = []
    others = [torch.full((size,), 7.0).to("cuda") for size in (4, 100, 3 * MIB, 20 * MIB)]
    for number in range(3):
        static.copy_(torch.arange(4.0) + number)
        graph.replay()
        seen.append(result.cpu().tolist())
    intact = all(bool((other.cpu() == 7.0).all()) for other in others)
    apart = not any(is_in(pool, other) for other in others)
    held = torch.cuda.memory_reserved()
    in_pool = sum(segment["total_size"] for segment in pool)
    del graph, static, result, refilled
    gc.collect()
    torch.cuda.empty_cache()
    left = [segment for segment in torch.cuda.memory_snapshot() if any(segment["segment_pool_id"])]
    return seen, intact, apart, meanwhile, held - torch.cuda.memory_reserved() >= in_pool, left


@pytest.mark.parametrize("keep", KEEP)
def test_a_graph_is_captured_undisturbed_and_keeps_its_memory(run, keep):
    seen = run(replayed_beside_others, hip_alloc=True, HIP_ALLOC_CONF=keep, DEVICE_SIM_CAPACITY="8G")
    numbers = [[float(number + step) for number in range(4)] for step in range(3)]
    assert seen == [numbers, True, True, 0, True, []]


def two_graphs_in_one_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        static = torch.zeros(4, device="cuda")
    graphs, results, users = [], [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            passing = torch.empty(20 * MIB, device="cuda")
            passing[:4].copy_(static)
            results.append(passing[:4].clone())
            del passing
        graphs.append(graph)
        users.append(pool.use_count())
    held = sum(segment["total_size"] for segment in pool.snapshot())
    shared = graphs[0].pool() == graphs[1].pool() == pool.id
    static.copy_(torch.arange(4.0))
    for graph in graphs:
        graph.replay()
    values = [result.cpu().tolist() for result in results]
    graphs[0].reset()
    users.append(pool.use_count())
    static.copy_(torch.ones(4))
    graphs[1].replay()
    values.append(results[1].cpu().tolist())
    return values, users, held < 2 * 80 * MIB, shared, is_in(pool.snapshot(), static)


def test_graphs_share_a_pool(run):
    arange = [0.0, 1.0, 2.0, 3.0]
    expected = [[arange, arange, [1.0] * 4], [2, 3, 2], True, True, True]
    assert run(two_graphs_in_one_pool, hip_alloc=True) == run(two_graphs_in_one_pool) == expected


def capture_beside_another_device():
    other = [torch.ones(64 * MIB, dtype=torch.uint8, device="cuda:1") for _ in range(3)]
    static = torch.arange(4.0).to("cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static.clone()
        frees = calls("cudaFree")
        other.clear()
        meanwhile = calls("cudaFree") - frees
    graph.replay()
    torch.cuda.empty_cache()
    return result.cpu().tolist(), meanwhile, torch.cuda.memory_reserved(1)


def test_memory_of_another_device_waits_for_the_end_of_a_capture(run):
    seen = run(capture_beside_another_device, hip_alloc=True, HIP_ALLOC_CONF="keep:off,warmup_mb:0", DEVICE_SIM_DEVICES="2")
    assert seen == [[0.0, 1.0, 2.0, 3.0], 0, 0]


def make_callables():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
    inputs = torch.ones(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (inputs,))
    optimizer = torch.optim.AdamW(model.parameters())
    launches, between = calls("cudaGraphLaunch"), []
    for _ in range(4):
        graphed(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        between.append(torch.cuda.memory_allocated())
    return calls("cudaGraphLaunch") - launches, between


def test_graphed_callables_train(run):
    launches, between = run(make_callables, hip_alloc=True)
    assert launches == 8 and between[1] == between[3] > 0


def compile_with_graphs():
    torch._inductor.config.triton.cudagraph_trees = False
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    between = []
    for _ in range(4):
        compiled(torch.ones(4, 64, device="cuda")).sum().backward()
        between.append(torch.cuda.memory_allocated())
    return calls("cudaGraphLaunch"), between


HAS_PYTHON_HEADERS = Path(sysconfig.get_path("include"), "Python.h").is_file()


@pytest.mark.skipif(not HAS_PYTHON_HEADERS, reason="Triton compiles its launcher against Python.h, which is not here")
def test_reduced_overhead_works_without_trees(run, tmp_path):
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    launches, between = run(compile_with_graphs, hip_alloc=True, **caches)
    assert launches > 0 and between[2] == between[3] > 0


def memory_ends_in_a_pool():
    pool = torch.cuda.MemPool(use_on_oom=True)
    kept = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
    del kept  # still held: the pool may have it
    seen = []
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(800 * MIB, dtype=torch.uint8, device="cuda")
        for size in (800, 100):
            try:
                torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
                seen.append("served")
            except torch.OutOfMemoryError as problem:
                seen.append("GiB" in str(problem))
    first = inside.data_ptr()
    del inside
    seen.append(torch.empty(700 * MIB, dtype=torch.uint8, device="cuda").data_ptr() == first)
    statistics = torch.cuda.memory_stats()
    return [*seen, statistics["num_ooms"], torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated() // MIB]


def test_a_pool_takes_what_there_is_and_serves_others_before_they_are_refused(run):
    seen = run(memory_ends_in_a_pool, hip_alloc=True, DEVICE_SIM_CAPACITY="1G", HIP_ALLOC_CONF="reserve_mb:0")
    assert seen == [True, "served", True, 1, 0, 900]


def pool_that_was_begun():
    pool = torch.cuda.MemPool()
    try:
        with torch.cuda.use_mem_pool(pool), torch.cuda.use_mem_pool(pool):
            return "both"
    except RuntimeError as problem:
        return str(problem), pool.use_count()


def test_a_pool_is_not_begun_twice(run):
    message, users = run(pool_that_was_begun, hip_alloc=True)
    assert "in use already" in message and users == 1
    theirs = run(pool_that_was_begun)
    assert "already recording" in theirs[0]


def broken_capture():
    graph = torch.cuda.CUDAGraph()
    seen = []
    try:
        with torch.cuda.graph(graph):
            torch.ones(3, device="cuda").cpu()  # waits for the device
    except RuntimeError as problem:
        seen.append("capture" in str(problem))
    del graph
    gc.collect()
    large = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    del large
    torch.cuda.empty_cache()
    seen.append(torch.arange(1000.0).to("cuda").cpu().sum().item() == sum(range(1000)))
    return seen, of_device() < 64 * MIB


def test_a_capture_that_fails_leaves_a_program_that_goes_on(run):
    assert run(broken_capture, hip_alloc=True, HIP_ALLOC_CONF="keep:off") == [[True, True], True]
