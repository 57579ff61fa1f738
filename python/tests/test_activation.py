"""HIP_ALLOC=1: hip-alloc under real PyTorch on the simulated device."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from device import Gpt, report, train

MIB = 1 << 20
PYTHON = Path(__file__).resolve().parents[1]


def train_and_look():
    torch.manual_seed(0)
    model = Gpt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("cuda")
    intact = all(torch.equal(before[name], value.cpu()) for name, value in model.state_dict().items())
    between = list(train(model, steps=6))
    return {
        "backend": torch.cuda.memory.get_allocator_backend(), "intact": intact, "between": between,
        "peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.memory_reserved(),
        "most_reserved": torch.cuda.max_memory_reserved(), "held": report()["devices"][0]["held_bytes"],
    }


def set_wrongly_after_the_import():
    import torch

    seen = []
    for value in ("warmup_mb:lots", "warmup_mb:lots", ""):
        os.environ["HIP_ALLOC_CONF"] = value
        try:
            seen.append(torch.ones(2).to("cuda").cpu().sum().item())
        except RuntimeError as problem:
            seen.append(str(problem).splitlines()[0])
        finally:
            seen.append("finally")
    return seen


def test_a_setting_that_is_wrong_when_it_is_read_raises_until_it_is_right(run):
    first, *rest = run(set_wrongly_after_the_import, hip_alloc=True)
    assert "HIP_ALLOC_CONF: `warmup_mb` cannot be `lots`" in first
    assert rest == ["finally", first, "finally", 2.0, "finally"]


def test_a_training_loop_runs_and_its_memory_is_told(run):
    ours, theirs = run(train_and_look, hip_alloc=True), run(train_and_look)
    assert (ours["backend"], theirs["backend"]) == ("pluggable", "native")
    assert ours["intact"]
    assert ours["between"][1:] == [ours["between"][1]] * 5, "the same memory between steps once states exist"
    # PyTorch counts sizes rounded to 512 bytes, hip-alloc counts requested sizes.
    assert 0.9 * theirs["between"][-1] < ours["between"][-1] <= theirs["between"][-1]
    assert ours["between"][-1] < ours["peak"] <= ours["most_reserved"]


def test_off_means_off(run):
    assert run(train_and_look, HIP_ALLOC="0")["backend"] == "native"
    assert run(imported_modules) == []


def train_compiled():
    """Kernels of Inductor and Triton, loaded and launched through the driver."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    between = []
    for _ in range(4):
        compiled(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        between.append(torch.cuda.memory_allocated())
    return between, report()["calls"].get("cuLaunchKernelEx", 0) + report()["calls"].get("cuLaunchKernel", 0)


HAS_PYTHON_HEADERS = Path(sysconfig.get_path("include"), "Python.h").is_file()


@pytest.mark.skipif(not HAS_PYTHON_HEADERS, reason="Triton compiles its launcher against Python.h, which is not here")
def test_a_compiled_model_trains(run, tmp_path):
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    between, launches = run(train_compiled, hip_alloc=True, **caches)
    assert launches > 0
    assert between[1] == between[3] > 0


def imported_modules():
    return [name for name in sys.modules if name.startswith("surefoot")]


def count_memory():
    first = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    second = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    seen = {"both": [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]}
    del second
    seen["one"] = [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
    torch.cuda.reset_peak_memory_stats()
    seen["reset"] = [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
    statistics = torch.cuda.memory_stats()
    seen["counts"] = [statistics[f"allocation.all.{what}"] for what in ("current", "allocated", "freed")]
    seen["accelerator"] = torch.accelerator.memory_allocated() if hasattr(torch.accelerator, "memory_allocated") else None
    seen["bytes"] = [statistics[f"allocated_bytes.all.{what}"] for what in ("allocated", "freed")]
    seen["peak count"] = torch.cuda.memory_stats()["allocation.all.peak"]
    del first
    torch.cuda.empty_cache()
    seen["emptied"] = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
    statistics = torch.cuda.memory_stats()
    seen["returned"] = [statistics[f"reserved_bytes.all.{what}"] for what in ("allocated", "freed")]
    seen["pools"] = [statistics["allocated_bytes.large_pool.allocated"], statistics["allocated_bytes.small_pool.allocated"]]
    seen["summary"] = torch.cuda.memory_summary()
    torch.cuda.reset_accumulated_memory_stats()
    statistics = torch.cuda.memory_stats()
    seen["from zero"] = {name: value for name, value in statistics.items() if name.endswith(("allocated", "freed")) and value}
    return seen


def test_statistics_follow_what_the_program_does(run):
    seen = run(count_memory, hip_alloc=True)
    assert seen["both"] == [30 * MIB, 30 * MIB]
    assert seen["one"] == [10 * MIB, 30 * MIB]
    assert seen["reset"] == [10 * MIB, 10 * MIB]
    assert seen["counts"] == [1, 2, 1]
    assert seen["accelerator"] in (10 * MIB, None)
    assert seen["emptied"] == [0, 0]
    assert seen["bytes"] == [30 * MIB, 20 * MIB]
    assert seen["peak count"] == 1, "the peak was reset"
    assert seen["returned"][0] == seen["returned"][1] >= 30 * MIB, "all that was taken went back"
    assert seen["pools"] == [30 * MIB, 0]
    assert seen["from zero"] == {}


def test_the_summary_has_the_numbers_and_nothing_that_is_not_counted(run):
    lines = run(count_memory, hip_alloc=True)["summary"].splitlines()
    assert {len(line) for line in lines} == {77}
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for line in lines if len(row := line.strip("|").split("|")) == 5}
    assert cells["Allocated memory"] == ["0 B", "10 MiB", "30 MiB", "30 MiB"]
    assert cells["Allocations"] == ["0", "1", "2", "2"]
    assert not any("pool" in row for row in cells)


def info():
    return [torch.cuda.mem_get_info(), torch.cuda.mem_get_info("cuda"), torch.cuda.mem_get_info(0), torch.cuda.mem_get_info(torch.cuda.device(0))]


def many_streams():
    side = [torch.cuda.Stream() for _ in range(4)]
    wrong = 0
    for round in range(50):
        for number, stream in enumerate(side):
            with torch.cuda.stream(stream):
                value = float(round * 10 + number)
                wrong += torch.full((1000 * (number + 1),), value).to("cuda").clone().cpu().sum().item() != value * 1000 * (number + 1)
    torch.cuda.synchronize()
    return [wrong, torch.cuda.memory_allocated()]


def test_values_survive_on_several_streams(run):
    assert run(many_streams, hip_alloc=True) == [0, 0]


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((100,), float(index))


def load_with_workers():
    kept = torch.arange(1000.0).to("cuda")
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    total = sum(batch.to("cuda", non_blocking=True).cpu().sum().item() for batch in loader)
    child = os.fork()
    if child == 0:
        os._exit(0)  # with device tensors alive, as workers end
    _, status = os.waitpid(child, 0)
    return [total, kept.cpu().sum().item(), status]


def test_forked_workers_leave_the_device_alone(run):
    assert run(load_with_workers, hip_alloc=True) == [100.0 * sum(range(64)), sum(range(1000)), 0]


def pool_past_python():
    torch._C._MemPool(None, True, False, False)


def pool_with_an_allocator():
    torch.cuda.MemPool(torch._C._cuda_getAllocator())


def pool_without_splitting():
    torch.cuda.MemPool(no_split=True)


def compiled_with_graphs():
    torch.compile(lambda x: x + 1, backend="cudagraphs")(torch.ones(3, device="cuda"))


def shared_with_another_process():
    torch.ones(3, device="cuda").untyped_storage()._share_cuda_()


def another_allocator():
    own = torch.cuda.memory.CUDAPluggableAllocator(os.environ["HIP_ALLOC_LIB"], "hip_alloc_malloc", "hip_alloc_free")
    torch.cuda.memory.change_current_allocator(own)


def out_of_memory_observer():
    torch._C._cuda_attach_out_of_memory_observer(lambda *_sizes: None)


REFUSED = {
    pool_past_python: "use torch.cuda.MemPool",
    pool_with_an_allocator: "do not pass an allocator",
    pool_without_splitting: "do not pass no_split",
    compiled_with_graphs: "torch._inductor.config.triton.cudagraph_trees = False",
    shared_with_another_process: "tensor.cpu()",
    another_allocator: "remove the call of torch.cuda.memory.change_current_allocator",
    out_of_memory_observer: "catch torch.OutOfMemoryError",
}


def use_what_is_refused():
    seen = {}
    for use in REFUSED:
        try:
            use()
        except RuntimeError as problem:
            seen[use.__name__] = str(problem)
        # The program continues, and its memory is intact.
        assert torch.arange(1000.0).to("cuda").cpu().sum().item() == sum(range(1000))
    return seen


def ask_about_other_devices():
    seen = []
    kept = torch.ones(3, device="cuda:1")
    questions = (
        torch.cuda.memory_allocated, torch.cuda.memory_stats, torch.cuda.memory_summary, torch.cuda.mem_get_info,
        torch.cuda.reset_peak_memory_stats, torch.cuda.reset_accumulated_memory_stats,
        lambda device: torch.cuda.set_per_process_memory_fraction(0.5, device),
    )
    for device in (-1, 2, "cuda:7", "cpu"):
        for question in questions:
            try:
                question(device)
                seen.append(f"{device}: answered")
            except (RuntimeError, ValueError) as problem:
                seen.append(f"{device}: {problem}")
    return seen, torch.cuda.memory_allocated(0), torch.cuda.memory_allocated("cuda:1"), kept.numel()


def test_only_devices_that_there_are_can_be_asked_about(run):
    seen, *allocated = run(ask_about_other_devices, hip_alloc=True, DEVICE_SIM_DEVICES="2")
    assert allocated == [0, 12, 3]
    for answer in seen:
        assert "Invalid device" in answer or "invalid fraction" in answer.lower() or "Expected a cuda device" in answer, answer


def test_what_does_not_work_says_so_and_what_to_do_instead(run):
    seen = run(use_what_is_refused, hip_alloc=True)
    for use, advice in REFUSED.items():
        message = seen[use.__name__]
        assert "HIP_ALLOC=1" in message and advice in message, message
    assert "pytorch/pytorch#163257" in seen["compiled_with_graphs"]
    for use in (pool_past_python, pool_with_an_allocator, shared_with_another_process, out_of_memory_observer):
        assert "pytorch/pytorch#98481" in seen[use.__name__], use.__name__


def profiled():
    """The device memory in a memory profile, by operation."""
    from torch.profiler import ProfilerActivity, profile

    torch.zeros(1, device="cuda")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        passing = torch.ones(6 * MIB, dtype=torch.uint8, device="cuda")
        del passing
    by_operation = {row.key: row.self_device_memory_usage for row in profiler.key_averages() if row.self_device_memory_usage}
    return by_operation, kept.numel()


def test_the_profiler_hears_of_device_memory(run):
    ours, theirs = run(profiled, hip_alloc=True), run(profiled)
    assert ours == theirs
    assert ours[0]["aten::empty"] == 10 * MIB


def counts_under_pressure():
    torch.cuda.set_per_process_memory_fraction(0.1)
    seen = [torch.cuda.memory_stats()[name] for name in ("num_alloc_retries", "num_sync_all_streams", "num_ooms")]
    try:
        torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()
    statistics = torch.cuda.memory_stats()
    return seen, [statistics[name] for name in ("num_alloc_retries", "num_sync_all_streams", "num_ooms", "num_oom_rejections")]


def test_retries_and_waits_are_counted(run):
    before, after = run(counts_under_pressure, hip_alloc=True, DEVICE_SIM_CAPACITY="8G")
    assert before[::2] == [0, 0]
    assert after[0] == 1 and after[1] >= before[1] + 2 and after[2:] == [1, 0]


def memory_history():
    import warnings

    torch.cuda.init()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.memory._record_memory_history()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(compile_context=True)
        for wrong in ({"context": "everything"}, {"stacks": "c++"}, {"enabled": "always"}):
            try:
                torch.cuda.memory._record_memory_history(**wrong)
            except ValueError as problem:
                warnings.warn(str(problem))
    return [str(warning.message) for warning in caught]


def test_what_the_history_cannot_do_is_said(run):
    assert run(memory_history, hip_alloc=True) == [
        "under HIP_ALLOC=1 the memory history does not support compile_context",
        "context='everything': expected None, 'state', 'alloc', 'all'",
        "stacks='c++': expected 'python', 'all'",
        "enabled='always': expected None, 'state', 'all'",
    ]


def import_twice():
    import importlib

    assert torch.__spec__.loader is torch.__loader__
    return [type(torch.__loader__).__name__, len([f for f in sys.meta_path if "surefoot" in type(f).__module__])]


def test_torch_looks_as_if_nothing_had_waited_for_it(run):
    assert run(import_twice, hip_alloc=True) == ["SourceFileLoader", 0]


def test_a_missing_library_is_an_error_that_names_it(run):
    process = run(info, hip_alloc=True, fails=True, HIP_ALLOC_LIB="/nowhere/libhip_alloc.so")
    assert "HIP_ALLOC_LIB=/nowhere/libhip_alloc.so: there is no such file" in process.stderr


@pytest.fixture
def build(tmp_path):
    """Compiles a C library that lacks parts of hip-alloc."""

    def compile(source):
        code, library = tmp_path / "library.c", tmp_path / "libother.so"
        code.write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", code, "-o", library], check=True)
        return library

    return compile


def test_a_library_of_another_version_is_refused(run, build):
    library = build("unsigned hip_alloc_abi_version(void) { return 7; }")
    process = run(info, hip_alloc=True, fails=True, HIP_ALLOC_LIB=str(library))
    assert "interface version 7, this activation needs 1" in process.stderr


def test_an_older_library_is_refused_with_both_releases(run, build):
    library = build("unsigned hip_alloc_abi_version(void) { return 1; }\nconst char *hip_alloc_release(void) { return \"0.0.9\"; }")
    process = run(info, hip_alloc=True, fails=True, HIP_ALLOC_LIB=str(library))
    assert "(release 0.0.9) has no hip_alloc_stats, which this activation (release 0.1.0) needs: use both" in process.stderr


def test_the_release_of_the_activation_is_that_of_the_workspace():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")

    from surefoot_activate import _library

    workspace = tomllib.loads((PYTHON.parent / "Cargo.toml").read_text())
    assert _library.RELEASE == workspace["workspace"]["package"]["version"]


def fractions():
    seen = []
    for fraction in (float("nan"), -0.5, 1.5):
        try:
            torch.cuda.set_per_process_memory_fraction(fraction)
        except ValueError as problem:
            seen.append(str(problem))
    return seen


def test_a_fraction_that_is_none_is_refused(run):
    nan, *others = run(fractions, hip_alloc=True)
    assert nan == "Invalid fraction value: nan. Allowed range: 0 to 1" and len(others) == 2


def test_a_library_that_is_something_else_is_refused(run, build):
    process = run(info, hip_alloc=True, fails=True, HIP_ALLOC_LIB=str(build("int x;")))
    assert "is not hip-alloc" in process.stderr


def test_a_value_that_means_nothing_stops_the_program(run):
    process = run(info, fails=True, HIP_ALLOC="yes")
    assert process.returncode == 2
    assert process.stderr == "surefoot: HIP_ALLOC=yes: expected 1 (use hip-alloc) or 0 (use PyTorch's allocator)\n"


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_sitecustomize_that_ours_hides_is_run_too(switch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("hidden = 1\nprint('from the hidden one')\n")
    environment = {**os.environ, "PYTHONPATH": f"{PYTHON}:{tmp_path}", "HIP_ALLOC": switch}
    process = subprocess.run([sys.executable, "-c", "print('program')"], env=environment, capture_output=True, text=True)
    assert process.stdout.split("\n") == ["from the hidden one", "program", ""], process.stderr


def test_a_used_device_is_refused(run):
    process = run(activate_late, fails=True)
    assert "before the first use of torch.cuda" in process.stderr


def activate_late():
    import surefoot_activate

    torch.empty(1, device="cuda")
    os.environ["HIP_ALLOC"] = "1"
    surefoot_activate.activate()
