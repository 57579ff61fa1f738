//! With the tiny files of a model that has two tokenizers.

use models::diffusion::Part;

use super::*;
use crate::golden::golden;

/// Tiny files of Anima in `place` as ComfyUI has them; where that of the denoiser is.
pub(crate) fn comfyui_of_anima(place: &Path) -> PathBuf {
    use models::formats::{SafetensorsFile, TensorSource, write_tensors};
    let weights = "diffusion_pytorch_model.safetensors";
    let from = |name: &str| golden("anima/model").join(name);
    let folders = ["diffusion_models", "text_encoders", "vae"].map(|name| place.join(name));
    for folder in &folders {
        fs::create_dir_all(folder).unwrap();
    }
    let text = from("text_encoder/model.safetensors");
    fs::copy(text, folders[1].join("qwen_3_06b_base.safetensors")).unwrap();
    let vae = from(&format!("vae/{weights}"));
    fs::copy(vae, folders[2].join("qwen_image_vae.safetensors")).unwrap();
    let mut tensors = Vec::new();
    for (part, prefix) in [
        ("transformer", ""),
        ("text_conditioner", "text_conditioner."),
    ] {
        let file = SafetensorsFile::open(&from(&format!("{part}/{weights}"))).unwrap();
        for name in file.names() {
            let tensor = file.read(&name, tch::Kind::Float).unwrap();
            tensors.push((format!("{prefix}{name}"), tensor));
        }
    }
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    let file = folders[0].join("anima.safetensors");
    write_tensors(&file, &tensors).unwrap();
    file
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// ComfyUI's folder of models with Anima's files, and a cache of the hub without the tokenizers.
fn comfyui() -> (tempfile::TempDir, PathBuf, Settings) {
    let place = tempfile::tempdir().unwrap();
    let file = comfyui_of_anima(place.path());
    let cache = place.path().join("hub");
    let variables = |name: &str| match name {
        "HF_HUB_CACHE" => Some(cache.clone().into()),
        "HF_HUB_OFFLINE" => Some("1".into()),
        _ => None,
    };
    let settings = Settings::from(&variables);
    (place, file, settings)
}

/// Puts a tokenizer into the cache.
fn give_tokenizer(settings: &Settings, name: &str, from: &str) {
    let folder = format!("models--{}", name.replace('/', "--"));
    let repository = settings.cache.join(folder);
    let snapshot = repository.join("snapshots").join(COMMIT);
    models::pretrained::copy(&golden("anima/model").join(from), &snapshot).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
}

#[test]
fn a_denoisers_file_is_enough() {
    let (place, file, settings) = comfyui();
    let named = PartPaths::default();
    let complete = |is_allowed: &dyn Fn(&Path) -> bool| {
        completed(&file, &named, &settings, is_allowed, &mut |_| ())
    };
    give_tokenizer(&settings, "Qwen/Qwen3-0.6B", "tokenizer");
    let reason = complete(&|_| true).unwrap_err().to_string();
    for told in [
        "anima.safetensors` has no tokenizer",
        "`google/t5-v1_1-xxl`",
        "`tokenizer` names",
    ] {
        assert!(reason.contains(told), "{reason}");
    }
    give_tokenizer(&settings, "google/t5-v1_1-xxl", "t5_tokenizer");
    let parts = complete(&|_| true).unwrap();
    let model = diffusion::open(&file, &parts).unwrap();
    let vae = place.path().join("vae/qwen_image_vae.safetensors");
    assert_eq!(model.part(Part::Autoencoder), Some(vae.clone()));
    let tokens = model.tokenizer().unwrap().tokens("a cat").unwrap();
    let folder = diffusion::open(&golden("anima/model"), &PartPaths::default()).unwrap();
    assert_eq!(tokens, folder.tokenizer().unwrap().tokens("a cat").unwrap());
    let parts = complete(&|file| file != vae).unwrap();
    let reason = diffusion::open(&file, &parts).unwrap_err().to_string();
    assert!(reason.contains("name its autoencoder"), "{reason}");
}

#[test]
fn of_several_files_that_which_fits_is_taken() {
    let (place, file, settings) = comfyui();
    give_tokenizer(&settings, "Qwen/Qwen3-0.6B", "tokenizer");
    give_tokenizer(&settings, "google/t5-v1_1-xxl", "t5_tokenizer");
    let texts = place.path().join("text_encoders");
    // Larger, and another model.
    let other = texts.join("qwen_3_06b_base_fp32.safetensors");
    fs::copy(&file, &other).unwrap();
    let found = |named: &PartPaths| {
        let parts = completed(&file, named, &settings, &|_| true, &mut |_| ());
        parts.unwrap().text_encoder.unwrap()
    };
    let own = texts.join("qwen_3_06b_base.safetensors");
    assert!(other.metadata().unwrap().len() > own.metadata().unwrap().len());
    assert_eq!(found(&PartPaths::default()), own);
    let named = PartPaths {
        text_encoder: Some(texts.join("mine.safetensors")),
        ..PartPaths::default()
    };
    assert_eq!(Some(found(&named)), named.text_encoder);
}

#[test]
fn two_tokenizers_are_put_into_one_folder() {
    let place = tempfile::tempdir().unwrap();
    for (name, file) in [("one", "tokenizer.json"), ("two", "spiece.model")] {
        fs::create_dir(place.path().join(name)).unwrap();
        fs::write(place.path().join(name).join(file), name).unwrap();
    }
    let two = ["one", "two"].map(|name| (name, place.path().join(name)));
    let cache = place.path().join("cache");
    let whole = together(&two, &cache).unwrap();
    let read = || fs::read_to_string(whole.join("two/spiece.model")).unwrap();
    assert_eq!(read(), "two");
    fs::write(place.path().join("two/spiece.model"), "changed").unwrap();
    assert_eq!(together(&two, &cache).unwrap(), whole);
    assert_eq!(read(), "two");
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
}
