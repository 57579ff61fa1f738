"""Writes golden/formats.gguf and golden/formats.safetensors.

The first holds one tensor in each storage format, packed at random; the second what
the `gguf` package makes of it, in fp32.
"""

import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFWriter
from gguf.quants import dequantize
from safetensors.numpy import save_file

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")
FORMATS = [
    Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1,
    Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.MXFP4,
]
# Where each block keeps its fp16 scales; random bytes there would be NaN now and then.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}


def packed(kind, rng, rows=2, columns=256):
    if kind == Type.F32:
        return rng.standard_normal((rows, columns), dtype=np.float32)
    if kind == Type.F16:
        return rng.standard_normal((rows, columns), dtype=np.float32).astype(np.float16)
    if kind == Type.BF16:
        numbers = rng.standard_normal((rows, columns), dtype=np.float32)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    numbers, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // numbers, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        # Powers of two; the first ones are subnormal, and the last one is no number.
        blocks[:, :, 0] = np.arange(blocks[:, :, 0].size).reshape(blocks.shape[:2]) * 17 % 255
    for place in SCALES.get(kind, []):
        scale = rng.standard_normal(blocks.shape[:2], dtype=np.float32).astype(np.float16)
        blocks[:, :, place : place + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def main():
    rng = np.random.default_rng(6)
    writer = GGUFWriter(GOLDEN / "formats.gguf", "formats")
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("texts", ["one", "zwei", "три"])
    writer.add_float32("third", 1 / 3)
    writer.add_bool("yes", True)
    expected = {}
    for kind in FORMATS:
        data = packed(kind, rng)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        numbers = data if kind == Type.F32 else dequantize(data, kind)
        expected[kind.name] = np.ascontiguousarray(numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, GOLDEN / "formats.safetensors")


main()
