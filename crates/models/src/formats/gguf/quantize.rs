//! Converts fp32 to the formats of GGUF tensors as ggml does, to the bit for those without a search.
//!
//! The K formats have scales within scales: eight or sixteen groups of a block each have a small integer, and the block
//! an fp16 number that those are multiplied by. A group's scale (and minimum) minimises the squared error, weighted
//! by the size of the elements, over several ways of rounding; then the scales are rounded, and the elements once more
//! by the rounded scales.

use half::{bf16, f16};

use super::Format;

/// Appends a block of numbers to a file's bytes.
type Encode = fn(&[f32], &mut Vec<u8>);

impl Format {
    /// Whether [`quantize`](Self::quantize) writes it.
    pub fn can_be_written(self) -> bool {
        self.encoder().is_some()
    }

    /// Appends `numbers`, whole blocks of finite numbers, to `out`; nothing for a format that
    /// [cannot be written](Self::can_be_written).
    pub fn quantize(self, numbers: &[f32], out: &mut Vec<u8>) {
        let Some(encode) = self.encoder() else { return };
        out.reserve(numbers.len() / self.block_elements() * self.block_bytes());
        for block in numbers.chunks_exact(self.block_elements()) {
            encode(block, out);
        }
    }

    fn encoder(self) -> Option<Encode> {
        Some(match self {
            Self::F32 => |x, out| out.extend(x[0].to_le_bytes()),
            Self::F16 => |x, out| put(out, x[0]),
            Self::BF16 => |x, out| out.extend(bf16::from_f32(x[0]).to_le_bytes()),
            Self::Q8_0 => q8_0,
            Self::Q4K => |x, out| with_minima::<15>(x, (-1.0, 20), out),
            Self::Q5K => |x, out| with_minima::<31>(x, (-0.5, 15), out),
            Self::Q6K => q6_k,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Mxfp4 => return None,
        })
    }
}

/// Appends a number as fp16.
fn put(out: &mut Vec<u8>, number: f32) {
    out.extend(f16::from_f32(number).to_le_bytes());
}

/// The number that a reader gets back.
fn stored(number: f32) -> f32 {
    f16::from_f32(number).to_f32()
}

/// The nearest whole number between two, the even one of two that are equally near.
fn nearest(number: f32, least: f32, most: f32) -> f32 {
    number.round_ties_even().clamp(least, most)
}

fn inverse(number: f32) -> f32 {
    if number == 0.0 { 0.0 } else { 1.0 / number }
}

fn q8_0(x: &[f32], out: &mut Vec<u8>) {
    let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = largest / 127.0;
    let factor = inverse(scale);
    put(out, scale);
    // Ties go away from zero here.
    out.extend(x.iter().map(|x| (x * factor).round() as i8 as u8));
}

/// Scale and minimum (not positive) by which the group `x` is whole numbers from 0 to `most`: of roundings that begin at
/// `first` and are a tenth apart, the one with the smallest weighted error.
fn scale_and_minimum(x: &[f32], most: f32, (first, steps): (f32, u32)) -> (f32, f32) {
    let mean_square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let weights = x.iter().map(|x| mean_square.sqrt() + x.abs());
    let weights: Vec<f32> = weights.collect();
    let least = x.iter().copied().fold(0.0, f32::min);
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest <= least {
        return (0.0, least);
    }
    let weighted = || x.iter().zip(&weights);
    let error = |factor: f32, from: f32, scale: f32, minimum: f32| -> f32 {
        let each = weighted().map(|(x, w)| {
            let whole = nearest(factor * (x - from), 0.0, most);
            w * (scale * whole + minimum - x).powi(2)
        });
        each.sum()
    };
    let plain = most / (largest - least);
    let mut best = (plain.recip(), least);
    let mut best_error = error(plain, least, best.0, best.1);
    let sum_w: f32 = weights.iter().sum();
    let sum_x: f32 = weighted().map(|(x, w)| w * x).sum();
    for step in 0..=steps {
        // A better minimum is where the next roundings begin.
        let from = best.1;
        let factor = (first + 0.1 * step as f32 + most) / (largest - from);
        let (mut sum_l, mut sum_ll, mut sum_lx) = (0.0, 0.0, 0.0);
        for (x, w) in weighted() {
            let whole = nearest(factor * (x - from), 0.0, most);
            sum_l += w * whole;
            sum_ll += w * whole * whole;
            sum_lx += w * whole * x;
        }
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (sum_w * sum_lx - sum_x * sum_l) / determinant;
        let mut minimum = (sum_ll * sum_x - sum_l * sum_lx) / determinant;
        if minimum > 0.0 {
            (scale, minimum) = (sum_lx / sum_ll, 0.0);
        }
        let error = error(factor, from, scale, minimum);
        if error < best_error {
            (best_error, best) = (error, (scale, minimum));
        }
    }
    best
}

/// `Q4_K` (`MOST` 15) and `Q5_K` (31): eight groups of 32 with 6-bit scales and minima.
fn with_minima<const MOST: u8>(x: &[f32], trials: (f32, u32), out: &mut Vec<u8>) {
    let most = f32::from(MOST);
    let groups: Vec<(f32, f32)> = x
        .chunks(32)
        .map(|group| scale_and_minimum(group, most, trials))
        .collect();
    let largest = |of: fn(&(f32, f32)) -> f32| groups.iter().map(of).fold(0.0f32, f32::max);
    let (scale, minimum) = (largest(|group| group.0), largest(|group| -group.1));
    let rounded =
        |number: f32, largest: f32| nearest(63.0 * inverse(largest) * number, 0.0, 63.0) as u8;
    let packed: Vec<(u8, u8)> = groups
        .iter()
        .map(|group| (rounded(group.0, scale), rounded(-group.1, minimum)))
        .collect();
    put(out, scale / 63.0);
    put(out, minimum / 63.0);
    // The first four groups have a byte for each number, whose upper two bits belong to the last four.
    let (low, high) = packed.split_at(4);
    out.extend(
        low.iter()
            .zip(high)
            .map(|(low, high)| low.0 | high.0 >> 4 << 6),
    );
    out.extend(
        low.iter()
            .zip(high)
            .map(|(low, high)| low.1 | high.1 >> 4 << 6),
    );
    out.extend(high.iter().map(|high| high.0 & 15 | high.1 << 4));

    let (scale, minimum) = (stored(scale / 63.0), stored(minimum / 63.0));
    let mut whole = [0u8; 256];
    for (group, (s, m)) in packed.iter().enumerate() {
        let (scale, minimum) = (scale * f32::from(*s), minimum * f32::from(*m));
        let at = group * 32..group * 32 + 32;
        for (whole, x) in whole[at.clone()].iter_mut().zip(&x[at]) {
            *whole = nearest((x + minimum) * inverse(scale), 0.0, most) as u8;
        }
    }
    if MOST > 15 {
        out.extend((0..32).map(|i| {
            let fifth = |group: usize| (whole[32 * group + i] >> 4) << group;
            (0..8).map(fifth).fold(0, |bits, bit| bits | bit)
        }));
    }
    for pair in whole.chunks(64) {
        let (low, high) = pair.split_at(32);
        out.extend(low.iter().zip(high).map(|(low, high)| low & 15 | high << 4));
    }
}

/// The scale by which the group `x` is whole numbers from −32 to 31.
fn scale_of_signed(x: &[f32]) -> f32 {
    const MOST: f32 = 32.0;
    let largest = x
        .iter()
        .copied()
        .reduce(|most, x| if x.abs() > most.abs() { x } else { most });
    let largest = largest.filter(|largest| largest.abs() >= 1e-15);
    let Some(largest) = largest else { return 0.0 };
    // Sums of x·l and l·l, weighted by x².
    let sums = |factor: f32| {
        x.iter().fold((0.0, 0.0), |(lx, ll): (f32, f32), x| {
            let whole = nearest(factor * x, -MOST, MOST - 1.0);
            (lx + x * x * x * whole, ll + x * x * whole * whole)
        })
    };
    let (lx, ll) = sums(-MOST / largest);
    let mut scale = lx * inverse(ll);
    let mut best = scale * lx;
    for step in (-9..=9).filter(|step| *step != 0) {
        let (lx, ll) = sums(-(MOST + 0.1 * step as f32) / largest);
        if ll > 0.0 && lx * lx > best * ll {
            scale = lx / ll;
            best = scale * lx;
        }
    }
    scale
}

/// Sixteen groups of 16 with 8-bit scales.
fn q6_k(x: &[f32], out: &mut Vec<u8>) {
    let scales: Vec<f32> = x.chunks(16).map(scale_of_signed).collect();
    let largest = scales.iter().copied().fold(0.0, |most: f32, scale| {
        if scale.abs() > most.abs() {
            scale
        } else {
            most
        }
    });
    let factor = -128.0 * inverse(largest);
    let scale = inverse(factor);
    let rounded: Vec<i8> = scales
        .iter()
        .map(|scale| nearest(factor * scale, -128.0, 127.0) as i8)
        .collect();
    let mut whole = [32u8; 256];
    for (group, s) in rounded.iter().enumerate() {
        let scale = stored(scale) * f32::from(*s);
        let at = group * 16..group * 16 + 16;
        for (whole, x) in whole[at.clone()].iter_mut().zip(&x[at]) {
            *whole = (nearest(x * inverse(scale), -32.0, 31.0) + 32.0) as u8;
        }
    }
    let halves = || whole.chunks(128);
    for half in halves() {
        let (low, high) = half.split_at(64);
        out.extend(low.iter().zip(high).map(|(low, high)| low & 15 | high << 4));
    }
    for half in halves() {
        out.extend((0..32).map(|i| {
            let upper = |quarter: usize| (half[32 * quarter + i] >> 4) << (2 * quarter);
            upper(0) | upper(1) | upper(2) | upper(3)
        }));
    }
    out.extend(rounded.iter().map(|scale| *scale as u8));
    put(out, scale);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a reader gets.
    fn back(format: Format, numbers: &[f32]) -> Vec<f32> {
        let mut bytes = Vec::new();
        format.quantize(numbers, &mut bytes);
        let expected = format.bytes_of(numbers.len() as u64).unwrap();
        assert_eq!(bytes.len() as u64, expected, "{}", format.name());
        let mut back = vec![0.0; numbers.len()];
        format.dequantize(&bytes, &mut back);
        back
    }

    proptest! {
        /// Errors are at most two steps of the coarsest group: weights favour large numbers, and scales are rounded, too.
        #[test]
        fn numbers_come_back_within_a_step(
            numbers in prop::collection::vec(-1.0f32..1.0, 512),
            size in prop::sample::select(vec![1e-6f32, 0.02, 1.0, 300.0]),
        ) {
            let numbers: Vec<f32> = numbers.iter().map(|number| number * size).collect();
            for (format, bound) in [
                (Format::F32, 0.0),
                (Format::F16, 6e-4),
                (Format::BF16, 4e-3),
                (Format::Q8_0, 6e-3),
                (Format::Q6K, 0.13),
                (Format::Q5K, 0.13),
                (Format::Q4K, 0.27),
            ] {
                // fp16 cannot hold the scales of the smallest ones.
                if size < 1e-3 && !matches!(format, Format::F32 | Format::BF16) {
                    continue;
                }
                let back = back(format, &numbers);
                for (a, b) in numbers.iter().zip(&back) {
                    prop_assert!((a - b).abs() <= bound * size, "{} {a} {b}", format.name());
                }
            }
        }
    }

    /// Checksums of what llama.cpp's `llama_model_quantize` (as in cyllama 0.2.18) makes of the same numbers.
    #[test]
    fn bytes_are_those_of_llama_cpp() {
        let mut state = 1u32;
        let numbers: Vec<f32> = (0..8192)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        for (format, checksum) in [
            (Format::Q4K, 0xe2e4_7e3f),
            (Format::Q5K, 0x0b2c_b570),
            (Format::Q6K, 0x2ff9_f437),
            (Format::Q8_0, 0xe2cf_cdbb),
        ] {
            let mut bytes = Vec::new();
            format.quantize(&numbers, &mut bytes);
            assert_eq!(crc32c::crc32c(&bytes), checksum, "{}", format.name());
        }
    }

    #[test]
    fn zeros_and_constants_are_kept() {
        for format in Format::ALL
            .into_iter()
            .filter(|format| format.can_be_written())
        {
            assert_eq!(back(format, &[0.0; 256]), [0.0; 256], "{}", format.name());
            for constant in [0.5, -0.5] {
                let back = back(format, &[constant; 256]);
                let close = |number: &f32| (number - constant).abs() < 0.01;
                assert!(back.iter().all(close), "{} {:?}", format.name(), &back[..4]);
            }
        }
    }
}
