"""Writes golden/wan/lora: one LoRA on golden/wan/transformer-t2v in the forms that people have, and what
the model computes with it.

Each form that diffusers reads is loaded with diffusers' own loader here, and must give the same.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers import WanPipeline, WanTransformer3DModel
from safetensors.torch import load_file, save_file

# A folder as the first argument takes the place of `golden`.
ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "wan"
MODEL, GOLDEN = ROOT / "transformer-t2v", ROOT / "lora"
RANK, ALPHA, WIDTH, FEED, BLOCKS = 2, 3.0, 32, 40, 2

MODULES = {f"{attention}.{theirs}": (f"{original}.{ours}", (WIDTH, WIDTH))
           for attention, original in (("attn1", "self_attn"), ("attn2", "cross_attn"))
           for theirs, ours in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o"))}
MODULES["ffn.net.0.proj"] = ("ffn.0", (WIDTH, FEED))
MODULES["ffn.net.2"] = ("ffn.2", (FEED, WIDTH))


def forms():
    """{file name: (tensors, metadata)}"""
    torch.manual_seed(11)
    files = {name: {} for name in ("kohya", "comfy", "comfy_alpha", "diffusers", "diffusers_header", "peft")}
    scale = ALPHA / RANK
    for block in range(BLOCKS):
        for theirs, (original, (inputs, outputs)) in MODULES.items():
            down, up = torch.randn(RANK, inputs) * 0.3, torch.randn(outputs, RANK) * 0.3
            alpha = torch.tensor(ALPHA)
            theirs_name, name = f"blocks.{block}.{theirs}", f"blocks.{block}.{original}"
            kohya = "lora_unet_" + name.replace(".", "_")
            files["kohya"] |= {f"{kohya}.lora_down.weight": down, f"{kohya}.lora_up.weight": up, f"{kohya}.alpha": alpha}
            comfy = f"diffusion_model.{name}"
            files["comfy"] |= {f"{comfy}.lora_A.weight": down, f"{comfy}.lora_B.weight": up * scale}
            files["comfy_alpha"] |= {f"{comfy}.lora_down.weight": down, f"{comfy}.lora_up.weight": up, f"{comfy}.alpha": alpha}
            diffusers = f"transformer.{theirs_name}"
            files["diffusers"] |= {f"{diffusers}.lora_A.weight": down, f"{diffusers}.lora_B.weight": up * scale}
            files["diffusers_header"] |= {f"{diffusers}.lora_A.weight": down, f"{diffusers}.lora_B.weight": up}
            peft = f"base_model.model.{theirs_name}"
            files["peft"] |= {f"{peft}.lora_A.weight": down, f"{peft}.lora_B.weight": up}
    header = {"transformer.r": RANK, "transformer.lora_alpha": ALPHA, "transformer.target_modules": sorted(MODULES)}
    notes = {"diffusers_header": {"lora_adapter_metadata": json.dumps(header)}}
    return {name: (tensors, {"format": "pt", **notes.get(name, {})}) for name, tensors in files.items()}


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    (GOLDEN / "peft").mkdir(parents=True)
    inputs = load_file(MODEL / "expected.safetensors")
    text = torch.zeros(2, 512, inputs["text"].shape[2])
    text[:, :inputs["text"].shape[1]] = inputs["text"]

    def velocity(model):
        with torch.no_grad():
            return model(inputs["latents"], inputs["times"], text).sample

    plain = velocity(WanTransformer3DModel.from_pretrained(MODEL).eval())
    results = {}
    for name, (tensors, note) in forms().items():
        path = GOLDEN / f"{name}.safetensors" if name != "peft" else GOLDEN / "peft" / "adapter_model.safetensors"
        save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata=note)
        if name == "peft":
            settings = dict(peft_type="LORA", r=RANK, lora_alpha=ALPHA, target_modules=sorted(MODULES))
            (GOLDEN / "peft" / "adapter_config.json").write_text(json.dumps(settings) + "\n")
            continue
        model = WanTransformer3DModel.from_pretrained(MODEL).eval()
        state, metadata = WanPipeline.lora_state_dict(str(path), return_lora_metadata=True)
        WanPipeline.load_lora_into_transformer(state, transformer=model, adapter_name="it", metadata=metadata)
        results[name] = velocity(model)
        model.set_adapters(["it"], [0.6])
        half = velocity(model)
    first = results["kohya"]
    for name, result in results.items():
        assert (result - first).abs().max() < 2e-5, (name, (result - first).abs().max())
    assert (first - plain).abs().max() > 0.01
    save_file({"velocity": first.contiguous(), "velocity_0.6": half.contiguous()}, GOLDEN / "expected.safetensors")


if __name__ == "__main__":
    main()
