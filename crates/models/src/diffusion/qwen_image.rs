//! Qwen-Image, first release and 2512: text to pictures.
//!
//! ```text
//! picture ─────causal autoencoder──────▶ latents ─┐
//!                                                 ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ────────language model─────────▶ states ───┘
//! ```
//!
//! Weights go by their names in diffusers' folders, which original files have, too. So do the layers in LoRA files: those
//! names with `diffusion_model.` in front are what both ComfyUI and diffusers read.

mod model;
mod names;
#[cfg(test)]
mod tests;
mod text;
pub mod transformer;

pub use model::QwenImage;

use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of Qwen-Image.
pub static ARCH: Arch = Arch {
    name: "qwen_image",
    title: "Qwen-Image",
    pipelines: &["QwenImagePipeline"],
    example: "Qwen/Qwen-Image-2512",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
    ],
    training_shift: 2.2,
    denoiser: names::TRANSFORMER,
    is_denoiser: |file| {
        let modulation = "transformer_blocks.0.txt_mod.1.weight";
        file.shape(modulation).is_some()
    },
    open: |path, parts| Ok(Box::new(QwenImage::open(path, parts)?)),
    lists: &[names::BLOCKS],
    others: names::OTHERS,
    lora: LoraFiles {
        targets: &[
            "attn.to_q",
            "attn.to_k",
            "attn.to_v",
            "attn.to_out.0",
            "attn.add_q_proj",
            "attn.add_k_proj",
            "attn.add_v_proj",
            "attn.to_add_out",
            "img_mlp.net.0.proj",
            "img_mlp.net.2",
            "txt_mlp.net.0.proj",
            "txt_mlp.net.2",
        ],
        network: "networks.lora_qwen_image",
        architecture: "Qwen-Image/lora",
        kohya: true,
        text: &[],
        complete: LoraForm::Comfy,
        partial: LoraForm::Comfy,
    },
    caches: None,
    companions: super::Companions {
        text_encoder: &["qwen_2.5_vl_7b"],
        text_encoder_2: &[],
        vae: &["qwen_image_vae"],
        tokenizers: &[("", "Qwen/Qwen2.5-VL-7B-Instruct")],
    },
};
