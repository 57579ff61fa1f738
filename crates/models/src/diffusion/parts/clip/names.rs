//! What a text encoder's weights are called: in transformers' files, and in those of OpenCLIP.

use crate::diffusion::files::PartNames;

/// An encoder under transformers' names, in a folder or in a checkpoint of Stability AI's form.
pub const TRANSFORMERS: PartNames = PartNames {
    rename: |name, all| {
        let prefix = "conditioner.embedders.0.transformer.";
        own(of_checkpoint(name, prefix, all)?)
    },
    ..PartNames::TRANSFORMERS
};

/// An encoder in a folder under transformers' names, or in a checkpoint of Stability AI's form under OpenCLIP's.
pub const OPEN_CLIP: PartNames = PartNames {
    rename: |name, all| {
        let name = of_checkpoint(name, "conditioner.embedders.1.model.", all)?;
        own(name).or_else(|| renamed(name))
    },
    stacked: &[
        (
            ".in_proj_weight",
            &[".q_proj.weight", ".k_proj.weight", ".v_proj.weight"],
        ),
        (
            ".in_proj_bias",
            &[".q_proj.bias", ".k_proj.bias", ".v_proj.bias"],
        ),
    ],
    ..PartNames::TRANSFORMERS
};

/// The name without `prefix`, which all weights of the encoder have in a checkpoint.
fn of_checkpoint<'a>(name: &'a str, prefix: &str, all: &[String]) -> Option<&'a str> {
    match name.strip_prefix(prefix) {
        Some(rest) => Some(rest),
        // Nothing else in a checkpoint is a part of it.
        None if all.iter().any(|other| other.starts_with(prefix)) => None,
        None => Some(name),
    }
}

/// transformers' name without the prefix that older versions wrote; `None` for another name, or for what is no weight.
fn own(name: &str) -> Option<String> {
    let name = name.strip_prefix("text_model.").unwrap_or(name);
    let weights = ["embeddings.", "encoder.layers.", "final_layer_norm."];
    let is_weight =
        weights.iter().any(|start| name.starts_with(start)) && !name.ends_with(".position_ids");
    (is_weight || name == "text_projection.weight").then(|| name.to_owned())
}

/// transformers' name of a weight of OpenCLIP's, but for the last matrix, which is the other way round there.
fn renamed(name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("transformer.resblocks.") {
        let rest = rest
            .replace(".ln_1.", ".layer_norm1.")
            .replace(".ln_2.", ".layer_norm2.")
            .replace(".attn.", ".self_attn.")
            .replace(".mlp.c_fc.", ".mlp.fc1.")
            .replace(".mlp.c_proj.", ".mlp.fc2.");
        return Some(format!("encoder.layers.{rest}"));
    }
    Some(match name {
        "token_embedding.weight" => "embeddings.token_embedding.weight".to_owned(),
        "positional_embedding" => "embeddings.position_embedding.weight".to_owned(),
        "text_projection" => name.to_owned(),
        _ => format!("final_layer_norm.{}", name.strip_prefix("ln_final.")?),
    })
}
