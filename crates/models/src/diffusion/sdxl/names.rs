//! What the UNet's weights are called: in diffusers, and in checkpoints.

use crate::diffusion::files::{PartNames, bare};
use crate::diffusion::parts::clip;
use crate::diffusion::{BlockNames, TextLayers};

/// The UNet.
pub(super) const UNET: PartNames = PartNames {
    rename,
    // Older models have convolutions of one pixel there.
    matrices: &[".proj_in.weight", ".proj_out.weight"],
    ..PartNames::DIFFUSERS
};

/// The text encoders, whose weights have these names before them where they are part of the denoiser.
pub(super) const ENCODERS: [&str; 2] = ["text_encoder.", "text_encoder_2."];

/// Their layers in LoRA files.
pub(super) const TEXT: &[TextLayers] = &[
    TextLayers {
        prefix: "lora_te1_",
        blocks: encoder("text_encoder.encoder.layers"),
    },
    TextLayers {
        prefix: "lora_te2_",
        blocks: encoder("text_encoder_2.encoder.layers"),
    },
];

const fn encoder(name: &'static str) -> BlockNames {
    BlockNames {
        name,
        original: "text_model.encoder.layers",
        linear: &clip::LAYERS,
        others: &[],
    }
}

/// Residual blocks and attentions of each stage on the way down; on the way up there is one more.
pub(super) const LAYERS: usize = 2;

/// Parts of a residual block: names in diffusers and in checkpoints.
const RESIDUAL: [(&str, &str); 6] = [
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
];

/// Parts outside the stages: beginnings of names in diffusers and in checkpoints.
const OUTSIDE: [(&str, &str); 7] = [
    ("conv_in", "input_blocks.0.0"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
];

/// diffusers' name of a weight, whose name may be that of a checkpoint; `None` if it is of another part of that.
fn rename(name: &str, _: &[String]) -> Option<String> {
    let name = bare(name);
    let own = [
        "conv_in.",
        "conv_norm_out.",
        "conv_out.",
        "time_embedding.",
        "add_embedding.",
        "down_blocks.",
        "mid_block.",
        "up_blocks.",
    ];
    if own.iter().any(|start| name.starts_with(start)) {
        return Some(name.to_owned());
    }
    let outside = OUTSIDE.iter().find_map(|(renamed, original)| {
        let rest = name.strip_prefix(original)?.strip_prefix('.')?;
        Some(format!("{renamed}.{rest}"))
    });
    if outside.is_some() {
        return outside;
    }
    let (list, rest) = name.split_once('.')?;
    let (number, rest) = rest.split_once('.')?;
    let number: usize = number.parse().ok()?;
    let (stage, layer) = match list {
        "middle_block" => {
            return match number {
                1 => Some(format!("mid_block.attentions.0.{rest}")),
                _ => Some(format!(
                    "mid_block.resnets.{}.{}",
                    number / 2,
                    inside(rest)?
                )),
            };
        }
        "input_blocks" => {
            let number = number.checked_sub(1)?;
            (number / (LAYERS + 1), number % (LAYERS + 1))
        }
        "output_blocks" => (number / (LAYERS + 1), number % (LAYERS + 1)),
        _ => return None,
    };
    let stages = match list {
        "input_blocks" => "down_blocks",
        _ => "up_blocks",
    };
    let (part, rest) = rest.split_once('.')?;
    Some(match (part, rest.split_once('.')) {
        ("0", Some(("op", rest))) => format!("{stages}.{stage}.downsamplers.0.conv.{rest}"),
        (_, Some(("conv", rest))) => format!("{stages}.{stage}.upsamplers.0.conv.{rest}"),
        ("0", _) => format!("{stages}.{stage}.resnets.{layer}.{}", inside(rest)?),
        _ => format!("{stages}.{stage}.attentions.{layer}.{rest}"),
    })
}

/// The name of a weight in a residual block.
fn inside(name: &str) -> Option<String> {
    RESIDUAL.iter().find_map(|(renamed, original)| {
        let rest = name.strip_prefix(original)?.strip_prefix('.')?;
        Some(format!("{renamed}.{rest}"))
    })
}

/// The linear layers of a transformer's block.
const LINEAR: &[(&str, &str)] = &[
    ("attn1.to_q", "attn1.to_q"),
    ("attn1.to_k", "attn1.to_k"),
    ("attn1.to_v", "attn1.to_v"),
    ("attn1.to_out.0", "attn1.to_out.0"),
    ("attn2.to_q", "attn2.to_q"),
    ("attn2.to_k", "attn2.to_k"),
    ("attn2.to_v", "attn2.to_v"),
    ("attn2.to_out.0", "attn2.to_out.0"),
    ("ff.net.0.proj", "ff.net.0.proj"),
    ("ff.net.2", "ff.net.2"),
];

/// Its other parts.
const NORMS: &[(&str, &str)] = &[("norm1", "norm1"), ("norm2", "norm2"), ("norm3", "norm3")];

/// The blocks of the transformers, in the order of the forward pass, and everything else that a LoRA file may change,
/// from the names of attentions and residual blocks.
macro_rules! tables {
    (
        attentions: $($attention:literal $attention_was:literal)*;
        residuals: $($residual:literal $residual_was:literal)*;
        others: $($other:literal $other_was:literal)*;
    ) => {
        /// The lists of the transformers' blocks, of which a model may lack some.
        pub(super) const LISTS: &[BlockNames] = &[$(BlockNames {
            name: concat!($attention, ".transformer_blocks"),
            original: concat!($attention_was, ".transformer_blocks"),
            linear: LINEAR,
            others: NORMS,
        }),*];

        /// Parts outside the blocks that can be changed.
        pub(super) const OTHERS: &[(&str, &str)] = &[
            $(
                (concat!($attention, ".norm"), concat!($attention_was, ".norm")),
                (concat!($attention, ".proj_in"), concat!($attention_was, ".proj_in")),
                (concat!($attention, ".proj_out"), concat!($attention_was, ".proj_out")),
            )*
            $(
                (concat!($residual, ".norm1"), concat!($residual_was, ".in_layers.0")),
                (concat!($residual, ".conv1"), concat!($residual_was, ".in_layers.2")),
                (concat!($residual, ".time_emb_proj"), concat!($residual_was, ".emb_layers.1")),
                (concat!($residual, ".norm2"), concat!($residual_was, ".out_layers.0")),
                (concat!($residual, ".conv2"), concat!($residual_was, ".out_layers.3")),
                (concat!($residual, ".conv_shortcut"), concat!($residual_was, ".skip_connection")),
            )*
            $(($other, $other_was),)*
        ];
    };
}

tables! {
    attentions:
        "down_blocks.0.attentions.0" "input_blocks.1.1"
        "down_blocks.0.attentions.1" "input_blocks.2.1"
        "down_blocks.1.attentions.0" "input_blocks.4.1"
        "down_blocks.1.attentions.1" "input_blocks.5.1"
        "down_blocks.2.attentions.0" "input_blocks.7.1"
        "down_blocks.2.attentions.1" "input_blocks.8.1"
        "mid_block.attentions.0" "middle_block.1"
        "up_blocks.0.attentions.0" "output_blocks.0.1"
        "up_blocks.0.attentions.1" "output_blocks.1.1"
        "up_blocks.0.attentions.2" "output_blocks.2.1"
        "up_blocks.1.attentions.0" "output_blocks.3.1"
        "up_blocks.1.attentions.1" "output_blocks.4.1"
        "up_blocks.1.attentions.2" "output_blocks.5.1"
        "up_blocks.2.attentions.0" "output_blocks.6.1"
        "up_blocks.2.attentions.1" "output_blocks.7.1"
        "up_blocks.2.attentions.2" "output_blocks.8.1";
    residuals:
        "down_blocks.0.resnets.0" "input_blocks.1.0"
        "down_blocks.0.resnets.1" "input_blocks.2.0"
        "down_blocks.1.resnets.0" "input_blocks.4.0"
        "down_blocks.1.resnets.1" "input_blocks.5.0"
        "down_blocks.2.resnets.0" "input_blocks.7.0"
        "down_blocks.2.resnets.1" "input_blocks.8.0"
        "mid_block.resnets.0" "middle_block.0"
        "mid_block.resnets.1" "middle_block.2"
        "up_blocks.0.resnets.0" "output_blocks.0.0"
        "up_blocks.0.resnets.1" "output_blocks.1.0"
        "up_blocks.0.resnets.2" "output_blocks.2.0"
        "up_blocks.1.resnets.0" "output_blocks.3.0"
        "up_blocks.1.resnets.1" "output_blocks.4.0"
        "up_blocks.1.resnets.2" "output_blocks.5.0"
        "up_blocks.2.resnets.0" "output_blocks.6.0"
        "up_blocks.2.resnets.1" "output_blocks.7.0"
        "up_blocks.2.resnets.2" "output_blocks.8.0";
    others:
        "conv_in" "input_blocks.0.0"
        "conv_norm_out" "out.0"
        "conv_out" "out.2"
        "time_embedding.linear_1" "time_embed.0"
        "time_embedding.linear_2" "time_embed.2"
        "add_embedding.linear_1" "label_emb.0.0"
        "add_embedding.linear_2" "label_emb.0.2"
        "down_blocks.0.downsamplers.0.conv" "input_blocks.3.0.op"
        "down_blocks.1.downsamplers.0.conv" "input_blocks.6.0.op"
        "up_blocks.0.upsamplers.0.conv" "output_blocks.2.2.conv"
        "up_blocks.1.upsamplers.0.conv" "output_blocks.5.2.conv";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables say what the renaming does.
    #[test]
    fn tables_and_renaming_agree() {
        let lists = LISTS.iter().map(|list| (list.name, list.original));
        for (name, original) in lists.chain(OTHERS.iter().copied()) {
            let renamed = rename(&format!("{original}.weight"), &[]);
            assert_eq!(renamed, Some(format!("{name}.weight")));
            let kept = rename(&format!("{name}.weight"), &[]);
            assert_eq!(kept, Some(format!("{name}.weight")));
        }
        for other in [
            "first_stage_model.encoder.conv_in.weight",
            "conditioner.embedders.0.transformer.text_model.x",
            "v_pred",
            "input_blocks.0.x",
        ] {
            assert_eq!(rename(other, &[]), None, "{other}");
        }
    }
}
