"""What accelerate's `infer_auto_device_map` keeps on the device.

Reads the result of placement's benchmark from stdin, plans the same modules under the same budgets, and prints
one number of bytes per plan as JSON: the bytes on device 0, tied weights counted once.
"""

import json
import sys

import torch
from accelerate import infer_auto_device_map


class Block(torch.nn.Module):
    """One module of this many bytes that is never split."""

    def __init__(self, weight: torch.nn.Parameter):
        super().__init__()
        self.weight = weight


def build(modules: list[dict]) -> torch.nn.Module:
    storages: dict[int, torch.nn.Parameter] = {}
    model = torch.nn.Module()
    for module in modules:
        storage = module["storage"]
        if storage not in storages:
            tensor = torch.empty(module["bytes"], dtype=torch.uint8, device="meta")
            storages[storage] = torch.nn.Parameter(tensor, requires_grad=False)
        model.add_module(module["name"], Block(storages[storage]))
    return model


def resident_bytes(plan: dict) -> int:
    model = build(plan["modules"])
    device_map = infer_auto_device_map(
        model,
        max_memory={0: plan["budget"], "cpu": 1 << 50},
        no_split_module_classes=["Block"],
    )
    on_device = {
        module["storage"]: module["bytes"]
        for module in plan["modules"]
        if device_map.get(module["name"], device_map.get("")) == 0
    }
    return sum(on_device.values())


def main() -> None:
    plans = json.load(sys.stdin)["plans"]
    json.dump([resident_bytes(plan) for plan in plans], sys.stdout)


if __name__ == "__main__":
    main()
