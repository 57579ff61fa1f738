"""Writes golden/schedules.safetensors: the learning rates of transformers, step by step.

Each tensor is one schedule: its rate before the first step, and after each of all steps. The
metadata hold, under the same number, the keys of `train` that mean this schedule in a config.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import get_scheduler

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")

# Type, its own arguments, warm-up.
SCHEDULES = [
    ("constant_with_warmup", {}, 0),
    ("constant_with_warmup", {}, 70),
    ("linear", {}, 30),
    ("cosine", {}, 0),
    ("cosine", {}, 30),
    ("cosine", {"num_cycles": 1.5}, 30),
    ("cosine_with_restarts", {}, 100),
    ("cosine_with_restarts", {"num_cycles": 4}, 37),
    ("cosine_with_min_lr", {"min_lr": 3e-5}, 50),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, 0),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 2.5}, 11),
    ("polynomial", {}, 20),
    ("polynomial", {"lr_end": 1e-6, "power": 2.0}, 0),
    ("polynomial", {"power": 0.5}, 400),
    ("inverse_sqrt", {}, 0),
    ("inverse_sqrt", {}, 64),
    ("inverse_sqrt", {"timescale": 250}, 64),
    ("inverse_sqrt", {"timescale": 10}, 64),
    ("warmup_stable_decay", {"num_decay_steps": 200}, 100),
    ("warmup_stable_decay", {"num_decay_steps": 200, "min_lr_ratio": 0.1}, 100),
    ("warmup_stable_decay", {"num_decay_steps": 300, "num_stable_steps": 200}, 50),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 333, "decay_type": "linear", "warmup_type": "cosine", "min_lr_ratio": 0.05},
        90,
    ),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 500, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"},
        120,
    ),
    ("warmup_stable_decay", {"num_decay_steps": 600, "num_cycles": 1.5}, 0),
]
STEPS = 1000
PEAK = 3e-4


def rates(kind, kwargs, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = get_scheduler(
        kind,
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=STEPS,
        scheduler_specific_kwargs=kwargs,
    )
    found = []
    for _ in range(STEPS + 1):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return torch.tensor(found, dtype=torch.float64)


def main():
    tensors, metadata = {}, {}
    for number, (kind, kwargs, warmup) in enumerate(SCHEDULES):
        tensors[str(number)] = rates(kind, kwargs, warmup)
        keys = {
            "learning_rate": PEAK,
            "max_steps": STEPS,
            "lr_scheduler_type": kind,
            "warmup_steps": warmup,
        }
        if kwargs:
            keys["lr_scheduler_kwargs"] = kwargs
        metadata[str(number)] = json.dumps(keys)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    save_file(tensors, GOLDEN / "schedules.safetensors", metadata)


if __name__ == "__main__":
    main()
