//! Wan 2.1 and 2.2: text and images to video.
//!
//! ```text
//! video ──autoencoder──▶ latents ─┐
//!                                 ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──autoencoder──▶ video
//! text ──────────────▶ embedding ─┘
//! ```
//!
//! Weights go by their names in diffusers' folders.

mod index;
mod model;
pub(crate) mod names;
#[cfg(test)]
mod sampling_tests;
pub mod transformer;

pub use model::WanModel;

use super::lora::LoraForm;
use super::{Arch, ForeignCaches, LoraFiles};
use crate::formats::TensorSource;

/// What is known of Wan.
pub static ARCH: Arch = Arch {
    name: "wan",
    title: "Wan",
    pipelines: &["WanPipeline", "WanImageToVideoPipeline"],
    example: "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    folders: &[
        "transformer",
        "transformer_2",
        "vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
    ],
    training_shift: 5.0,
    denoiser: names::TRANSFORMER,
    is_denoiser: |file| file.shape("patch_embedding.weight").is_some(),
    open: |path, parts| Ok(Box::new(WanModel::open(path, parts)?)),
    lists: &[names::BLOCKS],
    others: names::OTHERS,
    lora: LoraFiles {
        targets: &[
            "to_q",
            "to_k",
            "to_v",
            "to_out.0",
            "ffn.net.0.proj",
            "ffn.net.2",
        ],
        network: "networks.lora_wan",
        architecture: "wan/lora",
        kohya: true,
        // diffusers reads kohya's form only if no layer is missing.
        text: &[],
        complete: LoraForm::Kohya,
        partial: LoraForm::Comfy,
    },
    caches: Some(ForeignCaches {
        musubi: ["_wan.safetensors", "_wan_te.safetensors"],
        architecture: "wan",
        programs: ["wan_cache_latents.py", "wan_cache_text_encoder_outputs.py"],
        text: "varlen_t5_",
    }),
    companions: super::Companions {
        text_encoder: &["umt5_xxl", "umt5-xxl"],
        text_encoder_2: &[],
        vae: &["wan_2.1_vae", "wan2.1_vae", "wan2.2_vae", "wan_2.2_vae"],
        tokenizers: &[],
    },
};
