"""Writes golden/adapters: adapters of PEFT on the models of golden/models.

Each folder is an adapter as PEFT saves it, with random weights, and
`expected.safetensors`: the `logits` for `tokens[0]`; the losses of ten steps of AdamW on
`tokens[0]` … `tokens[9]`; and under `after.` the adapter's weights after them.
"""

import shutil
import sys
from pathlib import Path

import torch
from bitsandbytes.functional import get_4bit_type
from peft import LoHaConfig, LoKrConfig, LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils.loftq_utils import _low_rank_decomposition
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ADAPTERS = {
    "plain": ("llama-grouped", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "rank-stabilised": ("qwen2", dict(
        r=4, lora_alpha=6, use_rslora=True, target_modules="all-linear",
        rank_pattern={"down_proj": 2, r"layers\.1\.self_attn\.k_proj": 3},
        alpha_pattern={"o_proj": 16})),
    "decomposed": ("llama-tied-biases", dict(
        r=4, lora_alpha=8, use_dora=True,
        target_modules=r"model\.layers\.\d+\.(self_attn\.[qo]_proj|mlp\.(up|down)_proj)",
        exclude_modules=["layers.0.mlp.up_proj"])),
    # A whole name needs no number of a block.
    "embedding-and-head": ("llama-grouped", dict(
        r=3, lora_alpha=2, target_modules=["q_proj", "model.embed_tokens", "embed_tokens", "lm_head"],
        layers_to_transform=[1], rank_pattern={"embed_tokens": 2})),
    "decomposed-tied": ("llama-tied-biases", dict(
        r=2, lora_alpha=3, use_dora=True, use_rslora=True, bias="lora_only",
        target_modules=["v_proj", "embed_tokens", "lm_head"])),
    "saved-modules": ("qwen2", dict(
        r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"], bias="all",
        modules_to_save=["embed_tokens", "input_layernorm", "model.norm", "layers.1.mlp"])),
    # With `bias="all"`, PEFT writes the biases of these modules several times.
    "saved-head-tied": ("llama-tied-biases", dict(
        r=2, lora_alpha=4, target_modules="all-linear", bias="all",
        modules_to_save=["lm_head", "layers.0.self_attn"])),
    "saved-head": ("qwen3-untied", dict(
        r=2, lora_alpha=4, target_modules=["embed_tokens", "k_proj"], modules_to_save=["lm_head"])),
    # The contribution to the embedding is scaled like it.
    "scaled-embedding": ("gemma3", dict(
        r=3, lora_alpha=4, target_modules=["embed_tokens", "q_proj", "v_proj", "gate_proj"],
        modules_to_save=["pre_feedforward_layernorm", "q_norm"])),
    "fused": ("phi3-longrope", dict(r=3, lora_alpha=5, target_modules="all-linear")),
    # The contributions to embedding and head are scaled like them.
    "multiplied": ("granite-biases", dict(
        r=3, lora_alpha=4, target_modules=["embed_tokens", "lm_head", "k_proj", "down_proj"])),
    "post-norms": ("olmo3", dict(
        r=2, lora_alpha=4, use_dora=True, target_modules=["q_proj", "o_proj", "up_proj"],
        modules_to_save=["post_feedforward_layernorm", "k_norm"])),
    # `all-linear` would be on the experts, too.
    "beside-experts": ("qwen3-moe", dict(
        r=3, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], modules_to_save=["mlp.gate"])),
    "on-a-delta-rule": ("qwen3.5", dict(
        r=3, lora_alpha=4, target_modules="all-linear", modules_to_save=["linear_attn.norm", "k_norm"])),
    # With sinks.
    "beside-mxfp4": ("gpt-oss", dict(
        r=3, lora_alpha=4, bias="lora_only", target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        modules_to_save=["mlp.router"])),
    "on-experts": ("qwen3-moe", dict(
        r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=EXPERTS, rank_pattern={"down_proj": 3},
        alpha_pattern={r"layers\.1\.mlp\.experts\.gate_up_proj": 5})),
    # With columns that take turns, and biases.
    "on-experts-in-turns": ("gpt-oss-dense", dict(
        r=2, lora_alpha=4, use_rslora=True, target_modules=[], target_parameters=EXPERTS)),
    "on-experts-in-mxfp4": ("gpt-oss", dict(
        r=3, lora_alpha=4, target_modules=["o_proj"], target_parameters=EXPERTS[:1])),
    "beside-and-on-experts": ("qwen3.5-moe", dict(
        r=2, lora_alpha=4, target_modules="all-linear", target_parameters=EXPERTS[1:])),
    # On the text part, and where the other has layers of that name, on it, too.
    "in-gemma3": ("gemma3-multimodal", dict(
        r=2, lora_alpha=3, target_modules=["q_proj", "down_proj"], rank_pattern={r"layers\.1\.mlp\.down_proj": 3},
        modules_to_save=["language_model.norm"])),
    "in-ministral3": ("ministral3-multimodal", dict(
        r=2, lora_alpha=3, target_modules=r".*language_model.*\.(q_proj|o_proj|up_proj)")),
    "in-qwen3.5": ("qwen3.5-multimodal", dict(
        r=2, lora_alpha=3, target_modules=["in_proj_qkv", "out_proj", "v_proj", "lm_head"], alpha_pattern={"v_proj": 5})),
    "in-qwen3.5-moe": ("qwen3.5-moe-multimodal", dict(
        r=2, lora_alpha=3, target_modules=["in_proj_z", "shared_expert.up_proj"], target_parameters=EXPERTS)),
    "hadamard": ("llama-grouped", dict(
        kind=LoHaConfig, r=3, alpha=5, target_modules=["q_proj", "k_proj", "down_proj"], modules_to_save=["lm_head"],
        rank_pattern={"down_proj": 2}, alpha_pattern={"k_proj": 2})),
    # Both factors are products, or the first is whole.
    "kronecker": ("qwen2", dict(
        kind=LoKrConfig, r=2, alpha=3, decompose_both=True, target_modules="all-linear", rank_pattern={"v_proj": 1})),
    # Both are whole, whose scale is not 1 in PEFT.
    "kronecker-whole": ("qwen3-untied", dict(
        kind=LoKrConfig, r=40, alpha=24, decompose_factor=4, target_modules=["q_proj", "up_proj", "lm_head"])),
    # Also on the layers of per-layer embeddings.
    "per-layer": ("gemma4", dict(
        r=3, lora_alpha=1, modules_to_save=["layers.1.post_per_layer_input_norm", "layers.2.mlp"], target_modules=[
            "q_proj", "k_proj", "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"])),
    "beside-both": ("gemma4-moe", dict(
        r=3, lora_alpha=4, target_modules=["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        modules_to_save=["layers.1.router"])),
    "in-gemma4": ("gemma4-multimodal", dict(
        r=3, lora_alpha=4, target_modules=r".*language_model\..*\.(q_proj|v_proj)")),
    # On the feed-forward layer and on the experts beside it.
    "beside-and-on-both": ("gemma4-moe", dict(
        r=2, lora_alpha=4, target_modules=["v_proj", "down_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "beside-plain": ("llama-grouped", dict(
        r=2, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "o_proj", "gate_proj"])),
}


def weigh():
    """Logits of adapters that are added to each other with weights, and of one with a weight."""
    folder = GOLDEN / "adapters"
    base = AutoModelForCausalLM.from_pretrained(GOLDEN / "models/llama-grouped", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "plain", adapter_name="plain")
    model.load_adapter(folder / "beside-plain", adapter_name="beside")
    tokens = torch.arange(40).view(2, 20)
    expected = {"tokens": tokens}
    for kind, names, weights in [("cat", ["plain", "beside"], [0.7, 0.4]), ("linear", ["plain"], [0.4])]:
        model.add_weighted_adapter(names, weights, adapter_name=kind, combination_type=kind)
        model.set_adapter(kind)
        with torch.no_grad():
            expected[kind] = model(tokens).logits.contiguous()
    save_file(expected, folder / "weighted.safetensors")


def in_nf4(weight):
    """What NF4 makes of it: bitsandbytes' kernels for the CPU give other numbers where rows are shorter than blocks."""
    levels = get_4bit_type("nf4", device="cpu").data
    flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % 64)).view(-1, 64)
    scales = flat.abs().amax(1, keepdim=True)
    nearest = (flat / scales)[..., None].sub(levels).abs().argmin(-1)
    return (levels[nearest] * scales).flatten()[: weight.numel()].view_as(weight)


def begin():
    """LoRAs that begin as principal components: of weights (logits before and after ten steps), and of what NF4 loses."""
    torch.manual_seed(7)
    tokens = torch.randint(0, 48, (10, 2, 24))
    base = lambda: AutoModelForCausalLM.from_pretrained(GOLDEN / "models/llama-grouped", dtype=torch.float32)
    targets = dict(task_type="CAUSAL_LM", r=3, target_modules=["q_proj", "down_proj"])
    model = get_peft_model(base(), LoraConfig(**targets, lora_alpha=6, init_lora_weights="pissa")).eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.01)
    with torch.no_grad():
        expected = {"tokens": tokens[0].clone(), "before": model(tokens[0]).logits.contiguous()}
    for batch in tokens:
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    expected |= {f"after.{name}": part.clone() for name, part in get_peft_model_state_dict(model).items()}
    with torch.no_grad():
        expected["logits"] = model(tokens[0]).logits.contiguous()
        quantised = base()
        whole = {name: weight.clone() for name, weight in quantised.named_parameters()}
        for name, weight in quantised.named_parameters():
            if "_proj" in name:
                weight.copy_(in_nf4(weight))
        model = get_peft_model(quantised, LoraConfig(**targets, lora_alpha=3)).eval()
        for name, layer in model.named_modules():
            if hasattr(layer, "lora_A"):
                lost = whole[f"{name.removeprefix('base_model.model.')}.weight"] - layer.base_layer.weight
                found = _low_rank_decomposition(lost, 3)
                layer.lora_A["default"].weight.copy_(found["R"])
                layer.lora_B["default"].weight.copy_(found["L"])
        expected["loftq"] = model(tokens[0]).logits.contiguous()
    save_file(expected, GOLDEN / "adapters/begun.safetensors")


def main():
    shutil.rmtree(GOLDEN / "adapters", ignore_errors=True)
    for seed, (name, (base, settings)) in enumerate(ADAPTERS.items()):
        torch.manual_seed(100 + seed)
        kind = AutoModelForImageTextToText if name.startswith("in-") else AutoModelForCausalLM
        base = kind.from_pretrained(GOLDEN / "models" / base, dtype=torch.float32)
        words = base.config.get_text_config()
        # The loss is that of the text alone; and the last tokens stand for images.
        words.output_router_logits = False
        words = words.vocab_size - (4 if name.startswith("in-") else 0)
        # Random B matrices, so that the adapter does something from the start.
        kind = settings.pop("kind", LoraConfig)
        start = "init_lora_weights" if kind is LoraConfig else "init_weights"
        config = kind(task_type="CAUSAL_LM", **{start: False}, **settings)
        model = get_peft_model(base, config).eval()
        for parameter_name, parameter in model.named_parameters():
            if "lora_embedding" in parameter_name:
                parameter.data *= 0.3  # of the size of the embeddings
            elif parameter.requires_grad and not any(part in parameter_name for part in ("lora_", "hada_", "lokr_")) or "magnitude" in parameter_name:
                # Modules and biases start as the base's.
                parameter.data *= torch.empty_like(parameter).uniform_(0.8, 1.2)
        folder = GOLDEN / "adapters" / name
        model.peft_config["default"].base_model_name_or_path = name
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        tokens = torch.randint(0, words, (10, 2, 24))
        with torch.no_grad():
            expected = {"tokens": tokens, "logits": model(tokens[0]).logits.contiguous()}
        # Groups as in transformers' Trainer.
        trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        stay = [value for name, value in trained if "bias" in name or "norm" in name]
        decay = [value for name, value in trained if not ("bias" in name or "norm" in name)]
        optimizer = torch.optim.AdamW(
            [dict(params=decay, weight_decay=0.01), dict(params=stay, weight_decay=0.0)], lr=1e-2)
        losses = []
        for batch in tokens:
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        expected["losses"] = torch.tensor(losses, dtype=torch.float64)
        for key, tensor in get_peft_model_state_dict(model).items():
            expected[f"after.{key}"] = tensor.clone()
        save_file(expected, folder / "expected.safetensors")
    weigh()
    begin()


main()
