"""What transformers makes of chat templates: the reference of `crates/models/src/text`.

    python tests/reference/templates.py FOLDER OUT.json

FOLDER has templates as `*.jinja`. Each is rendered over `conversations.json` (beside this file)
with and without a generation prompt; OUT.json has the templates, the texts (null where
transformers refuses) and, for templates with `{% generation %}`, the spans it marks. The ones
in `golden/templates` are ours; `SUREFOOT_CHAT_TEMPLATES=OUT.json cargo test -p surefoot-models templates`
compares others, which stay out of the repository.
"""

import datetime
import json
import re
import sys
from pathlib import Path

from transformers.utils import chat_template_utils

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 2, 3, 4, 5, 6)


def render(template, conversation, prompt, mask=False):
    # As `apply_chat_template` does before it renders.
    messages = [{k: v for k, v in m.items() if v is not None} for m in conversation["messages"]]
    texts, spans = chat_template_utils.render_jinja_template(
        [messages],
        tools=conversation.get("tools"),
        chat_template=template,
        add_generation_prompt=prompt,
        return_assistant_tokens_mask=mask,
        **SPECIAL_TOKENS,
    )
    return texts[0], spans[0] if mask else None


def main(folder, out):
    chat_template_utils.datetime = FixedTime
    conversations = json.loads(Path(__file__).with_name("conversations.json").read_text())
    templates = {}
    for path in sorted(Path(folder).glob("*.jinja")):
        template = path.read_text()
        tagged = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
        cases = {}
        for name, conversation in conversations.items():
            case = {}
            for prompt in (False, True):
                try:
                    text, spans = render(template, conversation, prompt, tagged)
                except Exception as error:
                    text, spans = None, None
                    case[f"refused{int(prompt)}"] = f"{type(error).__name__}: {error}"[:200]
                case["asked" if prompt else "whole"] = text
                if tagged and not prompt and spans is not None:
                    case["spans"] = spans
            cases[name] = case
        templates[path.stem] = {"template": template, "cases": cases}
    Path(out).write_text(json.dumps(templates, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
