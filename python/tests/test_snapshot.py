"""The memory of hip-alloc in PyTorch's own tools: memory_snapshot, _dump_snapshot, memory_viz."""

import inspect
import pickle
import tempfile
from pathlib import Path

import pytest
import torch

MIB = 1 << 20


def look():
    """Three tensors, one of them freed while another stream still uses it; returns the output of the tools."""
    from torch.cuda import _memory_viz

    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    large = torch.empty(500 * MIB, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(str(path))
        dumped = pickle.loads(path.read_bytes())
    blocks = [block for segment in segments for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    return {
        "requested": sorted(block["requested_size"] for block in live),
        "addresses": sorted(block["address"] for block in live) == sorted([kept.data_ptr(), large.data_ptr()]),
        "whole": all(sum(block["size"] for block in one["blocks"]) == one["total_size"] for one in segments),
        "reserved": sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved(),
        "keys": sorted(dumped),
        "same": len(dumped["segments"]) == len(segments),
        "summary": _memory_viz.segsum(dumped),
        "pages": [len(_memory_viz.trace_plot(dumped)), len(_memory_viz.segment_plot(dumped))],
    }


def test_pytorchs_tools_see_what_is_held(run):
    result = run(look, hip_alloc=True)
    assert result["requested"] == [3 * MIB, 500 * MIB]
    assert result["addresses"] and result["whole"] and result["reserved"] and result["same"]
    assert {"segments", "device_traces"} <= set(result["keys"])
    assert "total_allocated" in result["summary"] and "503.0MiB" in result["summary"]
    assert min(result["pages"]) > 1000


def follow():
    """Requests and frees under hip-alloc's own recording, one of them while another stream is busy; returns the output of the tools."""
    from torch.cuda import _memory_viz

    before = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._record_memory_history(context=None)
    other = torch.cuda.Stream()
    shared = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(other):
        elsewhere = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    streams = {0: "default", other.cuda_stream: "other"}
    shared.record_stream(other)
    del before, shared, elsewhere
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    # One request later the simulated stream has finished, and the pool has noticed.
    torch.cuda.synchronize()
    last = torch.empty(MIB // 2, dtype=torch.uint8, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(str(path))
        dumped = pickle.loads(path.read_bytes())
    [history] = dumped["device_traces"]
    times = [entry["time_us"] for entry in history]
    result = {
        "history": [(entry["action"], entry["size"], streams[entry["stream"]]) for entry in history],
        "in_order": times == sorted(times) and times[0] > 1_600_000_000_000_000,
        "addresses": [entry["addr"] for entry in history if entry["action"] == "alloc"][1] == kept.data_ptr(),
        "page": _memory_viz.trace_plot(dumped),
        "text": _memory_viz.trace(dumped),
    }
    torch.cuda.memory._record_memory_history(max_entries=2, context=None)
    result["shortened"] = len(torch.cuda.memory._snapshot()["device_traces"][0])
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    result["cleared"] = len(torch.cuda.memory._snapshot()["device_traces"][0])
    torch.cuda.memory._record_memory_history(None)
    del last
    result["off"] = torch.cuda.memory._snapshot()["device_traces"]
    return result


def test_our_history_is_one_that_pytorchs_tools_read(run):
    result = run(follow, hip_alloc=True)
    default, other = "default", "other"
    history = [tuple(entry) for entry in result["history"]]
    requests = [entry for entry in history if entry[0] in ("alloc", "free_requested", "oom")]
    assert requests == [
        ("alloc", MIB, default), ("alloc", 3 * MIB, default), ("alloc", 5 * MIB, other),
        ("free_requested", 2 * MIB, default), ("free_requested", MIB, default), ("free_requested", 5 * MIB, other),
        ("oom", 1 << 50, default), ("alloc", MIB // 2, default),
    ]
    completed = sorted(size for action, size, _ in history if action == "free_completed")
    assert completed == [MIB, 2 * MIB, 5 * MIB]
    # Running out of memory released empty blocks, which the history shows before it.
    [opened] = [size for action, size, stream in history if action == "segment_alloc" and stream == other]
    assert history.index(("segment_free", opened, other)) < history.index(("oom", 1 << 50, default))
    assert result["in_order"] and result["addresses"]
    assert "Active Memory Timeline" in result["page"] and len(result["page"]) > 1000
    assert "# free completed for" in result["text"] and ":5.0MiB]" in result["text"]
    assert "raise OutOfMemoryError # 1.0PiB requested" in result["text"]
    assert (result["shortened"], result["cleared"], result["off"]) == (2, 0, [[]])


def record():
    """A few requests and frees under PyTorch's own recording; the pickle as hex."""
    before = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._record_memory_history(stacks="python", context=None)
    kept = torch.empty(1000, device="cuda")
    passing = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 20, 300)]
    del passing, before
    again = torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(str(path))
        return [path.read_bytes().hex(), kept.numel() + again.numel()]


def test_pytorchs_recording_is_the_one_that_replay_is_tested_with(run):
    """`crates/alloc-lab/tests/pytorch_snapshot.pickle` was written by `record`; its form must not have changed."""
    fixture = Path(__file__).parents[2] / "crates/alloc-lab/tests/pytorch_snapshot.pickle"
    now, then = pickle.loads(bytes.fromhex(run(record)[0])), pickle.loads(fixture.read_bytes())

    def actions(snapshot):
        history = snapshot["device_traces"][0]
        return [(entry["action"], entry["size"]) for entry in history if entry["action"] in ("alloc", "free_requested")]

    assert actions(now) == actions(then)
    assert sorted(now["device_traces"][0][0]) == sorted(then["device_traces"][0][0])


def where_memory_comes_from():
    """A history with Python's stacks, through backward passes and threads; returns the data of one tensor in a snapshot."""
    from device import Gpt, train

    torch.cuda.memory._record_memory_history(stacks="python")
    kept = ask_for_memory()
    model = Gpt().cuda()
    for _ in train(model, steps=2):
        pass
    direct = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    del direct
    torch.cuda.empty_cache()
    snapshot = torch.cuda.memory._snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    [mine] = [block for block in blocks if block["address"] == kept.data_ptr()]
    [trace] = snapshot["device_traces"]
    large = [entry for entry in trace if entry["size"] == 300 * MIB]
    result = {
        "innermost": mine["frames"][0], "functions": [frame["name"] for frame in mine["frames"][:2]],
        "large": [entry["action"] for entry in large], "framed": [bool(entry["frames"]) for entry in large],
        "leftovers": any("stack" in entry for entry in [*trace, *blocks]),
        "page": len(torch.cuda._memory_viz.trace_plot(snapshot)),
        "by address": torch.cuda.memory._allocation_traceback(kept.data_ptr())
        if hasattr(torch.cuda.memory, "_allocation_traceback") else mine["frames"],
    }
    by_context = {}
    # Since 2.10 or so; before it, we leave out what nobody skips.
    skips = "skip_actions" in inspect.signature(torch.cuda.memory._record_memory_history).parameters
    skipping = {"skip_actions": ["free_completed"]} if skips else {}
    for context in (None, "state", "alloc", "all"):
        torch.cuda.memory._record_memory_history(context=context, clear_history=True, **skipping)
        live, gone = ask_for_memory(), ask_for_memory()
        del gone
        snapshot = torch.cuda.memory._snapshot()
        [block] = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["address"] == live.data_ptr()]
        framed = {entry["action"] for entry in snapshot["device_traces"][0] if entry["frames"]}
        framed -= {"free_completed"} if not skips else set()
        happened = {entry["action"] for entry in snapshot["device_traces"][0]} - ({"free_completed"} if not skips else set())
        by_context[str(context)] = [bool(block["frames"]), sorted(framed), sorted(happened)]
        del live
    result["contexts"] = by_context
    return result


def ask_for_memory():
    return torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")


def test_the_history_says_where_the_program_was_and_what_the_driver_did(run):
    result = run(where_memory_comes_from, hip_alloc=True)
    assert result["functions"] == ["ask_for_memory", "where_memory_comes_from"]
    assert result["innermost"]["filename"] == __file__
    assert "torch.empty(3 * MIB" in Path(__file__).read_text().splitlines()[result["innermost"]["line"] - 1]
    assert result["by address"][0] == result["innermost"]
    assert result["large"] == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    # The last one is from empty_cache.
    assert result["framed"] == [True] * 5 and not result["leftovers"] and result["page"] > 1000
    happened = ["alloc", "free_requested"]
    assert result["contexts"] == {
        "None": [False, [], happened], "state": [True, [], happened],
        "alloc": [True, ["alloc"], happened], "all": [True, happened, happened],
    }


def threads_that_ask_and_look():
    """Eight threads allocate and free memory, some of it from garbage cycles, while others take snapshots and statistics."""
    import gc
    import threading

    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1000)
    done = threading.Event()
    wrong = []

    def ask(number):
        for round in range(200):
            cycle = [torch.full((256,), float(number)).to("cuda")]
            cycle.append(cycle)
            wrong.extend([round] if cycle[0].cpu()[0].item() != number else [])
            if round % 20 == 0:
                gc.collect()

    def look():
        while not done.is_set():
            torch.cuda.memory._snapshot()
            torch.cuda.memory_stats()

    lookers = [threading.Thread(target=look) for _ in range(2)]
    askers = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in [*lookers, *askers]:
        thread.start()
    for thread in askers:
        thread.join()
    done.set()
    for thread in lookers:
        thread.join()
    gc.collect()
    return [len(wrong), torch.cuda.memory_allocated(), len(torch.cuda.memory._snapshot()["device_traces"][0])]


def test_stacks_are_taken_on_many_threads_at_once_and_nobody_waits_for_ever(run):
    assert run(threads_that_ask_and_look, hip_alloc=True) == [0, 0, 1000]


def history_from_the_start():
    """Recorded before the first request, with user metadata for some of the requests."""
    torch.cuda.memory._record_memory_history(context=None)
    enabled = [torch._C._cuda_isHistoryEnabled()]
    before = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._set_memory_metadata("phase one")
    during = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    text = torch.cuda.memory._get_memory_metadata()
    torch.cuda.memory._set_memory_metadata("")
    after = torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    [trace] = snapshot["device_traces"]
    torch.cuda.memory._record_memory_history(None)
    del before, during, after
    return {
        "enabled": [*enabled, torch._C._cuda_isHistoryEnabled()], "text": text,
        "metadata": {entry["size"] // MIB: entry["user_metadata"] for entry in trace if entry["action"] == "alloc"},
        "segments": sum(segment["total_size"] for segment in snapshot["segments"]),
        "taken": sum(entry["size"] for entry in trace if entry["action"] == "segment_alloc"),
    }


@pytest.mark.parametrize("hip_alloc", [True, False])
def test_a_history_from_the_start_has_every_segment_and_the_programs_own_text(run, hip_alloc):
    result = run(history_from_the_start, hip_alloc=hip_alloc)
    assert (result["enabled"], result["text"]) == ([True, False], "phase one")
    assert result["metadata"] == {"3": "", "5": "phase one", "7": ""}
    assert result["segments"] == result["taken"] > 0
