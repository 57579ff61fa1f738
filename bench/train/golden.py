"""Creates the golden fixture of the trainer's parity test.

    python bench/train/golden.py crates/trainer/tests/fixtures/golden.safetensors

Ten optimizer steps of a tiny model in plain PyTorch: the initial weights, the batches,
the loss and gradient norm of each step, and the weights afterwards. The model has what
could be got wrong: grouped key-value heads, a head of its own, weight decay, clipping
that bites in some steps and not in others, and a moving learning rate.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from model import CausalLm, ModelConfig

STEPS, BATCH, LENGTH = 10, 3, 17

MODEL = ModelConfig(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    initializer_range=0.08,
)

CASES = {
    "untied": MODEL,
    "tied": replace(MODEL, tie_word_embeddings=True, num_key_value_heads=4),
}

OPTIMIZER = {
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.1,
    "max_grad_norm": 0.9,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out

    torch.manual_seed(20)
    tokens = torch.randint(MODEL.vocab_size, (STEPS, BATCH, LENGTH + 1))
    rates = [0.02 * (step + 1) / STEPS for step in range(STEPS)]
    tensors: dict[str, torch.Tensor] = {"tokens": tokens}
    metadata = {
        "torch": torch.__version__,
        "made_by": "bench/train/golden.py",
        "optimizer": json.dumps({**OPTIMIZER, "learning_rates": rates}),
    }
    for case, config in CASES.items():
        recorded = record(config, tokens, rates)
        tensors |= {f"{case}.{name}": tensor for name, tensor in recorded.items()}
        metadata[f"{case}.config.json"] = json.dumps(config_json(config))
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out, metadata)
    for case in CASES:
        print(case, "losses", [round(x, 6) for x in tensors[f"{case}.losses"].tolist()])
        print(case, "norms ", [round(x, 4) for x in tensors[f"{case}.gradient_norms"].tolist()])


def config_json(config: ModelConfig) -> dict:
    """The model's shape as Hugging Face writes it."""
    fixed = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "max_position_embeddings": LENGTH,
    }
    return fixed | vars(config)


def record(config: ModelConfig, tokens: torch.Tensor, rates: list[float]) -> dict:
    model = CausalLm(config, positions=LENGTH)
    model.draw(seed=7, deviation=config.initializer_range)
    result = {f"before.{name}": p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(
        model.groups(OPTIMIZER["weight_decay"]),
        betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]),
        eps=OPTIMIZER["adam_epsilon"],
    )
    losses, norms = [], []
    for block, rate in zip(tokens, rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = model(block[:, :-1], block[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["max_grad_norm"])
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    result |= {f"after.{name}": p.detach().clone() for name, p in model.named_parameters()}
    result["losses"] = torch.tensor(losses, dtype=torch.float64)
    result["gradient_norms"] = torch.tensor(norms, dtype=torch.float64)
    return result


if __name__ == "__main__":
    main()
