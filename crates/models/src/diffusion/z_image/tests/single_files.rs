//! The single files that ComfyUI loads, and the LoRAs for them.

use std::path::PathBuf;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::golden;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::lora::{LoraFile, LoraForm};
use crate::diffusion::parts::{decoder, kl};
use crate::diffusion::z_image::transformer::TransformerConfig;
use crate::diffusion::z_image::{ARCH, names};
use crate::diffusion::{self, PartPaths};
use crate::formats::{TensorSource, write_tensors};
use crate::language::DecoderConfig;

/// The single files of people with ComfyUI, made of the folder's parts.
struct SingleFiles(tempfile::TempDir);

impl SingleFiles {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let names = std::fs::read_to_string(golden("original.json")).unwrap();
        let names: Value = serde_json::from_str(&names).unwrap();
        let prefix = "model.diffusion_model.";
        for (part, prefix) in [("transformer", prefix), ("vae", "")] {
            let folder = golden("model").join(part);
            let weights = PartFile::open(&PartNames::DIFFUSERS, &folder).unwrap();
            let original = names[part].as_object().unwrap();
            let tensors = original.iter().map(|(name, keys)| {
                let keys = keys.as_array().unwrap().iter();
                let all = keys.map(|key| weights.read(key.as_str().unwrap(), Kind::Float).unwrap());
                let tensor = Tensor::cat(&all.collect::<Vec<_>>(), 0);
                let is_pixel = name.contains(".attn_1.") && tensor.dim() == 2;
                let tensor = if is_pixel {
                    tensor.unsqueeze(-1).unsqueeze(-1)
                } else {
                    tensor
                };
                (format!("{prefix}{name}"), tensor)
            });
            let mut tensors: Vec<(String, Tensor)> = tensors.collect();
            if part == "transformer" {
                // It has no use.
                let unused = Tensor::ones([24], (Kind::Float, Device::Cpu));
                tensors.push((format!("{prefix}norm_final.weight"), unused));
            }
            let list: Vec<_> = tensors
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor))
                .collect();
            write_tensors(&files.path(part), &list).unwrap();
        }
        let text = golden("model/text_encoder/model.safetensors");
        std::fs::copy(text, files.path("text_encoder")).unwrap();
        files
    }

    fn path(&self, part: &str) -> PathBuf {
        self.0.path().join(format!("{part}.safetensors"))
    }
}

#[test]
fn single_files_have_the_same_weights() {
    let files = SingleFiles::new();
    for (part, names) in [("transformer", names::TRANSFORMER), ("vae", kl::NAMES)] {
        let folder = PartFile::open(&names, &golden("model").join(part)).unwrap();
        let single = PartFile::open(&names, &files.path(part)).unwrap();
        assert_eq!(single.names(), folder.names());
        for name in folder.names() {
            assert_eq!(single.shape(&name), folder.shape(&name), "{name}");
            let read = |file: &PartFile| file.read(&name, Kind::Float).unwrap();
            assert_eq!(read(&single), read(&folder), "{name}");
        }
        let unknown: &[&str] = match part {
            "transformer" => &["model.diffusion_model.norm_final.weight"],
            _ => &[],
        };
        assert_eq!(single.unknown(), unknown);
    }
}

#[test]
fn shapes_say_what_the_configs_say() {
    let files = SingleFiles::new();
    let single = PartFile::open(&names::TRANSFORMER, &files.path("transformer")).unwrap();
    let config = golden("model/transformer/config.json");
    let config = TransformerConfig::read(&config).unwrap();
    let expected = TransformerConfig {
        axes_lens: [1536, 512, 512],
        ..config
    };
    let found = TransformerConfig::of_shapes_with(&single, [4, 4, 4]).unwrap();
    assert_eq!(found, expected);
    // The axes of the published models are wider.
    let error = TransformerConfig::of_shapes(&single)
        .unwrap_err()
        .to_string();
    assert!(error.contains("not made of heads of 128"), "{error}");
    let text = PartFile::open(&decoder::NAMES, &files.path("text_encoder")).unwrap();
    let found = DecoderConfig::of_shapes(&text).unwrap();
    let expected = DecoderConfig::read(&golden("model/text_encoder/config.json")).unwrap();
    let expected = DecoderConfig {
        max_position_embeddings: 40_960,
        tie_word_embeddings: true,
        ..expected
    };
    assert_eq!(found, expected);
    let error = DecoderConfig::of_shapes(&single).unwrap_err().to_string();
    assert!(error.contains("do not tell what language model"), "{error}");
}

/// A single file beside folders for the other parts, and what is said if one is missing.
#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    let files = SingleFiles::new();
    let path = files.path("transformer");
    assert!(diffusion::is_at(&path));
    let parts = |vae: bool, text: bool, tokenizer: bool| PartPaths {
        vae: vae.then(|| golden("model/vae")),
        text_encoder: text.then(|| golden("model/text_encoder")),
        tokenizer: tokenizer.then(|| golden("model/tokenizer")),
        ..PartPaths::default()
    };
    // Its heads are too narrow for a published model; everything else was asked for before.
    for (given, told) in [
        (parts(false, true, true), "name its autoencoder (`vae`"),
        (
            parts(true, false, true),
            "name its text encoder (`text_encoder`",
        ),
        (parts(true, true, false), "name its tokenizer (`tokenizer`"),
        (parts(true, true, true), "not made of heads of 128"),
    ] {
        let error = diffusion::open(&path, &given).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// One LoRA of ComfyUI's stacked layers is the same as three.
#[test]
fn a_lora_of_stacked_layers_is_one_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let (down, up) = (
        Tensor::randn([2, 24], options),
        Tensor::randn([72, 2], options),
    );
    for (name, [a, b]) in [
        (
            "diffusion_model.layers.1.attention.qkv",
            ["lora_A", "lora_B"],
        ),
        ("lora_unet_layers_1_attention_qkv", ["lora_down", "lora_up"]),
    ] {
        let tensors = [
            (format!("{name}.{a}.weight"), &down),
            (format!("{name}.{b}.weight"), &up),
            (format!("{name}.alpha"), &Tensor::from(1.0f32)),
        ];
        write_tensors(&path, &tensors).unwrap();
        let file = LoraFile::read(&path, &ARCH, None).unwrap();
        let names: Vec<_> = file.modules.keys().map(String::as_str).collect();
        let parts = ["to_k", "to_q", "to_v"].map(|part| format!("layers.1.attention.{part}"));
        assert_eq!(names, parts);
        for (number, part) in [(1, &parts[0]), (0, &parts[1]), (2, &parts[2])] {
            let module = &file.modules[part];
            assert_eq!((module.alpha, &module.down), (1.0, &down));
            assert_eq!(module.up, up.narrow(0, 24 * number, 24), "{part}");
        }
        // As readers of kohya's form would drop three, it is not written.
        let target = folder.path().join("y.safetensors");
        let error = file
            .write(&target, LoraForm::Kohya)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`attention.qkv` is one layer"), "{error}");
    }
    let out = "lora_unet_layers_0_attention_out";
    let tensors = [
        (format!("{out}.lora_down.weight"), &down),
        (format!("{out}.lora_up.weight"), &up.narrow(0, 0, 24)),
    ];
    write_tensors(&path, &tensors).unwrap();
    let file = LoraFile::read(&path, &ARCH, None).unwrap();
    assert!(file.modules.contains_key("layers.0.attention.to_out.0"));
}
