"""Measures the loss of a model folder, and of an adapter on it, on a text, with
`transformers` and `peft`: the numbers that `surefoot eval` gives for the same.

    python check_adapter.py MODEL_FOLDER ADAPTER_FOLDER TEXT_FILE
"""

import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    folder, adapter, text = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # `surefoot eval` ends a text with the token that ends texts, and predicts it too.
    ids = tokenizer(Path(text).read_text()).input_ids + [tokenizer.eos_token_id]
    ids = torch.tensor([ids])
    with torch.no_grad():
        base = model(ids, labels=ids).loss.item()
        adapted = PeftModel.from_pretrained(model, adapter).eval()(ids, labels=ids).loss.item()
    print(json.dumps({"base": base, "adapted": adapted, "tokens": ids.numel() - 1}, indent=2))


main()
