//! What the weights are called: in diffusers' folders, which is what the code uses, and in the original files.

use crate::diffusion::BlockNames;
use crate::diffusion::files::PartNames;

/// The transformer and the conditioner.
pub(super) const DENOISER: PartNames = PartNames {
    rename,
    ..PartNames::DIFFUSERS
};

/// The conditioner in a folder of its own.
pub(super) const CONDITIONER: PartNames = PartNames {
    rename: |name, _| Some(format!("{CONDITIONER_PREFIX}{name}")),
    ..PartNames::DIFFUSERS
};

/// The beginning of the conditioner's names.
const CONDITIONER_PREFIX: &str = "text_conditioner.";
/// The same in the original files.
const ORIGINAL_CONDITIONER_PREFIX: &str = "llm_adapter.";

/// diffusers' name of a weight, whose name may be the original one.
fn rename(name: &str, _: &[String]) -> Option<String> {
    let mut name = name;
    for prefix in ["model.diffusion_model.", "diffusion_model.", "net."] {
        name = name.strip_prefix(prefix).unwrap_or(name);
    }
    if let Some(rest) = name.strip_prefix(ORIGINAL_CONDITIONER_PREFIX) {
        return Some(format!("{CONDITIONER_PREFIX}{rest}"));
    }
    let own = OTHERS
        .iter()
        .map(|(own, _)| *own)
        .chain([BLOCKS.name, CONDITIONER_BLOCKS.name]);
    if own.into_iter().any(|own| after(name, own).is_some()) {
        return Some(name.to_owned());
    }
    if let Some((number, part)) = after(name, BLOCKS.original).and_then(|rest| rest.split_once('.'))
    {
        let part = renamed(part, BLOCKS.parts())?;
        return Some(format!("{}.{number}.{part}", BLOCKS.name));
    }
    // Counters and tables of positions are left out.
    renamed(name, OTHERS.iter().copied())
}

/// What follows the module `module` in `name`.
fn after<'a>(name: &'a str, module: &str) -> Option<&'a str> {
    name.strip_prefix(module)?.strip_prefix('.')
}

/// `name` with the module that begins it renamed by `pairs`.
fn renamed(
    name: &str,
    pairs: impl Iterator<Item = (&'static str, &'static str)>,
) -> Option<String> {
    let mut pairs = pairs;
    pairs.find_map(|(own, original)| Some(format!("{own}.{}", after(name, original)?)))
}

/// The transformer's blocks.
pub(super) const BLOCKS: BlockNames = BlockNames {
    name: "transformer_blocks",
    original: "blocks",
    linear: &[
        ("attn1.to_q", "self_attn.q_proj"),
        ("attn1.to_k", "self_attn.k_proj"),
        ("attn1.to_v", "self_attn.v_proj"),
        ("attn1.to_out.0", "self_attn.output_proj"),
        ("attn2.to_q", "cross_attn.q_proj"),
        ("attn2.to_k", "cross_attn.k_proj"),
        ("attn2.to_v", "cross_attn.v_proj"),
        ("attn2.to_out.0", "cross_attn.output_proj"),
        ("ff.net.0.proj", "mlp.layer1"),
        ("ff.net.2", "mlp.layer2"),
    ],
    others: &[
        ("attn1.norm_q", "self_attn.q_norm"),
        ("attn1.norm_k", "self_attn.k_norm"),
        ("attn2.norm_q", "cross_attn.q_norm"),
        ("attn2.norm_k", "cross_attn.k_norm"),
        ("norm1.linear_1", "adaln_modulation_self_attn.1"),
        ("norm1.linear_2", "adaln_modulation_self_attn.2"),
        ("norm2.linear_1", "adaln_modulation_cross_attn.1"),
        ("norm2.linear_2", "adaln_modulation_cross_attn.2"),
        ("norm3.linear_1", "adaln_modulation_mlp.1"),
        ("norm3.linear_2", "adaln_modulation_mlp.2"),
    ],
};

/// The conditioner's blocks.
pub(super) const CONDITIONER_BLOCKS: BlockNames = BlockNames {
    name: "text_conditioner.blocks",
    original: "llm_adapter.blocks",
    linear: &[
        ("self_attn.q_proj", "self_attn.q_proj"),
        ("self_attn.k_proj", "self_attn.k_proj"),
        ("self_attn.v_proj", "self_attn.v_proj"),
        ("self_attn.o_proj", "self_attn.o_proj"),
        ("cross_attn.q_proj", "cross_attn.q_proj"),
        ("cross_attn.k_proj", "cross_attn.k_proj"),
        ("cross_attn.v_proj", "cross_attn.v_proj"),
        ("cross_attn.o_proj", "cross_attn.o_proj"),
        ("mlp.0", "mlp.0"),
        ("mlp.2", "mlp.2"),
    ],
    others: &[
        ("self_attn.q_norm", "self_attn.q_norm"),
        ("self_attn.k_norm", "self_attn.k_norm"),
        ("cross_attn.q_norm", "cross_attn.q_norm"),
        ("cross_attn.k_norm", "cross_attn.k_norm"),
        ("norm_self_attn", "norm_self_attn"),
        ("norm_cross_attn", "norm_cross_attn"),
        ("norm_mlp", "norm_mlp"),
    ],
};

/// Parts outside the blocks that can be changed.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("patch_embed.proj", "x_embedder.proj.1"),
    ("time_embed.t_embedder.linear_1", "t_embedder.1.linear_1"),
    ("time_embed.t_embedder.linear_2", "t_embedder.1.linear_2"),
    ("time_embed.norm", "t_embedding_norm"),
    ("norm_out.linear_1", "final_layer.adaln_modulation.1"),
    ("norm_out.linear_2", "final_layer.adaln_modulation.2"),
    ("proj_out", "final_layer.linear"),
    ("text_conditioner.embed", "llm_adapter.embed"),
    ("text_conditioner.out_proj", "llm_adapter.out_proj"),
    ("text_conditioner.norm", "llm_adapter.norm"),
];
