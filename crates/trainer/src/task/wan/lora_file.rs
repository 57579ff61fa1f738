//! The file of a LoRA, under the names that ComfyUI, diffusers and musubi-tuner look for.
//!
//! | form | one layer | strength |
//! |---|---|---|
//! | kohya | `lora_unet_blocks_0_self_attn_q.lora_down.weight`, `.lora_up.weight` | `.alpha` |
//! | comfy | `diffusion_model.blocks.0.self_attn.q.lora_A.weight`, `.lora_B.weight` | in `lora_B` |
//! | diffusers | `transformer.blocks.0.attn1.to_q.lora_A.weight`, `.lora_B.weight` | in `lora_B` |

use std::path::Path;

use models::Parameters;
use models::adapters::{Attached, LoraConfig};
use regex::Regex;
use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::config::LoraFormat;

/// Linear layers of a block in diffusers, and in the original files.
const NAMES: [(&str, &str); 10] = [
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

/// The form that a LoRA on these layers of a model of `blocks` blocks gets.
///
/// # Errors
/// When a layer is in no block, or the form that was asked for cannot hold part of the layers.
pub(super) fn form(
    wanted: Option<LoraFormat>,
    layers: &[String],
    blocks: i64,
) -> Result<LoraFormat, Error> {
    if let Some(other) = layers.iter().find(|layer| original(layer).is_none()) {
        return Err(Error::Data(format!(
            "`adapter.target_modules` name `{other}`, which programs that load LoRAs of Wan do not \
             know: the layers of blocks are {}",
            NAMES.map(|(name, _)| name).join(", ")
        )));
    }
    let complete = layers.len() as i64 == blocks * NAMES.len() as i64;
    match wanted {
        Some(LoraFormat::Kohya) if !complete => Err(Error::Data(format!(
            "`adapter.format: kohya` needs an adapter on all {} linear layers of each of the {blocks} blocks \
             (there are {}): diffusers cannot load such a file with some missing. Use `comfy`, or drop \
             the key",
            NAMES.len(),
            layers.len()
        ))),
        Some(format) => Ok(format),
        None if complete => Ok(LoraFormat::Kohya),
        None => Ok(LoraFormat::Comfy),
    }
}

/// `blocks.0.attn1.to_q` as the original files call it.
fn original(layer: &str) -> Option<String> {
    let (number, part) = layer.strip_prefix("blocks.")?.split_once('.')?;
    let found = NAMES.iter().find(|(name, _)| *name == part);
    found.map(|(_, original)| format!("blocks.{number}.{original}"))
}

/// Writes the LoRA to the new file `path`; `about` goes into its metadata.
///
/// # Errors
/// When a layer has no trained matrices, or the file cannot be written.
pub(super) fn write(
    path: &Path,
    format: LoraFormat,
    adapter: &Attached,
    parameters: &Parameters,
    about: &[(&str, String)],
) -> Result<(), Error> {
    let mut tensors = Vec::new();
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
        let scaling = scaling(&adapter.config, layer, rank)?;
        let original = original(layer).ok_or_else(|| Error::Internal(layer.clone()))?;
        let folded = || up.f_mul_scalar(scaling);
        match format {
            LoraFormat::Kohya => {
                let name = format!("lora_unet_{}", original.replace('.', "_"));
                let alpha = Tensor::f_from_slice(&[(scaling * rank as f64) as f32])?;
                tensors.push((format!("{name}.lora_down.weight"), down));
                tensors.push((format!("{name}.lora_up.weight"), up));
                tensors.push((format!("{name}.alpha"), alpha.f_reshape([0i64; 0])?));
            }
            LoraFormat::Comfy => {
                let name = format!("diffusion_model.{original}");
                tensors.push((format!("{name}.lora_A.weight"), down));
                tensors.push((format!("{name}.lora_B.weight"), folded()?));
            }
            LoraFormat::Diffusers => {
                let name = format!("transformer.{layer}");
                tensors.push((format!("{name}.lora_A.weight"), down));
                tensors.push((format!("{name}.lora_B.weight"), folded()?));
            }
        }
    }
    let bytes = file(&tensors, about)?;
    std::fs::write(path, bytes).map_err(|error| Error::io("write", path, error))
}

/// What the change to a layer is multiplied by: PEFT's rule.
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

/// A safetensors file of fp32 tensors, whose metadata are in the order of `about`: the same LoRA gives the
/// same bytes.
fn file(tensors: &[(String, Tensor)], about: &[(&str, String)]) -> Result<Vec<u8>, Error> {
    let mut header = Map::new();
    let notes = about
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)));
    header.insert("__metadata__".into(), Value::Object(notes.collect()));
    let mut data: Vec<u8> = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        let numbers = Vec::<f32>::try_from(&tensor.f_flatten(0, -1)?)?;
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let entry = json!({
            "dtype": "F32",
            "shape": tensor.size(),
            "data_offsets": [start, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes.append(&mut data);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(blocks: i64) -> Vec<String> {
        let of_block = |block: i64| NAMES.map(|(name, _)| format!("blocks.{block}.{name}"));
        (0..blocks).flat_map(of_block).collect()
    }

    #[test]
    fn the_form_is_one_that_all_programs_read_where_there_is_one() {
        let all = layers(3);
        let form = |wanted, layers: &[String]| form(wanted, layers, 3);
        assert_eq!(form(None, &all).unwrap(), LoraFormat::Kohya);
        assert_eq!(form(None, &all[..4]).unwrap(), LoraFormat::Comfy);
        let wanted = Some(LoraFormat::Diffusers);
        assert_eq!(form(wanted, &all[..4]).unwrap(), LoraFormat::Diffusers);
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
