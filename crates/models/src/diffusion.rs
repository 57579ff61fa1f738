//! Diffusion models: one folder for each, over the parts that several share.

pub mod lora;
pub mod parts;
pub mod wan;
