//! What the weights are called.

use crate::diffusion::BlockNames;
use crate::diffusion::files::PartNames;

/// The transformer.
pub(super) const TRANSFORMER: PartNames = PartNames {
    rename,
    stacked: &[(
        ".attention.qkv.weight",
        &[
            ".attention.to_q.weight",
            ".attention.to_k.weight",
            ".attention.to_v.weight",
        ],
    )],
    ..PartNames::DIFFUSERS
};

/// diffusers' name of a weight, whose name may be the original one.
fn rename(name: &str, _: &[String]) -> Option<String> {
    let prefixes = ["model.diffusion_model.", "diffusion_model."];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    let name = rest.unwrap_or(name);
    for (original, renamed) in [
        ("x_embedder.", "all_x_embedder.2-1."),
        ("final_layer.", "all_final_layer.2-1."),
    ] {
        if let Some(rest) = name.strip_prefix(original) {
            return Some(format!("{renamed}{rest}"));
        }
    }
    let own = [
        "all_x_embedder.",
        "all_final_layer.",
        "t_embedder.",
        "cap_embedder.",
        "x_pad_token",
        "cap_pad_token",
        "noise_refiner.",
        "context_refiner.",
        "layers.",
    ];
    own.iter().any(|start| name.starts_with(start)).then(|| {
        name.replace(".attention.out.", ".attention.to_out.0.")
            .replace(".attention.q_norm.", ".attention.norm_q.")
            .replace(".attention.k_norm.", ".attention.norm_k.")
    })
}

/// The linear layers of a block.
const LINEAR: &[(&str, &str)] = &[
    ("attention.to_q", "attention.to_q"),
    ("attention.to_k", "attention.to_k"),
    ("attention.to_v", "attention.to_v"),
    ("attention.to_out.0", "attention.to_out.0"),
    ("feed_forward.w1", "feed_forward.w1"),
    ("feed_forward.w3", "feed_forward.w3"),
    ("feed_forward.w2", "feed_forward.w2"),
];

/// Other parts of a block, and what some are called elsewhere.
const BESIDE: &[(&str, &str)] = &[
    ("attention.qkv", "attention.qkv"),
    ("attention.to_out.0", "attention.out"),
    ("adaLN_modulation.0", "adaLN_modulation.0"),
    ("attention.norm_q", "attention.norm_q"),
    ("attention.norm_k", "attention.norm_k"),
    ("attention_norm1", "attention_norm1"),
    ("attention_norm2", "attention_norm2"),
    ("ffn_norm1", "ffn_norm1"),
    ("ffn_norm2", "ffn_norm2"),
];

/// The blocks of the list `name`.
pub(super) const fn blocks(name: &'static str) -> BlockNames {
    BlockNames {
        name,
        original: name,
        linear: LINEAR,
        others: BESIDE,
    }
}

/// Parts outside the blocks that can be changed.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("all_x_embedder.2-1", "all_x_embedder.2-1"),
    ("cap_embedder.0", "cap_embedder.0"),
    ("cap_embedder.1", "cap_embedder.1"),
    ("t_embedder.mlp.0", "t_embedder.mlp.0"),
    ("t_embedder.mlp.2", "t_embedder.mlp.2"),
    ("all_final_layer.2-1.linear", "all_final_layer.2-1.linear"),
    (
        "all_final_layer.2-1.adaLN_modulation.1",
        "all_final_layer.2-1.adaLN_modulation.1",
    ),
];
