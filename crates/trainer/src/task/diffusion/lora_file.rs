//! Converts a trained adapter to a LoRA file, and chooses its format.

use std::path::Path;

use models::Parameters;
use models::adapters::{Attached, LoraConfig};
use models::diffusion::Arch;
use models::diffusion::lora::{LoraFile, LoraForm, LoraModule};
use models::formats::SafetensorsFile;
use regex::Regex;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::config::LoraFormat;

/// The format for a LoRA on these layers of a model whose lists have `blocks` blocks.
///
/// # Errors
/// If a layer is not in a block, or the requested format cannot represent all layers.
pub(super) fn form(
    wanted: Option<LoraFormat>,
    layers: &[String],
    arch: &Arch,
    blocks: &[usize],
) -> Result<LoraForm, Error> {
    // Where kohya's form needs no layer, every layer has a name in it.
    let is_any_read = arch.lora.partial == LoraForm::Kohya;
    let known = |layer: &String| {
        let has = |list: &[(&str, &str)], name: &str| list.iter().any(|(own, _)| *own == name);
        match arch.part_of_block(layer) {
            Some((list, _, part)) => has(list.linear, part),
            None => is_any_read && has(arch.others, layer),
        }
    };
    if let Some(other) = layers.iter().find(|layer| !known(layer)) {
        let names = arch.lists.iter().flat_map(|list| list.linear);
        let names: Vec<_> = names.map(|(name, _)| *name).collect();
        return Err(Error::Data(format!(
            "`adapter.target_modules` name `{other}`, which programs that load LoRAs of {} do not \
             know: the layers of blocks are {}",
            arch.title,
            names.join(", ")
        )));
    }
    let lists = arch.lists.iter().zip(blocks);
    let all: usize = lists.map(|(list, count)| count * list.linear.len()).sum();
    let complete = layers.len() == all;
    match wanted {
        Some(LoraFormat::Kohya) if !complete && !is_any_read => {
            let each: Vec<String> = (arch.lists.iter().zip(blocks))
                .map(|(list, count)| {
                    let layers = list.linear.len();
                    format!("all {layers} linear layers of each of the {count} blocks")
                })
                .collect();
            Err(Error::Data(format!(
                "`adapter.format: kohya` needs an adapter on {} (there are {}): diffusers cannot load such a file with \
                 some missing. Use `comfy`, or drop the key",
                each.join(" and "),
                layers.len()
            )))
        }
        Some(LoraFormat::Kohya) if arch.split_layer().is_some() => Err(Error::Data(format!(
            "`adapter.format: kohya` is not written for {}: programs that have some of its layers as one would leave \
             those out. Use `comfy`, or drop the key",
            arch.title
        ))),
        Some(LoraFormat::Kohya) if !arch.lora.kohya => Err(Error::Data(format!(
            "`adapter.format: kohya` is not written for {}: diffusers would ignore such a file without a word. Use \
                 `comfy`, or drop the key",
            arch.title
        ))),
        Some(LoraFormat::Kohya) => Ok(LoraForm::Kohya),
        Some(LoraFormat::Comfy) => Ok(LoraForm::Comfy),
        Some(LoraFormat::Diffusers) => Ok(LoraForm::Diffusers),
        None if complete => Ok(arch.lora.complete),
        None => Ok(arch.lora.partial),
    }
}

/// The tensors of the LoRA at `path`, a file or a folder of PEFT.
pub(super) fn weights(path: &Path) -> Result<SafetensorsFile, Error> {
    let file = match path.is_dir() {
        true => path.join("adapter_model.safetensors"),
        false => path.to_owned(),
    };
    Ok(SafetensorsFile::open(&file)?)
}

/// The trained matrices, in fp32.
///
/// # Errors
/// If a layer has none.
pub(super) fn of(
    adapter: &Attached,
    parameters: &Parameters,
    arch: &'static Arch,
) -> Result<LoraFile, Error> {
    let mut file = LoraFile::new(arch);
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

    fn arch() -> &'static Arch {
        models::diffusion::REGISTRY[0]
    }

    fn layers(blocks: usize) -> Vec<String> {
        let of_block = |block| arch().lists[0].linear_layers(block);
        (0..blocks).flat_map(of_block).collect()
    }

    #[test]
    fn the_form_is_one_that_all_programs_read_where_there_is_one() {
        let all = layers(3);
        let form = |wanted, layers: &[String]| form(wanted, layers, arch(), &[3]);
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
