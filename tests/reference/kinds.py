"""Writes `kinds` into golden/anima, flux1, qwen_image and wan/training: five steps of other adapters than a LoRA, and of all
weights, on the models and the batches there, as diffusers and PEFT make them.

The names of some of these models may be given behind the folder that takes the place of `golden`.
"""

import shutil
import sys
from types import SimpleNamespace

import anima
import flux1
import qwen_image
import torch
import wan_training
from diffusers import (
    AnimaTextConditioner, CosmosTransformer3DModel, FluxTransformer2DModel, QwenImageTransformer2DModel,
    WanTransformer3DModel,
)
from safetensors.torch import load_file
from tiny import ROWS, flow_loss, kinds


def of_anima(file):
    states, ids = ([file[f"{name}.{row}"] for row in range(ROWS)] for name in ("text", "t5"))
    ids = [row.long() for row in ids]
    return lambda model: lambda noisy, sigma: anima.predicted(
        model, noisy, sigma, anima.conditioned(SimpleNamespace(text_conditioner=model.text_conditioner), states, ids))


def of_flux1(file):
    return lambda model: lambda noisy, sigma: flux1.velocity(
        model, noisy, sigma, file["text"], file["pooled"], torch.ones(ROWS))


def of_qwen_image(file):
    states = [file[f"text.{row}"] for row in range(ROWS)]
    return lambda model: lambda noisy, sigma: qwen_image.velocity(model, noisy, sigma, states)


def of_wan(file):
    text = torch.nn.functional.pad(file["text"], (0, 0, 0, 512 - file["text"].shape[1]))
    return lambda model: lambda noisy, sigma: model(noisy, 1000.0 * sigma, text).sample


# The folder, its model and the file with its batches, what is adapted, and what is asked of the model.
MODELS = {
    "anima": (CosmosTransformer3DModel, "model/transformer", "training", anima.TARGETS, of_anima),
    "flux1": (FluxTransformer2DModel, "model/transformer", "training", flux1.TARGETS, of_flux1),
    "qwen_image": (QwenImageTransformer2DModel, "model/transformer", "training", qwen_image.TARGETS, of_qwen_image),
    "wan/training": (WanTransformer3DModel, "transformer", "expected", wan_training.TARGETS, of_wan),
}


def main():
    for name in sys.argv[2:] or MODELS:
        kind, part, batches, targets, asked = MODELS[name]
        folder = anima.ROOT / name
        base = kind.from_pretrained(folder / part, torch_dtype=torch.float32)
        if name == "anima":
            base.text_conditioner = AnimaTextConditioner.from_pretrained(
                folder / "model/text_conditioner", torch_dtype=torch.float32)
        base.requires_grad_(False)
        file = load_file(folder / f"{batches}.safetensors")
        velocity = asked(file)
        shutil.rmtree(folder / "kinds", ignore_errors=True)
        kinds(base, targets, folder / "kinds", lambda model: flow_loss(file, velocity(model)))


if __name__ == "__main__":
    main()
