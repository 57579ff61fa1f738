//! Parses the keys of LoRA files.

use super::Expert;
use crate::diffusion::wan::files::transformer_name;

/// The linear layers of a block: names in diffusers and in the original files.
pub const LINEAR: [(&str, &str); 10] = [
    ("attn1.to_q", "self_attn.q"),
    ("attn1.to_k", "self_attn.k"),
    ("attn1.to_v", "self_attn.v"),
    ("attn1.to_out.0", "self_attn.o"),
    ("attn2.to_q", "cross_attn.q"),
    ("attn2.to_k", "cross_attn.k"),
    ("attn2.to_v", "cross_attn.v"),
    ("attn2.to_out.0", "cross_attn.o"),
    ("ffn.net.0.proj", "ffn.0"),
    ("ffn.net.2", "ffn.2"),
];

/// Other parts of a block that can be changed.
const OTHERS_OF_BLOCK: [(&str, &str); 7] = [
    ("norm2", "norm3"),
    ("attn1.norm_q", "self_attn.norm_q"),
    ("attn1.norm_k", "self_attn.norm_k"),
    ("attn2.norm_q", "cross_attn.norm_q"),
    ("attn2.norm_k", "cross_attn.norm_k"),
    ("attn2.add_k_proj", "cross_attn.k_img"),
    ("attn2.add_v_proj", "cross_attn.v_img"),
];

/// Parts outside the blocks that can be changed.
const OTHERS: [(&str, &str); 7] = [
    ("patch_embedding", "patch_embedding"),
    (
        "condition_embedder.time_embedder.linear_1",
        "time_embedding.0",
    ),
    (
        "condition_embedder.time_embedder.linear_2",
        "time_embedding.2",
    ),
    ("condition_embedder.time_proj", "time_projection.1"),
    (
        "condition_embedder.text_embedder.linear_1",
        "text_embedding.0",
    ),
    (
        "condition_embedder.text_embedder.linear_2",
        "text_embedding.2",
    ),
    ("proj_out", "head.head"),
];

/// A parsed key.
#[derive(Debug)]
pub(super) struct Key {
    /// Module name in diffusers.
    pub(super) module: String,
    pub(super) role: Role,
    /// Set if the file contains both experts.
    pub(super) expert: Option<Expert>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Down,
    Up,
    Alpha,
    WeightDifference,
    BiasDifference,
}

const ROLES: [(&str, Role); 11] = [
    (".lora_A.default.weight", Role::Down),
    (".lora_B.default.weight", Role::Up),
    (".lora_A.weight", Role::Down),
    (".lora_B.weight", Role::Up),
    (".lora_down.weight", Role::Down),
    (".lora_up.weight", Role::Up),
    (".lora.down.weight", Role::Down),
    (".lora.up.weight", Role::Up),
    (".alpha", Role::Alpha),
    (".diff", Role::WeightDifference),
    (".diff_b", Role::BiasDifference),
];

/// Key fragments of other kinds of adapters, with their names.
const OTHER_KINDS: [(&str, &str); 5] = [
    ("lokr_", "LoKr"),
    ("hada_", "LoHa"),
    ("dora_scale", "DoRA"),
    ("lora_magnitude_vector", "DoRA"),
    ("oft_", "OFT"),
];

/// Parses a key.
///
/// # Errors
/// If it is not that of a LoRA for Wan.
pub(super) fn parse(key: &str) -> Result<Key, String> {
    if let Some((_, kind)) = OTHER_KINDS.iter().find(|(part, _)| key.contains(part)) {
        return Err(format!(
            "`{key}` belongs to {kind}: the only supported adapter for Wan is LoRA"
        ));
    }
    let role = ROLES
        .iter()
        .find_map(|(suffix, role)| Some((key.strip_suffix(suffix)?, *role)));
    let (path, role) = role.ok_or_else(|| format!("`{key}` is not a known LoRA tensor"))?;
    let unknown = || format!("`{key}` does not belong to a known layer of Wan's transformer");
    if let Some(flat) = path.strip_prefix("lora_unet_") {
        // Some files have two underscores.
        let flat = flat.strip_prefix('_').unwrap_or(flat);
        let module = flat_module(flat).ok_or_else(unknown)?;
        return Ok(Key {
            module,
            role,
            expert: None,
        });
    }
    if path.starts_with("transformer_2.") {
        return Err(format!(
            "`{key}`: diffusers ignores this prefix; the LoRA of the low-noise expert is a file of its own, \
             whose keys begin with `transformer.`"
        ));
    }
    let mut dotted = path;
    for prefix in [
        "base_model.model.",
        "model.",
        "diffusion_model.",
        "transformer.",
    ] {
        dotted = dotted.strip_prefix(prefix).unwrap_or(dotted);
    }
    let mut expert = None;
    for (prefix, of) in [
        ("transformer_1.", Expert::High),
        ("transformer_2.", Expert::Low),
    ] {
        if let Some(rest) = dotted.strip_prefix(prefix) {
            (dotted, expert) = (rest, Some(of));
        }
    }
    let weight = transformer_name(&format!("{dotted}.weight"));
    let module = weight
        .as_deref()
        .and_then(|weight| weight.strip_suffix(".weight"));
    let module = module
        .filter(|module| is_known(module))
        .ok_or_else(unknown)?;
    Ok(Key {
        module: module.to_owned(),
        role,
        expert,
    })
}

fn is_known(module: &str) -> bool {
    if OTHERS.iter().any(|(name, _)| *name == module) {
        return true;
    }
    let part = module
        .strip_prefix("blocks.")
        .and_then(|rest| rest.split_once('.'));
    part.is_some_and(|(number, part)| {
        number.parse::<u32>().is_ok() && of_block().any(|(name, _)| name == part)
    })
}

fn of_block() -> impl Iterator<Item = (&'static str, &'static str)> {
    LINEAR.into_iter().chain(OTHERS_OF_BLOCK)
}

/// The module of a name whose dots were replaced by underscores.
fn flat_module(flat: &str) -> Option<String> {
    let is = |name: &str| name.replace('.', "_") == flat;
    if let Some((name, _)) = OTHERS
        .iter()
        .find(|(name, original)| is(name) || is(original))
    {
        return Some((*name).to_owned());
    }
    let (number, part) = flat.strip_prefix("blocks_")?.split_once('_')?;
    let number: u32 = number.parse().ok()?;
    let is = |name: &str| name.replace('.', "_") == part;
    let (name, _) = of_block().find(|(name, original)| is(name) || is(original))?;
    Some(format!("blocks.{number}.{name}"))
}

/// The original name of a module with the diffusers name `module`.
pub(super) fn original_module(module: &str) -> String {
    let (front, part, table) = match module
        .strip_prefix("blocks.")
        .and_then(|rest| rest.split_once('.'))
    {
        Some((number, part)) => (format!("blocks.{number}."), part, None),
        None => (String::new(), module, Some(OTHERS)),
    };
    let original = match table {
        Some(table) => table.into_iter().find(|(name, _)| *name == part),
        None => of_block().find(|(name, _)| *name == part),
    };
    format!("{front}{}", original.map_or(part, |(_, original)| original))
}
