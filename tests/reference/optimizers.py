"""Writes golden/optimizers.safetensors: 50 steps of each optimizer beside AdamW, by its original.

Needs, beside requirements.txt, lion-pytorch 0.2.5, prodigyopt 1.1.2, schedulefree 1.4.1 and came-pytorch 0.1.3.

A matrix and a vector, which has no weight decay, are pulled towards noise: the gradient of a step is the parameter minus the
noise of that step. The metadata hold, under each case's number, the keys of `train` that mean it in a config.
"""

import json
import sys
from pathlib import Path

import torch
from came_pytorch import CAME
from lion_pytorch import Lion
from prodigyopt import Prodigy
from safetensors.torch import save_file
from schedulefree import AdamWScheduleFree
from transformers import Adafactor

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")

STEPS = 50
SIZES = {"w": (12, 20), "v": (7,)}


def adafactor(groups, **kwargs):
    # As transformers' Trainer calls it.
    return Adafactor(groups, **({"scale_parameter": False, "relative_step": False} | kwargs))


# Keys of `train`, and what makes the optimizer; `optim_args` are passed to it under the same names.
CASES = [
    ({"optim": "lion", "learning_rate": 0.01, "weight_decay": 0.1}, Lion),
    ({"optim": "lion", "learning_rate": 0.01, "optim_args": {"betas": [0.8, 0.95]}}, Lion),
    ({"optim": "adafactor", "learning_rate": 0.01}, adafactor),
    (
        {
            "optim": "adafactor",
            "learning_rate": 0.1,
            "weight_decay": 0.1,
            "optim_args": {
                "scale_parameter": True,
                "beta1": 0.9,
                "eps": [1e-20, 0.02],
                "clip_threshold": 0.7,
                "decay_rate": -0.6,
            },
        },
        adafactor,
    ),
    ({"optim": "came", "learning_rate": 0.01, "weight_decay": 0.1}, CAME),
    (
        {
            "optim": "came",
            "learning_rate": 0.02,
            "optim_args": {"betas": [0.8, 0.99, 0.999], "eps": [1e-20, 1e-10], "clip_threshold": 0.5},
        },
        CAME,
    ),
    ({"optim": "prodigy", "learning_rate": 1.0}, Prodigy),
    (
        {
            "optim": "prodigy",
            "learning_rate": 0.5,
            "weight_decay": 0.1,
            "optim_args": {"use_bias_correction": True, "safeguard_warmup": True, "slice_p": 3, "d0": 1e-4},
        },
        Prodigy,
    ),
    (
        {
            "optim": "prodigy",
            "learning_rate": 1.0,
            "weight_decay": 0.1,
            "optim_args": {
                "betas": [0.0, 0.99],
                "beta3": 0.9,
                "decouple": False,
                "d_coef": 0.8,
                "growth_rate": 1.3,
                "eps": 1e-6,
                "d0": 1e-3,
            },
        },
        Prodigy,
    ),
    (
        {"optim": "schedule_free_adamw", "learning_rate": 0.05, "weight_decay": 0.1, "warmup_steps": 8},
        AdamWScheduleFree,
    ),
    (
        {
            "optim": "schedule_free_adamw",
            "learning_rate": 0.05,
            "optim_args": {"betas": [0.95, 0.99], "r": 1.0, "weight_lr_power": 1.0, "eps": 1e-6},
        },
        AdamWScheduleFree,
    ),
    ({"optim": "muon", "learning_rate": 0.02, "weight_decay": 0.1}, torch.optim.Muon),
    (
        {
            "optim": "muon",
            "learning_rate": 0.02,
            "optim_args": {"momentum": 0.8, "nesterov": False, "ns_steps": 4, "adjust_lr_fn": "match_rms_adamw"},
        },
        torch.optim.Muon,
    ),
]


def run(keys, make, start, noise):
    parameters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in start.items()}
    kwargs = {"lr": keys["learning_rate"], **keys.get("optim_args", {})}
    for name in ["betas", "eps"]:
        if isinstance(kwargs.get(name), list):
            kwargs[name] = tuple(kwargs[name])
    if make is AdamWScheduleFree:
        kwargs["warmup_steps"] = keys.get("warmup_steps", 0)
    decay = keys.get("weight_decay", 0.0)
    groups = [
        {"params": [parameters["w"]], "weight_decay": decay},
        {"params": [parameters["v"]], "weight_decay": 0.0},
    ]
    if make is torch.optim.Muon:
        optimizers = [
            make(groups[:1], **kwargs),
            torch.optim.AdamW(groups[1:], lr=keys["learning_rate"]),
        ]
    else:
        optimizers = [make(groups, **kwargs)]
    free = make is AdamWScheduleFree
    found = {}
    for step in range(STEPS):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                if not free:
                    group["lr"] = keys["learning_rate"] * ((STEPS - step) / STEPS)
            if free:
                optimizer.train()
        for name, parameter in parameters.items():
            parameter.grad = parameter.detach() - noise[name][step]
        for optimizer in optimizers:
            optimizer.step()
        if step + 1 in (1, 10, STEPS):
            for name, parameter in parameters.items():
                found[f"{step + 1}.{name}"] = parameter.detach().clone()
    if free:
        optimizers[0].eval()
        for name, parameter in parameters.items():
            found[f"evaluated.{name}"] = parameter.detach().clone()
    return found


def main():
    torch.manual_seed(36)
    start = {name: torch.randn(size) * 0.3 for name, size in SIZES.items()}
    noise = {name: torch.randn(STEPS, *size) for name, size in SIZES.items()}
    tensors = {f"start.{name}": tensor for name, tensor in start.items()}
    tensors |= {f"noise.{name}": tensor for name, tensor in noise.items()}
    metadata = {}
    for number, (keys, make) in enumerate(CASES):
        found = run(keys, make, start, noise)
        tensors |= {f"{number}.{name}": tensor for name, tensor in found.items()}
        constant = make is AdamWScheduleFree
        kind = {"lr_scheduler_type": "constant" if constant else "linear", "max_steps": STEPS}
        metadata[str(number)] = json.dumps(keys | kind)
    save_file(tensors, GOLDEN / "optimizers.safetensors", metadata)


main()
