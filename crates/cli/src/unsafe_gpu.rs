//! The GPU that must not train: gradients come out wrong on gfx1033, without a message,
//! with every wheel tried. `run` and `train` refuse it unless somebody insists.

use crate::output::Failure;
use doctor::plan::WRONG_GRADIENTS;
use platform::machine::Gpu;

/// The variable that insists.
pub const INSIST: &str = "SUREFOOT_ALLOW_GFX1033";

/// Refuses to train on this GPU if it is one that computes wrong gradients.
///
/// # Errors
/// A failure of usage that says why, and how to insist.
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
