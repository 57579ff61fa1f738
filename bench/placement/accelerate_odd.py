"""Odd models, and what accelerate's `infer_auto_device_map` keeps of them on the device.

Writes `crates/placement/tests/fixtures/accelerate_plans.json`, which a test of placement holds its own plans
against. Each model is planned under no budget at all, exactly what it needs, a byte less, and shares of it.
"""

import json
import random
import sys
from pathlib import Path


from accelerate_plan import resident_bytes

OUT = Path(__file__).resolve().parents[2] / "crates/placement/tests/fixtures/accelerate_plans.json"


def modules(*sizes, tied=()):
    """Modules of these sizes in bytes; pairs in `tied` share memory."""
    storages = list(range(len(sizes)))
    for first, second in tied:
        storages[second] = storages[first]
    return [
        {"name": f"part_{at}", "storage": storage, "bytes": sizes[storage]} for at, storage in enumerate(storages)
    ]


def models():
    chance = random.Random(7)
    yield "one module", modules(1000)
    yield "one huge among small ones", modules(10, 10, 5000, 10, 10)
    yield "huge first", modules(5000, *[100] * 12)
    yield "huge last", modules(*[100] * 12, 5000)
    yield "tied ends", modules(4000, *[300] * 10, 4000, tied=[(0, 11)])
    yield "tied neighbours", modules(500, 500, *[300] * 6, tied=[(0, 1)])
    yield "tied in the middle, twice", modules(*[400] * 10, tied=[(2, 5), (3, 8)])
    yield "next to nothing", modules(1, 1, 1)
    yield "one byte beside a block", modules(1, 1000, 1)
    yield "halves", modules(*[2**number for number in range(12)])
    for number in range(12):
        sizes = [int(10 ** chance.uniform(0, 4)) for _ in range(chance.randrange(1, 16))]
        ties = [tuple(sorted(chance.sample(range(len(sizes)), 2)))] if len(sizes) > 3 and number % 2 else []
        yield f"by chance {number}", modules(*sizes, tied=ties)


def planned(parts):
    """Each budget with the bytes that stay."""
    whole = sum({part["storage"]: part["bytes"] for part in parts}.values())
    budgets = {0, 1, whole - 1, whole, whole + 1, *(whole * share // 8 for share in range(1, 8))}
    return [[budget, resident_bytes({"budget": budget, "modules": parts})] for budget in sorted(budgets)]


def main():
    rows = [
        json.dumps({
            "model": model, "bytes": [part["bytes"] for part in parts], "storages": [part["storage"] for part in parts],
            "plans": planned(parts),
        })
        for model, parts in models()
    ]
    OUT.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{len(rows)} models in {OUT}", file=sys.stderr)


if __name__ == "__main__":
    main()
