//! Converts a trained adapter to a LoRA file for Wan, and chooses its format.

use models::Parameters;
use models::adapters::{Attached, LoraConfig};
use models::diffusion::lora::{LINEAR, LoraFile, LoraForm, LoraModule};
use regex::Regex;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::config::LoraFormat;

/// The format for a LoRA on these layers of a model with `blocks` blocks.
///
/// # Errors
/// If a layer is not in a block, or the requested format cannot represent all layers.
pub(super) fn form(
    wanted: Option<LoraFormat>,
    layers: &[String],
    blocks: i64,
) -> Result<LoraForm, Error> {
    if let Some(other) = layers.iter().find(|layer| !is_known(layer)) {
        return Err(Error::Data(format!(
            "`adapter.target_modules` name `{other}`, which programs that load LoRAs of Wan do not \
             know: the layers of blocks are {}",
            LINEAR.map(|(name, _)| name).join(", ")
        )));
    }
    let complete = layers.len() as i64 == blocks * LINEAR.len() as i64;
    match wanted {
        Some(LoraFormat::Kohya) if !complete => Err(Error::Data(format!(
            "`adapter.format: kohya` needs an adapter on all {} linear layers of each of the {blocks} blocks \
             (there are {}): diffusers cannot load such a file with some missing. Use `comfy`, or drop \
             the key",
            LINEAR.len(),
            layers.len()
        ))),
        Some(LoraFormat::Comfy) => Ok(LoraForm::Comfy),
        Some(LoraFormat::Diffusers) => Ok(LoraForm::Diffusers),
        _ if complete => Ok(LoraForm::Kohya),
        _ => Ok(LoraForm::Comfy),
    }
}

/// Whether other programs support the linear layer, such as `blocks.0.attn1.to_q`.
fn is_known(layer: &str) -> bool {
    let part = layer
        .strip_prefix("blocks.")
        .and_then(|rest| rest.split_once('.'));
    part.is_some_and(|(_, part)| LINEAR.iter().any(|(name, _)| *name == part))
}

/// The trained matrices, in fp32.
pub(super) fn of(adapter: &Attached, parameters: &Parameters) -> Result<LoraFile, Error> {
    let mut file = LoraFile::default();
    for layer in &adapter.modules {
        let matrix = |part: &str| -> Result<Tensor, Error> {
            let name = format!("base_model.model.{layer}.{part}.weight");
            let found = parameters.iter().find(|parameter| parameter.name == name);
            let found = found.ok_or_else(|| Error::Internal(format!("there is no `{name}`")))?;
            let tensor = found.tensor.f_detach()?.f_to_device(Device::Cpu)?;
            Ok(tensor.f_to_kind(Kind::Float)?.f_contiguous()?)
        };
        let (down, up) = (matrix("lora_A")?, matrix("lora_B")?);
        let rank = down.size()[0];
        let alpha = scaling(&adapter.config, layer, rank)? * rank as f64;
        let module = LoraModule { down, up, alpha };
        file.modules.insert(layer.clone(), module);
    }
    Ok(file)
}

/// The scale of a layer's change, by PEFT's rule.
fn scaling(config: &LoraConfig, layer: &str, rank: i64) -> Result<f64, Error> {
    let mut alpha = config.alpha;
    for (pattern, other) in &config.alpha_pattern {
        let regex = Regex::new(&format!(r"\A(?:.*\.)?(?:{pattern})\z"))
            .map_err(|error| Error::Data(format!("`adapter.alpha_pattern`: {error}")))?;
        if regex.is_match(layer) {
            alpha = *other;
            break;
        }
    }
    Ok(match config.rslora {
        true => alpha / (rank as f64).sqrt(),
        false => alpha / rank as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(blocks: i64) -> Vec<String> {
        let of_block = |block: i64| LINEAR.map(|(name, _)| format!("blocks.{block}.{name}"));
        (0..blocks).flat_map(of_block).collect()
    }

    #[test]
    fn the_form_is_one_that_all_programs_read_where_there_is_one() {
        let all = layers(3);
        let form = |wanted, layers: &[String]| form(wanted, layers, 3);
        assert_eq!(form(None, &all).unwrap(), LoraForm::Kohya);
        assert_eq!(form(None, &all[..4]).unwrap(), LoraForm::Comfy);
        let wanted = Some(LoraFormat::Diffusers);
        assert_eq!(form(wanted, &all[..4]).unwrap(), LoraForm::Diffusers);
        let error = form(Some(LoraFormat::Kohya), &all[..4])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("all 10 linear layers of each of the 3"),
            "{error}"
        );
        let error = form(None, &["proj_out".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("`proj_out`"), "{error}");
    }

    #[test]
    fn strength_follows_the_rank_and_the_patterns() {
        let mut config = LoraConfig {
            alpha: 8.0,
            ..LoraConfig::default()
        };
        config.alpha_pattern.insert("ffn.*".into(), 2.0);
        assert_eq!(scaling(&config, "blocks.1.attn1.to_q", 4).unwrap(), 2.0);
        assert_eq!(scaling(&config, "blocks.1.ffn.net.2", 4).unwrap(), 0.5);
        config.rslora = true;
        assert_eq!(scaling(&config, "blocks.1.attn1.to_q", 4).unwrap(), 4.0);
    }
}
