//! The models on this machine that can be trained, for whoever chooses one.

use std::fs;
use std::path::{Path, PathBuf};

use models::diffusion::{self, Expert, Part};
use models::pretrained::Pretrained;
use serde::Serialize;
use tch::Device;

use crate::data::models_folder;
use crate::task::Makes;
use crate::{Allocator, device, hub, setup, single_file};

/// How deep below a folder models are looked for, and in how many folders at most.
const DEPTH: usize = 3;
const MAX_FOLDERS: usize = 4000;

/// Where a model was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelPlace {
    /// In a folder that was named.
    Folder,
    /// In the cache of the hub.
    Hub,
    /// In Surefoot's cache.
    Cache,
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundModel {
    /// What `model.name_or_path` calls it.
    pub name: String,
    /// Where it was found.
    pub place: ModelPlace,
    /// What it makes.
    pub makes: Makes,
    /// Its architecture, in the words of its authors.
    pub architecture: String,
    /// Bytes of the weights that training loads at once: those of the decoder, or of the largest denoiser.
    pub bytes: u64,
}

/// The models that were found, and the memory that there is for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundModels {
    /// In the order of the places, and of their names.
    pub models: Vec<FoundModel>,
    /// A description of the device that a run takes if its config names none.
    pub device: String,
    /// Bytes of its memory, if it tells.
    pub memory: Option<u64>,
}

/// Looks for models in the hub's cache, in Surefoot's, and below `folders`, whose links are followed only to places
/// inside `folders`.
pub fn found_models(folders: &[PathBuf]) -> FoundModels {
    let mut models = Vec::new();
    for (name, path) in hub::complete_models(&hub::Settings::of_the_environment()) {
        models.extend(model_at(&path, name, ModelPlace::Hub, &[]));
    }
    for path in entries(&models_folder()) {
        let name = path.file_name().map(|name| name.to_string_lossy());
        if let Some(name) = name.filter(|_| path.is_dir()) {
            models.extend(model_at(&path, name.into_owned(), ModelPlace::Cache, &[]));
        }
    }
    let roots: Vec<_> = folders
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let mut left = MAX_FOLDERS;
    for root in &roots {
        walk(root, &roots, DEPTH, &mut left, &mut models);
    }
    let mut seen = std::collections::BTreeSet::new();
    models.retain(|model: &FoundModel| seen.insert(model.name.clone()));
    let chosen = device::choose("auto").unwrap_or(Device::Cpu);
    let known = setup::free_and_total(&Allocator::torch(), chosen);
    FoundModels {
        models,
        device: device::describe(chosen),
        memory: known.map(|(_, total)| total),
    }
}

fn walk(
    folder: &Path,
    roots: &[PathBuf],
    depth: usize,
    left: &mut usize,
    models: &mut Vec<FoundModel>,
) {
    for path in entries(folder) {
        let Ok(real) = path.canonicalize() else {
            continue;
        };
        if !roots.iter().any(|root| real.starts_with(root)) {
            continue;
        }
        let name = path.to_string_lossy().into_owned();
        let found = model_at(&path, name, ModelPlace::Folder, roots);
        // The parts of a model are no models of their own.
        let is_model = found.is_some();
        models.extend(found);
        if !is_model && depth > 0 && path.is_dir() && *left > 0 {
            *left -= 1;
            walk(&path, roots, depth - 1, left, models);
        }
    }
}

/// What is in a folder, in the order of names, without what is hidden.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_hidden = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with('.')
    };
    let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| !is_hidden(path));
    found.sort();
    found
}

/// The model at `path`, if it is one that can be trained without naming other files; the parts beside a single file must be
/// inside `roots`.
fn model_at(path: &Path, name: String, place: ModelPlace, roots: &[PathBuf]) -> Option<FoundModel> {
    let is_gguf = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    let (makes, architecture, bytes) = match () {
        () if diffusion::is_at(path) => {
            let model = single_file::open_found(path, roots)?;
            let makes = Makes::of(model.as_ref());
            let experts = [Expert::High, Expert::Low];
            let parts = experts
                .into_iter()
                .filter_map(|expert| model.part(Part::Denoiser(expert)));
            let bytes = parts.map(|part| weight_bytes(&part)).max()?;
            (makes, model.arch().title.to_owned(), bytes)
        }
        () if path.join("config.json").is_file() || (is_gguf && path.is_file()) => {
            let model = Pretrained::open(path).ok()?;
            (
                Makes::of_language(&model),
                model.config.family.model_type.to_owned(),
                weight_bytes(path),
            )
        }
        () => return None,
    };
    (bytes > 0).then_some(FoundModel {
        name,
        place,
        makes,
        architecture,
        bytes,
    })
}

/// Bytes of a file of weights, or of those in a folder.
fn weight_bytes(path: &Path) -> u64 {
    let is_weights = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("safetensors" | "gguf" | "sft"))
    };
    let files = match path.is_dir() {
        true => entries(path),
        false => vec![path.to_owned()],
    };
    let sizes = files.iter().filter(|path| is_weights(path));
    sizes
        .filter_map(|path| Some(path.metadata().ok()?.len()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden;

    fn found_in(root: &Path) -> Vec<FoundModel> {
        let root = root.canonicalize().unwrap();
        let mut models = Vec::new();
        walk(
            &root,
            std::slice::from_ref(&root),
            DEPTH,
            &mut { MAX_FOLDERS },
            &mut models,
        );
        models
    }

    #[test]
    fn what_a_model_makes_is_read_from_its_files() {
        let place = tempfile::tempdir().unwrap();
        let chat = place.path().join("a/chat.gguf");
        fs::create_dir(place.path().join("a")).unwrap();
        fs::copy(golden("models/gemma3.gguf"), &chat).unwrap();
        fs::write(place.path().join("a/other.gguf"), "no model").unwrap();
        let [model] = &found_in(place.path())[..] else {
            panic!("one model");
        };
        assert!(model.name.ends_with("a/chat.gguf"), "{}", model.name);
        assert_eq!(
            (model.makes, model.place),
            (Makes::Chat, ModelPlace::Folder)
        );
        assert_eq!(model.bytes, chat.metadata().unwrap().len());
        let [model] = &found_in(&golden("z_image"))[..] else {
            panic!("one model");
        };
        assert_eq!(model.makes, Makes::Image);
        assert_eq!(
            model.bytes,
            weight_bytes(&golden("z_image/model/transformer"))
        );
    }

    #[test]
    fn a_single_file_is_a_model_if_its_other_parts_are_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let file = single_file::tests::comfyui_of_anima(place.path());
        let [model] = &found_in(place.path())[..] else {
            panic!("one model");
        };
        assert!(Path::new(&model.name).ends_with("diffusion_models/anima.safetensors"));
        assert_eq!(
            (model.makes, model.bytes),
            (Makes::Image, weight_bytes(&file))
        );
        // Nothing outside the folder is looked at.
        assert_eq!(found_in(&place.path().join("diffusion_models")), []);
        fs::remove_file(place.path().join("vae/qwen_image_vae.safetensors")).unwrap();
        assert_eq!(found_in(place.path()), []);
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_to_no_other_place() {
        let place = tempfile::tempdir().unwrap();
        for folder in ["in", "out"] {
            fs::create_dir(place.path().join(folder)).unwrap();
        }
        let model = place.path().join("out/chat.gguf");
        fs::copy(golden("models/gemma3.gguf"), model).unwrap();
        for (to, name) in [
            ("../out", "folder"),
            ("../out/chat.gguf", "file.gguf"),
            (".", "loop"),
        ] {
            std::os::unix::fs::symlink(to, place.path().join("in").join(name)).unwrap();
        }
        assert_eq!(found_in(&place.path().join("in")), []);
    }

    #[test]
    fn a_model_in_the_hubs_cache_is_complete_or_not_listed() {
        let cache = tempfile::tempdir().unwrap();
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = cache
            .path()
            .join("models--org--name/snapshots")
            .join(commit);
        let refs = cache.path().join("models--org--name/refs");
        for folder in [&snapshot, &refs] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::create_dir(cache.path().join("datasets--org--data")).unwrap();
        fs::write(refs.join("main"), commit).unwrap();
        let named = |name: &str| (name == "HF_HUB_CACHE").then(|| cache.path().into());
        let found = || hub::complete_models(&hub::Settings::from(&named));
        for file in ["config.json", "tokenizer.json"] {
            fs::write(snapshot.join(file), "{}").unwrap();
            assert_eq!(found(), []);
        }
        fs::write(snapshot.join("model.safetensors"), "").unwrap();
        assert_eq!(found(), [("org/name".to_owned(), snapshot)]);
    }
}
