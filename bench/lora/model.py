"""Writes what a row of `cargo xtask bench lora` trains, beside the tokenizer of the published model in LIKE.

    python model.py ROW OUT --like FOLDER

Models have random weights, and blocks as wide as those of the published model of their name, but few of them; `dpo` is
`pairs.jsonl` alone, pairs of lines of the text that the others learn.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM, Gemma3TextConfig, Qwen3_5TextConfig, Qwen3MoeConfig,
)

sys.path.insert(0, str(Path(__file__).parent))
from reference import text_folder  # noqa: E402

COMMON = dict(vocab_size=49_152, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=2)
SHAPES = {
    # Gemma 3 1B has 26 blocks.
    "gemma3": Gemma3TextConfig(
        **COMMON, hidden_size=1152, intermediate_size=6912, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, sliding_window=128,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]),
    # Qwen3.5 0.8B has 24.
    "qwen3.5": Qwen3_5TextConfig(
        **COMMON, hidden_size=1024, intermediate_size=3584, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16, tie_word_embeddings=True),
    # Qwen3 30B-A3B has 48, twice as wide, of 128 experts each, of which 8 are used.
    "moe": Qwen3MoeConfig(
        **COMMON, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=4, head_dim=64, num_experts=32, num_experts_per_tok=4, moe_intermediate_size=384,
        norm_topk_prob=True, tie_word_embeddings=True),
}
# All of them are in each step, so that their order does not matter.
PAIRS, LINES = 4, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=[*SHAPES, "dpo"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    if arguments.row == "dpo":
        text = next(iter(sorted(text_folder().glob("*.txt")))).read_text()
        lines = [line for line in text.splitlines() if len(line) > 30]
        parts = ["\n".join(lines[start : start + LINES]) for start in range(0, 3 * PAIRS * LINES, LINES)]
        pairs = zip(parts[::3], parts[1::3], parts[2::3])
        records = [dict(prompt=prompt, chosen=chosen, rejected=rejected) for prompt, chosen, rejected in pairs]
        (arguments.out / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(SHAPES[arguments.row], dtype=torch.float32)
    model.save_pretrained(arguments.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(arguments.like / name, arguments.out / name)


if __name__ == "__main__":
    main()
