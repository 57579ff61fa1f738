//! How long what a step is made of takes on a device: kernels of our own beside PyTorch's operators and beside a copy of as many
//! bytes, products and attention.

use std::time::Instant;

use platform::timings::Timing;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex};

use crate::Error;
use crate::fused::{
    Angles, Family, RowNorm, TurnedHeads, UseKernels, chosen, is_used, numbers, use_kernels,
};
use crate::quant::Nf4;

const ROUNDS: usize = 5;
const CALLS: u32 = 8;

/// Numbers of a head.
const HEAD: i64 = 128;
const EPSILON: f64 = 1e-6;

/// Times everything on a device, for `tokens` tokens of `width` numbers in bf16, in heads of 128.
///
/// # Errors
/// What PyTorch says; a kernel that cannot be used is left out.
pub fn timings(device: Device, (tokens, width): (i64, i64)) -> Result<Vec<Timing>, Error> {
    let clock = Clock::new(device)?;
    let rows = numbers(&[1, tokens, width], (Kind::BFloat16, device))?;
    let size = 2 * tokens * width;
    let mut all = clock.products(&rows)?;
    all.extend(clock.attention(&rows.f_view([1, tokens, -1, HEAD])?)?);
    let weights = Nf4::quantize(&numbers(&[width, width], (Kind::BFloat16, device))?)?;
    // Half a byte, and a scale of four for 64; what is written has two.
    let moved = width * width * 41 / 16;
    let (what, family) = ("weights of 4 bits to bf16", Family::Weights);
    all.extend(clock.ways((what, moved), family, || {
        weights.dequantize(Kind::BFloat16).map(drop)
    })?);
    let weight = numbers(&[width], (Kind::Float, device))?;
    let (what, family) = ("a sum, its norm, and both gradients", Family::Norms);
    all.extend(clock.ways((what, 8 * size), family, || {
        let (input, change) = (learned(&rows)?, learned(&rows)?);
        let norm = RowNorm {
            change: Some(&change),
            ..RowNorm::new(&input, Some(&weight), EPSILON, Kind::BFloat16)
        };
        let [output, sum] = match norm.by_kernel()? {
            Some(both) => both,
            None => norm.by_operators()?,
        };
        backward(&output.f_add(&sum)?)
    })?);
    let weight = numbers(&[HEAD], (Kind::Float, device))?;
    let table = numbers(&[2, 1, tokens, HEAD / 2], (Kind::Float, device))?;
    let angles = Angles {
        cosines: table.f_select(0, 0)?,
        sines: table.f_select(0, 1)?,
        by_halves: true,
    };
    let (what, family) = (
        "heads normalised and rotated, and their gradient",
        Family::Heads,
    );
    all.extend(clock.ways((what, 5 * size), family, || {
        let input = learned(&rows.f_view([1, tokens, -1, HEAD])?)?;
        let heads = TurnedHeads {
            input: &input,
            weight: Some(&weight),
            epsilon: Some(EPSILON),
            angles: &angles,
        };
        backward(&match heads.by_kernel()? {
            Some(turned) => turned,
            None => heads.by_operators()?,
        })
    })?);
    Ok(all)
}

/// A leaf with the numbers of `tensor`.
fn learned(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.f_detach()?.set_requires_grad(true))
}

fn backward(output: &Tensor) -> Result<(), Error> {
    Ok(torch_ext::backward(&output.f_sum(Kind::Float)?)?)
}

/// A device whose work is waited for.
struct Clock {
    device: Device,
    index: Option<DeviceIndex>,
}

impl Clock {
    fn new(device: Device) -> Result<Self, Error> {
        let index = match device {
            Device::Cpu => None,
            device => Some(DeviceIndex::try_from(device)?),
        };
        Ok(Self { device, index })
    }

    /// The median microseconds of a call.
    fn median<T>(&self, work: impl Fn() -> Result<T, Error>) -> Result<f64, Error> {
        let wait = || self.index.map_or(Ok(()), accelerator::synchronize);
        let round = || -> Result<f64, Error> {
            let began = Instant::now();
            (0..CALLS).try_for_each(|_| work().map(drop))?;
            wait()?;
            Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS))
        };
        work()?;
        wait()?;
        let mut rounds = (0..ROUNDS)
            .map(|_| round())
            .collect::<Result<Vec<_>, _>>()?;
        rounds.sort_by(f64::total_cmp);
        Ok(rounds[ROUNDS / 2])
    }

    /// One product of as many rows, each in fp32 as well.
    fn products(&self, rows: &Tensor) -> Result<Vec<Timing>, Error> {
        let (_, tokens, width) = rows.size3()?;
        let ways = [("in bf16", Kind::BFloat16), ("in fp32", Kind::Float)];
        let timed = ways.into_iter().map(|(way, kind)| {
            let left = rows.f_view([tokens, width])?.f_to_kind(kind)?;
            let right = numbers(&[width, width], (kind, self.device))?;
            Ok(Timing {
                what: "a matrix product".into(),
                way: way.into(),
                microseconds: self.median(|| Ok(left.f_matmul(&right)?))?,
                bytes: None,
                flops: Some(2 * tokens * width * width),
            })
        });
        timed.collect()
    }

    /// Causal attention and its gradients, of heads `[1, tokens, heads, width]`.
    fn attention(&self, heads: &Tensor) -> Result<Vec<Timing>, Error> {
        let heads = heads.f_transpose(1, 2)?;
        let scale = (HEAD as f64).powf(-0.5);
        let tokens = heads.size()[2];
        let hidden = Tensor::f_full(
            [tokens, tokens],
            f64::NEG_INFINITY,
            (Kind::BFloat16, self.device),
        )?
        .f_triu(1)?;
        let timed = [true, false].into_iter().map(|is_one_call| {
            let microseconds = self.median(|| {
                let input = learned(&heads)?;
                backward(&match is_one_call {
                    true => Tensor::f_scaled_dot_product_attention(
                        &input,
                        &input,
                        &input,
                        None::<&Tensor>,
                        0.0,
                        true,
                        None,
                        false,
                    )?,
                    false => input
                        .f_matmul(&input.f_transpose(2, 3)?)?
                        .f_mul_scalar(scale)?
                        .f_add(&hidden)?
                        .f_softmax(-1, Kind::BFloat16)?
                        .f_matmul(&input)?,
                })
            })?;
            Ok(Timing {
                what: "causal attention and its gradients".into(),
                way: match is_one_call {
                    true => "PyTorch's choice".into(),
                    false => "scores written down".into(),
                },
                microseconds,
                bytes: None,
                flops: None,
            })
        });
        timed.collect()
    }

    /// What moves so many bytes: by operators, by a kernel of ours where it may be used, and a copy of as many.
    fn ways(
        &self,
        (what, bytes): (&'static str, i64),
        family: Family,
        work: impl Fn() -> Result<(), Error>,
    ) -> Result<Vec<Timing>, Error> {
        let timing = |way: &'static str, microseconds| Timing {
            what: what.into(),
            way: way.into(),
            microseconds,
            bytes: Some(bytes),
            flops: None,
        };
        let before = chosen();
        use_kernels(UseKernels::Off);
        let by_operators = self.median(&work);
        use_kernels(before);
        let mut ways = vec![timing("PyTorch's operators", by_operators?)];
        work()?;
        if is_used(self.device, family) {
            ways.push(timing("a kernel of our own", self.median(&work)?));
        }
        let [from, to] = [0, 1].map(|_| Tensor::f_zeros([bytes / 2], (Kind::Uint8, self.device)));
        let (from, to) = (from?, to?);
        let copy = self.median(|| Ok(to.shallow_clone().f_copy_(&from)?))?;
        ways.push(timing("a copy of as many bytes", copy));
        Ok(ways)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_timed_by_operators_where_there_is_no_kernel() {
        let timings = timings(Device::Cpu, (16, 256)).unwrap();
        let ways = |what: &str| -> Vec<_> {
            let of = timings
                .iter()
                .filter(|timing| timing.what.starts_with(what));
            of.map(|timing| &*timing.way).collect()
        };
        assert_eq!(ways("a matrix"), ["in bf16", "in fp32"]);
        assert_eq!(ways("causal"), ["PyTorch's choice", "scores written down"]);
        for what in ["weights", "a sum", "heads"] {
            assert_eq!(
                ways(what),
                ["PyTorch's operators", "a copy of as many bytes"]
            );
        }
        assert!(timings.iter().all(|timing| timing.microseconds > 0.0));
    }
}
