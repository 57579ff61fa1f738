//! What the weights are called.

use crate::diffusion::BlockNames;
use crate::diffusion::files::PartNames;

/// The transformer.
pub(super) const TRANSFORMER: PartNames = PartNames {
    rename,
    ..PartNames::DIFFUSERS
};

/// diffusers' name of a weight: original files may have another beginning.
fn rename(name: &str, _: &[String]) -> Option<String> {
    let prefixes = ["model.diffusion_model.", "diffusion_model."];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    let name = rest.unwrap_or(name);
    let (module, _) = name.rsplit_once('.')?;
    let blocks = format!("{}.", BLOCKS.name);
    let is_known = name.starts_with(&blocks) || OTHERS.iter().any(|(own, _)| *own == module);
    is_known.then(|| name.to_owned())
}

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
