//! FLUX.1, dev, Krea-dev and schnell: text to pictures; and [Chroma](chroma), which was made of it.
//!
//! ```text
//! picture ──KL autoencoder──▶ latents ───────┐
//!                                            ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ──T5──▶ states ───────────────────────┤
//!      └─CLIP─▶ vector ──▶ + time, guidance ─┘
//! ```
//!
//! Weights go by their names in diffusers' folders. So do the layers in LoRA files: with `transformer.` in front both ComfyUI
//! and diffusers read these. In the original files queries, keys and values of a double block are one layer, and those of a
//! single block with the first of its feed-forward layers.

pub mod chroma;
mod model;
mod names;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use model::Flux1;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// The linear layers of the blocks but those that modulate them. `proj_out` is also the name of the last layer.
const TARGETS: &[&str] = &[
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|ff(_context)?\.net\.(0\.proj|2))|single_transformer_blocks\.\d+\.(attn\.to_[qkv]|proj_mlp|proj_out)",
];

/// What is known of FLUX.1.
pub static ARCH: Arch = Arch {
    name: "flux1",
    title: "FLUX.1",
    pipelines: &["FluxPipeline"],
    example: "black-forest-labs/FLUX.1-dev",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "text_encoder_2",
        "tokenizer",
        "tokenizer_2",
        "scheduler",
    ],
    // What sd-scripts recommends: e to the power of 1.15, as for 1024 × 1024 pixels.
    training_shift: 3.1582,
    denoiser: names::TRANSFORMER,
    is_denoiser: |file| {
        let vector = "time_text_embed.text_embedder.linear_1.weight";
        file.shape(vector).is_some()
    },
    open: |path, parts| Ok(Box::new(Flux1::open(path, parts)?)),
    lists: &[names::DOUBLE, names::SINGLE],
    others: names::OTHERS,
    lora: LoraFiles {
        targets: TARGETS,
        network: "networks.lora_flux",
        architecture: "flux-1-dev/lora",
        kohya: true,
        text: &[],
        complete: LoraForm::Diffusers,
        partial: LoraForm::Diffusers,
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &["clip_l"],
        text_encoder_2: &["t5xxl"],
        vae: &["ae"],
        tokenizers: &[
            ("tokenizer", "openai/clip-vit-large-patch14"),
            ("tokenizer_2", "google/t5-v1_1-xxl"),
        ],
    },
};
