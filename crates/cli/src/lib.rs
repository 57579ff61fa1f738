//! What the two binaries of this package share: `surefoot` (`main.rs`) and
//! `surefoot-trainer` (`trainer.rs`).

pub mod cache;
pub mod gradients;
pub mod live;
pub mod output;
pub mod remembered;
