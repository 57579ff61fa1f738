"""Writes golden/models: tiny random decoders as `transformers` saves and computes them.

Each folder holds a Hugging Face model and `expected.safetensors`: `tokens` and the
`logits` for them, in fp32; those of texts within the original context of LongRoPE have `short` in
their names. Models whose routers learn their balance also have the loss of the tokens that are not masked, and
its gradients, those of experts by layer; one with experts in MXFP4 has the first of them dequantised. The GGUF files are models as llama.cpp's converter would store them.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, RopeScalingType, get_tensor_name_map
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config, Gemma2ForCausalLM, Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig, Gemma4Config, Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration, Gemma4TextConfig, GptOssConfig, GptOssForCausalLM,
    GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, Ministral3Config, Ministral3ForCausalLM, Mistral3Config,
    Mistral3ForConditionalGeneration, MistralConfig, MistralForCausalLM, Mxfp4Config, Olmo2Config, Olmo2ForCausalLM, Olmo3Config,
    Olmo3ForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
    Qwen3_5Config, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Qwen3_5MoeConfig, Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM,
    SmolLM3Config, SmolLM3ForCausalLM,
)

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "models"
SHAPE = dict(
    vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    # Large enough that attention is far from uniform and mistakes cannot hide.
    initializer_range=0.3, bos_token_id=1, eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
    high_freq_factor=4.0, original_max_position_embeddings=32,
)
# Three heads of values for each of keys, and one block of two with attention.
DELTA = dict(
    linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=4, linear_value_head_dim=4,
    layer_types=["linear_attention", "full_attention"],
)
# Heads of two widths; of the wider ones two of eight pairs are rotated.
GEMMA4 = dict(
    head_dim=8, global_head_dim=16, sliding_window=7, pad_token_id=0, final_logit_softcapping=5.0, rope_parameters=dict(
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
        full_attention=dict(rope_type="proportional", rope_theta=1_000.0, partial_rotary_factor=0.25)))
BARE = {key: value for key, value in SHAPE.items() if key != "intermediate_size"}
EXPERTS = dict(
    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=10)
VISION = dict(
    hidden_size=8, intermediate_size=8, depth=1, num_heads=2, patch_size=4, spatial_merge_size=2, out_hidden_size=16,
    num_position_embeddings=16)
IMAGES = dict(image_token_id=44, video_token_id=45, vision_start_token_id=46, vision_end_token_id=47)
MODELS = {
    "llama-grouped": (LlamaForCausalLM, LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "llama-tied-biases": (LlamaForCausalLM, LlamaConfig(
        **{**SHAPE, "num_key_value_heads": 4}, tie_word_embeddings=True,
        attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5)),
    "llama-scaled": (LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=LLAMA3)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        **SHAPE, head_dim=8, tie_word_embeddings=True, rope_parameters=dict(
            rope_type="default", rope_theta=1_000_000.0))),
    "qwen3-untied": (Qwen3ForCausalLM, Qwen3Config(
        **{**SHAPE, "num_key_value_heads": 1}, head_dim=6, attention_bias=True,
        tie_word_embeddings=False)),
    # Seen with twice the context that they were made for.
    "llama-yarn": (LlamaForCausalLM, LlamaConfig(**SHAPE, rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16,
        beta_fast=4.0))),
    "qwen2-dynamic": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10_000.0, factor=2.0))),
    # The window is shorter than the texts.
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
        **SHAPE, head_dim=8, query_pre_attn_scalar=24, sliding_window=7,
        layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
            full_attention=dict(rope_type="linear", rope_theta=1_000.0, factor=8.0)))),
    "gemma3-biases": (Gemma3ForCausalLM, Gemma3TextConfig(
        **{**SHAPE, "num_key_value_heads": 1}, head_dim=6, query_pre_attn_scalar=168,
        sliding_window=5, sliding_window_pattern=2, attention_bias=True,
        tie_word_embeddings=False, rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=50.0),
            full_attention=dict(rope_type="default", rope_theta=700.0)))),
    "gemma3-multimodal": (Gemma3ForConditionalGeneration, Gemma3Config(
        text_config=dict(
            **SHAPE, head_dim=4, query_pre_attn_scalar=9, sliding_window=6,
            layer_types=["full_attention", "sliding_attention"]),
        vision_config=dict(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            image_size=8, patch_size=4),
        mm_tokens_per_image=4, image_token_index=47)),
    "mistral": (MistralForCausalLM, MistralConfig(
        **SHAPE, head_dim=6, sliding_window=9, tie_word_embeddings=False)),
    "granite": (GraniteForCausalLM, GraniteConfig(
        **SHAPE, tie_word_embeddings=True, embedding_multiplier=3.5, attention_multiplier=0.3,
        residual_multiplier=0.22, logits_scaling=2.5)),
    "granite-biases": (GraniteForCausalLM, GraniteConfig(
        **SHAPE, attention_bias=True, mlp_bias=True, attention_multiplier=0.7, logits_scaling=0.5)),
    # One block of four without rotation, and the first of two.
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config(
        **{**SHAPE, "num_hidden_layers": 4}, pad_token_id=0, rope_parameters=dict(
            rope_type="default", rope_theta=50.0))),
    "smollm3-list": (SmolLM3ForCausalLM, SmolLM3Config(
        **SHAPE, pad_token_id=None, no_rope_layers=[0, 1], attention_bias=True, tie_word_embeddings=False)),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**SHAPE, tie_word_embeddings=False)),
    "olmo3": (Olmo3ForCausalLM, Olmo3Config(
        **SHAPE, sliding_window=7, layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
            full_attention=dict(
                rope_type="yarn", rope_theta=500.0, factor=4.0, attention_factor=1.3, beta_fast=4.0,
                beta_slow=1.0, original_max_position_embeddings=16)))),
    # As published: what is at the top is of the global blocks.
    "olmo3-old": (Olmo3ForCausalLM, Olmo3Config(
        **{**SHAPE, "num_hidden_layers": 4}, sliding_window=6, attention_bias=True, rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=500_000.0),
            full_attention=dict(rope_type="linear", rope_theta=70.0, factor=2.0)))),
    "phi3": (Phi3ForCausalLM, Phi3Config(
        **{**SHAPE, "num_attention_heads": 2, "num_key_value_heads": 1}, pad_token_id=0, sliding_window=9,
        partial_rotary_factor=0.75)),
    # The texts are longer than the original context.
    "phi3-longrope": (Phi3ForCausalLM, Phi3Config(
        **{**SHAPE, "num_attention_heads": 2}, pad_token_id=0, tie_word_embeddings=True,
        original_max_position_embeddings=16, rope_parameters=dict(
            rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.5, short_factor=[1.0, 1.5],
            long_factor=[2.0, 7.0]))),
    # The queries grow four times.
    "ministral3": (Ministral3ForCausalLM, Ministral3Config(
        **SHAPE, head_dim=6, pad_token_id=11, tie_word_embeddings=True, rope_parameters=dict(
            rope_type="yarn", rope_theta=500.0, factor=8.0, original_max_position_embeddings=8,
            beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.7))),
    "ministral3-multimodal": (Mistral3ForConditionalGeneration, Mistral3Config(
        text_config=dict(
            **SHAPE, model_type="ministral3", head_dim=4, pad_token_id=11, sliding_window=12,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16,
                mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)),
        vision_config=dict(
            model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            head_dim=4, image_size=8, patch_size=4),
        image_token_index=47)),
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **SHAPE, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True)),
    # The experts of a block are one tensor in its file, and one block has none.
    "qwen3-moe-stacked": (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **{**SHAPE, "num_hidden_layers": 3}, head_dim=6, num_experts=5, num_experts_per_tok=3,
        moe_intermediate_size=8, mlp_only_layers=[1], attention_bias=True,
        use_sliding_window=True, sliding_window=9, output_router_logits=True, router_aux_loss_coef=0.5)),
    # The texts are longer than two chunks.
    "qwen3.5": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(
        **{**SHAPE, "max_position_embeddings": 256}, **DELTA, head_dim=8, tie_word_embeddings=True, pad_token_id=0,
        rope_parameters=dict(rope_type="default", rope_theta=1_000.0, partial_rotary_factor=0.5))),
    "qwen3.5-untied": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(
        **{**SHAPE, "num_hidden_layers": 4, "initializer_range": 0.1},
        **{**DELTA, "layer_types": None, "linear_value_head_dim": 6},
        head_dim=16, attention_bias=True, linear_conv_kernel_dim=3)),
    "qwen3.5-multimodal": (Qwen3_5ForConditionalGeneration, Qwen3_5Config(
        text_config=dict(**SHAPE, **{**DELTA, "linear_num_value_heads": 2}, head_dim=8, rope_parameters=dict(
            rope_type="default", rope_theta=100.0, partial_rotary_factor=0.75, mrope_section=[1, 1, 1],
            mrope_interleaved=True)),
        vision_config=VISION, **IMAGES)),
    # Beyond a window and the original context; and experts in MXFP4, in blocks of 32.
    "gpt-oss": (GptOssForCausalLM, GptOssConfig(
        **{**SHAPE, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 128}, head_dim=8,
        num_local_experts=6, num_experts_per_tok=3, sliding_window=7, pad_token_id=0, rope_parameters=dict(
            rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0,
            beta_slow=1.0, truncate=False))),
    # Another limit, and widths that are no blocks.
    "gpt-oss-dense": (GptOssForCausalLM, GptOssConfig(
        **{**SHAPE, "num_attention_heads": 6}, head_dim=6,
        num_local_experts=5, num_experts_per_tok=4, sliding_window=5, attention_bias=False, swiglu_limit=0.8,
        swiglu_alpha=1.3, layer_types=["full_attention", "sliding_attention"],
        output_router_logits=True, router_aux_loss_coef=0.5)),
    "qwen3.5-moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(
        **{**BARE, "initializer_range": 0.2}, **DELTA, **EXPERTS, head_dim=8, output_router_logits=True,
        router_aux_loss_coef=0.5,
        rope_parameters=dict(rope_type="default", rope_theta=1_000.0, partial_rotary_factor=0.5))),
    # The experts of a block are one tensor in its file, as published.
    "qwen3.5-moe-multimodal": (Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig(
        text_config=dict(**BARE, **DELTA, **EXPERTS, head_dim=8, rope_parameters=dict(
            rope_type="default", rope_theta=100.0, partial_rotary_factor=0.75, mrope_section=[1, 1, 1],
            mrope_interleaved=True)),
        vision_config=VISION, **IMAGES)),
    # As E2B: the last two blocks take keys and values of the second and the third, and have wider feed-forward layers.
    "gemma4": (Gemma4ForCausalLM, Gemma4TextConfig(
        **{**SHAPE, "num_hidden_layers": 5}, **GEMMA4, hidden_size_per_layer_input=6, vocab_size_per_layer_input=48,
        num_kv_shared_layers=2, use_double_wide_mlp=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"])),
    # As 31B: global blocks have fewer keys, which are their values.
    "gemma4-dense": (Gemma4ForCausalLM, Gemma4TextConfig(
        **SHAPE, **GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
        attention_bias=True, tie_word_embeddings=False, layer_types=["sliding_attention", "full_attention"])),
    # As 26B-A4B: experts beside the feed-forward layer.
    "gemma4-moe": (Gemma4ForCausalLM, Gemma4TextConfig(
        **SHAPE, **GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
        enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=12,
        layer_types=["sliding_attention", "full_attention"])),
    "gemma4-multimodal": (Gemma4ForConditionalGeneration, Gemma4Config(
        text_config=dict(
            **{**SHAPE, "num_hidden_layers": 4}, **GEMMA4, hidden_size_per_layer_input=4, vocab_size_per_layer_input=48,
            num_kv_shared_layers=2, use_bidirectional_attention="vision",
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
        vision_config=dict(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            head_dim=4, patch_size=4, position_embedding_size=16, pooling_kernel_size=1),
        audio_config=None, image_token_id=44, video_token_id=45, boi_token_id=46, eoi_token_id=47, audio_token_id=44,
        boa_token_id=46, eoa_token_index=47)),
    # Many scores and logits are beyond the caps.
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(
        **SHAPE, head_dim=8, query_pre_attn_scalar=8, sliding_window=7, attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0, rope_parameters=dict(rope_type="default", rope_theta=100.0))),
}


def randomise(model):
    """Norms and biases start as ones and zeros, which would hide mistakes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif name.endswith("sinks"):
                parameter.uniform_(-1.0, 3.0)
            elif name.endswith("A_log"):
                # Some heads forget at once, others nearly nothing.
                parameter.uniform_(-6.0, 1.0)
            elif name.endswith(("router.scale", "per_expert_scale")):
                parameter.uniform_(0.5, 1.5)
            elif "norm" in name:
                # Those of Gemma and most of Qwen3.5 are added to one.
                added = model.config.model_type.startswith(("gemma2", "gemma3", "qwen3_5")) and "linear_attn" not in name
                one = 0.0 if added else 1.0
                parameter.uniform_(one - 0.5, one + 0.5)
                # Scores of Gemma 4 are divided by nothing, and what comes from layers is as large as what they get: rounding would
                # grow too much from block to block.
                if model.config.model_type.startswith("gemma4") and any(part in name for part in ("q_norm", "k_norm", "post_")):
                    parameter.mul_(0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.6, 1.2)


def permute(rows, heads):
    """What llama.cpp's converter does to the rows of q and k."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, model, packed):
    """`packed` has the experts that are in MXFP4."""
    config = model.config
    gemma = isinstance(model, (Gemma2ForCausalLM, Gemma3ForCausalLM))
    delta = isinstance(model, (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM))
    kind = config.model_type.removesuffix("_text").replace("_", "")
    kind = kind.replace("gptoss", "gpt-oss")
    interleaved = kind in ("llama", "granite", "smollm3")
    writer = GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    inner, heads = getattr(config, "intermediate_size", None), None
    if kind == "gemma4":
        first = config.num_hidden_layers - config.num_kv_shared_layers
        if config.use_double_wide_mlp:
            inner = [2 * inner if block >= first else inner for block in range(config.num_hidden_layers)]
        heads = [config.per_layer_config[block].num_key_value_heads for block in range(config.num_hidden_layers)]
        heads = heads if len(set(heads)) > 1 else heads[0]
    if kind != "qwen35moe":
        writer.add_feed_forward_length(inner)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(heads or config.num_key_value_heads)
    rope = config.rope_parameters
    if kind == "gemma4":
        rope = of_gemma4(writer, config)
    if gemma:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind == "gemma3":
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if delta:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)
        writer.add_rope_dimension_count(int(config.head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    if kind in ("qwen3moe", "gpt-oss"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    gemma_experts = kind == "gemma4" and config.enable_moe_block
    if gemma_experts or kind in ("qwen3moe", "qwen35moe", "gpt-oss"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts if gemma_experts else config.num_experts_per_tok)
    if gemma_experts or kind in ("qwen3moe", "qwen35moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "qwen35moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if kind == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    if kind == "phi3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_dimension_count(int(config.hidden_size // config.num_attention_heads * 0.75))
    if kind in ("smollm3", "olmo2", "phi3", "qwen3-moe", "qwen35", "gpt-oss", "gemma4"):
        writer.add_pad_token_id(config.pad_token_id)
    add_tokenizer(writer)
    architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == kind)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, (data, scales) in packed.items():
        # Byte j has the numbers j and j + 16.
        numbers = np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], 32)
        data = np.concatenate([scales[..., None], numbers[..., :16] | numbers[..., 16:] << 4], -1)
        data = data.reshape(*data.shape[:-2], -1)
        parts = {"gate_proj": data[:, ::2], "up_proj": data[:, 1::2]} if "gate_up" in name else {"down_proj": data}
        for part, data in parts.items():
            module = name.rsplit(".", 1)[0] + f".{part}"
            writer.add_tensor(
                names.get_name(module) + ".weight", np.ascontiguousarray(data), raw_dtype=GGMLQuantizationType.MXFP4)
    tensors = model.state_dict()
    for name, tensor in tensors.items() if kind == "gemma4" else apart(tensors):
        if packed and ".experts." in name and name.endswith(".weight"):
            continue
        if name.endswith("sinks"):
            name += ".weight"
        data = tensor.numpy()
        if kind == "gemma4" and name.endswith(("layer_scalar", "experts.gate_up_proj", "experts.down_proj")):
            name += ".weight"
        module, role = name.rsplit(".", 1)
        if role in ("scale", "per_expert_scale"):
            part = "proj" if role == "scale" else "down_proj"
            module = module if role == "scale" else module.replace("router", "experts")
            module, role = f"{module}.{part}", "scale"
        if module == "lm_head" and config.tie_word_embeddings:
            continue
        if ".linear_attn." in name:
            module, role, data = of_delta(name, data, config)
        elif (gemma or delta) and "norm" in module:
            data = data + 1
        elif module.endswith("shared_expert_gate"):
            data = data.squeeze(0)
        if interleaved and module.endswith("q_proj"):
            data = permute(data, config.num_attention_heads)
        if interleaved and module.endswith("k_proj"):
            data = permute(data, config.num_key_value_heads)
        writer.add_tensor(names.get_name(module) + (role and f".{role}"), np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def of_gemma4(writer, config):
    """What only these have; the rotary embedding of the blocks that see the whole text."""
    local = [kind == "sliding_attention" for kind in config.layer_types]
    near, whole = (config.per_layer_config[local.index(kind)] for kind in (True, False))
    rope = config.rope_parameters["full_attention"]
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(local)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for width, keys, values, rotated in [
        (whole.head_dim, writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count),
        (near.head_dim, writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa),
    ]:
        for add in (keys, values, rotated):
            add(width)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    pairs = whole.head_dim // 2
    moving = int(pairs * rope["partial_rotary_factor"])
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * moving + [1e30] * (pairs - moving), np.float32))
    return rope


def of_delta(name, data, config):
    """Module, role and data of a delta rule's tensor, as llama.cpp's converter has them: of the heads of values, the
    first of each head of keys, then the second of each."""
    width, keys = config.linear_value_head_dim, 2 * config.linear_num_key_heads * config.linear_key_head_dim
    axis, start, width = {
        "in_proj_qkv.weight": (0, keys, width), "conv1d.weight": (0, keys, width), "in_proj_z.weight": (0, 0, width),
        "out_proj.weight": (1, 0, width), "norm.weight": (0, 0, None),
    }.get(name.split(".linear_attn.")[1], (0, 0, 1))
    data = data.squeeze(1) if "conv1d" in name else -np.exp(data) if "A_log" in name else data
    if width:
        before, heads = np.split(data, [start], axis)
        split = (*heads.shape[:axis], config.linear_num_key_heads, -1, width, *heads.shape[axis + 1:])
        heads = heads.reshape(split).swapaxes(axis, axis + 1).reshape(heads.shape)
        data = np.concatenate([before, heads], axis)
    if name.endswith("A_log"):
        return name, "", data
    return (*name.replace("dt_bias", "dt_proj.bias").rsplit(".", 1), data)


def apart(tensors):
    """Gate and up of experts as two tensors."""
    # Of gpt-oss, the only one whose experts have biases.
    turns = any(name.endswith("_proj_bias") for name in tensors)
    for name, tensor in tensors.items():
        stem, bias = name.removesuffix("_bias"), name.endswith("_proj_bias")
        if turns and stem.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensor = tensor if bias else tensor.transpose(1, 2)
            parts = {"down_proj": tensor} if "down" in stem else {"gate_proj": tensor[:, ::2], "up_proj": tensor[:, 1::2]}
            for part, tensor in parts.items():
                yield f"{stem.rsplit('.', 1)[0]}.{part}.{'bias' if bias else 'weight'}", tensor.contiguous()
        elif name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1)):
                yield name.replace("gate_up_proj", f"{part}.weight"), half
        else:
            yield f"{name}.weight" if name.endswith("experts.down_proj") else name, tensor


def balance(model, tokens):
    """The loss, and gradients of routers, experts and sinks, of Gemma 4 all, where the second text is half padding."""
    mask = torch.ones_like(tokens)
    mask[1, 20:] = 0
    loss = model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100)).loss
    loss.backward()
    every = isinstance(model, Gemma4ForCausalLM)
    named = model.named_parameters()
    gradients = {name: weight.grad for name, weight in named if every or ".mlp." in name or "sinks" in name}
    return {"loss": loss.detach()} | {f"gradient.{name}": grad.contiguous() for name, grad in apart(gradients)}


def add_tokenizer(writer):
    """48 tokens, enough for `the 42`."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ", *"abcdefghijklmnopqrstuvwxyz"]
    tokens += [*"0123456789", "he", "Ġt", "Ġthe", "on", "12", "Ċ", ".", ","]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "Ġ t", "Ġt he", "o n", "1 2"])
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")


def in_mxfp4(folder, config):
    """Replaces the experts of a saved gpt-oss by random ones in MXFP4; returns them, and the model."""
    tensors = load_file(folder / "model.safetensors")
    packed = {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (count, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(122, 126, (count, outputs, inputs // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        packed[name] = (blocks.numpy(), scales.numpy())
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    keys = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    keys["quantization_config"] = {"modules_to_not_convert": kept, "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    read = lambda dtype: GptOssForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=Mxfp4Config(dequantize=True)).eval()
    return packed, read(torch.float32), read(torch.bfloat16)


def to_old_places(path):
    """The rotary embedding's keys, and the blocks with a window, where transformers 4 kept them."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    if config["model_type"] == "olmo3":
        config["rope_scaling"] = parameters["full_attention"]
        config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
        del config["layer_types"]
    elif "sliding_attention" in parameters:
        config["rope_theta"] = parameters["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        del config["layer_types"]
    else:
        config["rope_theta"] = parameters.pop("rope_theta")
        config["rope_scaling"] = parameters
    path.write_text(json.dumps(config, indent=2) + "\n")


def to_published_keys(path):
    """The heads of Gemma 4's global blocks as published files have them."""
    config = json.loads(path.read_text())
    (heads,) = config.pop("per_layer_config").values()
    config["global_head_dim"] = heads["head_dim"]
    config["num_global_key_value_heads"] = heads["num_key_value_heads"]
    path.write_text(json.dumps(config, indent=2) + "\n")


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for seed, (name, (kind, config)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = kind(config).eval()
        randomise(model)
        folder = GOLDEN / name
        # One in several shards.
        shard = "10KB" if name == "llama-tied-biases" else "1GB"
        model.save_pretrained(folder, max_shard_size=shard)
        if name == "gemma4-dense":
            to_published_keys(folder / "config.json")
            model = kind.from_pretrained(folder).eval()
        if name in ("llama-scaled", "gemma3-biases", "olmo3-old"):
            to_old_places(folder / "config.json")
            model = kind.from_pretrained(folder).eval()
        packed = {}
        if name == "gpt-oss":
            packed, model, half = in_mxfp4(folder, config)
        length = 150 if name == "qwen3.5" else 40
        # The last ones stand for images.
        words = config.get_text_config().vocab_size - (4 if hasattr(config, "video_token_id") else 0)
        tokens = torch.randint(0, words, (2, length))
        with torch.no_grad():
            logits = model(tokens).logits
        expected = {"tokens": tokens, "logits": logits.contiguous()}
        if packed:
            # In the type of the weights.
            first = half.model.layers[0].mlp.experts
            expected |= {"gate_up": first.gate_up_proj.detach(), "down": first.down_proj.detach()}
        if "longrope" in name:
            within = config.original_max_position_embeddings
            with torch.no_grad():
                expected["short_logits"] = model(tokens[:, :within]).logits.contiguous()
        if getattr(config, "output_router_logits", False) or name in ("gemma4", "gemma4-moe"):
            expected |= balance(model, tokens)
        if name.startswith("gemma4") or name in ("gemma2", "gemma3", "qwen3-moe", "qwen3.5", "gpt-oss", "qwen3.5-moe"):
            # What it writes behind the beginning of the first text, beyond the window.
            model.generation_config.eos_token_id = None
            expected["greedy"] = model.generate(tokens[:1, :5], max_new_tokens=30, do_sample=False)
        if name in ("qwen3-moe-stacked", "qwen3.5-moe-multimodal"):
            save_file(dict(model.state_dict()), folder / "model.safetensors", {"format": "pt"})
        save_file(expected, folder / "expected.safetensors")
        (folder / "generation_config.json").unlink(missing_ok=True)
        if name in (
            "llama-grouped", "gemma2", "gemma3", "gemma4", "gemma4-moe", "granite", "smollm3", "olmo2", "phi3", "qwen3-moe", "qwen3.5",
            "gpt-oss", "qwen3.5-moe"):
            write_gguf(GOLDEN / f"{name}.gguf", model, packed)


main()
