"""Writes golden/lycoris: a file of LyCORIS 4.1.3 with modules of each kind for SDXL, and the weights before and after it.

LyCORIS is not among the requirements of the other scripts: `pip install --no-deps --target FOLDER lycoris-lora==4.1.3 einops toml`, and
`PYTHONPATH=FOLDER`.
"""

import shutil
import sys
from pathlib import Path

import torch
from lycoris.modules import LoConModule, LohaModule, LokrModule
from safetensors.torch import save_file

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "lycoris"
BLOCK = "mid_block.attentions.0.transformer_blocks.1."
FLAT = "lora_unet_middle_block_1_transformer_blocks_1_"


def layers():
    linear, conv = torch.nn.Linear(24, 16, bias=False), torch.nn.Conv2d(8, 16, 3, bias=False)
    options = dict(lora_dim=2, alpha=3)
    return {
        "attn1.to_q": (LohaModule, linear, options),
        "attn1.to_k": (LohaModule, linear, options | dict(weight_decompose=True)),
        "attn1.to_v": (LokrModule, linear, options | dict(factor=4)),
        "attn1.to_out.0": (LokrModule, linear, dict(lora_dim=1, alpha=3, decompose_both=True)),
        "attn2.to_q": (LokrModule, linear, options | dict(full_matrix=True, weight_decompose=True)),
        "attn2.to_k": (LoConModule, linear, options | dict(weight_decompose=True)),
        "attn2.to_v": (LoConModule, linear, options),
        "resnets.0.conv1": (LokrModule, conv, dict(lora_dim=2, alpha=2, factor=2)),
        "resnets.0.conv2": (LohaModule, conv, dict(lora_dim=2, alpha=2)),
    }


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    torch.manual_seed(7)
    file, expected = {}, {}
    for layer, (kind, original, options) in layers().items():
        torch.nn.init.normal_(original.weight, 0.0, 0.3)
        name = FLAT + layer.replace(".", "_")
        full = f"{BLOCK}{layer}"
        if layer.startswith("resnets"):
            part = {"1": "in_layers_2", "2": "out_layers_3"}[layer[-1]]
            name, full = f"lora_unet_middle_block_0_{part}", f"mid_block.{layer}"
        module = kind(name, original, **options)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.shape[0] == 16 and parameter.dim() > 1 and parameter.shape[1:].numel() == 1:
                    parameter.mul_(torch.empty_like(parameter).uniform_(0.8, 1.2))
                else:
                    parameter.normal_(0.0, 0.4)
            # What it computes: `get_merged_weight` scales the change twice in this version.
            after = module.eval()(torch.eye(24)).T if isinstance(original, torch.nn.Linear) else (
                module.get_merged_weight(shape=original.weight.shape)[0])
        for key, tensor in module.custom_state_dict().items():
            file[f"{name}.{key}"] = tensor.detach().clone().contiguous()
        expected[f"before.{full}"] = original.weight.detach().clone()
        expected[f"after.{full}"] = after.detach().contiguous()
        assert (after - original.weight).abs().max() > 0.01
    save_file(file, GOLDEN / "lycoris.safetensors")
    save_file(expected, GOLDEN / "expected.safetensors")


main()
