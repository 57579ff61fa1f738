//! What the weights are called.

use crate::diffusion::BlockNames;
use crate::diffusion::files::{PartNames, bare, renamed};
use crate::diffusion::parts::t5;

/// The transformer.
pub(super) const TRANSFORMER: PartNames = PartNames {
    rename: |name, _| renamed(name, &[&DOUBLE, &SINGLE], OTHERS.iter().chain(&LAST)),
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
        // The last is four times as wide.
        (
            ".linear1.weight",
            &[
                ".attn.to_q.weight",
                ".attn.to_k.weight",
                ".attn.to_v.weight",
                ".proj_mlp.weight",
                ".proj_mlp.weight",
                ".proj_mlp.weight",
                ".proj_mlp.weight",
            ],
        ),
    ],
    // Shift, then scale.
    swapped: &[
        "final_layer.adaLN_modulation.1.weight",
        "final_layer.adaLN_modulation.1.bias",
    ],
    ..PartNames::DIFFUSERS
};

/// T5, whose files of today have its table once, and older ones twice.
pub(super) const T5: PartNames = PartNames {
    rename: |name, _| {
        let name = &*t5::of_llama_cpp(name);
        let is_table = ["shared.weight", "encoder.embed_tokens.weight"].contains(&name);
        match is_table {
            true => Some("shared.weight".into()),
            false => name.starts_with("encoder.").then(|| name.to_owned()),
        }
    },
    ..PartNames::TRANSFORMERS
};

/// What the weights of Chroma's network for modulation begin with.
pub(super) const APPROXIMATOR: &str = "distilled_guidance_layer";

/// Chroma's transformer.
pub(super) const CHROMA: PartNames = PartNames {
    rename: |name, _| match bare(name).strip_prefix(APPROXIMATOR) {
        Some(rest) => {
            let rest = rest.replace(".in_layer.", ".linear_1.");
            let rest = rest.replace(".out_layer.", ".linear_2.");
            let rest = rest
                .strip_suffix(".scale")
                .map_or(rest.clone(), |norm| format!("{norm}.weight"));
            Some(format!("{APPROXIMATOR}{rest}"))
        }
        None => renamed(name, &[&CHROMA_DOUBLE, &CHROMA_SINGLE], CHROMA_OTHERS),
    },
    swapped: &[],
    ..TRANSFORMER
};

/// The last modulation, whose halves are in another order in the original files.
const LAST: [(&str, &str); 1] = [("norm_out.linear", "final_layer.adaLN_modulation.1")];

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
        ("ff.net.0.proj", "img_mlp.0"),
        ("ff.net.2", "img_mlp.2"),
        ("ff_context.net.0.proj", "txt_mlp.0"),
        ("ff_context.net.2", "txt_mlp.2"),
    ],
    others: &[
        ("attn.to_qkv", "img_attn.qkv"),
        ("attn.to_added_qkv", "txt_attn.qkv"),
        ("attn.norm_q", "img_attn.norm.query_norm"),
        ("attn.norm_k", "img_attn.norm.key_norm"),
        ("attn.norm_added_q", "txt_attn.norm.query_norm"),
        ("attn.norm_added_k", "txt_attn.norm.key_norm"),
        ("norm1.linear", "img_mod.lin"),
        ("norm1_context.linear", "txt_mod.lin"),
    ],
};

/// Chroma's, without those that modulate it.
pub(super) const CHROMA_DOUBLE: BlockNames = BlockNames {
    others: DOUBLE.others.split_at(6).0,
    ..DOUBLE
};

/// The blocks with one stream for both.
pub(super) const SINGLE: BlockNames = BlockNames {
    name: "single_transformer_blocks",
    original: "single_blocks",
    linear: &[
        ("attn.to_q", "linear1"),
        ("attn.to_k", "linear1"),
        ("attn.to_v", "linear1"),
        ("proj_mlp", "linear1"),
        ("proj_out", "linear2"),
    ],
    others: &[
        ("linear1", "linear1"),
        ("attn.norm_q", "norm.query_norm"),
        ("attn.norm_k", "norm.key_norm"),
        ("norm.linear", "modulation.lin"),
    ],
};

/// The same of Chroma.
pub(super) const CHROMA_SINGLE: BlockNames = BlockNames {
    others: SINGLE.others.split_at(3).0,
    ..SINGLE
};

/// Parts outside the blocks that can be changed.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    (
        "time_text_embed.timestep_embedder.linear_1",
        "time_in.in_layer",
    ),
    (
        "time_text_embed.timestep_embedder.linear_2",
        "time_in.out_layer",
    ),
    (
        "time_text_embed.guidance_embedder.linear_1",
        "guidance_in.in_layer",
    ),
    (
        "time_text_embed.guidance_embedder.linear_2",
        "guidance_in.out_layer",
    ),
    (
        "time_text_embed.text_embedder.linear_1",
        "vector_in.in_layer",
    ),
    (
        "time_text_embed.text_embedder.linear_2",
        "vector_in.out_layer",
    ),
    ("proj_out", "final_layer.linear"),
];

/// The same of Chroma, with the published number of layers.
pub(super) const CHROMA_OTHERS: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("proj_out", "final_layer.linear"),
    (
        "distilled_guidance_layer.in_proj",
        "distilled_guidance_layer.in_proj",
    ),
    (
        "distilled_guidance_layer.out_proj",
        "distilled_guidance_layer.out_proj",
    ),
    (
        "distilled_guidance_layer.layers.0.linear_1",
        "distilled_guidance_layer.layers.0.in_layer",
    ),
    (
        "distilled_guidance_layer.layers.0.linear_2",
        "distilled_guidance_layer.layers.0.out_layer",
    ),
    (
        "distilled_guidance_layer.layers.1.linear_1",
        "distilled_guidance_layer.layers.1.in_layer",
    ),
    (
        "distilled_guidance_layer.layers.1.linear_2",
        "distilled_guidance_layer.layers.1.out_layer",
    ),
    (
        "distilled_guidance_layer.layers.2.linear_1",
        "distilled_guidance_layer.layers.2.in_layer",
    ),
    (
        "distilled_guidance_layer.layers.2.linear_2",
        "distilled_guidance_layer.layers.2.out_layer",
    ),
    (
        "distilled_guidance_layer.layers.3.linear_1",
        "distilled_guidance_layer.layers.3.in_layer",
    ),
    (
        "distilled_guidance_layer.layers.3.linear_2",
        "distilled_guidance_layer.layers.3.out_layer",
    ),
    (
        "distilled_guidance_layer.layers.4.linear_1",
        "distilled_guidance_layer.layers.4.in_layer",
    ),
    (
        "distilled_guidance_layer.layers.4.linear_2",
        "distilled_guidance_layer.layers.4.out_layer",
    ),
];
