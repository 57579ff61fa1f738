"""Layouts of data sets and chat templates with the tokens that transformers makes of them.

    python tests/reference/layouts.py TOKENIZER_FOLDER

TOKENIZER_FOLDER has a `tokenizer.json` with ChatML's tokens; it is copied to `golden/layouts` beside the cases, in
`cases.json`: files, a template, and for each record token ids and, for templates with `{% generation %}`, what the
assistant says. `crates/trainer/tests/layouts.rs` compares them with what `--show-data` shows.
"""

import json
import shutil
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALLS = (
    "{% if tools %}{{ '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "lines of Windows": CHATML.replace("\n", "\r\n"),
    "carriage returns": CHATML.replace("\n", "\r"),
    "marked answers": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{{ '\n' }}{% endfor %}",
    "encoded calls": CALLS.replace("CALL", "{{ c.function.name }} {{ c.function.arguments | tojson }}"),
    "iterated calls": CALLS.replace(
        "CALL", "{{ c.function.name }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}"
    ),
    "reasoning": CHATML.replace("m.content", "('<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '') + m.content"),
}
CHATS = [
    [("user", "The river"), ("assistant", "A stone")],
    [("system", "Be brief."), ("user", "Why?\r\nSay."), ("assistant", "Because."), ("user", "And?"), ("assistant", "So it is.")],
    [("user", "ä ß 🙂"), ("assistant", " two  spaces ")],
]
MESSAGES = [{"messages": [{"role": r, "content": c} for r, c in chat]} for chat in CHATS]
THOUGHT = {"messages": [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "two and two"},
]}
TOOLS = [{"type": "function", "function": {"name": "w", "description": "a <b>", "parameters": {"type": "object"}}}]


def call(arguments):
    return {"tools": TOOLS, "messages": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "w", "arguments": arguments}}]},
        {"role": "tool", "content": "20"},
        {"role": "assistant", "content": "20 degrees"},
    ]}


CALLED = call({"city": "Paris", "days": 2})
IN_TEXT = call(json.dumps({"city": "Paris", "days": 2}))


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def share_gpt(key):
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    return [{key: [{"from": names[r], "value": c} for r, c in chat]} for chat in CHATS]


QUESTION = [{"role": "user", "content": "The river\nof stone"}, {"role": "assistant", "content": "A stone"}]
OTHER = lines([{"messages": QUESTION}])
# Template, files, and the records that they are.
CASES = {
    **{f"a template: {name}": (name, {"data.jsonl": lines(MESSAGES)}, MESSAGES)
       for name in ("chatml", "lines of Windows", "carriage returns", "marked answers", "reasoning")},
    "reasoning": ("reasoning", {"data.jsonl": lines([THOUGHT])}, [THOUGHT]),
    "encoded calls": ("encoded calls", {"data.jsonl": lines([CALLED])}, [CALLED]),
    "encoded calls, as text": ("encoded calls", {"data.jsonl": lines([IN_TEXT])}, [CALLED]),
    "iterated calls, as text": ("iterated calls", {"data.jsonl": lines([IN_TEXT])}, [CALLED]),
    "a list in lines": ("chatml", {"data.jsonl": json.dumps(MESSAGES, indent=1)}, MESSAGES),
    "lines in a list": ("chatml", {"data.json": lines(MESSAGES)}, MESSAGES),
    "lines of Windows in the data": ("chatml", {"data.jsonl": "\ufeff" + lines(MESSAGES).replace("\n", "\r\n")}, MESSAGES),
    "a list under a key": ("chatml", {"data.json": json.dumps({"version": 1, "data": MESSAGES})}, MESSAGES),
    "ShareGPT": ("chatml", {"data.jsonl": lines(share_gpt("conversations"))}, MESSAGES),
    "ShareGPT in messages": ("chatml", {"data.jsonl": lines(share_gpt("messages"))}, MESSAGES),
    "Alpaca": ("chatml", {"data.json": json.dumps([{"instruction": "The river", "input": "of stone", "output": "A stone"}])},
               [{"messages": QUESTION}]),
    "a table": ("chatml", {"data.csv": 'messages\n"' + json.dumps(QUESTION).replace('"', '""') + '"\n'}, [{"messages": QUESTION}]),
    "a cloned data set": ("chatml", {
        "README.md": "---\nlicense: mit\n---\n# Chats\n", "LICENSE": "MIT", ".gitattributes": "*.jsonl filter=lfs\n",
        "dataset_infos.json": "{}", "train.jsonl": lines(MESSAGES), "test.jsonl": OTHER, "validation/a.jsonl": OTHER,
    }, MESSAGES),
    "shards in a folder": ("chatml", {
        "data/train-00000-of-00002.jsonl": lines(MESSAGES[:1]), "data/train-00001-of-00002.jsonl": lines(MESSAGES[1:]),
        "data/test-00000-of-00001.jsonl": OTHER, "Readme.txt": "of these chats",
    }, MESSAGES),
}


def expected(tokenizer, template, record):
    messages = [{k: v for k, v in m.items() if v is not None} for m in record["messages"]]
    marked = "{% generation %}" in template
    made = tokenizer.apply_chat_template(
        messages, tools=record.get("tools"), chat_template=template, return_dict=True, return_assistant_tokens_mask=marked
    )
    row = {"ids": made["input_ids"]}
    if marked:
        row["learned"] = made["assistant_masks"]
    return row


def main(folder):
    golden = Path(__file__).with_name("golden") / "layouts"
    golden.mkdir(exist_ok=True)
    shutil.copyfile(Path(folder) / "tokenizer.json", golden / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(golden / "tokenizer.json"), eos_token="<|im_end|>", bos_token="<s>")
    cases = {
        name: {"template": TEMPLATES[template], "files": files,
               "rows": [expected(tokenizer, TEMPLATES[template], record) for record in records]}
        for name, (template, files, records) in CASES.items()
    }
    (golden / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
