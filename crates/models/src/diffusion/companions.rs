//! The other parts of a denoiser's single file, where ComfyUI keeps them: `models/diffusion_models/…`,
//! `models/text_encoders/…` and `models/vae/…`.
//!
//! Autoencoders of different models may have the same shapes, so that shapes alone would choose a wrong one: a file is
//! taken only if it is called as those that are published for this kind of model.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Arch, PartPaths};

/// What is known of the parts that are not in a denoiser's file.
#[derive(Debug, Clone, Copy)]
pub struct Companions {
    /// Names of the text encoder's files, without what tells how their numbers are stored.
    pub text_encoder: &'static [&'static str],
    /// The same of the second text encoder's.
    pub text_encoder_2: &'static [&'static str],
    /// The same of the autoencoder's.
    pub vae: &'static [&'static str],
    /// The tokenizers: a folder in that of the tokenizer (empty if it is the only one), and a model of the hub that has
    /// the same one. Without any, it is in the text encoder's file.
    pub tokenizers: &'static [(&'static str, &'static str)],
}

impl Companions {
    /// Nothing is known.
    pub const NONE: Self = Self {
        text_encoder: &[],
        text_encoder_2: &[],
        vae: &[],
        tokenizers: &[],
    };
}

/// ComfyUI's folders of text encoders, of which the second is their old name, and of autoencoders.
const TEXT_ENCODERS: [&str; 2] = ["text_encoders", "clip"];
const AUTOENCODERS: [&str; 1] = ["vae"];
/// How many folders may lie between a file and ComfyUI's folder of models, and how many below its folders.
const DEPTH: usize = 3;
/// The most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 2000;

impl Arch {
    /// `parts` of the denoiser's file `path`, completed by files around it that `is_allowed`; of several, the first
    /// that fits the denoiser, from the largest to the smallest, since those are the least quantised.
    pub fn with_companions(
        &self,
        path: &Path,
        parts: &PartPaths,
        is_allowed: &dyn Fn(&Path) -> bool,
    ) -> PartPaths {
        // Each place a part may be at; one that was not found is nowhere, once.
        let places = |given: &Option<PathBuf>, folders: &[&str], names: &[&str]| {
            if given.is_some() {
                return vec![given.clone()];
            }
            let found = called(path, folders, names).into_iter();
            let mut found: Vec<_> = found.filter(|file| is_allowed(file)).map(Some).collect();
            if found.is_empty() {
                found.push(None);
            }
            found
        };
        let own = &self.companions;
        let texts = places(&parts.text_encoder, &TEXT_ENCODERS, own.text_encoder);
        let second = places(&parts.text_encoder_2, &TEXT_ENCODERS, own.text_encoder_2);
        let vaes = places(&parts.vae, &AUTOENCODERS, own.vae);
        let mut first = None;
        for text_encoder in &texts {
            for text_encoder_2 in &second {
                for vae in &vaes {
                    let parts = PartPaths {
                        text_encoder: text_encoder.clone(),
                        text_encoder_2: text_encoder_2.clone(),
                        vae: vae.clone(),
                        ..parts.clone()
                    };
                    if (self.open)(path, &parts).is_ok() {
                        return parts;
                    }
                    first.get_or_insert(parts);
                }
            }
        }
        // If none fits, the error is that of the first.
        first.unwrap_or_else(|| parts.clone())
    }
}

/// Files of weights with one of these `names`, in ComfyUI's `folders` around `path`, the largest first.
fn called(path: &Path, folders: &[&str], names: &[&str]) -> Vec<PathBuf> {
    let mut above = path.ancestors().skip(1).take(1 + DEPTH);
    let places = above.find_map(|above| {
        let places: Vec<_> = folders.iter().map(|name| above.join(name)).collect();
        places.iter().any(|place| place.is_dir()).then_some(places)
    });
    let mut found = Vec::new();
    // A folder of the files of one model.
    collect(path.parent().unwrap_or(path), 0, names, &mut found);
    for place in places.unwrap_or_default() {
        collect(&place, DEPTH, names, &mut found);
    }
    found.sort_by_key(|(file, bytes): &(PathBuf, u64)| (Reverse(*bytes), file.clone()));
    found.dedup();
    found.into_iter().map(|(file, _)| file).collect()
}

fn collect(folder: &Path, depth: usize, names: &[&str], found: &mut Vec<(PathBuf, u64)>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.take(MAX_ENTRIES) {
        let path = entry.path();
        let Ok(metadata) = path.metadata() else {
            continue;
        };
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let is_weights = name.ends_with(".safetensors") || name.ends_with(".sft");
        if metadata.is_dir() && depth > 0 {
            collect(&path, depth - 1, names, found);
        } else if metadata.is_file() && is_weights && names.iter().any(|own| is_of(&name, own)) {
            found.push((path, metadata.len()));
        }
    }
}

/// What the names of published files say beside their model: how their numbers are stored.
const STORED: [&str; 14] = [
    "bf16", "fp16", "fp32", "f16", "f32", "fp8", "e4m3fn", "e5m2", "scaled", "mixed", "fp8mixed",
    "int8", "convrot", "enc",
];

/// Whether the file `name` is that of the model called `model`: another one of the same shapes has more in its name.
fn is_of(name: &str, model: &str) -> bool {
    let Some((stem, _)) = name.rsplit_once('.') else {
        return false;
    };
    let mut rest = stem
        .strip_prefix(model)
        .into_iter()
        .flat_map(|rest| rest.split(['_', '-', '.']));
    rest.next() == Some("") && rest.all(|word| STORED.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_comfyuis_folders_by_their_published_names() {
        let place = tempfile::tempdir().unwrap();
        let models = place.path();
        let make = |name: &str, bytes: usize| {
            let path = models.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        };
        make("diffusion_models/z/z_image_bf16.safetensors", 9);
        make("text_encoders/qwen_3_4b_fp8_mixed.safetensors", 4);
        make("text_encoders/zimage/Qwen_3_4B.safetensors", 8);
        make("text_encoders/qwen_3_06b_base.safetensors", 1);
        make("text_encoders/qwen_3_4b_abliterated.safetensors", 9);
        make("text_encoders/qwen_3_4b-instruct-2507_bf16.safetensors", 9);
        make("clip/qwen_3_4b.sft", 6);
        make("vae/ae.safetensors", 2);
        make("vae/aesthetic.safetensors", 3);
        make("vae/ae.txt", 3);
        let file = models.join("diffusion_models/z/z_image_bf16.safetensors");
        let relative = |found: Vec<PathBuf>| -> Vec<_> {
            let found = found.iter().map(|path| path.strip_prefix(models).unwrap());
            found
                .map(|path| path.to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(
            relative(called(&file, &TEXT_ENCODERS, &["qwen_3_4b"])),
            [
                "text_encoders/zimage/Qwen_3_4B.safetensors",
                "clip/qwen_3_4b.sft",
                "text_encoders/qwen_3_4b_fp8_mixed.safetensors"
            ]
        );
        assert_eq!(
            relative(called(&file, &AUTOENCODERS, &["ae"])),
            ["vae/ae.safetensors"]
        );
        assert_eq!(
            called(&file, &AUTOENCODERS, &["wan_2.1_vae"]),
            Vec::<PathBuf>::new()
        );
    }
}
