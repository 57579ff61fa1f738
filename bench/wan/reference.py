"""Trains a LoRA on a Wan model with diffusers and PEFT, on clips encoded by `surefoot cache`.

    python reference.py CONFIG --model FOLDER --cache FOLDER --out FILE

Takes the sizes, the optimizer and the type of a config of `surefoot train`, checkpoints every block, and writes the
duration and the loss of each step as one JSON object. Noise is drawn here: losses are compared by tests, which give
both sides the same.
"""

import argparse
import json
import time
from pathlib import Path

import diffusers
import peft
import torch
import yaml
from diffusers import WanTransformer3DModel
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

LAYERS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = yaml.safe_load(arguments.config.read_text())
    settings = config["train"]
    if config.get("threads"):
        torch.set_num_threads(config["threads"])
    torch.manual_seed(config.get("seed", 42))
    kind = torch.bfloat16 if settings["bf16"] else torch.float32
    model = WanTransformer3DModel.from_pretrained(arguments.model / "transformer", torch_dtype=kind)
    if settings["gradient_checkpointing"]:
        model.enable_gradient_checkpointing()
    model.requires_grad_(False)
    adapter = config["adapter"]
    model = get_peft_model(model, LoraConfig(r=adapter["r"], lora_alpha=adapter["lora_alpha"], target_modules=LAYERS))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        # As in Surefoot.
        parameter.data = parameter.data.float()
    optimizer = torch.optim.AdamW(parameters, lr=settings["learning_rate"], weight_decay=0.0)
    clean = load_file(next((arguments.cache / "latents").glob("*.safetensors")))["latents"][None].float()
    # The caption, not the empty text.
    texts = [load_file(path)["text"] for path in (arguments.cache / "texts").glob("*.safetensors")]
    longest = max(texts, key=len)
    text = torch.zeros(1, 512, longest.shape[1])
    text[0, : len(longest)] = longest.float()
    losses, seconds = [], []
    for _ in range(settings["max_steps"]):
        began = time.perf_counter()
        noise, sigma = torch.randn_like(clean), torch.rand(1)
        noisy = (1 - sigma) * clean + sigma * noise
        velocity = model(noisy.to(kind), 1000 * sigma, text.to(kind)).sample
        loss = torch.nn.functional.mse_loss(velocity.float(), noise - clean)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    versions = [f"diffusers {diffusers.__version__}", f"peft {peft.__version__}", f"torch {torch.__version__}"]
    arguments.out.write_text(json.dumps({"versions": versions, "losses": losses, "step_seconds": seconds}))


if __name__ == "__main__":
    main()
