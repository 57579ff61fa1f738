"""Checks hip-alloc on this machine's GPU: the same training with and without it, side by side.

    python gpu_check.py [--out report.json] [--steps 20]

Needs Python and a PyTorch (2.8 or newer, for ROCm or CUDA); `libhip_alloc.so` and
`surefoot_activate` lie beside this file. Every run is a process of its own. What is
checked:

- the losses of every loop are equal, to the bit, with PyTorch's allocator and ours
- memory that another stream still uses is not given out (`record_stream`)
- out of memory is `torch.OutOfMemoryError`, and the program can go on
- tensors arrive on the device intact, by checksums computed on both sides

Step time and memory are reported, not judged. Exit codes: 0 all checks passed, 1 one
did not, 2 there is nothing to check with.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOOPS = ("gpt", "convolutions", "lora")
ALLOCATORS = {
    "pytorch": {},
    "pytorch, expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "pytorch, no caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTORCH_NO_HIP_MEMORY_CACHING": "1"},
    "hip-alloc": {"HIP_ALLOC": "1"},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the report (default: standard output)")
    parser.add_argument("--steps", type=int, default=20, help="steps per loop (default: %(default)s)")
    parser.add_argument("--loop", action="append", choices=LOOPS, help="only this one; may be repeated")
    parser.add_argument("--one", metavar="WHAT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_here(arguments.one, arguments.steps)))
        return 0
    facts = run("facts", arguments.steps, {})
    if "error" in facts:
        print(f"gpu-check: {facts['error']}", file=sys.stderr)
        return 2
    report = {"facts": facts, "loops": {}, "checks": {}}
    for loop in arguments.loop or LOOPS:
        results = {name: tell(loop, name, run(loop, arguments.steps, variables)) for name, variables in ALLOCATORS.items()}
        report["loops"][loop] = results
        report["checks"][f"{loop}: losses equal"] = (
            "losses" in results["hip-alloc"] and results["hip-alloc"]["losses"] == results["pytorch"].get("losses")
        )
    for check in ("streams", "out_of_memory", "transfers"):
        result = run(check, arguments.steps, ALLOCATORS["hip-alloc"])
        report["checks"][check.replace("_", " ")] = result.get("passed", False)
        report[check] = result
    report["passed"] = all(report["checks"].values())
    text = json.dumps(report, indent=1)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    if facts["simulated"]:
        print("the device is simulated: its losses mean nothing, and neither do its times", file=sys.stderr)
    for check, passed in report["checks"].items():
        print(f"{'passed' if passed else 'FAILED'}  {check}", file=sys.stderr)
    return 0 if report["passed"] else 1


def run(what, steps, variables):
    """Runs one part in a process of its own; what went wrong is part of the result."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", what, "--steps", str(steps)]
    ours = ("HIP_ALLOC", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_")
    kept = {"HIP_ALLOC_LIB", "HIP_ALLOC_CONF"}
    environment = {name: value for name, value in os.environ.items() if name in kept or not name.startswith(ours)}
    environment.update(variables, PYTHONPATH=str(HERE), CUBLAS_WORKSPACE_CONFIG=":4096:8")
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        return json.loads(process.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": f"ended with {process.returncode}", "stderr": process.stderr[-2000:]}


def tell(loop, allocator, result):
    """Progress: one line per run."""
    if "losses" in result:
        held = f"{result['held_mib']:8.0f}" if result["held_mib"] else " unknown"
        words = f"{result['step_ms']:8.2f} ms/step, held {held} MiB at most, {result['idle_mib']:8.0f} MiB taken between steps"
    else:
        words = result["error"]
    print(f"{loop:14} {allocator:30} {words}", file=sys.stderr, flush=True)
    return result


def run_here(what, steps):
    try:
        import torch
    except ImportError as problem:
        return {"error": f"PyTorch cannot be imported: {problem}"}
    if not torch.cuda.is_available():
        return {"error": f"PyTorch {torch.__version__} {built_for(torch)}"}
    if what in LOOPS:
        return train(torch, what, steps)
    return {"facts": facts, "streams": streams, "out_of_memory": out_of_memory, "transfers": transfers}[what](torch)


def built_for(torch):
    """Why it may see no GPU, as far as PyTorch itself knows."""
    if torch.version.hip:
        return (
            f"for ROCm {torch.version.hip} sees no GPU: is there a /dev/kfd, may this user open it (group render), "
            "and does no HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hide it?"
        )
    if torch.version.cuda:
        return (
            f"for CUDA {torch.version.cuda} sees no GPU: does nvidia-smi list one? "
            "(For an AMD GPU this is the wrong PyTorch: it takes a build for ROCm.)"
        )
    return "sees no GPU, since it was built for the CPU only: install a build for ROCm or CUDA"


def facts(torch):
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name, "architecture": getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}"),
        "simulated": properties.name == "Surefoot device-sim",
        "memory_mib": properties.total_memory >> 20, "torch": torch.__version__,
        "runtime": {"hip": torch.version.hip, "cuda": torch.version.cuda}, "kernel": platform.release(),
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }


def train(torch, loop, steps):
    """One loop; its losses, the middle step time, what the allocator held, and what the device lacked between steps."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    step = {"gpt": gpt, "convolutions": convolutions, "lora": lora}[loop](torch)
    losses, times, idle = [], [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
        del loss
        idle.append(used(torch))
    return {
        "losses": losses, "step_ms": sorted(times)[len(times) // 2] * 1000,
        "peak_live_mib": peak(torch, "allocated"), "held_mib": peak(torch, "reserved"),
        "idle_mib": max(idle[1:] or idle) / 2**20,
    }


def peak(torch, what):
    """None where the allocator keeps no count (PyTorch without caching)."""
    return torch.cuda.memory_stats().get(f"{what}_bytes.all.peak", 0) / 2**20 or None


def used(torch):
    """What the runtime says is gone from the device: also what no allocator tells."""
    free, total = torch.cuda.cudart().cudaMemGetInfo(0)
    return max(total - free, 0)


def gpt(torch):
    nn, functional = torch.nn, torch.nn.functional
    width, vocabulary, length = 512, 8000, 256
    layers = [
        nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(6)
    ]
    model = nn.ModuleDict({"in": nn.Embedding(vocabulary, width), "layers": nn.ModuleList(layers), "out": nn.Linear(width, vocabulary)})
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(length).to("cuda")

    def step():
        tokens = torch.randint(vocabulary, (8, length + 1)).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = model["in"](tokens[:, :-1])
            for layer in model["layers"]:
                x = layer(x, src_mask=mask)
            logits = model["out"](x)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        return finish(torch, model, optimizer, loss)

    return step


def convolutions(torch):
    nn, functional = torch.nn, torch.nn.functional
    parts, before = [], 3
    for after in (32, 64, 128, 256):
        parts += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        before = after
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sizes = iter(range(10**9))

    def step():
        size = (96, 128, 160)[next(sizes) % 3]
        loss = functional.cross_entropy(model(torch.randn(32, 3, size, size).to("cuda")), torch.randint(10, (32,)).to("cuda"))
        return finish(torch, model, optimizer, loss)

    return step


def lora(torch):
    nn, functional = torch.nn, torch.nn.functional
    from torch.utils.checkpoint import checkpoint

    width, rank = 1024, 8

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.requires_grad_(False)
            self.a, self.b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

        def forward(self, x):
            return x + self.down(functional.silu(self.up(x))) + self.b(self.a(x))

    model = nn.ModuleList(Layer() for _ in range(12)).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    lengths = iter(range(10**9))

    def step():
        x = torch.randn(4, 256 + 64 * (next(lengths) % 5), width).to("cuda", torch.bfloat16).requires_grad_()
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        return finish(torch, model, optimizer, x.float().square().mean())

    return step


def finish(torch, model, optimizer, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def streams(torch):
    """Memory that is freed while another stream still reads it must keep its content until that is done."""
    side = torch.cuda.Stream()
    ballast = torch.ones(2048, 2048, device="cuda")
    wrong = 0
    for number in range(50):
        value = torch.full((1 << 20,), float(number)).to("cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                ballast @ ballast  # keeps the stream busy while the host goes on
            copy = value.clone()
            value.record_stream(side)
        del value
        torch.full((1 << 20,), -1.0).to("cuda")  # wants the same memory
        side.synchronize()
        wrong += int((copy.cpu() != float(number)).any())
    return {"passed": wrong == 0, "wrong": wrong}


def out_of_memory(torch):
    kept = torch.arange(1000.0).to("cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(4 * total, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as problem:
        again = torch.zeros(1 << 20).to("cuda")
        intact = kept.cpu().sum().item() == sum(range(1000)) and again.cpu().count_nonzero().item() == 0
        return {"passed": intact, "message": str(problem)}
    return {"passed": False, "message": "nothing was raised"}


def transfers(torch):
    from surefoot_placement import PlacementReport, to_device

    report = PlacementReport()
    passed = True
    for size in (1, 1000, 1 << 20, 1 << 26):
        source = torch.randn(size)
        passed &= torch.equal(to_device(source, "cuda", verify="always", report=report).cpu(), source)
    return {"passed": bool(passed), "report": str(report)}


if __name__ == "__main__":
    sys.exit(main())
