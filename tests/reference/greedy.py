"""Prints how `transformers` continues prompts when it takes the likeliest token each time.

    python greedy.py MODEL COUNT PROMPT...

One JSON list of `COUNT` token numbers, or fewer where the text ends, for each prompt. In fp32.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    folder, count, *prompts = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    continued = []
    for prompt in prompts:
        tokens = tokenizer(prompt, return_tensors="pt")
        length = tokens.input_ids.shape[1]
        text = model.generate(**tokens, max_new_tokens=int(count), do_sample=False)
        continued.append([int(token) for token in text[0, length:] if token not in ends])
    print(json.dumps(continued))


main()
