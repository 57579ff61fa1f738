"""The parts of the GPU check, each run in a separate process: `python gpu_check_parts.py WHAT STEPS`.

`gpu_check.py` starts them, with PyTorch's allocator or ours, and compares what they print: one
line of JSON.
"""

import json
import math
import platform
import sys
import time

LOOPS = ("gpt", "convolutions", "lora")
CHECKS = ("streams", "out_of_memory", "transfers", "pinned_copies", "graphs", "questions")


def built_for(torch):
    """A possible reason why PyTorch sees no GPU."""
    if torch.version.hip:
        return (
            f"for ROCm {torch.version.hip} sees no GPU: does /dev/kfd exist, may this user open it (group render), "
            "and is it not hidden by HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES?"
        )
    if torch.version.cuda:
        return (
            f"for CUDA {torch.version.cuda} sees no GPU: does nvidia-smi list one? "
            "(For an AMD GPU this is the wrong PyTorch: install a build for ROCm.)"
        )
    return "sees no GPU, since it was built for the CPU only: install a build for ROCm or CUDA"


def facts(torch, device="cuda"):
    if device == "cpu":
        return {"device": "cpu", "simulated": False, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name, "architecture": properties.gcnArchName if torch.version.hip else f"sm_{properties.major}{properties.minor}",
        "simulated": properties.name == "Surefoot device-sim",
        "memory_mib": properties.total_memory >> 20, "torch": torch.__version__,
        "runtime": {"hip": torch.version.hip, "cuda": torch.version.cuda}, "kernel": platform.release(),
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }


def train(torch, loop, steps):
    """Runs one loop; returns its losses, the median step time, the memory held by the allocator, and the device memory in use between steps."""
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
        value = loss.item()
        losses.append(value if math.isfinite(value) else None)  # JSON has no other numbers
        del loss
        idle.append(used(torch))
    return {
        "losses": losses, "step_ms": sorted(times)[len(times) // 2] * 1000,
        "peak_live_mib": peak(torch, "allocated"), "held_mib": peak(torch, "reserved"),
        "idle_mib": max(idle[1:] or idle) / 2**20,
    }


def peak(torch, what):
    """None if the allocator has no statistics (PyTorch without caching)."""
    return torch.cuda.memory_stats().get(f"{what}_bytes.all.peak", 0) / 2**20 or None


def used(torch):
    """Device memory in use according to the runtime, including memory outside the allocator."""
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
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
    """Memory that is freed while another stream still reads it must keep its contents until that stream has finished."""
    side = torch.cuda.Stream()
    ballast = torch.ones(2048, 2048, device="cuda")
    wrong = 0
    for number in range(50):
        value = torch.full((1 << 20,), float(number)).to("cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                ballast @ ballast  # keeps the stream busy while the host continues
            copy = value.clone()
            value.record_stream(side)
        del value
        torch.full((1 << 20,), -1.0).to("cuda")  # would reuse the same memory
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
    """Tensors of several sizes arrive on the device as they were, by checksums computed on both sides."""
    from surefoot_placement import PlacementReport, to_device

    report = PlacementReport()
    passed = True
    for size in (1, 1000, 1 << 20, 1 << 26):
        source = torch.randn(size)
        passed &= torch.equal(to_device(source, "cuda", verify="always", report=report).cpu(), source)
    return {"passed": bool(passed), "report": str(report)}


def pinned_copies(torch):
    """Copies from and to pinned memory that overlap on two streams, with the host waiting only at the end."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    sources = [torch.arange(1 << 20, dtype=torch.float32).add(number).pin_memory() for number in range(8)]
    targets = [torch.empty(1 << 20).pin_memory() for _ in sources]
    for number, (source, target) in enumerate(zip(sources, targets)):
        with torch.cuda.stream(streams[number % 2]):
            target.copy_(source.to("cuda", non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    wrong = sum(not torch.equal(source, target) for source, target in zip(sources, targets))
    return {"passed": wrong == 0, "wrong": wrong}


def graphs(torch):
    """A captured graph gives the right results, whatever is allocated and freed meanwhile, and its memory is released afterwards."""
    static = torch.zeros(1 << 20, device="cuda")
    kept = [torch.ones(16 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        passing = static.clone()
        kept.clear()
        result = passing.clone()
        del passing
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    wrong = 0
    for number in range(8):
        others = [torch.full((1 << 20,), -1.0, device="cpu").to("cuda") for _ in range(8)]
        static.copy_(torch.full((1 << 20,), float(number), device="cpu"))
        graph.replay()
        wrong += bool((result.cpu() != float(number)).any()) + sum(bool((other.cpu() != -1.0).any()) for other in others)
    apart = graph.pool() in pools
    torch.cuda.synchronize()
    del graph, result
    torch.cuda.empty_cache()
    left = sum(any(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot())
    return {"passed": wrong == 0 and apart and left == 0, "wrong": wrong, "in a pool": apart, "segments left": left}


def questions(torch):
    """Compares the memory functions with the runtime's numbers and with each other."""
    kept = torch.zeros(64 << 20, dtype=torch.uint8).to("cuda")
    free, total = torch.cuda.mem_get_info()
    runtime_free, runtime_total = torch.cuda.cudart().cudaMemGetInfo(0)
    segments = torch.cuda.memory_snapshot()
    live = sum(
        block["requested_size"] for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"
    )
    held = torch.cuda.memory_reserved()
    answers = {
        "free is at most total": 0 < free <= total,
        "total is at most the runtime's": total <= runtime_total,
        "allocated is what was asked for": torch.cuda.memory_allocated() == kept.nbytes == live,
        "reserved is what the snapshot shows": held == sum(segment["total_size"] for segment in segments),
        "the summary can be printed": "hip-alloc" in torch.cuda.memory_summary(),
    }
    del kept
    torch.cuda.empty_cache()
    answers["empty_cache gives everything back"] = torch.cuda.memory_reserved() == torch.cuda.memory_allocated() == 0
    return {
        "passed": all(answers.values()), "answers": answers, "free": free, "total": total,
        "runtime_free": runtime_free, "runtime_total": runtime_total,
    }


def main():
    what, steps, *others = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    try:
        import torch
    except ImportError as problem:
        return {"error": f"PyTorch cannot be imported: {problem}"}
    if not others and not torch.cuda.is_available():
        return {"error": f"PyTorch {torch.__version__} {built_for(torch)}"}
    if what in LOOPS:
        return train(torch, what, steps)
    return globals()[what](torch, *others)


if __name__ == "__main__":
    print(json.dumps(main()))
