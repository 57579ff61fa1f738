//! Qwen-Image, first release and 2512: text to pictures; and Edit-2509 and 2511, which change pictures.
//!
//! ```text
//! picture ─────causal autoencoder──────▶ latents ─┐
//!                                                 ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──▶ picture
//! text ────────language model─────────▶ states ───┤
//!                    ▲ tower                      │
//! control pictures ──┴─causal autoencoder─▶ latents
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
mod vision;

pub use model::QwenImage;

use self::transformer::{ZERO_TIME, has_unknown};
use super::files::PartFile;
use super::lora::LoraForm;
use super::{Arch, LoraFiles};
use crate::formats::TensorSource;

/// What is known of Qwen-Image.
pub static ARCH: Arch = KNOWN;

/// What is known of Qwen-Image-Edit.
pub static EDIT: Arch = Arch {
    name: "qwen_image_edit",
    title: "Qwen-Image-Edit",
    pipelines: &["QwenImageEditPlusPipeline"],
    example: "Qwen/Qwen-Image-Edit-2511",
    folders: &[
        "transformer",
        "vae",
        "text_encoder",
        "tokenizer",
        "processor",
        "scheduler",
    ],
    is_denoiser: |file| is_of_family(file) && is_edit(file),
    open: |path, parts| Ok(Box::new(QwenImage::open_edit(path, parts)?)),
    lora: LoraFiles {
        architecture: "Qwen-Image-Edit/lora",
        ..KNOWN.lora
    },
    ..KNOWN
};

/// Whether a file is a transformer of Qwen-Image or of Edit.
fn is_of_family(file: &PartFile) -> bool {
    let modulation = "transformer_blocks.0.txt_mod.1.weight";
    file.shape(modulation).is_some()
}

/// Whether a file of the family changes pictures: it has a tensor more than the others, or is told by its name. The first
/// release, which takes pictures in another way, has no year in its name.
fn is_edit(file: &PartFile) -> bool {
    let name = file.path().file_name().unwrap_or_default();
    let name = name.to_string_lossy().to_lowercase();
    let has = |word| name.contains(word);
    let is_later = has("2509") || has("2511") || has("plus");
    has_unknown(file, ZERO_TIME) || has("edit") && is_later
}

const KNOWN: Arch = Arch {
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
    is_denoiser: |file| is_of_family(file) && !is_edit(file),
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
