//! Norms and rotated heads, compared with fp64.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use half::{bf16, f16};
use surefoot_kernels::{Heads, Kernels, Kind, Norm, NormBackward};

use super::{Numbers, on_device, synchronise};

/// A tensor of the simulated device, in fp32 or in 16 bits.
struct Tensor {
    at: *mut c_void,
    count: usize,
    /// `None` for fp32.
    kind: Option<Kind>,
}

impl Tensor {
    fn new(values: &[f64], kind: Option<Kind>) -> Self {
        let half = |value: &f64| match kind {
            Some(Kind::Fp16) => f16::from_f64(*value).to_bits(),
            _ => bf16::from_f64(*value).to_bits(),
        };
        let at = match kind {
            None => on_device(&values.iter().map(|value| *value as f32).collect::<Vec<_>>()).cast(),
            Some(_) => on_device(&values.iter().map(half).collect::<Vec<_>>()).cast(),
        };
        Self {
            at,
            count: values.len(),
            kind,
        }
    }

    /// Without numbers, so that what is not written is seen.
    fn empty(count: usize, kind: Option<Kind>) -> Self {
        Self::new(&vec![f64::NAN; count], kind)
    }

    fn values(&self) -> Vec<f64> {
        // SAFETY: the memory has as many numbers of this type, is never freed, and the device is idle.
        unsafe {
            let half = || std::slice::from_raw_parts(self.at.cast::<u16>(), self.count).iter();
            match self.kind {
                None => std::slice::from_raw_parts(self.at.cast::<f32>(), self.count)
                    .iter()
                    .map(|value| f64::from(*value))
                    .collect(),
                Some(Kind::Bf16) => half().map(|bits| bf16::from_bits(*bits).to_f64()).collect(),
                Some(Kind::Fp16) => half().map(|bits| f16::from_bits(*bits).to_f64()).collect(),
            }
        }
    }

    /// Compares these numbers, which were rounded once.
    fn expect(&self, expected: &[f64], what: &str) {
        let rounding = match self.kind {
            None => 2e-6,
            Some(Kind::Bf16) => 1.0 / 256.0,
            Some(Kind::Fp16) => 1.0 / 2048.0,
        };
        assert_eq!(self.count, expected.len(), "{what}");
        for (index, (ours, expected)) in self.values().iter().zip(expected).enumerate() {
            assert!(
                (ours - expected).abs() <= rounding * expected.abs() + 4e-6,
                "{what}: number {index} is {ours} and not {expected}"
            );
        }
    }
}

/// Random numbers between −2 and 2.
fn random(numbers: &mut Numbers, count: usize) -> Vec<f64> {
    let mut next = || numbers.next() as f64 / f64::from(1_u32 << 29) - 2.0;
    (0..count).map(|_| next()).collect()
}

/// What a norm and its backward pass leave out, or do otherwise.
struct Case {
    kind: Kind,
    width: usize,
    /// Rows of each sample.
    samples: Vec<usize>,
    flags: u32,
}

fn norm(kernels: &Kernels, case: &Case, numbers: &mut Numbers) {
    let Case { kind, width, .. } = *case;
    let (per_sample, rows) = (case.samples[0], case.samples.iter().sum::<usize>());
    let is = |bit: u32| case.flags >> bit & 1 == 1;
    let (is_full, gives_full, is_centred) = (is(0), is(1), is(2));
    let typed = |is_full: bool| if is_full { None } else { Some(kind) };
    let stride = width + 3;
    let mut some = |bit: u32, count: usize, kind: Option<Kind>| {
        is(bit).then(|| Tensor::new(&random(numbers, count), kind))
    };
    let change = some(3, rows * width, Some(kind));
    let weight = some(4, width, None);
    let factor = some(5, case.samples.len() * stride, None);
    let shift = some(6, case.samples.len() * stride, None);
    let residual = some(7, rows * width, typed(gives_full));
    let of_sum = some(3, rows * width, typed(is_full));
    let input = Tensor::new(&random(numbers, rows * width), typed(is_full));
    let gradient = Tensor::new(&random(numbers, rows * width), typed(gives_full));
    let sum = Tensor::empty(rows * width, typed(is_full));
    let output = Tensor::empty(rows * width, typed(gives_full));
    let statistics = Tensor::empty(2 * rows, None);
    let at = |tensor: &Option<Tensor>| tensor.as_ref().map_or(null(), |it| it.at.cast_const());
    let epsilon = 1e-3;
    let forward = Norm {
        input: input.at,
        change: at(&change),
        weight: at(&weight),
        factor: at(&factor),
        shift: at(&shift),
        residual: at(&residual),
        sum: sum.at,
        output: output.at,
        statistics: statistics.at,
        width: width as u32,
        rows: per_sample as u32,
        stride: stride as u32,
        is_full: u32::from(is_full),
        gives_full: u32::from(gives_full),
        is_centred: u32::from(is_centred),
        inverse: 1.0 / width as f32,
        epsilon,
    };
    // SAFETY: memory of the device of these sizes, which is never freed, and the default stream.
    unsafe { kernels.norm(forward, (kind, rows as u64), null_mut()) }.unwrap();
    assert_eq!(synchronise(), 0);

    let whole = |tensor: &Option<Tensor>, otherwise: f64, count: usize| {
        tensor
            .as_ref()
            .map_or(vec![otherwise; count], Tensor::values)
    };
    let added = whole(&change, 0.0, rows * width);
    let mut normalised = input.values();
    if change.is_some() {
        let sums: Vec<f64> = normalised.iter().zip(&added).map(|(a, b)| a + b).collect();
        sum.expect(&sums, "sum");
        normalised = sum.values();
    }
    let weight_of = whole(&weight, 1.0, width);
    let factor_of = whole(&factor, 1.0, case.samples.len() * stride);
    let shift_of = whole(&shift, 0.0, case.samples.len() * stride);
    let residual_of = whole(&residual, 0.0, rows * width);
    let of_sum_of = whole(&of_sum, 0.0, rows * width);
    let gradient_of = gradient.values();
    let (mut outputs, mut gradients) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let places = row * width..(row + 1) * width;
        let vector = row / per_sample * stride;
        let line = &normalised[places.clone()];
        let mean_of = |values: &[f64]| values.iter().sum::<f64>() / width as f64;
        let mean = if is_centred { mean_of(line) } else { 0.0 };
        let squares: Vec<f64> = line.iter().map(|it| (it - mean).powi(2)).collect();
        let scale = 1.0 / (mean_of(&squares) + f64::from(epsilon)).sqrt();
        let times = |column: usize| weight_of[column] * factor_of[vector + column];
        let normed: Vec<f64> = line.iter().map(|it| (it - mean) * scale).collect();
        let inner: Vec<f64> = (0..width)
            .map(|column| gradient_of[places.start + column] * times(column))
            .collect();
        let products: Vec<f64> = inner.iter().zip(&normed).map(|(a, b)| a * b).collect();
        let total = if is_centred { mean_of(&inner) } else { 0.0 };
        for column in 0..width {
            let place = places.start + column;
            outputs.push(
                normed[column] * times(column) + shift_of[vector + column] + residual_of[place],
            );
            let own = (inner[column] - total - normed[column] * mean_of(&products)) * scale;
            gradients.push(own + of_sum_of[place]);
        }
    }
    output.expect(&outputs, "output");

    let of_input = Tensor::empty(rows * width, typed(is_full));
    let of_change = change
        .is_some()
        .then(|| Tensor::empty(rows * width, Some(kind)));
    let backward = NormBackward {
        gradient: gradient.at,
        input: if change.is_some() { sum.at } else { input.at },
        weight: forward.weight,
        factor: forward.factor,
        statistics: statistics.at,
        of_sum: at(&of_sum),
        of_input: of_input.at,
        of_change: at(&of_change).cast_mut(),
        width: forward.width,
        rows: forward.rows,
        stride: forward.stride,
        is_full: forward.is_full,
        gives_full: forward.gives_full,
        is_centred: forward.is_centred,
        inverse: forward.inverse,
    };
    // SAFETY: as above.
    unsafe { kernels.norm_backward(backward, (kind, rows as u64), null_mut()) }.unwrap();
    assert_eq!(synchronise(), 0);
    of_input.expect(&gradients, "gradient of the input");
    if let Some(of_change) = of_change {
        of_change.expect(&gradients, "gradient of the change");
    }
}

/// Widths of one number, of less than a wave, of an odd number, and of more than a workgroup; each flag set and not, with and
/// without each other.
pub(crate) fn norms(kernels: &Kernels) {
    let mut numbers = Numbers(11);
    let flags = [0, 0xff, 0x55, 0xaa, 0x33, 0xcc, 0x0f, 0xf0];
    let shapes = [
        (300, vec![1, 1, 1]),
        (37, vec![2, 2]),
        (1, vec![3]),
        (512, vec![1]),
    ];
    for kind in [Kind::Bf16, Kind::Fp16] {
        for (index, flags) in flags.into_iter().enumerate() {
            let (width, samples) = shapes[index % 4].clone();
            let case = Case {
                kind,
                width,
                samples,
                flags,
            };
            norm(kernels, &case, &mut numbers);
            // Each set of flags with a row of more than a workgroup, too.
            let case = Case {
                width: 259,
                samples: vec![2],
                ..case
            };
            norm(kernels, &case, &mut numbers);
        }
    }
}

/// How heads are rotated.
struct Rotation {
    kind: Kind,
    heads: usize,
    width: usize,
    turned: usize,
    /// Whether pairs are made of halves; otherwise of neighbours.
    by_halves: bool,
    has_norm: bool,
    has_weight: bool,
    is_full: bool,
    /// Whether samples have tables of their own.
    own: bool,
}

fn rotated(kernels: &Kernels, rotation: &Rotation, numbers: &mut Numbers) {
    let Rotation {
        kind,
        heads,
        width,
        turned,
        ..
    } = *rotation;
    let (samples, tokens, pairs) = (2, 3, turned / 2);
    let typed = if rotation.is_full { None } else { Some(kind) };
    let tables = if rotation.own { samples } else { 1 };
    let count = samples * tokens * heads * width;
    let input = Tensor::new(&random(numbers, count), Some(kind));
    let gradient = Tensor::new(&random(numbers, count), Some(kind));
    let weight = rotation
        .has_weight
        .then(|| Tensor::new(&random(numbers, width), None));
    // Cosines and sines in turn.
    let table = Tensor::new(&random(numbers, tables * tokens * pairs * 2), typed);
    let size = if rotation.is_full { 4 } else { 2 };
    let output = Tensor::empty(count, Some(kind));
    let of_input = Tensor::empty(count, Some(kind));
    let forward = Heads {
        input: input.at,
        weight: weight.as_ref().map_or(null(), |it| it.at.cast_const()),
        cosines: table.at,
        sines: table.at.wrapping_byte_add(size),
        output: output.at,
        gradient: null(),
        heads: heads as u32,
        width: width as u32,
        turned: turned as u32,
        tokens: tokens as u32,
        sample: if rotation.own { tokens * pairs * 2 } else { 0 } as u32,
        token: pairs as u32 * 2,
        pair: 2,
        is_full: u32::from(rotation.is_full),
        next: if rotation.by_halves { 1 } else { 2 },
        partner: if rotation.by_halves { pairs as u32 } else { 1 },
        inverse: if rotation.has_norm {
            1.0 / width as f32
        } else {
            0.0
        },
        epsilon: 1e-3,
    };
    let backward = Heads {
        output: of_input.at,
        gradient: gradient.at,
        ..forward
    };
    for launch in [forward, backward] {
        // SAFETY: memory of the device of these sizes, which is never freed, and the default stream.
        unsafe { kernels.heads(launch, (kind, (samples * tokens) as u64), null_mut()) }.unwrap();
        assert_eq!(synchronise(), 0);
    }

    let (inputs, gradients, angles) = (input.values(), gradient.values(), table.values());
    let weights = weight.map_or(vec![1.0; width], |it| it.values());
    let (mut outputs, mut of_inputs) = (Vec::new(), Vec::new());
    for row in 0..samples * tokens * heads {
        let token = row / heads;
        let places = row * width..(row + 1) * width;
        let (line, after) = (&inputs[places.clone()], &gradients[places]);
        let squares = line.iter().map(|it| it * it).sum::<f64>() / width as f64;
        let scale = match rotation.has_norm {
            true => 1.0 / (squares + 1e-3_f32 as f64).sqrt(),
            false => 1.0,
        };
        let mut out: Vec<f64> = (0..width)
            .map(|at| line[at] * scale * weights[at])
            .collect();
        let mut before = after.to_vec();
        let table = if rotation.own { token } else { token % tokens };
        for pair in 0..pairs {
            let (one, other) = match rotation.by_halves {
                true => (pair, pair + pairs),
                false => (2 * pair, 2 * pair + 1),
            };
            let angle = 2 * (table * pairs + pair);
            let (cosine, sine) = (angles[angle], angles[angle + 1]);
            let (a, b) = (out[one], out[other]);
            (out[one], out[other]) = (a * cosine - b * sine, b * cosine + a * sine);
            let (a, b) = (after[one], after[other]);
            (before[one], before[other]) = (a * cosine + b * sine, b * cosine - a * sine);
        }
        let products: f64 = (0..width)
            .map(|at| before[at] * weights[at] * line[at] * scale)
            .sum::<f64>()
            / width as f64;
        let products = if rotation.has_norm { products } else { 0.0 };
        of_inputs.extend(
            (0..width).map(|at| (before[at] * weights[at] - line[at] * scale * products) * scale),
        );
        outputs.extend(out);
    }
    output.expect(&outputs, "heads");
    of_input.expect(&of_inputs, "gradient of heads");
}

/// More heads than waves and fewer, pairs of both conventions, parts that are not rotated, more pairs than lanes.
pub(crate) fn rotations(kernels: &Kernels) {
    let mut numbers = Numbers(13);
    for kind in [Kind::Bf16, Kind::Fp16] {
        for index in 0..8 {
            let is = |bit: u32| index >> bit & 1 == 1;
            let (heads, width, turned) =
                [(9, 7, 6), (2, 130, 130), (3, 100, 68), (1, 33, 2)][index % 4];
            rotated(
                kernels,
                &Rotation {
                    kind,
                    heads,
                    width,
                    turned,
                    by_halves: is(2) != is(0),
                    has_norm: is(1) || is(2),
                    has_weight: is(0) || is(2),
                    is_full: is(2),
                    own: is(1) != is(2),
                },
                &mut numbers,
            );
        }
    }
}
