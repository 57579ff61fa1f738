//! Anima: text to pictures, with the denoiser of Cosmos-Predict2.
//!
//! ```text
//! picture ──────causal autoencoder──────▶ latents ─┐
//! text ──language model──▶ states ─┐               ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ──T5's tokens──────────────▶ conditioner ───┘
//! ```
//!
//! The conditioner, which is inside the transformer's single file, belongs to the denoiser: a LoRA may change its layers.
//! Weights go by their names in diffusers' folders, those of the conditioner with `text_conditioner.` in front. Layers in
//! LoRA files have their original names: those are what both ComfyUI and diffusers read.

mod model;
mod names;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use model::Anima;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of Anima.
pub static ARCH: Arch = Arch {
    name: "anima",
    title: "Anima",
    pipelines: &["AnimaModularPipeline"],
    example: "circlestone-labs/Anima",
    folders: &[
        "transformer",
        "text_conditioner",
        "vae",
        "text_encoder",
        "tokenizer",
        "t5_tokenizer",
        "scheduler",
    ],
    training_shift: 1.0,
    denoiser: names::DENOISER,
    is_denoiser: |file| {
        let parts = ["patch_embed.proj", "transformer_blocks.0.norm1.linear_1"];
        parts
            .iter()
            .all(|part| file.shape(&format!("{part}.weight")).is_some())
    },
    open: |path, parts| Ok(Box::new(Anima::open(path, parts)?)),
    lists: &[names::CONDITIONER_BLOCKS, names::BLOCKS],
    others: names::OTHERS,
    lora: LoraFiles {
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
        network: "networks.lora_anima",
        architecture: "anima/lora",
        kohya: false,
        text: &[],
        complete: LoraForm::Comfy,
        partial: LoraForm::Comfy,
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &["qwen_3_06b_base"],
        text_encoder_2: &[],
        vae: &["qwen_image_vae"],
        tokenizers: &[
            ("tokenizer", "Qwen/Qwen3-0.6B"),
            ("t5_tokenizer", "google/t5-v1_1-xxl"),
        ],
    },
};
