"""Rust's verified transfers and block swapping on the simulated device, through real libtorch and its real runtime.

`crates/harness/src/bin/on-device` was built against a CPU libtorch. A CUDA wheel of the same version has the
same libraries, and more; so the program runs with those, and finds the simulator where a driver would be.
"""

import collections
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import under_device_sim

SILENT = {"zeros", "nan", "bit_flip", "truncated", "stale", "swapped_chunks", "late_copy", "mutated_source"}
BUILT_FOR = "2.13."


@pytest.fixture(scope="session")
def on_device(simulator, libraries):
    """Runs the program with a subcommand; returns its output."""
    if not torch.__version__.startswith(BUILT_FOR):
        pytest.skip(f"the program is built for libtorch {BUILT_FOR}*, and this is {torch.__version__}")
    program = under_device_sim.find_library("on-device", "SUREFOOT_ON_DEVICE")
    torch_libraries = Path(torch.__file__).parent / "lib"
    folders = [torch_libraries, *sorted(torch_libraries.parents[1].glob("nvidia/*/lib"))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
    environment.update(simulator, HIP_ALLOC_LIB=str(libraries["--hip-alloc"]))
    environment["LD_LIBRARY_PATH"] += "".join(f":{folder}" for folder in folders)
    environment["LD_PRELOAD"] += f":{torch_libraries / 'libtorch_cuda.so'}"

    def run(word, **variables):
        process = subprocess.run([program, word], env={**environment, **variables}, capture_output=True, text=True, timeout=500)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    return run


@pytest.fixture(scope="session")
def matrix(on_device):
    return on_device("matrix", DEVICE_SIM_UNIFIED="16G")


def test_always_misses_nothing_on_a_real_runtime(matrix):
    missed = [cell for cell in matrix["cells"] if (cell["verify"], cell["outcome"]) == ("always", "missed")]
    assert missed == []
    assert matrix["missed"] == 0


def test_every_silent_fault_strikes_on_every_route_that_copies(matrix):
    """Each fault must cause damage without verification; otherwise the success of `always` would prove nothing."""
    seen = collections.defaultdict(set)
    for cell in matrix["cells"]:
        if cell["verify"] == "off" and cell["fault"] in SILENT:
            # The full synchronisation of this route waits for late copies, too.
            waited_for = (cell["fault"], cell["route"]) == ("late_copy", "other_stream")
            assert cell["outcome"] == ("recovered" if waited_for else "missed"), cell
            seen[cell["fault"]].add(cell["route"])
    routes = {"together", "direct", "retry", "staged", "chunked", "other_stream", "zero_copy"}
    assert seen == {fault: routes for fault in SILENT}


def test_what_strikes_once_is_recovered(matrix):
    fatal = {"context_lost", "hang", "out_of_memory_contiguous"}
    for cell in matrix["cells"]:
        if cell["verify"] != "always" or cell["every_time"]:
            continue
        # The caller's own memory has changed; a staging copy of it has not.
        gone = cell["fault"] == "mutated_source" and cell["route"] in ("together", "direct", "retry", "other_stream")
        # Nothing is cast here, so that no route comes after this one; a full device is trimmed.
        last = cell["route"] == "zero_copy" and cell["fault"] not in ("out_of_memory_copy", "out_of_memory_sum_device")
        expected = "reported" if cell["fault"] in fatal or gone or last else "recovered"
        assert cell["outcome"] == expected, cell


def test_without_pinned_memory_the_routes_that_need_none_are_taken(matrix):
    cells = [cell for cell in matrix["cells"] if cell["fault"] == "out_of_memory_stage"]
    assert cells and {cell["outcome"] for cell in cells} == {"recovered"}


def test_loud_faults_are_missed_in_no_mode(matrix):
    loud = [cell for cell in matrix["cells"] if cell["fault"] not in SILENT]
    assert {cell["fault"] for cell in loud} >= {"refused", "out_of_memory_copy", "out_of_memory_stage", "context_lost", "stall", "hang"}
    assert all(cell["outcome"] != "missed" for cell in loud)


def test_a_streamed_model_holds_what_stays_and_the_ring(on_device):
    """40 blocks of 4 MiB, forward and backward; peaks as hip-alloc counts them, each block's values are checked."""
    granule = 2 << 20
    rows = {row["way"]: row for row in on_device("stream")}
    block = 4 << 20
    expected = {
        "all, from memory": (0, 2 * block),
        "half, from memory": (20 * block, 2 * block),
        "all, from a file": (0, 2 * block),
        "all, half of them from a file": (0, 2 * block),
        # Host memory mapped into the device: nothing is allocated on the device.
        "all, from a file, unified": (0, 2 * block),
        "half mapped, half from a file, unified": (0, 2 * block),
        "all, mapped, unified": (0, 0),
    }
    assert {way: (row["resident"], row["ring"]) for way, row in rows.items()} == expected
    for way, row in rows.items():
        on_device_bytes = 0 if "unified" in way else row["resident"] + row["ring"]
        assert abs(row["peak"] - on_device_bytes) <= granule, (way, row)
        assert row["report"]["repeated"] == 0
    for way in ("all, half of them from a file", "half mapped, half from a file, unified"):
        report = rows[way]["report"]
        assert report["host_bytes"] == report["disk_bytes"] == 20 * block, way


def test_the_device_says_whether_it_shares_the_memory_and_can_be_overruled(on_device):
    card, apu = on_device("facts"), on_device("facts", DEVICE_SIM_UNIFIED="16G")
    assert [card[key] for key in ("shares_host_memory", "unified", "unified_overridden")] == [False, False, True]
    assert [apu[key] for key in ("shares_host_memory", "unified", "unified_overridden")] == [True, True, False]


def test_batches_arrive_from_pinned_memory(on_device):
    facts = on_device("facts")
    assert facts["pinned"] == [True] * 3
    assert facts["batches"] == [[0, 1], [2, 3], [4]]


def test_a_block_whose_copy_hangs_is_an_error_in_time_and_stays_one(on_device):
    first, again = on_device("facts")["hang"]
    assert "copying did not end within 500ms" in first
    assert "device context is lost" in again


def test_what_is_idle_leaves_before_the_transformer_comes(on_device):
    """24 MiB of text encoder and 40 of transformer on a plan for 48: never both, and back bit by bit."""
    granule, text, transformer = 2 << 20, 24 << 20, 40 << 20
    encode, learn, sample = on_device("phases")
    assert encode["entered"]["to_device"] == text and abs(encode["live"] - text) <= granule
    assert learn["entered"]["to_device"] == transformer and abs(learn["live"] - transformer) <= granule
    assert learn["entered"]["to_host"] + learn["entered"]["to_file"] >= text
    assert abs(sample["live"] - text) <= granule
    assert sample["peak"] <= transformer + granule
    # The text encoder arrives twice, and may have been trained in between.
    assert (sample["arrived"], sample["verified"]) == (3, 3)


def test_a_module_that_failed_stays_as_it_was(on_device):
    """600 tensors in groups of 256; the second group fails when some of it has been copied."""
    wrong, lost = on_device("failing")
    assert wrong["unchanged"] and lost["unchanged"]
    assert "no strategy could move this tensor to the device" in wrong["error"] and wrong["live"] == 0
    # After a lost context nothing is freed: neither tensors that have arrived nor those in transfer.
    assert "unusable" in lost["error"] and 256 + 100 < lost["live"] <= 512
