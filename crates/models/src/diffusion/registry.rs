//! Which kinds of models there are.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use super::files::{PartFile, is_language_model};
use super::{
    Arch, Diffusion, Expert, Part, PartPaths, anima, flux1, flux2, krea2, qwen_image, sdxl, wan,
    z_image,
};
use crate::Error;
use crate::formats::Gguf;
use crate::json::Object;

/// The kinds of models that come with this crate.
pub static REGISTRY: [&Arch; 10] = [
    &wan::ARCH,
    &z_image::ARCH,
    // Each before those that take its LoRAs for their own.
    &flux1::ARCH,
    &flux1::chroma::ARCH,
    &flux2::ARCH,
    &anima::ARCH,
    &sdxl::ARCH,
    &qwen_image::ARCH,
    &krea2::ARCH,
    &qwen_image::EDIT,
];

/// Those that a program has added.
static ADDED: RwLock<Vec<&'static Arch>> = RwLock::new(Vec::new());

/// The files that name the parts of a folder: that of a pipeline, and that of a modular one.
pub const INDEXES: [&str; 2] = ["model_index.json", "modular_model_index.json"];

/// Adds a kind of model that is not in this crate; from then on it is trained and sampled like the others.
pub fn register(arch: &'static Arch) {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    if added.iter().all(|other| other.name != arch.name) {
        added.push(arch);
    }
}

/// All kinds of models.
pub fn archs() -> Vec<&'static Arch> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    REGISTRY.iter().chain(added.iter()).copied().collect()
}

/// The file that names the parts of `folder`, if there is one.
pub fn index_of(folder: &Path) -> Option<PathBuf> {
    let mut files = INDEXES.iter().map(|name| folder.join(name));
    files.find(|file| file.is_file())
}

/// Whether `path` is a diffusion model rather than a language model: a diffusers folder, or a single file of a
/// denoiser.
pub fn is_at(path: &Path) -> bool {
    index_of(path).is_some() || of_file(path).is_some()
}

/// The kind of a denoiser's file.
pub fn of_file(path: &Path) -> Option<&'static Arch> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let may_be = match extension {
        Some("safetensors" | "sft") => path.is_file(),
        Some("gguf") => Gguf::open(path).is_ok_and(|file| !is_language_model(&file)),
        _ => false,
    };
    if !may_be {
        return None;
    }
    archs().into_iter().find(|arch| {
        let part = PartFile::open(&arch.denoiser, path);
        part.is_ok_and(|part| (arch.is_denoiser)(&part))
    })
}

fn opened(arch: &Arch, path: &Path, parts: &PartPaths) -> Result<Box<dyn Diffusion>, Error> {
    match &parts.text_encoder_2 {
        Some(other) if !arch.has_two_encoders() => {
            let reason = format!(
                "is given as second text encoder, but {} has one",
                arch.title
            );
            Err(Error::file(other, reason))
        }
        _ => (arch.open)(path, parts),
    }
}

/// Reads the configs of the diffusers folder at `path`, or the shapes of single files: `path` is then the
/// denoiser, and `parts` names the others.
///
/// # Errors
/// If a file is missing or damaged, or its content is not supported.
pub fn open(path: &Path, parts: &PartPaths) -> Result<Box<dyn Diffusion>, Error> {
    if !path.is_dir() {
        // The first one says what it misses.
        let arch = of_file(path).unwrap_or(REGISTRY[0]);
        return opened(arch, path, parts);
    }
    let Some(index) = index_of(path) else {
        let reason = format!(
            "has no `{}`: an image or video model is a folder as diffusers saves it, or a single file of its \
             transformer",
            INDEXES[0]
        );
        return Err(Error::file(path, reason));
    };
    let index = Object::read(&index)?;
    let class = index.text("_class_name")?.unwrap_or("none");
    let known = archs();
    let mut fitting = known.iter().filter(|arch| arch.pipelines.contains(&class));
    match fitting.next() {
        Some(arch) => opened(arch, path, parts),
        None => {
            let names = known.iter().flat_map(|arch| arch.pipelines);
            let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
            let (last, others) = names
                .split_last()
                .map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
            let list = format!("{} and {last}", others.join(", "));
            Err(index.error(
                "_class_name",
                format!("is {class:?}: only {list} are supported"),
            ))
        }
    }
}

/// The kind and the weights of a denoiser: of the diffusers folder at `path`, or in that single file, whose other parts need
/// not be there.
///
/// # Errors
/// If there is none, or a file is damaged or not supported.
pub fn denoiser_at(path: &Path, expert: Expert) -> Result<(&'static Arch, PartFile), Error> {
    if path.is_dir() {
        let model = open(path, &PartPaths::default())?;
        return Ok((model.arch(), model.weights(Part::Denoiser(expert))?));
    }
    let arch = of_file(path)
        .ok_or_else(|| Error::file(path, "is no denoiser of a model that is known here"))?;
    Ok((arch, PartFile::open(&arch.denoiser, path)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden;

    #[test]
    fn a_denoisers_file_is_of_one_kind() {
        for (file, name) in [
            ("wan/transformer-t2v", "wan"),
            ("wan/transformer-ti2v", "wan"),
            ("z_image/model/transformer", "z_image"),
            ("flux1/model/transformer", "flux1"),
            ("chroma/model/transformer", "chroma"),
            ("flux2/model/transformer", "flux2"),
            ("anima/model/transformer", "anima"),
            ("sdxl/model/unet", "sdxl"),
            ("qwen_image/model/transformer", "qwen_image"),
            ("krea2/model/transformer", "krea2"),
        ] {
            let path = golden(file).join("diffusion_pytorch_model.safetensors");
            let is_of = |arch: &&&Arch| {
                let part = PartFile::open(&arch.denoiser, &path).unwrap();
                (arch.is_denoiser)(&part)
            };
            let found: Vec<_> = REGISTRY
                .iter()
                .filter(is_of)
                .map(|arch| arch.name)
                .collect();
            assert_eq!(found, [name], "{file}");
        }
    }
}
