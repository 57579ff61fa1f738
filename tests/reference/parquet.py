"""Small Parquet files as pyarrow writes them: `python parquet.py FOLDER`, with pyarrow 22 or later.

The tests of the trainer read `golden/parquet`; the rows are written down there again.
"""

import sys

import pyarrow
import pyarrow.parquet


def chats():
    def turn(role, content, name=None):
        return {"role": role, "content": content, "name": name}

    first = [turn("user", "Hi ü"), turn("assistant", "Hello!")]
    second = [turn("system", "Be brief."), turn("user", "2+2?", "Ann"), turn("assistant", "4")]
    return [
        {"messages": first, "source": "a", "score": 0.5},
        {"messages": second, "source": None, "score": None},
    ]


def main(folder):
    texts = [{"text": f"Row {n} of many, with 日本語.\n" * 3} for n in range(40)]
    pairs = [{"question": f"What is {n}?", "answer": str(n), "id": n} for n in range(7)]
    tables = {
        "chat-zstd": (chats(), {"compression": "zstd"}),
        "texts-snappy": (texts, {"compression": "snappy", "row_group_size": 16}),
        "pairs-gzip": (pairs, {"compression": "gzip", "data_page_version": "2.0"}),
        "texts-brotli": (texts, {"compression": "brotli"}),
        "texts-lz4": (texts, {"compression": "lz4", "use_dictionary": False}),
    }
    for name, (rows, options) in tables.items():
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, f"{folder}/{name}.parquet", **options)


main(sys.argv[1])
