//! Parses the keys of LoRA files.

use crate::diffusion::{Arch, Expert};

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
    /// A part of a [`Change`](crate::adapters::Change), by its name there.
    Part(&'static str),
    Alpha,
    Magnitude,
    WeightDifference,
    BiasDifference,
}

const DOWN: Role = Role::Part("lora_A.weight");
const UP: Role = Role::Part("lora_B.weight");

const ROLES: [(&str, Role); 24] = [
    (".lora_A.default.weight", DOWN),
    (".lora_B.default.weight", UP),
    (".lora_A.weight", DOWN),
    (".lora_B.weight", UP),
    (".lora_down.weight", DOWN),
    (".lora_up.weight", UP),
    (".lora.down.weight", DOWN),
    (".lora.up.weight", UP),
    (".hada_w1_a", Role::Part("hada_w1_a")),
    (".hada_w1_b", Role::Part("hada_w1_b")),
    (".hada_w2_a", Role::Part("hada_w2_a")),
    (".hada_w2_b", Role::Part("hada_w2_b")),
    (".lokr_w1", Role::Part("lokr_w1")),
    (".lokr_w1_a", Role::Part("lokr_w1_a")),
    (".lokr_w1_b", Role::Part("lokr_w1_b")),
    (".lokr_w2", Role::Part("lokr_w2")),
    (".lokr_w2_a", Role::Part("lokr_w2_a")),
    (".lokr_w2_b", Role::Part("lokr_w2_b")),
    (".alpha", Role::Alpha),
    (".dora_scale", Role::Magnitude),
    (".lora_magnitude_vector", Role::Magnitude),
    (".lora_magnitude_vector.weight", Role::Magnitude),
    (".diff", Role::WeightDifference),
    (".diff_b", Role::BiasDifference),
];

/// Key fragments of other kinds of adapters, with their names.
const OTHER_KINDS: [(&str, &str); 5] = [
    ("lokr_t", "a LoKr in Tucker's form"),
    ("hada_t", "a LoHa in Tucker's form"),
    ("lora_mid", "a LoRA in Tucker's form"),
    ("oft_", "OFT"),
    ("boft_", "BOFT"),
];

/// How keys begin whose dots were replaced by underscores: those of kohya's trainers, of OneTrainer and of LyCORIS.
const FLAT: [&str; 3] = ["lora_unet_", "lora_transformer_", "lycoris_"];

/// How the keys of text encoders begin.
const TEXT_ENCODERS: [&str; 6] = [
    "lora_te_",
    "lora_te1_",
    "lora_te2_",
    "lora_te3_",
    "text_encoder.",
    "text_encoder_2.",
];

/// Parses a key.
///
/// # Errors
/// If it is not that of a LoRA for `arch`.
pub(super) fn parse(key: &str, arch: &Arch) -> Result<Key, String> {
    let title = arch.title;
    if let Some((_, kind)) = OTHER_KINDS.iter().find(|(part, _)| key.contains(part)) {
        return Err(format!(
            "`{key}` belongs to {kind}, which is not supported: LoRA, DoRA, LoHa and LoKr are"
        ));
    }
    let role = ROLES
        .iter()
        .find_map(|(suffix, role)| Some((key.strip_suffix(suffix)?, *role)));
    let (path, role) = role.ok_or_else(|| format!("`{key}` is not a known LoRA tensor"))?;
    let unknown = || format!("`{key}` does not belong to a known layer of {title}'s transformer");
    if let Some(module) = text_module(path, arch) {
        return Ok(Key {
            module,
            role,
            expert: None,
        });
    }
    let flat = FLAT.iter().find_map(|prefix| path.strip_prefix(prefix));
    if let Some(flat) = flat {
        // Some files have two underscores.
        let flat = flat.strip_prefix('_').unwrap_or(flat);
        let module = flat_module(flat, arch).ok_or_else(unknown)?;
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
    if TEXT_ENCODERS.iter().any(|prefix| path.starts_with(prefix)) {
        return Err(format!(
            "`{key}` belongs to a text encoder: LoRAs are supported for {title}'s denoiser alone"
        ));
    }
    let mut dotted = path;
    let folder = format!("{}.", arch.denoiser_folder());
    for prefix in ["base_model.model.", "model.", "diffusion_model.", &folder] {
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
    let weight = (arch.denoiser.rename)(&format!("{dotted}.weight"), &[]);
    let module = weight
        .as_deref()
        .and_then(|weight| weight.strip_suffix(".weight"));
    let module = module
        .filter(|module| is_known(module, arch))
        .ok_or_else(unknown)?;
    Ok(Key {
        module: module.to_owned(),
        role,
        expert,
    })
}

/// The layer of a text encoder that a key names, in kohya's form or with dots.
fn text_module(path: &str, arch: &Arch) -> Option<String> {
    let dotted = path.strip_prefix("base_model.model.").unwrap_or(path);
    arch.lora.text.iter().find_map(|text| {
        let blocks = &text.blocks;
        let (encoder, list) = blocks.name.split_once('.')?;
        let flat = path.strip_prefix(text.prefix).and_then(|rest| {
            let rest = rest.strip_prefix(&blocks.original.replace('.', "_"))?;
            let (number, part) = rest.strip_prefix('_')?.split_once('_')?;
            let found = blocks
                .linear
                .iter()
                .find(|(name, _)| name.replace('.', "_") == part)?;
            Some((number.parse::<usize>().ok()?, found.0))
        });
        let named = || {
            let rest = dotted.strip_prefix(encoder)?.strip_prefix('.')?;
            let rest = rest.strip_prefix("text_model.").unwrap_or(rest);
            let (number, part) = rest
                .strip_prefix(list)?
                .strip_prefix('.')?
                .split_once('.')?;
            let found = blocks.linear.iter().find(|(name, _)| *name == part)?;
            Some((number.parse::<usize>().ok()?, found.0))
        };
        let (number, part) = flat.or_else(named)?;
        Some(format!("{}.{number}.{part}", blocks.name))
    })
}

/// Whether LoRA files for `arch` may change the layer that diffusers calls `module`.
pub(in crate::diffusion) fn is_known(module: &str, arch: &Arch) -> bool {
    match arch.part_of_block(module) {
        Some((list, _, part)) => list.parts().any(|(name, _)| name == part),
        None => arch.others.iter().any(|(name, _)| *name == module),
    }
}

/// The module of a name whose dots were replaced by underscores.
fn flat_module(flat: &str, arch: &Arch) -> Option<String> {
    let is = |name: &str, flat: &str| name.replace('.', "_") == flat;
    let mut others = arch.others.iter();
    if let Some((name, _)) = others.find(|(name, other)| is(name, flat) || is(other, flat)) {
        return Some((*name).to_owned());
    }
    arch.lists.iter().find_map(|list| {
        let after = |prefix: &str| {
            let rest = flat.strip_prefix(&*prefix.replace('.', "_"))?;
            rest.strip_prefix('_')
        };
        let rest = after(list.name).or_else(|| after(list.original))?;
        let (number, part) = rest.split_once('_')?;
        let number: u32 = number.parse().ok()?;
        // Of several parts with one original name, which they have as a whole, that is the whole's.
        let mut parts = list.others.iter().chain(list.linear);
        let (name, _) = parts.find(|(name, original)| is(name, part) || is(original, part))?;
        Some(format!("{}.{number}.{name}", list.name))
    })
}

/// The original name of a module with the diffusers name `module`.
pub(super) fn original_module(module: &str, arch: &Arch) -> String {
    match arch.part_of_block(module) {
        Some((list, number, part)) => {
            let found = list.parts().find(|(name, _)| *name == part);
            let original = found.map_or(part, |(_, original)| original);
            format!("{}.{number}.{original}", list.original)
        }
        None => {
            let found = arch.others.iter().find(|(name, _)| *name == module);
            found.map_or(module, |(_, original)| *original).to_owned()
        }
    }
}
