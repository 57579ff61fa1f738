#![doc = include_str!("../README.md")]
//!
//! # How a model is built
//!
//! ```text
//! formats: safetensors, GGUF ──▶ pretrained: Hugging Face folders, GGUF models
//!                                     │ config, tensors
//!                                     ▼
//! quant, adapters ──▶ model: Builder ──▶ language: Decoder ──▶ logits
//!                                    └─▶ diffusion: denoisers, autoencoders, text encoders
//! ```
//!
//! A model is built tensor by tensor from a [`WeightSource`](model::WeightSource): a file, or random numbers.
//! Trainable tensors are registered in [`Parameters`]. This crate knows nothing of data, loops and
//! optimizers.

pub mod adapters;
pub mod diffusion;
mod error;
pub mod formats;
pub mod fused;
#[cfg(test)]
mod golden;
mod json;
pub mod language;
pub mod loss;
pub mod model;
mod parameters;
pub mod pretrained;
pub mod quant;
pub mod tensor;
pub mod text;
pub mod timing;
mod weight;

pub use error::{Error, LFS_POINTER, is_lfs_pointer};
pub use parameters::{Parameter, Parameters};
pub use weight::Weight;
