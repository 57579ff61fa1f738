//! What the weights are called.

use crate::diffusion::BlockNames;
use crate::diffusion::files::{PartNames, renamed};

/// The transformer.
pub(super) const TRANSFORMER: PartNames = PartNames {
    rename: |name, _| renamed(name, &[&DOUBLE, &SINGLE], OTHERS.iter().chain(&BESIDE)),
    stacked: &[
        (
            ".attn.to_qkv.weight",
            &[
                ".attn.to_q.weight",
                ".attn.to_k.weight",
                ".attn.to_v.weight",
            ],
        ),
        (
            ".attn.to_added_qkv.weight",
            &[
                ".attn.add_q_proj.weight",
                ".attn.add_k_proj.weight",
                ".attn.add_v_proj.weight",
            ],
        ),
    ],
    // Shift, then scale.
    swapped: &["final_layer.adaLN_modulation.1.weight"],
    ..PartNames::DIFFUSERS
};

/// The blocks with a stream for the text and one for the picture.
pub(super) const DOUBLE: BlockNames = BlockNames {
    name: "transformer_blocks",
    original: "double_blocks",
    linear: &[
        ("attn.to_q", "img_attn.qkv"),
        ("attn.to_k", "img_attn.qkv"),
        ("attn.to_v", "img_attn.qkv"),
        ("attn.add_q_proj", "txt_attn.qkv"),
        ("attn.add_k_proj", "txt_attn.qkv"),
        ("attn.add_v_proj", "txt_attn.qkv"),
        ("attn.to_out.0", "img_attn.proj"),
        ("attn.to_add_out", "txt_attn.proj"),
        ("ff.linear_in", "img_mlp.0"),
        ("ff.linear_out", "img_mlp.2"),
        ("ff_context.linear_in", "txt_mlp.0"),
        ("ff_context.linear_out", "txt_mlp.2"),
    ],
    others: &[
        ("attn.to_qkv", "img_attn.qkv"),
        ("attn.to_added_qkv", "txt_attn.qkv"),
        ("attn.norm_q", "img_attn.norm.query_norm"),
        ("attn.norm_k", "img_attn.norm.key_norm"),
        ("attn.norm_added_q", "txt_attn.norm.query_norm"),
        ("attn.norm_added_k", "txt_attn.norm.key_norm"),
    ],
};

/// The blocks with one stream for both.
pub(super) const SINGLE: BlockNames = BlockNames {
    name: "single_transformer_blocks",
    original: "single_blocks",
    linear: &[
        ("attn.to_qkv_mlp_proj", "linear1"),
        ("attn.to_out", "linear2"),
    ],
    others: &[
        ("attn.norm_q", "norm.query_norm"),
        ("attn.norm_k", "norm.key_norm"),
    ],
};

/// Parts outside the blocks that can be changed.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    (
        "time_guidance_embed.timestep_embedder.linear_1",
        "time_in.in_layer",
    ),
    (
        "time_guidance_embed.timestep_embedder.linear_2",
        "time_in.out_layer",
    ),
    (
        "double_stream_modulation_img.linear",
        "double_stream_modulation_img.lin",
    ),
    (
        "double_stream_modulation_txt.linear",
        "double_stream_modulation_txt.lin",
    ),
    (
        "single_stream_modulation.linear",
        "single_stream_modulation.lin",
    ),
    ("proj_out", "final_layer.linear"),
];

/// The last modulation, whose halves are in another order in the original files; and what only larger models have.
const BESIDE: [(&str, &str); 3] = [
    ("norm_out.linear", "final_layer.adaLN_modulation.1"),
    (
        "time_guidance_embed.guidance_embedder.linear_1",
        "guidance_in.in_layer",
    ),
    (
        "time_guidance_embed.guidance_embedder.linear_2",
        "guidance_in.out_layer",
    ),
];
