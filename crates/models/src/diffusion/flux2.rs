//! FLUX.2 klein, 4B and 9B, base and distilled: text to pictures.
//!
//! ```text
//! picture ──KL autoencoder──▶ latents, 2 × 2 as one ─┐
//!                                                    ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ────language model──▶ three states ───────────┘
//! ```
//!
//! Weights go by their names in diffusers' folders. LoRA files have those of the original files, `diffusion_model.` in
//! front: both ComfyUI and diffusers read these, in which queries, keys and values of a double block are one layer.

mod model;
mod names;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use model::Flux2;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of FLUX.2 klein.
pub static ARCH: Arch = Arch {
    name: "flux2",
    title: "FLUX.2 klein",
    pipelines: &["Flux2KleinPipeline"],
    example: "black-forest-labs/FLUX.2-klein-base-4B",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
    ],
    // What musubi-tuner takes for 1024 × 1024 pixels: e to the power of 1.15.
    training_shift: 3.158,
    denoiser: names::TRANSFORMER,
    is_denoiser: |file| {
        file.shape("double_stream_modulation_img.linear.weight")
            .is_some()
    },
    open: |path, parts| Ok(Box::new(Flux2::open(path, parts)?)),
    lists: &[names::DOUBLE, names::SINGLE],
    others: names::OTHERS,
    lora: LoraFiles {
        // In a double block `attn.to_out` is a list, which PEFT would not take.
        targets: &[
            r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|ff(_context)?\.linear_(in|out))|single_transformer_blocks\.\d+\.attn\.(to_qkv_mlp_proj|to_out)",
        ],
        network: "networks.lora_flux_2",
        architecture: "Flux2-Klein/lora",
        kohya: true,
        text: &[],
        complete: LoraForm::Comfy,
        partial: LoraForm::Comfy,
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &["qwen_3_4b", "qwen_3_8b"],
        text_encoder_2: &[],
        vae: &["flux2-vae"],
        tokenizers: &[("", "Qwen/Qwen3-4B")],
    },
};
