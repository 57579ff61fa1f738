//! Models from single files, as ComfyUI's users have them, instead of a folder of diffusers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use tch::{Kind, Tensor};

use super::place::{Place, golden, weights};

/// The tensors of `from`, under other names where `names` has one, in the file `to`.
fn renamed(from: &Path, names: &BTreeMap<String, String>, more: &[(&str, Tensor)], to: &Path) {
    let file = SafetensorsFile::open(from).unwrap();
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for name in file.names() {
        let tensor = file.read(&name, Kind::Float).unwrap();
        tensors.push((names.get(&name).cloned().unwrap_or(name), tensor));
    }
    for (name, tensor) in more {
        tensors.push(((*name).to_owned(), tensor.shallow_clone()));
    }
    let list: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    write_tensors(to, &list).unwrap();
}

/// diffusers' names to those of the authors of Wan.
fn original(part: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(golden(part).join("original.json")).unwrap();
    let pairs: BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    pairs
        .into_iter()
        .map(|(original, name)| (name, original))
        .collect()
}

/// The parts of the model of `place` as single files under the names of Wan's authors. Sizes that no published
/// model has come from a `config.json` beside each.
fn parts(place: &Place) -> Vec<String> {
    let model = place.path("model");
    let file = |part: &str| place.path(&format!("files/{part}/{part}.safetensors"));
    let beside = |part: &str, folder: &str| {
        let to = file(part).with_file_name("config.json");
        fs::copy(model.join(folder).join("config.json"), to).unwrap();
    };
    let prefixed = original("transformer-t2v").into_iter();
    let prefixed =
        prefixed.map(|(name, original)| (name, format!("model.diffusion_model.{original}")));
    let weights = model.join("transformer/diffusion_pytorch_model.safetensors");
    renamed(&weights, &prefixed.collect(), &[], &file("wan"));
    beside("wan", "transformer");
    let weights = model.join("vae/diffusion_pytorch_model.safetensors");
    renamed(&weights, &original("autoencoder-2.1"), &[], &file("vae"));
    beside("vae", "vae");
    let marker = ("scaled_fp8", Tensor::from_slice(&[0u8; 2]));
    renamed(
        &model.join("text_encoder/model.safetensors"),
        &BTreeMap::new(),
        &[marker],
        &file("umt5"),
    );
    beside("umt5", "text_encoder");
    let set = |key: &str, path: PathBuf| format!("model.{key}={}", path.display());
    vec![
        set("name_or_path", file("wan")),
        set("vae", file("vae")),
        set("text_encoder", file("umt5")),
        set("tokenizer", model.join("tokenizer")),
    ]
}

#[test]
fn a_run_on_single_files_is_the_run_on_the_folder() {
    let place = Place::new();
    place.run(&["name=folder"]).unwrap();
    let parts = parts(&place);
    let mut overrides: Vec<&str> = parts.iter().map(String::as_str).collect();
    overrides.push("name=files");
    place.run(&overrides).unwrap();
    let of = |name: &str| weights(&place.path(&format!("runs/{name}")));
    assert_eq!(of("files"), of("folder"));
}

#[test]
fn a_single_file_says_which_parts_it_lacks() {
    let place = Place::new();
    let parts = parts(&place);
    let refused = |overrides: &[&str]| place.run(overrides).unwrap_err().to_string();
    let error = refused(&[&parts[0]]);
    assert!(error.contains("autoencoder (`vae`)"), "{error}");
    let error = refused(&[&parts[0], &parts[1]]);
    assert!(error.contains("text encoder (`text_encoder`)"), "{error}");
    // A file of the text encoder without a tokenizer inside.
    let error = refused(&[&parts[0], &parts[1], &parts[2]]);
    assert!(error.contains("`spiece_model`"), "{error}");
    let twice = parts[0].replace("name_or_path", "transformer");
    let error = refused(&[&parts[0], &parts[1], &parts[2], &parts[3], &twice]);
    assert!(error.contains("give only one of them"), "{error}");
    // The autoencoder of another model.
    let other = format!("model.vae={}", golden("autoencoder-2.2").display());
    let error = refused(&[&parts[0], &other, &parts[2], &parts[3]]);
    assert!(error.contains("another model of Wan"), "{error}");
    // A folder's parts are replaced one by one.
    place.run(&["name=mixed", &parts[1], &parts[2]]).unwrap();
}
