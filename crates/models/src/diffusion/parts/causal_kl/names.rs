//! What the weights are called: in diffusers' folders, which is what the code uses, and in the original files.

use crate::diffusion::files::PartNames;

/// How the weights are found and named.
pub const NAMES: PartNames = PartNames {
    rename,
    ..PartNames::DIFFUSERS
};

/// diffusers' name of an autoencoder weight, whose name may be the original one.
fn rename(name: &str, all: &[String]) -> Option<String> {
    let residual = all.iter().any(|name| {
        name.contains("samples.0.downsamples.") || name.contains("samples.0.upsamples.")
    });
    let parts: Vec<&str> = name.split('.').collect();
    let (half, rest) = parts.split_first()?;
    match *half {
        "conv1" => return Some(format!("quant_conv.{}", rest.join("."))),
        "conv2" => return Some(format!("post_quant_conv.{}", rest.join("."))),
        "quant_conv" | "post_quant_conv" => return Some(name.to_owned()),
        "encoder" | "decoder" => {}
        _ => return None,
    }
    let inner = |parts: &[&str]| -> String {
        match parts {
            ["residual", "0", role @ ..] => format!("norm1.{}", role.join(".")),
            ["residual", "2", role @ ..] => format!("conv1.{}", role.join(".")),
            ["residual", "3", role @ ..] => format!("norm2.{}", role.join(".")),
            ["residual", "6", role @ ..] => format!("conv2.{}", role.join(".")),
            ["shortcut", role @ ..] => format!("conv_shortcut.{}", role.join(".")),
            other => other.join("."),
        }
    };
    // The last part of a stage resamples.
    let resamples = |parts: &[&str]| matches!(parts.first(), Some(&("resample" | "time_conv")));
    Some(match rest {
        ["conv1", role @ ..] => format!("{half}.conv_in.{}", role.join(".")),
        ["head", "0", role @ ..] => format!("{half}.norm_out.{}", role.join(".")),
        ["head", "2", role @ ..] => format!("{half}.conv_out.{}", role.join(".")),
        ["middle", "0", tail @ ..] => format!("{half}.mid_block.resnets.0.{}", inner(tail)),
        ["middle", "1", tail @ ..] => format!("{half}.mid_block.attentions.0.{}", inner(tail)),
        ["middle", "2", tail @ ..] => format!("{half}.mid_block.resnets.1.{}", inner(tail)),
        ["downsamples", stage, "downsamples", number, tail @ ..] if residual => {
            let inside = inner(tail);
            match resamples(tail) {
                true => format!("{half}.down_blocks.{stage}.downsampler.{inside}"),
                false => format!("{half}.down_blocks.{stage}.resnets.{number}.{inside}"),
            }
        }
        ["upsamples", stage, "upsamples", number, tail @ ..] if residual => {
            let inside = inner(tail);
            match resamples(tail) {
                true => format!("{half}.up_blocks.{stage}.upsampler.{inside}"),
                false => format!("{half}.up_blocks.{stage}.resnets.{number}.{inside}"),
            }
        }
        ["downsamples", number, tail @ ..] => {
            format!("{half}.down_blocks.{number}.{}", inner(tail))
        }
        // Each stage has three residual blocks and an upsampler.
        ["upsamples", number, tail @ ..] => {
            let number: i64 = number.parse().ok()?;
            let (stage, number) = (number / 4, number % 4);
            let inside = inner(tail);
            match number {
                3 => format!("{half}.up_blocks.{stage}.upsamplers.0.{inside}"),
                number => format!("{half}.up_blocks.{stage}.resnets.{number}.{inside}"),
            }
        }
        [
            "conv_in" | "norm_out" | "conv_out" | "mid_block" | "down_blocks" | "up_blocks",
            ..,
        ] => name.to_owned(),
        _ => return None,
    })
}
