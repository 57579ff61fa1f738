"""Writes golden/regularised.safetensors: NEFTune's noise and smoothed labels, as transformers' Trainer has them.

`smoothed_loss` is that of `LabelSmoother` on the model `llama-grouped`, with targets that are ignored. `logits.NAME` are
those of each model in training with the hook of NEFTune, right after the generator was seeded.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.neftune import activate_neftune
from transformers.trainer_pt_utils import LabelSmoother

HERE = Path(__file__).parent / "golden"
# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else HERE)
SMOOTHING, ALPHA, SEED = 0.1, 5.0, 11

tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
labels = tokens.clone()
labels[0, :3] = labels[1, 6:] = -100
tensors = {
    "tokens": tokens,
    # The token after each.
    "targets": torch.cat([labels[:, 1:], torch.full((2, 1), -100)], 1),
    "smoothing": torch.tensor(SMOOTHING, dtype=torch.float64),
    "alpha": torch.tensor(ALPHA, dtype=torch.float64),
    "seed": torch.tensor(SEED),
}
model = AutoModelForCausalLM.from_pretrained(HERE / "models" / "llama-grouped", dtype=torch.float32)
smoother = LabelSmoother(epsilon=SMOOTHING)
tensors["smoothed_loss"] = smoother(model(tokens), labels, shift_labels=True).detach().double()
# The second has scaled embeddings as its layer, the third scales what the layer gives.
for name in ["llama-grouped", "gemma3", "granite"]:
    model = AutoModelForCausalLM.from_pretrained(HERE / "models" / name, dtype=torch.float32).train()
    activate_neftune(model, ALPHA)
    torch.manual_seed(SEED)
    tensors[f"logits.{name}"] = model(tokens).logits.detach()
save_file(tensors, GOLDEN / "regularised.safetensors")
