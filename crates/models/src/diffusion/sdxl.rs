//! Stable Diffusion XL and what is built on it (Illustrious, NoobAI, Pony): text to pictures.
//!
//! ```text
//! picture ──KL autoencoder──▶ latents ──┐
//! text ────two CLIP encoders──▶ states ─┼─▶ UNet ─▶ noise or velocity ──steps──▶ latents ──▶ picture
//!             and one vector, sizes ────┘
//! ```
//!
//! Weights go by their names in diffusers' folders; those of checkpoints, in which all parts are one file, are renamed.
//! LoRA files have the checkpoints' names in kohya's form, which all programs read.

mod model;
mod names;
#[cfg(test)]
mod tests;
mod text;
pub mod unet;

pub use model::Sdxl;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of SDXL.
pub static ARCH: Arch = Arch {
    name: "sdxl",
    title: "SDXL",
    pipelines: &["StableDiffusionXLPipeline"],
    example: "stabilityai/stable-diffusion-xl-base-1.0",
    folders: &[
        "unet",
        "vae",
        "text_encoder",
        "text_encoder_2",
        "tokenizer",
        "tokenizer_2",
        "scheduler",
    ],
    training_shift: 1.0,
    denoiser: names::UNET,
    is_denoiser: |file| file.shape("add_embedding.linear_1.weight").is_some(),
    open: |path, parts| Ok(Box::new(Sdxl::open(path, parts)?)),
    lists: names::LISTS,
    others: names::OTHERS,
    lora: LoraFiles {
        kohya: true,
        targets: &[
            "attn1.to_q",
            "attn1.to_k",
            "attn1.to_v",
            "attn1.to_out.0",
            "attn2.to_q",
            "attn2.to_k",
            "attn2.to_v",
            "attn2.to_out.0",
            "ff.net.0.proj",
            "ff.net.2",
        ],
        network: "networks.lora",
        architecture: "stable-diffusion-xl-v1-base/lora",
        text: names::TEXT,
        complete: LoraForm::Kohya,
        partial: LoraForm::Kohya,
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &[],
        text_encoder_2: &[],
        vae: &[],
        tokenizers: &[("", "openai/clip-vit-large-patch14")],
    },
};
