//! The single files that ComfyUI loads.

use serde_json::Value;
use tch::{Kind, Tensor};

use super::REFERENCE;
use crate::diffusion::Part;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::parts::decoder;
use crate::diffusion::qwen_image::transformer::TransformerConfig;
use crate::diffusion::qwen_image::{ARCH, names, text};
use crate::diffusion::reference::SingleFiles;
use crate::formats::{TensorSource, write_tensors};

#[test]
fn single_files_have_the_same_weights() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.have_the_same_weights(&REFERENCE, [&[], &[]]);
}

/// Heads are narrower than those of the published model; everything else was asked for before.
#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.ask_for_the_other_parts(&REFERENCE, Some("where heads are of 128"));
}

#[test]
fn layers_are_refused() {
    let files = SingleFiles::new(&REFERENCE, &["time_text_embed.addition_t_embedding.weight"]);
    files.ask_for_the_other_parts(&REFERENCE, Some("Qwen-Image-Layered"));
}

/// A file whose shapes, all or those of the heads, are the published ones.
#[test]
fn shapes_say_what_the_published_configs_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let written = |shapes: &[(&str, &[i64])]| {
        let tensors = shapes.iter().map(|(name, shape)| {
            let tensor = Tensor::zeros(*shape, (Kind::Uint8, tch::Device::Cpu));
            ((*name).to_owned(), tensor)
        });
        let tensors: Vec<_> = tensors.collect();
        let list: Vec<_> = tensors.iter().map(|(n, t)| (n.clone(), t)).collect();
        write_tensors(&path, &list).unwrap();
    };
    written(&[
        ("img_in.weight", &[256, 64]),
        ("txt_in.weight", &[256, 48]),
        ("transformer_blocks.0.attn.norm_q.weight", &[128]),
        ("transformer_blocks.6.attn.norm_q.weight", &[128]),
    ]);
    let file = PartFile::open(&ARCH.denoiser, &path).unwrap();
    let config = TransformerConfig::of_shapes(&file).unwrap();
    assert_eq!((config.num_layers, config.num_attention_heads), (7, 2));
    assert_eq!((config.out_channels, config.joint_attention_dim), (16, 48));
    written(&[
        ("model.embed_tokens.weight", &[300, 256]),
        ("model.layers.0.self_attn.q_proj.bias", &[256]),
        ("model.layers.0.self_attn.k_proj.bias", &[128]),
        ("model.layers.0.mlp.gate_proj.weight", &[64, 256]),
        ("model.layers.2.mlp.gate_proj.weight", &[64, 256]),
        ("visual.blocks.0.attn.qkv.weight", &[8, 8]),
    ]);
    let file = PartFile::open(&decoder::NAMES, &path).unwrap();
    assert_eq!(file.unknown(), ["visual.blocks.0.attn.qkv.weight"]);
    let config = text::of_shapes(&file).unwrap();
    assert_eq!(
        (config.num_hidden_layers, config.num_key_value_heads),
        (3, 1)
    );
    assert!(config.qkv_bias && config.rope.theta == 1e6);
    let tiny = REFERENCE.golden("model/text_encoder");
    let tiny = PartFile::open(&decoder::NAMES, &tiny).unwrap();
    let error = text::of_shapes(&tiny).unwrap_err().to_string();
    assert!(error.contains("not made of heads of 128"), "{error}");
}

/// As transformers names them today, as files have them, and the body alone.
#[test]
fn names_of_the_text_encoder_are_those_of_its_files() {
    let model = REFERENCE.model();
    let weights = model.weights(Part::TextEncoder(0)).unwrap();
    assert!(weights.shape("model.layers.2.mlp.up_proj.weight").is_some());
    assert!(weights.shape("visual.blocks.0.attn.qkv.weight").is_some());
    assert_eq!(weights.unknown(), [""; 0]);
    let PartNames { rename, .. } = names::TEXT;
    for prefix in ["model.language_model.", "model.", ""] {
        let name = rename(&format!("{prefix}norm.weight"), &[]);
        assert_eq!(name.as_deref(), Some("model.norm.weight"), "{prefix}");
    }
    let visual = "visual.merger.ln_q.weight";
    for prefix in ["model.", ""] {
        let name = rename(&format!("{prefix}{visual}"), &[]);
        assert_eq!(name.as_deref(), Some(visual), "{prefix}");
    }
    assert_eq!((decoder::NAMES.rename)(visual, &[]), None);
    let names: Value = REFERENCE.json("original.json");
    assert!(names["transformer"]["proj_out.weight"].is_array());
}
