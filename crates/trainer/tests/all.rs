//! Whole runs, as people start them: one program, so that libtorch is linked once.

mod adapters;
mod anima;
mod another_task;
mod chroma;
mod data;
mod epochs;
mod flux1;
mod flux2;
mod hub;
mod layouts;
mod parity;
mod peft;
mod pictures;
mod preferences;
mod qwen_image;
mod ranks;
mod report;
mod resume;
mod robust;
mod sdxl;
mod shortage;
mod streaming;
mod toy;
mod training;
mod wan;
mod z_image;
