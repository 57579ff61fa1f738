"""Writes golden/wan/training: five steps of a LoRA on a tiny random Wan, as diffusers and PEFT make them.

`transformer` is the model as `save_pretrained` writes it, whose text has the width of golden/wan/text-encoder,
`adapter` the LoRA before the first step, and `expected.safetensors` what each step was given, its loss, and
the LoRA after the last step.
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
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "wan/training"
STEPS, ROWS = 5, 2

torch.manual_seed(5)
model = WanTransformer3DModel(
    num_attention_heads=2, attention_head_dim=16, text_dim=24, freq_dim=12, ffn_dim=40, num_layers=2,
    in_channels=4, out_channels=4)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            parameter.uniform_(0.5, 1.5)
        elif name.endswith("bias"):
            parameter.normal_(0.0, 0.1)
        elif "scale_shift_table" in name:
            parameter.normal_(0.0, 0.3)
shutil.rmtree(GOLDEN, ignore_errors=True)
model.save_pretrained(GOLDEN / "transformer")

config = LoraConfig(
    r=4, lora_alpha=8, target_modules=["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"])
model = get_peft_model(model, config)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(0.0, 0.05)
model.save_pretrained(GOLDEN / "adapter")
(GOLDEN / "adapter/README.md").unlink(missing_ok=True)

text = torch.randn(ROWS, 512, 24)
text[0, 7:] = 0
text[1, 20:] = 0
given = {
    "latents": torch.randn(STEPS, ROWS, 4, 3, 6, 8),
    "noise": torch.randn(STEPS, ROWS, 4, 3, 6, 8),
    "sigma": torch.rand(STEPS, ROWS),
}
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.05)
losses = []
for latents, noise, sigma in zip(given["latents"], given["noise"], given["sigma"]):
    level = sigma.view(-1, 1, 1, 1, 1)
    noisy = (1.0 - level) * latents + level * noise
    velocity = model(noisy, 1000.0 * sigma, text).sample
    loss = torch.nn.functional.mse_loss(velocity.float(), noise - latents)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(losses)
assert losses[-1] != losses[0]
expected = {**given, "text": text[:, :20], "losses": torch.tensor(losses, dtype=torch.float64)}
for name, tensor in get_peft_model_state_dict(model).items():
    expected[f"after.{name}"] = tensor
save_file({name: tensor.detach().contiguous().clone() for name, tensor in expected.items()},
          GOLDEN / "expected.safetensors")
