"""Trains a LoRA of rank 16 on a model of `model.py` with Hugging Face's libraries and PEFT, as their guides have it.

    python reference.py FOLDER --model qwen3-8b

On the simulated device, with `count.cpp` loaded: numbers mean nothing, what is asked of the device is counted. Blocks are
recomputed in the backward pass, attention is libtorch's, the optimizer fused.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

STEPS = 4
LENGTH = 2048
# Of the caption in a chat's template, as a picture's text.
WORDS = 32
ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=CASES, required=True)
    arguments = parser.parse_args()
    loss, parameters = CASES[arguments.model](arguments.folder)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    for _ in range(STEPS):
        loss().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def language(folder: Path, four_bits: bool):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, masking_utils

    # It compares positions on the device, which computes nothing here, to see whether a row is one text.
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None

    settings = {}
    if four_bits:
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.bfloat16, device_map={"": 0}, attn_implementation="sdpa", **settings)
    if four_bits:
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.config.use_cache = False
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=16, target_modules="all-linear"))
    model.train()
    tokens = torch.zeros(1, LENGTH, dtype=torch.long, device="cuda")

    def loss() -> torch.Tensor:
        # As Trainer does with `bf16: true`.
        with torch.autocast("cuda", torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    return loss, trained(model)


def diffusion(folder: Path, part: str, kind: str, targets: list[str], call):
    import diffusers

    model = getattr(diffusers, kind).from_pretrained(folder / "model" / part, torch_dtype=torch.bfloat16).cuda()
    model.requires_grad_(False)
    model.enable_gradient_checkpointing()
    model.add_adapter(LoraConfig(r=16, lora_alpha=16, target_modules=targets))
    parameters = trained(model)
    for parameter in parameters:
        parameter.data = parameter.data.float()
    model.train()

    def loss() -> torch.Tensor:
        # As diffusers' training scripts do with `--mixed_precision bf16`.
        with torch.autocast("cuda", torch.bfloat16):
            predicted, target = call(model)
        return torch.nn.functional.mse_loss(predicted.float(), target.float())

    return loss, parameters


def random(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16)


def noised(*size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy latents, and what is to be predicted of them."""
    clean, noise = random(*size), random(*size)
    return 0.5 * clean + 0.5 * noise, noise - clean


def z_image(model) -> tuple[torch.Tensor, torch.Tensor]:
    noisy, target = noised(16, 1, 128, 128)
    time = torch.full((1,), 0.5, device="cuda")
    return model([noisy], time, [random(WORDS, 2560)], return_dict=False)[0][0], target


def sdxl(model) -> tuple[torch.Tensor, torch.Tensor]:
    noisy, target = noised(1, 4, 128, 128)
    time = torch.full((1,), 500, device="cuda")
    added = {"text_embeds": random(1, 1280), "time_ids": random(1, 6)}
    return model(noisy, time, random(1, 77, 2048), added_cond_kwargs=added, return_dict=False)[0], target


def wan_5b(model) -> tuple[torch.Tensor, torch.Tensor]:
    noisy, target = noised(1, 48, 5, 30, 52)
    time = torch.full((1,), 500, device="cuda")
    return model(noisy, time, random(1, 512, 4096), return_dict=False)[0], target


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


CASES = {
    "qwen3-8b": lambda folder: language(folder, True),
    "gemma3-4b": lambda folder: language(folder, False),
    "z-image": lambda folder: diffusion(
        folder, "transformer", "ZImageTransformer2DModel",
        r".*layers\.\d+\.(attention\.(to_[qkv]|to_out\.0)|feed_forward\.w[123])|.*refiner\.\d+\.(attention\.(to_[qkv]|to_out\.0)|feed_forward\.w[123])", z_image),
    "sdxl": lambda folder: diffusion(
        folder, "unet", "UNet2DConditionModel", [*ATTENTION, "ff.net.0.proj", "ff.net.2"], sdxl),
    "wan-5b": lambda folder: diffusion(
        folder, "transformer", "WanTransformer3DModel", [*ATTENTION, "ffn.net.0.proj", "ffn.net.2"], wan_5b),
}

if __name__ == "__main__":
    main()
