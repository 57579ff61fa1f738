//! What the weights are called.

use crate::diffusion::BlockNames;
use crate::diffusion::files::{PartNames, renamed};
use crate::diffusion::parts::decoder;

/// The transformer.
pub(super) const TRANSFORMER: PartNames = PartNames {
    rename: |name, _| renamed(name, &[&BLOCKS], OTHERS),
    ..PartNames::DIFFUSERS
};

/// The text encoder, with its tower for pictures.
pub(super) const TEXT: PartNames = PartNames {
    rename: |name, all| match name.strip_prefix("model.").unwrap_or(name) {
        visual if visual.starts_with("visual.") => Some(visual.to_owned()),
        _ => (decoder::NAMES.rename)(name, all),
    },
    ..decoder::NAMES
};

/// The same name in diffusers and in the original files.
const fn same(name: &'static str) -> (&'static str, &'static str) {
    (name, name)
}

/// The blocks, with a stream for the text and one for the picture.
pub(super) const BLOCKS: BlockNames = BlockNames {
    name: "transformer_blocks",
    original: "transformer_blocks",
    linear: &[
        same("attn.to_q"),
        same("attn.to_k"),
        same("attn.to_v"),
        same("attn.add_q_proj"),
        same("attn.add_k_proj"),
        same("attn.add_v_proj"),
        same("attn.to_out.0"),
        same("attn.to_add_out"),
        same("img_mlp.net.0.proj"),
        same("img_mlp.net.2"),
        same("txt_mlp.net.0.proj"),
        same("txt_mlp.net.2"),
    ],
    others: &[
        same("img_mod.1"),
        same("txt_mod.1"),
        same("attn.norm_q"),
        same("attn.norm_k"),
        same("attn.norm_added_q"),
        same("attn.norm_added_k"),
    ],
};

/// Parts outside the blocks.
pub(super) const OTHERS: &[(&str, &str)] = &[
    same("img_in"),
    same("txt_in"),
    same("txt_norm"),
    same("time_text_embed.timestep_embedder.linear_1"),
    same("time_text_embed.timestep_embedder.linear_2"),
    same("norm_out.linear"),
    same("proj_out"),
];
