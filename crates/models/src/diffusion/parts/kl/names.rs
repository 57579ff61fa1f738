//! The names of an autoencoder's weights in the original files, which are those of latent diffusion.

use crate::diffusion::files::PartNames;

/// The weights of a folder or of a single file.
pub const NAMES: PartNames = PartNames {
    rename,
    matrices: &[
        ".to_q.weight",
        ".to_k.weight",
        ".to_v.weight",
        ".to_out.0.weight",
    ],
    ..PartNames::DIFFUSERS
};

/// diffusers' name of a weight, whose name may be the original one.
fn rename(name: &str, all: &[String]) -> Option<String> {
    let plain = |name: &str| -> String {
        let prefixes = ["first_stage_model.", "vae."];
        let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
        rest.unwrap_or(name).to_owned()
    };
    let name = plain(name);
    let parts: Vec<&str> = name.split('.').collect();
    let (half, rest) = match parts.as_slice() {
        ["encoder", "quant_conv", part] => return Some(format!("quant_conv.{part}")),
        ["decoder", "post_quant_conv", part] => return Some(format!("post_quant_conv.{part}")),
        [half @ ("encoder" | "decoder"), rest @ ..] => (*half, rest),
        ["quant_conv" | "post_quant_conv", _] | ["bn", "running_mean" | "running_var"] => {
            return Some(name);
        }
        _ => return None,
    };
    let renamed = match rest {
        ["down", stage, "block", number, tail @ ..] => {
            format!("down_blocks.{stage}.resnets.{number}.{}", inside(tail))
        }
        ["down", stage, "downsample", tail @ ..] => {
            format!("down_blocks.{stage}.downsamplers.0.{}", tail.join("."))
        }
        ["up", stage, kind @ ("block" | "upsample"), tail @ ..] => {
            // Counted from the other end.
            let stage_of = |name: &String| -> Option<usize> {
                let rest = plain(name);
                rest.strip_prefix("decoder.up.")?
                    .split('.')
                    .next()?
                    .parse()
                    .ok()
            };
            let last = all.iter().filter_map(stage_of).max()?;
            let stage = last.checked_sub(stage.parse().ok()?)?;
            match (*kind, tail) {
                ("block", [number, tail @ ..]) => {
                    format!("up_blocks.{stage}.resnets.{number}.{}", inside(tail))
                }
                _ => format!("up_blocks.{stage}.upsamplers.0.{}", tail.join(".")),
            }
        }
        ["mid", "block_1", tail @ ..] => format!("mid_block.resnets.0.{}", inside(tail)),
        ["mid", "block_2", tail @ ..] => format!("mid_block.resnets.1.{}", inside(tail)),
        ["mid", "attn_1", tail @ ..] => format!("mid_block.attentions.0.{}", inside(tail)),
        ["mid_block", "attentions", "0", tail @ ..] => {
            format!("mid_block.attentions.0.{}", inside(tail))
        }
        ["norm_out", tail @ ..] => format!("conv_norm_out.{}", tail.join(".")),
        [
            "conv_in" | "conv_out" | "conv_norm_out" | "mid_block" | "down_blocks" | "up_blocks",
            ..,
        ] => rest.join("."),
        _ => return None,
    };
    Some(format!("{half}.{renamed}"))
}

/// The name of a weight in a residual block or an attention, which older versions of diffusers named otherwise.
fn inside(parts: &[&str]) -> String {
    let (first, tail) = parts.split_first().unwrap_or((&"", &[]));
    let first = match *first {
        "nin_shortcut" => "conv_shortcut",
        "norm" => "group_norm",
        "q" | "query" => "to_q",
        "k" | "key" => "to_k",
        "v" | "value" => "to_v",
        "proj_out" | "proj_attn" => "to_out.0",
        other => other,
    };
    [&[first], tail].concat().join(".")
}
