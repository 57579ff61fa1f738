//! Z-Image and Z-Image-Turbo: text to pictures.
//!
//! ```text
//! picture ──KL autoencoder──▶ latents ─┐
//!                                      ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ────language model──▶ states ───┘
//! ```
//!
//! Weights go by their names in diffusers' folders, and so do the layers in LoRA files: those names with
//! `diffusion_model.` in front are what both ComfyUI and diffusers read.

mod model;
mod names;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use model::ZImage;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of Z-Image.
pub static ARCH: Arch = Arch {
    name: "z_image",
    title: "Z-Image",
    pipelines: &["ZImagePipeline"],
    example: "Tongyi-MAI/Z-Image",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
    ],
    training_shift: 2.0,
    denoiser: names::TRANSFORMER,
    is_denoiser: |file| {
        // `x_embedder`, as the first has in the original files, others have, too.
        let parts = ["all_x_embedder.2-1", "cap_embedder.1"];
        parts
            .iter()
            .all(|part| file.shape(&format!("{part}.weight")).is_some())
    },
    open: |path, parts| Ok(Box::new(ZImage::open(path, parts)?)),
    lists: &[
        names::blocks("noise_refiner"),
        names::blocks("context_refiner"),
        names::blocks("layers"),
    ],
    others: names::OTHERS,
    lora: LoraFiles {
        targets: &[
            "attention.to_q",
            "attention.to_k",
            "attention.to_v",
            "attention.to_out.0",
            "feed_forward.w1",
            "feed_forward.w2",
            "feed_forward.w3",
        ],
        network: "networks.lora_zimage",
        architecture: "Z-Image/lora",
        kohya: true,
        text: &[],
        complete: LoraForm::Comfy,
        partial: LoraForm::Comfy,
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &["qwen_3_4b"],
        text_encoder_2: &[],
        vae: &["ae"],
        tokenizers: &[("", "Qwen/Qwen3-4B")],
    },
};
