//! Recovers a rope scaling from the tensor that a GGUF file has instead.
//!
//! `rope_freqs.weight` has a divisor for each dimension pair of a head, [`STILL`] for pairs that are not rotated. Those of
//! Llama 3.1 are others: Hugging Face stores the four
//! parameters that they were computed from, and so does [`RopeScaling`]. They are recovered here, and
//! accepted only if they reproduce every divisor in the file.

use crate::model::{RopeScaling, RopeSettings};

/// The parameters besides the factor, which are the same for every model since Llama 3.1: the bounds of the ramp
/// and the original context.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
const ORIGINAL_CONTEXT: f64 = 8192.0;
/// The divisor of a pair that is not rotated, as llama.cpp's converter has it.
const STILL: f64 = 1e30;
/// Divisors are stored as fp32.
const TOLERANCE: f64 = 1e-4;

/// The scaling that divides the frequencies with base `theta` by `divisors`.
///
/// # Errors
/// If no supported scaling does.
pub(super) fn scaling(theta: f64, divisors: &[f64]) -> Result<RopeScaling, String> {
    // The longest wavelengths are divided by the full factor.
    let factor = divisors.last().copied().unwrap_or(f64::NAN);
    let close = |left: f64, right: f64| (left - right).abs() <= TOLERANCE * right.abs();
    if !divisors.is_empty() && divisors.iter().all(|divisor| close(*divisor, 1.0)) {
        return Ok(RopeScaling::None);
    }
    let moving = divisors.partition_point(|divisor| close(*divisor, 1.0));
    let still = &divisors[moving..];
    if !still.is_empty() && still.iter().all(|divisor| close(*divisor, STILL)) {
        let part = moving as f64 / divisors.len() as f64;
        return Ok(RopeScaling::Proportional { part, factor: 1.0 });
    }
    let candidate = RopeScaling::Llama3 {
        factor,
        low_freq_factor: LOW_FREQ_FACTOR,
        high_freq_factor: HIGH_FREQ_FACTOR,
        original_max_position_embeddings: ORIGINAL_CONTEXT,
    };
    let head_dim = 2 * divisors.len() as i64;
    let expected = self::divisors(theta, &candidate, head_dim);
    let same = |(ours, theirs): (&f64, &f64)| close(*ours, *theirs);
    match factor >= 1.0 && expected.iter().zip(divisors).all(same) {
        true => Ok(candidate),
        false => Err(format!(
            "its rotary embedding is scaled by a `rope_freqs.weight` that is not Llama 3's ({} \
             divisors, the last {factor}); take the model's Hugging Face folder",
            divisors.len()
        )),
    }
}

/// The divisors of all pairs' frequencies.
pub(super) fn divisors(theta: f64, scaling: &RopeScaling, head_dim: i64) -> Vec<f64> {
    let frequencies = |scaling: RopeScaling| {
        let settings = RopeSettings {
            theta,
            scaling,
            partial_rotary_factor: 1.0,
            query_growth: None,
        };
        settings.frequencies(head_dim)
    };
    let plain = frequencies(RopeScaling::None);
    let scaled = frequencies(scaling.clone());
    let pairs = plain.iter().zip(scaled);
    pairs
        .map(|(plain, scaled)| if scaled == 0.0 { STILL } else { plain / scaled })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama3(factor: f64) -> RopeScaling {
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        }
    }

    #[test]
    fn the_scalings_of_llama_3_1_and_3_2_are_found_again() {
        for (factor, head_dim) in [(8.0, 128), (32.0, 64)] {
            let stored: Vec<f64> = divisors(500_000.0, &llama3(factor), head_dim)
                .into_iter()
                .map(|divisor| f64::from(divisor as f32))
                .collect();
            assert_eq!(scaling(500_000.0, &stored).unwrap(), llama3(factor));
        }
    }

    #[test]
    fn the_divisors_are_those_that_converters_write() {
        // Of `convert_hf_to_gguf.py` for Llama 3.1: one below the ramp, eight above it, and
        // 1 / ((1 − s) / 8 + s) on it, with s = (8192 / λ − 1) / 3.
        let stored = divisors(500_000.0, &llama3(8.0), 128);
        assert_eq!((stored[0], stored[28], stored[63]), (1.0, 1.0, 8.0));
        let wavelength = std::f64::consts::TAU * 500_000f64.powf(64.0 / 128.0);
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        let expected = 1.0 / ((1.0 - smooth) / 8.0 + smooth);
        assert!((stored[32] - expected).abs() < 1e-9, "{}", stored[32]);
    }

    #[test]
    fn divisors_of_one_are_no_scaling() {
        assert_eq!(scaling(10_000.0, &[1.0; 32]).unwrap(), RopeScaling::None);
    }

    #[test]
    fn other_divisors_are_refused() {
        let mut stored = divisors(500_000.0, &llama3(8.0), 128);
        stored[32] *= 1.01;
        for divisors in [stored, vec![], vec![f64::NAN; 4], vec![0.0; 4]] {
            let error = scaling(500_000.0, &divisors).unwrap_err();
            assert!(error.contains("not Llama 3's"), "{error}");
        }
    }
}
