//! Refuses the GPU that must not be used for training: on gfx1033 gradients are silently wrong with every wheel that
//! was tried. `run` and `train` refuse it unless the user insists.

use crate::output::Failure;
use doctor::plan::WRONG_GRADIENTS;
use platform::machine::Gpu;

/// The environment variable to insist.
pub const INSIST: &str = "SUREFOOT_ALLOW_GFX1033";

/// Refuses to train on this GPU if it computes wrong gradients.
///
/// # Errors
/// A usage error that says why, and how to insist.
pub fn refuse_wrong_ones(gpu: Option<&Gpu>) -> Result<(), Failure> {
    let insists = std::env::var(INSIST).is_ok_and(|value| value == "1");
    match gpu {
        Some(gpu) if gpu.gfx == Some(WRONG_GRADIENTS) && !insists => {
            Err(Failure::usage(format_args!(
                "{} computes wrong gradients: training on it ends in nonsense without a message \
                 (https://github.com/unslothai/unsloth/pull/8412).\n\
                 Train on another GPU or on the CPU. Inference is right on it; for that, or to \
                 train all the same, set {INSIST}=1",
                gpu.name()
            )))
        }
        _ => Ok(()),
    }
}
