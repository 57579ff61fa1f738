"""The Python side against the test vectors of `docs/transfer.md`, which the Rust crate is tested against too."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "docs/transfer-vectors.json").read_text())


def module(name):
    """Loads a module of the package separately: these two need no PyTorch."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"python/surefoot_placement/{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("case", VECTORS["verification"], ids=lambda case: case["mode"])
def test_which_arrivals_are_verified(case):
    tracker = module("_verify").VerificationTracker(case["mode"])
    for move in case["moves"]:
        name, role, strategy = move["name"], move["role"], move["strategy"]
        verified = tracker.wants(tracker.begin(name, role), name, role, strategy)
        assert verified == move["verified"], move
        if move["outcome"] == "wrong":
            tracker.distrust()
        elif verified:
            tracker.passed(name, role, strategy)


@pytest.mark.parametrize("case", VECTORS["strategies"])
def test_which_strategies_are_tried(case):
    strategies = module("_strategy")
    facts, tried = strategies.Facts(**case["facts"]), []
    for strategy in strategies.ALL:
        if strategies.is_open(strategy, facts, case["every_attempt_fails_with"] if tried else None):
            tried.append(strategy)
    assert tried == case["tried"]


@pytest.mark.parametrize("case", VECTORS["checksum_patterns"], ids=lambda case: str(case["length"]))
def test_checksums_of_patterns(case):
    torch = pytest.importorskip("torch")
    from surefoot_placement._checksum import checksum

    data = (torch.arange(case["length"]) * case["step"] + case["start"]).remainder(256).to(torch.uint8)
    found = checksum(data)
    assert (found.bytes, found.digest()) == (case["length"], case["digest"])
    if "rows" in case:
        assert found.rows.t().tolist() == case["rows"]


@pytest.mark.parametrize("case", VECTORS["checksum_tensors"], ids=lambda case: case["dtype"])
def test_checksums_of_tensors(case):
    torch = pytest.importorskip("torch")
    from surefoot_placement._checksum import checksum

    tensor = torch.tensor(case["values"], dtype=getattr(torch, case["dtype"]))
    assert bytes(tensor.view(torch.uint8).tolist()).hex() == case["hex"]
    assert checksum(tensor).digest() == case["digest"]
