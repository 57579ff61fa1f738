"""Checks the run folder of a short training run: it completed, and the loss fell.

    python3 .ci/loss_fell.py RUN_FOLDER
"""

import json
import math
import sys
from pathlib import Path

# Predicting only the frequency of each byte gives about 3.3 nats per byte on this text;
# uniform predictions give ln 257 = 5.5.
BETTER_THAN_FREQUENCIES = 3.1


def main() -> None:
    folder = Path(sys.argv[1])
    summary = json.loads((folder / "summary.json").read_text())
    first, last = summary["first_loss"], summary["last_loss"]
    # Of texts; pictures have a loss alone.
    held_out = summary["held_out"].get("nats_per_byte")
    print(f"training loss {first:.3f} to {last:.3f}, held out {summary['held_out']}")
    problems = []
    if summary["ending"] != "completed" or summary["steps"] != summary["max_steps"]:
        problems.append(f"the run ended early: {summary['ending']}, step {summary['steps']}")
    if not math.isfinite(last) or last > 0.75 * first:
        problems.append("the training loss did not fall by a quarter")
    if held_out is not None and not held_out < BETTER_THAN_FREQUENCIES:
        problems.append(f"the held-out loss is not below {BETTER_THAN_FREQUENCIES}")
    for name in ("config.yaml", "metrics.jsonl", "model/**/*.safetensors"):
        if not any(folder.glob(name)):
            problems.append(f"`{name}` is missing in the run folder")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
