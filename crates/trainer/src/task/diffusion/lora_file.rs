//! Converts a trained adapter to a LoRA file, and chooses its format.

use std::path::Path;

use models::Parameters;
use models::adapters::{AdapterType, Attached, LoraConfig};
use models::diffusion::Arch;
use models::diffusion::lora::{LoraFile, LoraForm};
use models::formats::SafetensorsFile;

use crate::Error;
use crate::config::LoraFormat;

/// The format for the adapter `config` on these layers of a model whose lists have `blocks` blocks.
///
/// # Errors
/// If a layer is not in a block, or the requested format cannot represent all layers.
pub(super) fn form(
    wanted: Option<LoraFormat>,
    (config, layers): (&LoraConfig, &[String]),
    arch: &Arch,
    blocks: &[usize],
) -> Result<LoraForm, Error> {
    // What diffusers would drop without a word.
    let dropped = match config.kind {
        AdapterType::Lora => config.dora.then_some("DoRA"),
        kind => Some(kind.name()),
    };
    if let Some(half) = arch.half_adapted(layers).filter(|_| config.dora) {
        return Err(Error::Data(format!(
            "`adapter.use_dora`: LoRA files of {} have layers as one, of which `{half}` and others would have a magnitude and the \
             rest none: name all of them in `adapter.target_modules`, or none",
            arch.title
        )));
    }
    if config.dora {
        tracing::warn!(
            "ComfyUI divides the magnitudes of a DoRA's rows by the norms of the unchanged weight, so that it looks stronger there \
             (Comfy-Org/ComfyUI#15458); `surefoot convert-lora --rank R --base MODEL` makes a plain LoRA of the file"
        );
    }
    // Where kohya's form needs no layer, every layer has a name in it.
    let is_any_read = arch.lora.partial == LoraForm::Kohya;
    let known = |layer: &String| {
        let has = |list: &[(&str, &str)], name: &str| list.iter().any(|(own, _)| *own == name);
        match arch.part_of_block(layer) {
            Some((list, _, part)) => has(list.linear, part),
            None => is_any_read && (has(arch.others, layer) || arch.text_layer(layer).is_some()),
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
        Some(LoraFormat::Kohya) if !complete && !is_any_read && dropped.is_none() => {
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
        Some(LoraFormat::Diffusers) if layers.iter().any(|name| arch.text_layer(name).is_some()) => {
            Err(Error::Data(
                "`adapter.format: diffusers` has no name for the layers of text encoders. Use `kohya`, or drop the key".into(),
            ))
        }
        Some(LoraFormat::Diffusers) => match dropped {
            None => Ok(LoraForm::Diffusers),
            Some(what) => Err(Error::Data(format!(
                "`adapter.format: diffusers`: diffusers drops what it does not know of a {what} file. Use `comfy`, or drop the key"
            ))),
        },
        None if dropped.is_some() && !is_any_read => Ok(LoraForm::Comfy),
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

/// The trained changes, in fp32.
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
        let module = adapter.module(layer, parameters)?;
        file.modules.insert(layer.clone(), module);
    }
    Ok(file)
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
        let plain = LoraConfig::default();
        let form = |wanted, layers: &[String]| form(wanted, (&plain, layers), arch(), &[3]);
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
    fn what_diffusers_drops_is_in_a_form_for_comfyui() {
        for config in [
            LoraConfig {
                dora: true,
                ..LoraConfig::default()
            },
            LoraConfig {
                kind: AdapterType::Loha,
                ..LoraConfig::default()
            },
        ] {
            let all = layers(3);
            let form = |wanted| form(wanted, (&config, &all[..4]), arch(), &[3]);
            assert_eq!(form(None).unwrap(), LoraForm::Comfy);
            assert_eq!(form(Some(LoraFormat::Kohya)).unwrap(), LoraForm::Kohya);
            let error = form(Some(LoraFormat::Diffusers)).unwrap_err().to_string();
            assert!(error.contains("diffusers drops"), "{error}");
        }
    }
}
