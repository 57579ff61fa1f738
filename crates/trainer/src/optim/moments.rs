//! AdamW's two moments of one parameter, in fp32 or in 8 bits per element.
//!
//! The 8-bit format is bitsandbytes' ([`Dynamic8`]): a quarter of the memory; the step itself is computed in
//! fp32. A large parameter is stepped in slices, so that the temporary fp32 moments never exist for more than
//! one slice.

use tch::{Device, Kind, Tensor};
use torch_ext::AdamWState;

use crate::Error;
use models::quant::{Code, Dynamic8};

/// Smaller parameters keep fp32 moments: they take little memory, and norms are sensitive.
const SMALLEST_IN_EIGHT_BITS: usize = 4096;
/// Elements that are stepped at a time: 8 MB of fp32 moments.
const SLICE: i64 = 1 << 20;

/// How the moments of a parameter are stored.
#[derive(Debug)]
pub(super) enum Moments {
    /// `exp_avg` and `exp_avg_sq`, with the parameter's shape.
    Full { average: Tensor, square: Tensor },
    /// The same in 8 bits per element.
    Eight { average: Dynamic8, square: Dynamic8 },
}

impl Moments {
    /// All zeros. As in bitsandbytes, `eight_bit` does not apply to small parameters and to embeddings: rows
    /// of an embedding are rarely updated and differ widely, which blocks with one scale represent badly.
    pub(super) fn zeros(parameter: &Tensor, name: &str, eight_bit: bool) -> Result<Self, Error> {
        let large = parameter.numel() >= SMALLEST_IN_EIGHT_BITS;
        if eight_bit && large && !name.contains("embed") {
            let zeros = |code| Dynamic8::zeros(&parameter.size(), code, parameter.device());
            return Ok(Self::Eight {
                average: zeros(Code::Signed)?,
                square: zeros(Code::Unsigned)?,
            });
        }
        let zeros = || parameter.f_detach()?.f_zeros_like();
        Ok(Self::Full {
            average: zeros()?,
            square: zeros()?,
        })
    }
}

/// A step of a parameter with 8-bit moments, after `steps` steps.
pub(super) fn step_in_slices(
    options: &torch_ext::AdamW,
    (parameter, gradient): (&Tensor, &Tensor),
    (average, square): (&Dynamic8, &Dynamic8),
    steps: u64,
) -> Result<(), Error> {
    if gradient.size() != parameter.size() {
        return Err(Error::Internal(format!(
            "a gradient of {:?} for a parameter of {:?}",
            gradient.size(),
            parameter.size()
        )));
    }
    let flat = parameter.f_detach()?.f_view([-1])?;
    let gradient = gradient.f_detach()?.f_reshape([-1])?;
    let count = flat.numel() as i64;
    for start in (0..count).step_by(SLICE as usize) {
        let length = SLICE.min(count - start);
        let moments = [
            average.load_range(start, length)?,
            square.load_range(start, length)?,
        ];
        let state = AdamWState {
            parameters: &[flat.f_narrow(0, start, length)?],
            gradients: &[gradient.f_narrow(0, start, length)?],
            averages: &moments[..1],
            squares: &moments[1..],
            steps: &[counter(steps, flat.device())?],
        };
        torch_ext::fused_adamw(options, state)?;
        average.store_range(start, &moments[0])?;
        square.store_range(start, &moments[1])?;
    }
    Ok(())
}

/// The number of steps, in the form that the kernel takes: exact up to 2^24, its own limit.
pub(super) fn counter(steps: u64, device: Device) -> Result<Tensor, Error> {
    Ok(Tensor::f_full([], steps as f64, (Kind::Float, device))?)
}
