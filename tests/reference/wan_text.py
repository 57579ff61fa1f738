"""Writes golden/wan/text: a small tokenizer of UMT5's kind, and nasty prompts as diffusers cleans
them and transformers cuts them.

`spiece.model` is trained here, with a few rules of normalisation instead of the 240 kB of those that
the published one has; `tokenizer.json` is what transformers makes of it. `prompts.json` has of each
prompt what ftfy, diffusers' cleaning and the tokenizers make of it.
"""

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import ftfy
import sentencepiece
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from sentencepiece import sentencepiece_model_pb2
from transformers import AutoTokenizer, T5Tokenizer

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "wan" / "text"
EXTRA_IDS = 7

PLAIN = """
A cat walks on the grass, realistic style.
Two anthropomorphic cats in comfy boxing gear fight intensely on a spotlighted stage.
A white dog runs along the beach at sunset while the camera follows it slowly.
Close-up of a woman's face, soft light, shallow depth of field, film grain.
The train leaves the station; steam rises between the wooden houses.
Ein roter Schmetterling sitzt auf der Straße über dem Fluss.
Un chat marche sur l'herbe, très réaliste, à la manière d'un film.
一只白色的猫在草地上行走,写实风格。色调艳丽,过曝,静态,细节模糊不清。
Белая кошка идёт по траве.
""".strip().splitlines()

NASTY = [
    "", "   ", "  spaces \t and\n\nnew lines\r\nmac\rlines  ", "a\u00a0b\u2003c\u3000d\u1680e\u202ff\u205fg",
    "\x1c\x1d\x1e\x1f separators", "line\u2028sep\u2029par\u0085nel\x0bvt\x0cff",
    "“curly” ‘quotes’ – dashes — and … ellipsis", "O’Neill ‚low‘ „Deutsch“ «fr» ‹x› ′prime″",
    "schÃ¶n, Ã¤hnlich, cafÃ©", "âœ” No problems", "The Mona Lisa doesnâ€™t have eyebrows.", "l’humanitÃ©",
    "Ã perturber la rÃ©flexion", "voilÃ  le travail", "voilà le travail", "ðŸ˜€ smile", "I â™¥ you",
    "Ð¿Ñ€Ð¸Ð²ÐµÑ‚ Ð¼Ð¸Ñ€", "РїСЂРёРІРµС‚", "ä½ å¥½", "ã“ã‚“ã«ã¡ã¯", "caf√©", "‚Äústuff‚Äù", "Â£5 Â© Â® Â° Â½", "50Â°C",
    "donÃ¢â‚¬â„¢t", "\x93smart\x94 \x85 c1 \x80", "na\xefve \x96 dash", "\ufffd replacement Ã¯Â¿Â½",
    "&lt;b&gt;bold&lt;/b&gt; &amp;amp; &amp;lt;", "<i>literal &lt; html</i> &amp; more", "P&EACUTE;REZ",
    "&notit; &notin; &not &nbsp;x&nbsp &copy2024 &#8364; &#x20AC; &#128; &#0; &#xD800; &#x110000; &#1;",
    "< &#xFFFE; &#11; &#13;x &#x80;&#x9F;&#x81; &#99999999999999; &#; &#x; &#xg; &#12a; & &;",
    "&ampamp; &ampnot &amp;notin; &amp;amp;lt;", "< &fjlig; &nvlt; &NotEqualTilde; &CounterClockwiseContourIntegral;",
    "https://example.com/?a=b&amp;c=d&lt=e&copy=1", "&amp;ldquo;x&amp;rdquo;", "&zwj;&zwnj;&shy;&lrm;",
    "＊ｆｕｌｌ　ｗｉｄｔｈ＊ ﾊﾝｶｸ ﾊﾟ", "日本語のプロンプト：ｶﾞﾗｽ", "中文提示词，一只猫。「引号」！",
    "ﬁne ﬂuﬀy oﬃce ﬆ ĳ Ǆ", "\x1b[36;44mI'm blue\x1b[0m da ba dee",
    "zero\u200bwidth\u200cjoin\u200dspace\ufeffbom \u2060word \u00adsoft", "control \x00\x01\x02\x07\x08\x0e\x7f chars",
    "e\u0301 combining A\u030a \u212b \u2126", "\u0622\u0627\u0653 \u1100\u1161", "العربية مع ‏RTL‏ \u202eoverride\u202c",
    "हिन्दी தமிழ் ไทย 한국어 עברית", "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ☃︎ ☃️ 1\ufe0f\u20e3", "½ ² ™ ℃ Ⅳ ① ſtraße ẞ İ ı",
    "<extra_id_0> </s> <pad> <unk> <s> special", "text</s>more", "a</s>", "<extra_id_6><extra_id_7>",
    "▁underscore ▁▁ _under_", "(masterpiece:1.2), [blurry], {a|b|c} <lora:x:0.8>", "C:\\path\\file",
    "\ue000 private \uf8ff \U000f0000 \U000e0041tag", "A\u0300\u0316\u0345 Z̴̛a̷l̸g̶o̵", "\u200e\u202a \u206a \ufff9x\ufffa",
    "na?ve ca?f", "x" * 700, "a cat " * 400, "猫" * 600,
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量",
]


def broken():
    """UTF-8 that was read as something else, alone and within a sentence."""
    texts = ["naïve café", "“quoted” — it’s", "Привет мир", "你好，世界", "Łódź kůň", "¿Dónde está el año?",
             "Straße über Öl", "😀 emoji ❤", "½ × ½ = ¼ ± 3°", "à la mode, voilà", "Việt Nam"]
    for text in texts:
        for encoding in ("latin-1", "sloppy-windows-1252", "sloppy-windows-1251", "cp1250", "mac_roman", "cp437"):
            try:
                once = text.encode().decode(encoding)
            except UnicodeDecodeError:
                continue
            yield once
            yield f"A cat, {once}, and “more” text"


def mixed(count=120):
    random.seed(3)
    alphabet = list("abcXYZ 019,.!?&;#<>“”‘’€™éèñüß\xa0\u200b\ufeff\n\t中日😀ﬁＡｱ\u0301\ufffd\x1b[m")
    for _ in range(count):
        yield "".join(random.choice(alphabet) for _ in range(random.randint(1, 30)))


def train(folder):
    rules = [("\u3000", " "), ("\u00a0", " "), ("\u2003", " "), ("\t", " "), ("…", "..."), ("\u2126", "Ω"),
             ("½", "1⁄2"), ("²", "2"), ("™", "TM"), ("Ⅳ", "IV"), ("①", "1"), ("，", ","), ("\u200b", "")]
    table = folder / "rules.tsv"
    row = lambda text: " ".join(f"{ord(letter):X}" for letter in text)
    table.write_text("".join(f"{row(old)}\t{row(new)}\n" for old, new in rules))
    lines = folder / "lines.txt"
    lines.write_text("\n".join(PLAIN + [prompt_clean(text) for text in NASTY if len(text) < 200]) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines), model_prefix=str(GOLDEN / "spiece"), vocab_size=700, model_type="unigram",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_tsv=str(table), hard_vocab_limit=False,
        character_coverage=0.98, num_threads=1)
    (GOLDEN / "spiece.vocab").unlink()
    # The file keeps where it was trained, which is nobody's business and another place each time.
    model = sentencepiece_model_pb2.ModelProto.FromString((GOLDEN / "spiece.model").read_bytes())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    (GOLDEN / "spiece.model").write_bytes(model.SerializeToString())


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder))
        # A folder with nothing but the model of sentencepiece, as transformers opens it.
        bare = Path(folder) / "bare"
        bare.mkdir()
        shutil.copy(GOLDEN / "spiece.model", bare)
        settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": EXTRA_IDS, "model_max_length": 512}
        (bare / "tokenizer_config.json").write_text(json.dumps(settings))
        made = T5Tokenizer.from_pretrained(bare)
        saved = Path(folder) / "saved"
        made.save_pretrained(saved)
        shutil.copy(saved / "tokenizer.json", GOLDEN)
        (GOLDEN / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
        tokenizer = AutoTokenizer.from_pretrained(saved)
    raw = sentencepiece.SentencePieceProcessor(model_file=str(GOLDEN / "spiece.model"))
    rows = []
    for text in [*PLAIN, *NASTY, *broken(), *mixed()]:
        cleaned = prompt_clean(text)
        ids = tokenizer(cleaned, padding="max_length", max_length=512, truncation=True,
                        add_special_tokens=True, return_attention_mask=True)
        count = sum(ids.attention_mask)
        ids = ids.input_ids[:count]
        assert ids == made(cleaned, truncation=True, max_length=512).input_ids, text
        rows.append(dict(text=text, fixed=ftfy.fix_text(text), cleaned=cleaned, ids=ids))
    same = sum(row["ids"][:-1] == raw.encode(row["cleaned"])[:511] for row in rows)
    print(f"{len(rows)} prompts, {same} as sentencepiece itself cuts them")
    (GOLDEN / "prompts.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
