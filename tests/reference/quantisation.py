"""Writes golden/quantisation.safetensors: what bitsandbytes makes of the same numbers.

The dynamic code books; `numbers` quantised block by block with both of them, to NF4 and
to int8 rows; and five steps of AdamW whose moments are kept in eight bits, composed of
bitsandbytes' own quantisation functions (its optimizer kernels need a GPU).
"""

import sys
from pathlib import Path

import torch
from bitsandbytes import functional as F
from safetensors.torch import save_file

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")


def quantise(tensor, code):
    values, state = F.quantize_blockwise(tensor, code=code, blocksize=256)
    return values, state


def main():
    torch.manual_seed(6)
    signed = F.create_dynamic_map(signed=True)
    unsigned = F.create_dynamic_map(signed=False)
    out = {"signed_map": signed, "unsigned_map": unsigned}

    # Several blocks and a part of one; magnitudes over many decades; a block of zeros.
    numbers = torch.randn(5 * 256 + 100) * torch.logspace(-4, 2, 5 * 256 + 100)
    numbers[256:512] = 0
    out["numbers"] = numbers
    for name, code, source in [("signed", signed, numbers), ("unsigned", unsigned, numbers.abs())]:
        values, state = quantise(source, code)
        out[f"{name}_values"], out[f"{name}_absmax"] = values, state.absmax
        out[f"{name}_back"] = F.dequantize_blockwise(values, state)

    matrix = torch.randn(8, 192) * torch.logspace(-2, 1, 8)[:, None]
    packed, state = F.quantize_4bit(matrix, blocksize=64, quant_type="nf4")
    out |= {"matrix": matrix, "nf4_packed": packed.flatten(), "nf4_absmax": state.absmax,
            "nf4_back": F.dequantize_4bit(packed, state)}

    values, scales, _ = F.int8_vectorwise_quant(matrix.to(torch.float16))
    out |= {"int8_values": values, "int8_scales": scales}

    parameter = torch.randn(16, 300) * 0.1
    out["adam_start"] = parameter.clone()
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
    gradients = torch.randn(5, 16, 300) * 0.01
    rate, beta1, beta2, epsilon, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    for step, gradient in enumerate(gradients, 1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient * gradient
        change = (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + epsilon)
        parameter = parameter * (1 - rate * decay) - rate * change
        first = F.dequantize_blockwise(*quantise(first.flatten(), signed)).view_as(first)
        second = F.dequantize_blockwise(*quantise(second.flatten(), unsigned)).view_as(second)
    out |= {"adam_gradients": gradients, "adam_end": parameter,
            "adam_first": first, "adam_second": second}
    save_file({key: tensor.contiguous() for key, tensor in out.items()},
              GOLDEN / "quantisation.safetensors")


main()
