"""Writes golden/wan/training: five steps of a LoRA on tiny random Wans, as diffusers and PEFT make them.

In golden/wan/training, `transformer` is a text-to-video model as `save_pretrained` writes it, whose text has the
width of golden/wan/text-encoder, `adapter` the LoRA before the first step, and `expected.safetensors` what each step
was given, its loss, and the LoRA after the last step. golden/wan/training-i2v has the same of both experts of an
image-to-video model, which see the same batches, and golden/wan/training-ti2v of a model whose first latent frame is
given: its tokens have the time 0, and it is no part of the loss.
"""

import shutil
import sys
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "wan"
STEPS, ROWS = 5, 2
FRAMES, HEIGHT, WIDTH = 3, 6, 8
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]


def made(folder, **sizes):
    """A model whose norms, biases and tables are not the ones and zeros that they start as."""
    model = WanTransformer3DModel(
        num_attention_heads=2, text_dim=24, freq_dim=12, ffn_dim=40, num_layers=2, **sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif "scale_shift_table" in name:
                parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return model


def adapted(model, folder):
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return model


def batches(channels):
    text = torch.randn(ROWS, 512, 24)
    text[0, 7:] = 0
    text[1, 20:] = 0
    shape = (STEPS, ROWS, channels, FRAMES, HEIGHT, WIDTH)
    return text, {"latents": torch.randn(shape), "noise": torch.randn(shape), "sigma": torch.rand(STEPS, ROWS)}


def trained(model, given, loss_of):
    """The loss of each step, and the LoRA after the last."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, {name: tensor[step] for name, tensor in given.items()})
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(losses)
    assert losses[-1] != losses[0]
    return torch.tensor(losses, dtype=torch.float64), get_peft_model_state_dict(model)


def written(folder, tensors):
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()},
              folder / "expected.safetensors")


def noisy(batch):
    level = batch["sigma"].view(-1, 1, 1, 1, 1)
    return (1.0 - level) * batch["latents"] + level * batch["noise"]


def mean_square(velocity, batch, first=0):
    wanted = batch["noise"] - batch["latents"]
    return torch.nn.functional.mse_loss(velocity.float()[:, :, first:], wanted[:, :, first:])


def text_to_video(folder):
    torch.manual_seed(5)
    model = adapted(made(folder / "transformer", attention_head_dim=16, in_channels=4, out_channels=4),
                    folder / "adapter")
    text, given = batches(4)
    losses, after = trained(
        model, given, lambda model, b: mean_square(model(noisy(b), 1000.0 * b["sigma"], text).sample, b))
    written(folder, {**given, "text": text[:, :20], "losses": losses}
            | {f"after.{name}": tensor for name, tensor in after.items()})


def image_to_video(folder):
    torch.manual_seed(6)
    models = {}
    for part, expert in (("transformer", "high_noise"), ("transformer_2", "low_noise")):
        model = made(folder / part, attention_head_dim=16, in_channels=12, out_channels=4)
        models[expert] = adapted(model, folder / "adapter" / expert)
    text, given = batches(4)
    # Four channels that tell that the first latent frame is known, and the latents of the picture.
    given["condition"] = torch.randn(STEPS, ROWS, 8, FRAMES, HEIGHT, WIDTH)
    given["condition"][:, :, :4] = 0
    given["condition"][:, :, :4, 0] = 1

    def loss(model, b):
        return mean_square(model(torch.cat([noisy(b), b["condition"]], 1), 1000.0 * b["sigma"], text).sample, b)

    expected = {**given, "text": text[:, :20]}
    for expert, model in models.items():
        losses, after = trained(model, given, loss)
        expected |= {f"losses.{expert}": losses}
        expected |= {f"after.{expert}.{name}": tensor for name, tensor in after.items()}
    written(folder, expected)


def first_frame_to_video(folder):
    torch.manual_seed(7)
    model = adapted(made(folder / "transformer", attention_head_dim=18, in_channels=6, out_channels=6),
                    folder / "adapter")
    text, given = batches(6)

    def loss(model, b):
        # 1 where latents are to be made, as `mask` of diffusers' pipelines.
        mask = torch.ones(1, 1, FRAMES, HEIGHT, WIDTH)
        mask[:, :, 0] = 0
        given = (1 - mask) * b["latents"] + mask * noisy(b)
        times = [(mask[0][0][:, ::2, ::2] * 1000.0 * sigma).flatten() for sigma in b["sigma"]]
        return mean_square(model(given, torch.stack(times), text).sample, b, first=1)

    losses, after = trained(model, given, loss)
    written(folder, {**given, "text": text[:, :20], "losses": losses}
            | {f"after.{name}": tensor for name, tensor in after.items()})


def main():
    for folder, make in (("training", text_to_video), ("training-i2v", image_to_video),
                         ("training-ti2v", first_frame_to_video)):
        shutil.rmtree(GOLDEN / folder, ignore_errors=True)
        make(GOLDEN / folder)


if __name__ == "__main__":
    main()
