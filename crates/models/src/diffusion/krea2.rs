//! Krea 2, raw and turbo: text to pictures.
//!
//! ```text
//! picture ─────causal autoencoder──────▶ latents ─┐
//!                                                 ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ──language model──▶ twelve states ─────────┘
//! ```
//!
//! Weights go by their names in diffusers' folders. LoRA files have those of the original files, `diffusion_model.` in
//! front: both ComfyUI and diffusers read these, while diffusers drops kohya's form without a word.

mod model;
mod names;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use model::Krea2;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of Krea 2.
pub static ARCH: Arch = Arch {
    name: "krea2",
    title: "Krea 2",
    pipelines: &["Krea2Pipeline"],
    example: "krea/Krea-2-Raw",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
    ],
    training_shift: 2.5,
    denoiser: names::TRANSFORMER,
    is_denoiser: |file| file.shape("text_fusion.projector.weight").is_some(),
    open: |path, parts| Ok(Box::new(Krea2::open(path, parts)?)),
    lists: &[names::LAYERWISE, names::REFINER, names::BLOCKS],
    others: names::OTHERS,
    lora: LoraFiles {
        targets: &[
            "attn.to_q",
            "attn.to_k",
            "attn.to_v",
            "attn.to_gate",
            "attn.to_out.0",
            "ff.gate",
            "ff.up",
            "ff.down",
        ],
        network: "networks.lora_krea2",
        architecture: "Krea-2/lora",
        kohya: false,
        complete: LoraForm::Comfy,
        partial: LoraForm::Comfy,
        text: &[],
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &["qwen3vl_4b"],
        text_encoder_2: &[],
        vae: &["qwen_image_vae"],
        tokenizers: &[("", "Qwen/Qwen3-VL-4B-Instruct")],
    },
};
