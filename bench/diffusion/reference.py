"""Trains a LoRA on a diffusion model with diffusers and PEFT, on what `surefoot cache` encoded.

    python reference.py CONFIG --model FOLDER --cache FOLDER --out FILE

Takes the sizes, the optimizer and the type of a config of `surefoot train`, checkpoints every block, and writes the
duration and the loss of each step as one JSON object. Noise is drawn here, on a straight line whatever the model: losses are
compared by tests, which give both sides the same.
"""

import argparse
import json
import time
from pathlib import Path

import diffusers
import peft
import torch
import yaml
from diffusers import Flux2KleinPipeline
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file


def wan(model, noisy, sigma, given):
    """The velocity that each model predicts, as its pipeline asks for it; `given` has the conditions of one text."""
    text = torch.zeros(1, 512, given["text"].shape[1], dtype=noisy.dtype)
    text[0, : len(given["text"])] = given["text"]
    return model(noisy, 1000 * sigma, text).sample


def z_image(model, noisy, sigma, given):
    return -torch.stack(model(list(noisy), 1 - sigma, [given["text"]], return_dict=False)[0])


def klein(model, noisy, sigma, given):
    latents, text = noisy.squeeze(2), given["text"][None]
    made = model(
        hidden_states=Flux2KleinPipeline._pack_latents(latents), timestep=sigma, encoder_hidden_states=text,
        txt_ids=Flux2KleinPipeline._prepare_text_ids(text), img_ids=Flux2KleinPipeline._prepare_latent_ids(latents),
        return_dict=False)[0]
    return made.permute(0, 2, 1).reshape(noisy.shape)


def sdxl(model, noisy, sigma, given):
    conditions = {"text_embeds": given["pooled"][None], "time_ids": given["time_ids"][None]}
    return model(noisy.squeeze(2), 1000 * sigma, given["text"][None], added_cond_kwargs=conditions).sample.unsqueeze(2)


KLEIN = (
    r".*transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|ff(_context)?\.linear_(in|out))"
    r"|.*single_transformer_blocks\.\d+\.attn\.(to_qkv_mlp_proj|to_out)"
)
BLOCK = ["to_q", "to_k", "to_v", "to_out.0"]
# By the class of the denoiser: what is adapted, and how it is asked.
KINDS = {
    "WanTransformer3DModel": ([*BLOCK, "ffn.net.0.proj", "ffn.net.2"], wan),
    "ZImageTransformer2DModel": ([*BLOCK, "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"], z_image),
    "Flux2Transformer2DModel": (KLEIN, klein),
    "UNet2DConditionModel": ([*BLOCK, "ff.net.0.proj", "ff.net.2"], sdxl),
}


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
    folder = next(path for name in ("transformer", "unet") if (path := arguments.model / name).is_dir())
    name = json.loads((folder / "config.json").read_text())["_class_name"]
    layers, velocity = KINDS[name]
    model = getattr(diffusers, name).from_pretrained(folder, torch_dtype=kind)
    if settings["gradient_checkpointing"]:
        model.enable_gradient_checkpointing()
    model.requires_grad_(False)
    adapter = config["adapter"]
    model = get_peft_model(model, LoraConfig(r=adapter["r"], lora_alpha=adapter["lora_alpha"], target_modules=layers))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        # As in Surefoot.
        parameter.data = parameter.data.float()
    optimizer = torch.optim.AdamW(parameters, lr=settings["learning_rate"], weight_decay=0.0)
    latents = load_file(next((arguments.cache / "latents").glob("*.safetensors")))
    clean = latents.pop("latents")[None].float()
    # The caption, not the empty text.
    texts = [load_file(path) for path in (arguments.cache / "texts").glob("*.safetensors")]
    text = max(texts, key=lambda text: (len(text["text"]), text["text"].abs().sum()))
    given = {name: tensor.to(kind) for name, tensor in (text | latents).items()}
    losses, seconds = [], []
    for _ in range(settings["max_steps"]):
        began = time.perf_counter()
        noise, sigma = torch.randn_like(clean), torch.rand(1)
        noisy = (1 - sigma) * clean + sigma * noise
        made = velocity(model, noisy.to(kind), sigma, given)
        loss = torch.nn.functional.mse_loss(made.float(), noise - clean)
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
