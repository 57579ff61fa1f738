//! Whether a model can be trained on this machine, and how, before there are data: what its training needs is measured as
//! before a run, with fake tensors. What was found is kept in the cache folder, by the model's files, the machine and the config.

use std::path::Path;

use placement::Bytes;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Offload, Quantization, Size};
use crate::data::cache_folder;
use crate::hub::{ModelKind, locate_model};
use crate::media;
use crate::memory_plan::unlimited;
use crate::setup::{self, Machine};
use crate::task::fit::Fitting;
use crate::{Allocator, Error, Observer, device};

/// The ways that are tried, from the best to the smallest: how frozen weights are quantised, and whether they are streamed.
const WAYS: [(Option<Quantization>, bool); 5] = [
    (None, false),
    (Some(Quantization::Int8), false),
    (Some(Quantization::Nf4), false),
    (Some(Quantization::Int8), true),
    (Some(Quantization::Nf4), true),
];

/// How a model fits into the memory of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// The device that would train it.
    pub device: String,
    /// Bytes of its memory that training can have if nothing else runs.
    pub memory: u64,
    /// What was tried until something fitted.
    pub ways: Vec<Way>,
}

/// One way to train a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// `model.quantization`.
    pub quantization: Option<Quantization>,
    /// Whether blocks are streamed: `model.offload: auto`.
    pub offload: bool,
    /// The most bytes on the device at once.
    pub need: u64,
    /// Whether there are so many.
    pub fits: bool,
}

/// Tries to fit the model of `config` into this machine's memory. No weights are loaded, and no data are read.
///
/// # Errors
/// If the config names no published model or no adapter, or the model cannot be trained with it.
pub fn fit(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
) -> Result<Fit, Error> {
    kept_in(&cache_folder().join("fits"), config, allocator, observer)
}

/// The same, where `folder` has what was found before.
fn kept_in(
    folder: &Path,
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
) -> Result<Fit, Error> {
    // Where memory decides how large passes are, it is enough that the smallest fits.
    let smallest = config
        .train
        .has_auto_batch()
        .then(|| config.in_passes_of(1));
    let config = smallest.as_ref().unwrap_or(config);
    let name = match (&config.model.name_or_path, &config.adapter) {
        (Some(name), Some(_)) => Path::new(name),
        _ => {
            return Err(Error::Data(
                "only for an adapter of a published model is tried what fits: set `model.name_or_path` and `adapter`"
                    .into(),
            ));
        }
    };
    let kind = match config.is_video() {
        true => ModelKind::Video,
        false => ModelKind::Text,
    };
    let path = locate_model(name, kind, &mut |text| observer.preparing(text))?;
    let machine = Machine::prepare(config, allocator)?;
    let placer = machine.placer()?;
    let memory = setup::memory_of_the_machine(allocator, &placer);
    let device = device::describe(placer.device());
    let place = folder.join(key(&path, &format!("{device} {memory:?}"), config)? + ".json");
    if let Some(found) = read(&place) {
        return Ok(found);
    }
    observer.preparing("opening the model");
    let fitting = Fitting::open(config, &path, placer.device(), observer)?;
    let limits = config.model.max_memory.unwrap_or_default();
    let limit = limits.device.map_or(u64::MAX, |Size(bytes)| bytes.0);
    let mut found = Fit {
        device,
        memory: memory.on_device().0.min(limit),
        ways: Vec::new(),
    };
    for (number, (quantization, offload)) in WAYS.into_iter().enumerate() {
        observer.preparing(&format!(
            "measuring a step: {} of {}",
            number + 1,
            WAYS.len()
        ));
        let mut way = config.clone();
        way.model.quantization = quantization;
        way.model.offload = offload.then_some(Offload::Auto);
        // What stays is compared here, since a plan that is refused tells no number.
        let within = match offload {
            true => memory,
            false => {
                way.model.max_memory = None;
                unlimited(memory)
            }
        };
        let Bytes(need) = match fitting.peak(&way, within) {
            Ok(Some(need)) => need,
            Ok(None) => continue,
            // Whatever it is, it concerns the model itself.
            Err(error) if number == 0 => return Err(error),
            Err(error) => {
                tracing::debug!(?quantization, offload, "no way to train it: {error}");
                continue;
            }
        };
        let fits = need <= found.memory;
        found.ways.push(Way {
            quantization,
            offload,
            need,
            fits,
        });
        if fits {
            break;
        }
    }
    if let Err(error) = write(&place, &found) {
        tracing::warn!("what fits is not cached: {error}");
    }
    Ok(found)
}

/// What is found depends on this alone.
fn key(model: &Path, machine: &str, config: &Config) -> Result<String, Error> {
    let text = serde_json::to_string(config).map_err(|error| Error::Internal(error.to_string()))?;
    let mut parts = vec![
        env!("CARGO_PKG_VERSION").to_owned(),
        machine.to_owned(),
        text,
    ];
    let mut folders = vec![(model.to_owned(), 2)];
    while let Some((path, depth)) = folders.pop() {
        let unread = |error| Error::io("read", &path, error);
        let known = path.metadata().map_err(unread)?;
        if known.is_dir() && depth > 0 {
            let entries = path.read_dir().map_err(unread)?;
            let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            entries.sort();
            entries.retain(|path| path.exists());
            folders.extend(entries.into_iter().map(|path| (path, depth - 1)));
        } else if known.is_file() {
            let told = |reason| Error::Data(format!("`{}`: {reason}", path.display()));
            parts.push(media::stamp(&path).map_err(told)?);
        }
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Ok(media::key(&parts))
}

fn read(place: &Path) -> Option<Fit> {
    serde_json::from_slice(&std::fs::read(place).ok()?).ok()
}

fn write(place: &Path, found: &Fit) -> std::io::Result<()> {
    if let Some(folder) = place.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let draft = place.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&draft, serde_json::to_vec(found)?)?;
    std::fs::rename(draft, place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoObserver;
    use crate::golden::golden;

    fn config(root: &Path, model: &str, more: &[&str]) -> Config {
        let (model, root) = (golden(model), root.display());
        let data = match model.is_dir() {
            true => format!("cache_dir: {root}/cache, resolution: 64"),
            false => "block_size: 48".to_owned(),
        };
        let text = format!(
            "name: a\noutput_dir: {root}/runs\ndevice: cpu\nmodel: {{name_or_path: {}}}\nadapter: {{r: 2}}\n\
             data: {{path: {root}/data, {data}}}\n\
             train: {{max_steps: 2, per_device_train_batch_size: 2, gradient_checkpointing: true}}\n",
            model.display()
        );
        let more: Vec<String> = more.iter().map(|&set| set.to_owned()).collect();
        Config::parse("fit.yaml", &text, &more).unwrap()
    }

    fn found(root: &Path, config: &Config) -> Fit {
        kept_in(
            &root.join("fits"),
            config,
            &Allocator::torch(),
            &mut NoObserver,
        )
        .unwrap()
    }

    #[test]
    fn the_first_way_that_fits_is_the_last_that_is_tried_and_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for model in ["z_image/model", "models/gemma3.gguf"] {
            let whole = found(root, &config(root, model, &[]));
            assert_eq!(whole.ways.len(), 1, "{whole:?}");
            let as_it_is = whole.ways[0];
            assert!(as_it_is.fits && as_it_is.quantization.is_none() && !as_it_is.offload);
            let less = format!("model.max_memory={{device: {}}}", as_it_is.need - 1);
            let small = config(root, model, &[&less]);
            let quantised = found(root, &small);
            assert_eq!(
                quantised.ways[0],
                Way {
                    fits: false,
                    ..as_it_is
                }
            );
            let last = quantised.ways.last().unwrap();
            assert!(last.fits && last.need < as_it_is.need, "{quantised:?}");
            // Nothing is measured twice, unless something is another.
            let count = || std::fs::read_dir(root.join("fits")).unwrap().count();
            let before = count();
            assert_eq!(found(root, &small), quantised);
            assert_eq!(count(), before);
            let nothing = found(
                root,
                &config(root, model, &["model.max_memory={device: 1000}"]),
            );
            assert!(nothing.ways.len() >= 3 && nothing.ways.iter().all(|way| !way.fits));
            assert_eq!((nothing.memory, count()), (1000, before + 1));
        }
    }

    /// What else a run has on the device is part of the verdict: control pictures, and another transformer between the turns of
    /// the trained one.
    #[test]
    fn control_pictures_and_a_second_transformer_count() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let need = |model: &str, more: &[&str]| {
            let found = found(root, &config(root, model, more));
            found.ways[0].need
        };
        let edit = |more: &[&str]| need("qwen_image_edit/model", more);
        let small = "data.control_resolution=64";
        let one = edit(&[small]);
        assert!(edit(&["data.control_resolution=96"]) > one);
        assert!(edit(&[small, "data.control_path=[a, b]"]) > one);
        let draws = ["sample.prompts=[red]"];
        let alone = need("qwen_image/model", &draws);
        for (key, path) in [
            ("sample.transformer", "qwen_image/model"),
            ("model.training_adapter", "qwen_image/lora.safetensors"),
        ] {
            let key = format!("{key}={}", golden(path).display());
            assert!(need("qwen_image/model", &[draws[0], &key]) > alone, "{key}");
            // Nothing is drawn without prompts.
            assert!(need("qwen_image/model", &[&key]) <= alone, "{key}");
        }
    }

    #[test]
    fn only_adapters_of_published_models_are_fitted() {
        let place = tempfile::tempdir().unwrap();
        let config = config(place.path(), "models/gemma3.gguf", &["adapter=null"]);
        let folder = place.path().join("fits");
        let refused = kept_in(&folder, &config, &Allocator::torch(), &mut NoObserver);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("set `model.name_or_path` and `adapter`"),
            "{refused}"
        );
    }
}
