"""One check of `surefoot probe`, in a process of its own: python checks.py NAME DEVICE.

Everything that can go wrong is an answer. The last line of stdout is JSON:
{"verdict": "ok" | "wrong" | "nan" | "zeros" | "slow" | "error" | "oom" | "skipped", "detail": "…"}.
A crash or a hang leaves no such line, and that is an answer too.
"""

import faulthandler
import json
import os
import sys

# The C stack of a crash goes to stderr, which the caller keeps.
faulthandler.enable()

NAME, DEVICE = sys.argv[1], sys.argv[2]


# What a result holds for; the first check fills it in.
IDENTITY = {}


class Verdict(Exception):
    """Ends a check before its end."""

    def __init__(self, verdict, detail):
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


def judge(got, expected, what, exact=False, tolerance=None):
    """Compares a result that came back to the CPU; exact compares bits."""
    import torch

    got, expected = got.detach().cpu(), expected.detach().cpu()
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise Verdict("wrong", f"{what}: {got.dtype}{list(got.shape)} came back as {expected.dtype}{list(expected.shape)}")
    if exact:
        same = torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
    else:
        same = torch.allclose(got.double(), expected.double(), **tolerance)
    if same:
        return
    if got.is_floating_point():
        count = int(torch.isnan(got).sum() - torch.isnan(expected).sum())
        if count > 0:
            raise Verdict("nan", f"{what}: {count} of {got.numel()} values are NaN")
    if bool((got == 0).all()) and not bool((expected == 0).all()):
        raise Verdict("zeros", f"{what}: all {got.numel()} values are zero")
    different = int((got != expected).sum())
    largest = float((got.double() - expected.double()).abs().max())
    raise Verdict("wrong", f"{what}: {different} of {got.numel()} values differ, by {largest:.3g} at most")


def generator(seed):
    import torch

    return torch.Generator().manual_seed(seed)


def synchronize():
    import torch

    if DEVICE.startswith("cuda"):
        torch.cuda.synchronize()


def round_trip(tensor, what, repeats=10):
    for repeat in range(repeats):
        there = tensor.to(DEVICE)
        synchronize()
        judge(there, tensor, f"{what}, copy {repeat + 1}", exact=True)


def check_import():
    import torch

    count = torch.cuda.device_count() if DEVICE.startswith("cuda") else 1
    if DEVICE.startswith("cuda"):
        if not torch.cuda.is_available() or count == 0:
            raise Verdict("error", f"torch {torch.__version__} sees no GPU (torch.version.hip is {torch.version.hip})")
        properties = torch.cuda.get_device_properties(0)
        architecture = getattr(properties, "gcnArchName", "").split(":")[0] or f"sm_{properties.major}{properties.minor}"
        listed = torch.cuda.get_arch_list()
        IDENTITY.update(architecture=architecture, torch=torch.__version__)
        return f"torch {torch.__version__}, {count} GPUs; GPU 0 is {properties.name} ({architecture}); built for {' '.join(listed)}"
    return f"torch {torch.__version__} on the CPU"


def check_copy_small():
    import torch

    round_trip(torch.randn(4, 4, generator=generator(1)), "4×4")


def check_copy_image():
    import torch

    round_trip(torch.randn(16, 1, 64, 64, generator=generator(2)), "16×1×64×64")


def check_copy_mixed():
    import torch

    batch = {
        "float": torch.randn(8, 77, 768, generator=generator(3)),
        "half": torch.randn(8, 4, 64, 64, generator=generator(4)).half(),
        "bfloat": torch.randn(8, 1024, generator=generator(5)).bfloat16(),
        "long": torch.randint(-(2**40), 2**40, (8, 512), generator=generator(6)),
        "bool": torch.rand(8, 77, generator=generator(7)) > 0.5,
        "byte": torch.randint(0, 256, (8, 3, 63, 65), dtype=torch.uint8, generator=generator(8)),
        "transposed": torch.randn(33, 65, generator=generator(9)).t(),
    }
    for _ in range(5):
        there = {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}
        synchronize()
        for name, tensor in batch.items():
            judge(there[name], tensor, f"{name} of a batch", exact=True)


class Samples:
    """A data set whose samples tell their own index; named at top level for workers that are spawned."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch

        return torch.full((3, 32, 32), float(index)), index


def check_copy_loader():
    from torch.utils.data import DataLoader

    pinned = DEVICE.startswith("cuda")
    for images, indices in DataLoader(Samples(), batch_size=8, num_workers=0, pin_memory=pinned):
        there = images.to(DEVICE, non_blocking=True)
        synchronize()
        judge(there, images, "a batch of a data loader", exact=True)
        # Picked out on the CPU: this is about the copies.
        judge(there.cpu()[:, 0, 0, 0].long(), indices, "the indices of a data loader", exact=True)


def check_copy_large():
    import torch

    # On gfx1030 with kernel 5.15 copies of this shape came back with NaN in them.
    round_trip(torch.randn(13000, 384, generator=generator(10)), "13000×384", repeats=20)


def check_matmul_fp32():
    import torch

    a, b = torch.randn(512, 768, generator=generator(11)), torch.randn(768, 640, generator=generator(12))
    got = a.to(DEVICE) @ b.to(DEVICE)
    # Summing 768 products in another order, and TF32 where it is on.
    judge(got, a @ b, "fp32 matmul", tolerance={"rtol": 1e-3, "atol": 5e-2})
    if DEVICE.startswith("cuda"):
        here, there = (seconds_of_product(device) for device in ("cpu", DEVICE))
        if there > here:
            raise Verdict("slow", f"a product of 2048×2048 takes {1000 * there:.0f} ms on the GPU and {1000 * here:.0f} ms on the CPU")


def seconds_of_product(device):
    import time

    import torch

    square = torch.ones(2048, 2048, device=device)
    best = float("inf")
    # The first one loads the library and chooses its kernel.
    for _ in range(4):
        synchronize()
        start = time.perf_counter()
        square @ square
        synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def check_matmul_bf16():
    import torch

    a, b = (torch.randn(512, 512, generator=generator(seed)).bfloat16() for seed in (13, 14))
    got = a.to(DEVICE) @ b.to(DEVICE)
    judge(got, (a.float() @ b.float()).bfloat16(), "bf16 matmul", tolerance={"rtol": 2e-2, "atol": 0.5})


def network():
    import torch

    torch.manual_seed(15)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8), torch.nn.Softmax(-1)
    )


def check_autograd():
    import torch

    data = torch.randn(16, 32, generator=generator(16))
    target = torch.randn(16, 8, generator=generator(17))
    gradients = []
    losses = []
    for device in ("cpu", DEVICE):
        model = network().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
        losses.append(loss.detach().cpu())
        gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
    judge(losses[1], losses[0], "the loss after five steps", tolerance={"rtol": 1e-3, "atol": 1e-4})
    for number, (expected, got) in enumerate(zip(*gradients)):
        judge(got, expected, f"gradient {number}", tolerance={"rtol": 1e-2, "atol": 1e-4})


def check_conv():
    import torch

    image, weight = torch.randn(2, 8, 33, 35, generator=generator(18)), torch.randn(16, 8, 3, 3, generator=generator(19))
    got = torch.nn.functional.conv2d(image.to(DEVICE), weight.to(DEVICE), padding=1)
    judge(got, torch.nn.functional.conv2d(image, weight, padding=1), "conv2d", tolerance={"rtol": 1e-3, "atol": 2e-2})


def check_conv3d():
    import torch

    # As wide as a layer of a video autoencoder: MIOpen without a fast kernel for it takes the better part of a minute.
    frames, weight = torch.randn(1, 128, 4, 32, 32, generator=generator(23)), torch.randn(128, 128, 3, 3, 3, generator=generator(24))
    got = torch.nn.functional.conv3d(frames.to(DEVICE), weight.to(DEVICE), padding=1)
    # A value is the sum of 3456 products, some 60 in size.
    judge(got, torch.nn.functional.conv3d(frames, weight, padding=1), "conv3d", tolerance={"rtol": 1e-3, "atol": 0.2})


def heads():
    import torch

    # bf16, as in training, and long enough for the flash kernels to be worth it.
    return [torch.randn(1, 4, 256, 64, generator=generator(seed)).bfloat16() for seed in (20, 21, 22)]


def check_attention():
    import torch

    q, k, v = heads()
    attention = torch.nn.functional.scaled_dot_product_attention
    got = attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), is_causal=True)
    judge(got, attention(q.float(), k.float(), v.float(), is_causal=True).bfloat16(), "attention", tolerance={"rtol": 5e-2, "atol": 2e-2})


def check_attention_fused():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (tensor.to(DEVICE) for tensor in heads())
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            synchronize()
    except RuntimeError as problem:
        if "No available kernel" not in str(problem):
            raise
        raise Verdict("slow", "no fused kernel takes it: the math kernel keeps all scores of attention in memory")


def check_handles():
    import torch

    # The first product makes the handle of the BLAS, the first convolution that of MIOpen.
    size = torch.ones(8, 8, device=DEVICE)
    judge((size @ size).cpu(), torch.full((8, 8), 8.0), "the first product", exact=True)
    image = torch.ones(1, 1, 8, 8, device=DEVICE)
    kernel = torch.ones(1, 1, 3, 3, device=DEVICE)
    judge(torch.nn.functional.conv2d(image, kernel).cpu(), torch.full((1, 1, 6, 6), 9.0), "the first convolution", exact=True)


def check_memory():
    import torch

    if not DEVICE.startswith("cuda"):
        raise Verdict("skipped", "the CPU has no pool of its own")
    free, total = torch.cuda.mem_get_info()
    # Free can be reported above the total (APUs); the total bounds what is tried.
    goal = int(min(free, total) * 0.6)
    piece = 256 << 20
    kept = []
    for start in range(0, goal, piece):
        block = torch.empty(min(piece, goal - start), dtype=torch.uint8, device=DEVICE)
        # Promised pages become real only when they are written.
        block.fill_(len(kept) % 251)
        kept.append(block)
    synchronize()
    for number, block in enumerate(kept):
        edges = torch.stack([block[0], block[-1]]).cpu()
        judge(edges, torch.full((2,), number % 251, dtype=torch.uint8), f"block {number} of {len(kept)}", exact=True)
    return f"{goal / 2**30:.2f} GiB of {total / 2**30:.2f} GiB allocated and written"


def main():
    try:
        import torch

        torch.set_num_threads(min(4, os.cpu_count() or 1))
        check = globals()["check_" + NAME.split("@")[0]]
        answer = {"verdict": "ok", "detail": check() or ""}
    except Verdict as verdict:
        answer = {"verdict": verdict.verdict, "detail": verdict.detail}
    except ImportError as problem:
        answer = {"verdict": "error", "detail": f"cannot import torch: {problem}"}
    except Exception as problem:  # Every failure of a check is its result.
        is_oom = type(problem).__name__ == "OutOfMemoryError" or isinstance(problem, MemoryError)
        answer = {"verdict": "oom" if is_oom else "error", "detail": f"{type(problem).__name__}: {problem}"}
    print(json.dumps(answer | IDENTITY), flush=True)


if __name__ == "__main__":
    main()
