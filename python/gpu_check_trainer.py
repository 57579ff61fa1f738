"""The trainer's part of the GPU check: `surefoot train` on this GPU, beside plain PyTorch on it and beside itself on the CPU.

`gpu_check.py` calls `train`. The trainer is `libsurefoot_trainer.so` in this folder, in the process of this Python and its
PyTorch. What is trained is small, in float32 where losses are compared:

- a language model from random weights, in the order and from the weights of `trainer/reference.py`, which is plain PyTorch
- a LoRA on it: on the CPU, on the GPU, and with all blocks streamed and every copy verified; with a base in NF4 the
  kernels of this GPU beside PyTorch's operators
- a LoRA on a small Wan, on the CPU and on the GPU
"""

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
NEEDED = (2, 10)
# Of a loss: float32 in another order of additions, and bfloat16 beside bfloat16.
CLOSE, ROUGH = 1e-3, 2e-2

# What `trainer/reference.py` reads stands here in full.
SCRATCH = {
    "seed": 7,
    "model": {
        "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": None,
        "head_dim": None, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "initializer_range": 0.02,
    },
    "data": {"path": "text.txt", "tokenizer": "bytes", "block_size": 256, "validation_fraction": 0.05},
    "sample": {"max_new_tokens": 0},
    "train": {
        "max_steps": 30, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 1e-3, "min_lr": 0.0,
        "lr_scheduler_type": "cosine", "warmup_steps": 3, "weight_decay": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.999,
        "adam_epsilon": 1e-8, "max_grad_norm": 1.0,
    },
}
LORA = {
    "seed": 7,
    "model": {"name_or_path": "runs/scratch/model"},
    "adapter": {"r": 8, "target_modules": "all-linear"},
    "data": {"path": "text.txt", "block_size": 256, "validation_fraction": 0.05},
    "sample": {"max_new_tokens": 0},
    "train": {"max_steps": 10, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "gradient_checkpointing": True},
}
WAN = {
    "seed": 7,
    "model": {"name_or_path": "wan/model"},
    "adapter": {"r": 8},
    "data": {"path": "wan/clips", "resolution": [160, 96], "num_frames": 9},
    "train": {"max_steps": 10, "per_device_train_batch_size": 1, "learning_rate": 1e-3, "gradient_checkpointing": True},
}
NF4 = ("model.quantization=nf4",)
STREAMED = ("model.offload=all", "train.verify=always")
# Name of a run: config, whether in bf16, settings. On the GPU, but for those that end in "on the CPU".
RUNS = {
    "scratch": (SCRATCH, False, ()),
    "scratch, bf16": (SCRATCH, True, ()),
    "lora on the CPU": (LORA, False, ()),
    "lora": (LORA, False, ()),
    "lora, streamed": (LORA, False, STREAMED),
    "lora, NF4, operators": (LORA, True, (*NF4, "train.kernels=off")),
    "lora, NF4, kernels": (LORA, True, NF4),
    "wan on the CPU": (WAN, False, ()),
    "wan": (WAN, False, ()),
}
# What is compared with what, and how far apart the losses may be.
PAIRS = [
    ("scratch", "pytorch", CLOSE),
    ("scratch, bf16", "pytorch, bf16", ROUGH),
    ("lora", "lora on the CPU", CLOSE),
    ("lora, streamed", "lora", CLOSE),
    ("lora, NF4, kernels", "lora, NF4, operators", ROUGH),
    ("wan", "wan on the CPU", CLOSE),
]


def train(start, torch, device, tell):
    """Trains everything by `start(command, variables, folder)`, which returns what went wrong, and what was written; returns
    what was measured, by name."""
    missing = None
    if not (HERE / "libsurefoot_trainer.so").exists():
        missing = "there is no trainer in this folder"
    elif tuple(map(int, torch.split(".")[:2])) < NEEDED:
        missing = f"the trainer needs PyTorch {'.'.join(map(str, NEEDED))} or newer"
    if missing:
        return dict.fromkeys(["pytorch", "pytorch, bf16", *RUNS], {"not run": True, "error": missing})
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        folder = Path(folder)
        shutil.copytree(HERE / "trainer", folder, dirs_exist_ok=True)
        (folder / "text.txt").write_text("".join(f"{n} and {n % 7} are {n + n % 7}.\n" for n in range(20_000)))
        # Without a GPU there is nothing to time, and bfloat16 is slow on most CPUs.
        results, shorter = {}, {"max_steps": 6, "bf16": False} if device == "cpu" else {}
        for name, bf16 in (("pytorch", False), ("pytorch, bf16", True)):
            results[name] = tell("trainer", name, plain_pytorch(start, folder, name, {"bf16": bf16} | shorter, device))
        for name, (config, bf16, settings) in RUNS.items():
            on = "cpu" if name.endswith("on the CPU") else device
            changed = {"bf16": bf16, "logging_steps": 1, "eval_steps": 0, "save_steps": 0} | shorter
            results[name] = tell("trainer", name, surefoot(start, folder, name, config, changed, settings, on))
    return results


def written(folder, name, config, **settings):
    path = folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"
    path.write_text(json.dumps(config | {"train": config["train"] | settings}))
    return path


def plain_pytorch(start, folder, name, changed, device):
    out = folder / "losses.json"
    out.unlink(missing_ok=True)
    config = written(folder, name, SCRATCH, **changed)
    command = [sys.executable, "reference.py", config.name, "--out", out.name, "--device", device.replace("gpu", "cuda")]
    error, _, told = start(command, {}, folder)
    if error or not out.exists():
        return error or {"error": "ended without a result", "stderr": told[-2000:]}
    result = json.loads(out.read_text())
    speeds = [result["tokens_per_step"] / seconds for seconds in result["step_seconds"]]
    return {"losses": finite(result["losses"]), "tokens_per_second": median(speeds[2:])}


def surefoot(start, folder, name, config, changed, settings, device):
    config = written(folder, name, config, **changed)
    words = [word for setting in (f"name={config.stem}", f"device={device}", *settings) for word in ("--set", setting)]
    # The Python of this process; the allocator is for GPUs.
    variables = {"VIRTUAL_ENV": sys.prefix} | ({} if device == "cpu" else {"HIP_ALLOC": "1"})
    error, _, told = start([str(HERE / "surefoot"), "train", config.name, *words], variables, folder)
    if error:
        return error
    rows = map(json.loads, (folder / f"runs/{config.stem}/metrics.jsonl").read_text().splitlines())
    rows = [row for row in rows if row["kind"] == "train"]
    kernels = [line for line in told.splitlines() if "by a kernel of our own" in line or "a kernel of our own cannot" in line]
    held = rows[-1]["memory"]["held_peak"]
    return {
        "losses": finite(row["loss"] for row in rows), "tokens_per_second": median(row["tokens_per_second"] for row in rows[2:]),
        "held_mib": held and held / 2**20,
    } | ({"said": kernels} if kernels else {})


def finite(losses):
    """JSON has no other numbers."""
    return [loss if loss is not None and math.isfinite(loss) else None for loss in losses]
