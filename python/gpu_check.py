"""Checks hip-alloc on this machine's GPU: the same training with and without it, side by side.

    python gpu_check.py [--out report.json] [--steps 20]

    python gpu_check.py --cpu    (only the trainer's part, without a GPU)

Needs Python and a PyTorch (2.8 or newer, for ROCm or CUDA; for the trainer 2.10). `cargo xtask gpu-check --bundle` puts all
else next to this file. Each run is a separate process. The checks:

- the losses of each loop equal those with PyTorch's allocator: bit-identical if two
  runs of PyTorch are, otherwise within the difference between these two
- memory that another stream still uses is not reused (`record_stream`)
- running out of memory raises `torch.OutOfMemoryError`, and the program can continue
- tensors arrive on the device intact, also from and to pinned memory and on two streams
- a captured graph keeps its memory until it is deleted
- the memory functions of `torch.cuda` work
- the trainer's losses are those of plain PyTorch and those of the CPU, streamed or not (`gpu_check_trainer.py`)

Step time and memory are reported, but not checked. Losses that are all zero or not finite are
inconclusive, and so is every result on a simulated device: such a check counts neither as failed nor as
passed. Exit codes: 0 all checks passed, 1 a check failed, 2 the checks could not
run, 3 no check failed but some are inconclusive.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import gpu_check_trainer
from gpu_check_parts import CHECKS, LOOPS
from surefoot_activate import ActivationError
from surefoot_activate._library import Library

HERE = Path(__file__).resolve().parent
ALLOCATORS = {
    "pytorch": {},
    "pytorch, again": {},
    "pytorch, expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "pytorch, no caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTORCH_NO_HIP_MEMORY_CACHING": "1"},
    "hip-alloc": {"HIP_ALLOC": "1"},
    "hip-alloc, guard": {"HIP_ALLOC": "1", "HIP_ALLOC_CONF": "guard:on"},
}
# A run that hangs must not block the others, and the whole check should take at most eight minutes.
LONGEST_RUN_S = 150
LONGEST_CHECK_S = 480
PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the report (default: standard output)")
    parser.add_argument("--steps", type=int, default=20, help="steps per loop (default: %(default)s)")
    parser.add_argument("--loop", action="append", choices=LOOPS, help="run only this loop; may be repeated")
    parser.add_argument("--cpu", action="store_true", help="run only the trainer's part, on the CPU")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps: at least 1")
    runs = Runs(arguments.steps)
    facts = runs.run("facts", {}, *(["cpu"] if arguments.cpu else []))
    problem = facts.get("error") or what_is_wrong_with_the_library()
    if problem:
        print(f"gpu-check: {problem}", file=sys.stderr)
        return 2
    facts["machine"] = {"libc": "-".join(platform.libc_ver()), "processor": platform.machine()}
    report = {"facts": facts, "loops": {}, "parts": {}, "trainer": {}, "checks": {}}
    for loop in [] if arguments.cpu else arguments.loop or LOOPS:
        results = {name: tell(loop, name, runs.run(loop, variables)) for name, variables in ALLOCATORS.items()}
        report["loops"][loop] = results
        for name in ("hip-alloc", "hip-alloc, guard"):
            verdict, why = compare(results, name)
            report["checks"][f"{loop}, {name}: losses"] = {"verdict": verdict, "why": why}
    for check in [] if arguments.cpu else CHECKS:
        result = runs.run(check, ALLOCATORS["hip-alloc"])
        report["parts"][check] = result
        report["checks"][check.replace("_", " ")] = judge(check, result)
    results = gpu_check_trainer.train(runs.start, facts["torch"], "cpu" if arguments.cpu else "gpu:0", tell)
    report["trainer"] = results
    for name, other, bound in gpu_check_trainer.PAIRS:
        verdict, why = beside(results, name, other, bound)
        report["checks"][f"trainer, {name}: the losses of {other}"] = {"verdict": verdict, "why": why}
    if facts["simulated"]:
        for check in report["checks"].values():
            if check["verdict"] == PASSED:
                check.update(verdict=INCONCLUSIVE, why=f"the device is simulated ({check['why']})")
    verdicts = [check["verdict"] for check in report["checks"].values()]
    report["verdict"] = next((verdict for verdict in (FAILED, INCONCLUSIVE) if verdict in verdicts), PASSED)
    report["passed"] = report["verdict"] == PASSED
    report["seconds"] = round(runs.elapsed())
    text = json.dumps(report, indent=1)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    for name, check in report["checks"].items():
        print(f"{check['verdict']:12}  {name}: {check['why']}", file=sys.stderr)
    if facts["simulated"]:
        print("the device is simulated: its losses and times are meaningless", file=sys.stderr)
    return {PASSED: 0, FAILED: 1, INCONCLUSIVE: 3}[report["verdict"]]


class Runs:
    """Runs parts in separate processes; errors are part of the result."""

    def __init__(self, steps):
        self._steps = steps
        self._began = time.monotonic()

    def elapsed(self):
        return time.monotonic() - self._began

    def start(self, command, variables, folder=None):
        """Runs a command; returns what went wrong, or None, and what it wrote to its standard output and error."""
        left = LONGEST_CHECK_S - self.elapsed()
        if left < 5:
            return {"not run": True, "error": f"not run: the limit of {LONGEST_CHECK_S} s was reached (use fewer --steps)"}, "", ""
        ours = ("HIP_ALLOC", "SUREFOOT_", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_")
        environment = {name: value for name, value in os.environ.items() if name == "HIP_ALLOC_LIB" or not name.startswith(ours)}
        environment.update(variables, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        try:
            process = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=min(LONGEST_RUN_S, left), cwd=folder)
        except subprocess.TimeoutExpired as problem:
            return {"error": f"did not end within {problem.timeout:.0f} s", "stderr": str(problem.stderr or "")[-2000:]}, "", ""
        error = {"error": f"ended with {process.returncode}", "stderr": process.stderr[-2000:]} if process.returncode else None
        return error, process.stdout, process.stderr

    def run(self, what, variables, *words):
        """The result of a part of `gpu_check_parts.py`."""
        command = [sys.executable, str(HERE / "gpu_check_parts.py"), what, str(self._steps), *words]
        error, printed, told = self.start(command, variables | {"PYTHONPATH": str(HERE)})
        try:
            result = json.loads(printed.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            return error or {"error": "ended without a result", "stderr": told[-2000:]}
        words = [line for line in told.splitlines() if line.startswith(("surefoot:", "hip-alloc:"))]
        return result | ({"said": words} if words else {})


def what_is_wrong_with_the_library():
    """The reason why the library cannot be loaded on this machine, found before any run fails because of it."""
    path = os.environ.get("HIP_ALLOC_LIB") or HERE / "libhip_alloc.so"
    try:
        Library(path)
    except ActivationError as problem:
        return str(problem)
    return None


def compare(results, name):
    """Compares our losses with PyTorch's; two runs of PyTorch determine the tolerance."""
    first, second, ours = (numbers(results[each]) for each in ("pytorch", "pytorch, again", name))
    if ours is None:
        return INCONCLUSIVE if "not run" in results[name] else FAILED, results[name].get("error", "there are no losses")
    if first is None or second is None:
        return INCONCLUSIVE, "the run with PyTorch's own allocator failed: " + str(results["pytorch"].get("error"))
    if why := says_nothing(first + second):
        return INCONCLUSIVE, f"PyTorch's own losses are {why}"
    noise, distance = apart(first, second), min(apart(first, ours), apart(second, ours))
    if distance == 0:
        return PASSED, "bit-identical"
    words = f"they differ from PyTorch's by {distance:.2g}; two runs of PyTorch differ by {noise:.2g}"
    # With another order of atomic additions, a third run may differ somewhat more.
    return (PASSED if distance <= 4 * noise else FAILED), words


def beside(results, name, other, most):
    """Compares the losses of two runs, which may differ by `most` of their value."""
    ours, theirs = (numbers(results[each]) for each in (name, other))
    if ours is None:
        return INCONCLUSIVE if "not run" in results[name] else FAILED, results[name]["error"]
    if theirs is None:
        return INCONCLUSIVE, f"{other} failed: {results[other]['error']}"
    if why := says_nothing(theirs):
        return INCONCLUSIVE, f"the losses of {other} are {why}"
    distance = apart(ours, theirs)
    words = f"they differ by {distance:.2g} of their value; {most} is allowed" if distance else "bit-identical"
    return (PASSED if distance <= most else FAILED), words


def says_nothing(losses):
    """Why these losses show nothing, if they do."""
    if not all(map(math.isfinite, losses)) or not any(losses):
        return "all zero, or not finite"
    if len(set(losses)) == 1 and len(losses) > 1:
        return "the same in every step: nothing was trained"
    return None


def numbers(result):
    """The losses of a run, None if it has none. JSON has null for values that are not finite."""
    losses = result.get("losses")
    return losses and [math.nan if loss is None else loss for loss in losses]


def apart(some, others):
    """The largest relative difference between two runs; infinite if a value is not finite."""
    if len(some) != len(others):
        return math.inf
    gaps = [abs(one - other) / max(abs(one), abs(other), 1e-12) for one, other in zip(some, others)]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps)


def judge(check, result):
    if "passed" not in result:
        return {"verdict": INCONCLUSIVE if "not run" in result else FAILED, "why": result.get("error", "it exited without a result")}
    why = result.get("message") or "; ".join(result.get("said", [])) or "as expected"
    if not result["passed"]:
        return {"verdict": FAILED, "why": json.dumps(result)[:500]}
    return {"verdict": PASSED, "why": why.splitlines()[0][:200]}


def tell(loop, allocator, result):
    """Progress: one line per run."""
    if "tokens_per_second" in result:
        held = f", peak held {result['held_mib']:8.0f} MiB" if result.get("held_mib") else ""
        words = f"{result['tokens_per_second']:10.0f} tokens/s{held}, loss {result['losses'][-1]}"
    elif "losses" in result:
        held = f"{result['held_mib']:8.0f}" if result["held_mib"] else " unknown"
        words = f"{result['step_ms']:8.2f} ms/step, peak held {held} MiB, {result['idle_mib']:8.0f} MiB in use between steps"
    else:
        words = result["error"]
    print(f"{loop:14} {allocator:30} {words}", file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
