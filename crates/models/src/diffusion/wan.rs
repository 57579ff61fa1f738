//! Wan 2.1 and 2.2: text and images to video.
//!
//! ```text
//! video ──autoencoder──▶ latents ─┐
//!                                 ├─▶ transformer ─▶ velocity ──schedule──▶ latents ──autoencoder──▶ video
//! text ──────────────▶ embedding ─┘
//! ```
//!
//! Weights go by their names in diffusers' folders.

pub mod autoencoder;
pub mod files;
pub mod fresh;
pub mod model;
pub mod pipeline;
pub mod transformer;
