//! Weights of 4 bits by a kernel of our own.

use kernels::{Dequantize, Format};
use tch::{Device, Kind, Tensor};
use torch_ext::fake;

use super::nf4::{Nibbles, Table};
use super::{Mxfp4, Nf4};
use crate::Error;
use crate::fused::{Chosen, Family, address, kind_of};

/// Packed weights, on one device.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) nibbles: Nibbles,
    pub(super) packed: &'a Tensor,
    pub(super) scales: &'a Tensor,
}

impl Packed<'_> {
    /// Their values as `kind`, in the order of the nibbles: by a kernel, or by `operators`.
    pub(super) fn values(
        self,
        kind: Kind,
        operators: impl Fn() -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let device = self.packed.device();
        // A part of another tensor may begin anywhere.
        let is_whole = |tensor: &Tensor| {
            tensor.is_contiguous() && (tensor.data_ptr() as usize).is_multiple_of(4)
        };
        let fits = matches!(kind, Kind::BFloat16 | Kind::Half)
            && (fake::is_on() || [self.packed, self.scales].into_iter().all(is_whole));
        let chosen = fits.then(|| Chosen::on(device, Family::Weights, compare));
        let Some(chosen) = chosen.flatten() else {
            return operators();
        };
        let values = chosen.memory(&[2 * self.packed.numel() as i64], (kind, device))?;
        self.launch(&chosen, &values)?;
        if chosen.verifies && !fake::is_on() {
            let expected = operators()?.f_view(values.size().as_slice())?;
            if !values.f_allclose(&expected, 0.0, 0.0, true)? {
                return Err(Error::Internal(format!(
                    "`train.kernels: verify` found other numbers than those of PyTorch's operators in weights of {} bytes",
                    self.packed.numel()
                )));
            }
        }
        Ok(values)
    }

    /// Writes their values to `values`, whose type says which.
    fn launch(self, chosen: &Chosen, values: &Tensor) -> Result<(), Error> {
        let kind = values.kind();
        let weights = Dequantize {
            format: match self.nibbles {
                Nibbles::Nf4 => Format::Nf4,
                Nibbles::Mxfp4 => Format::Mxfp4,
            },
            kind: kind_of(kind),
            packed: address(self.packed),
            scales: address(self.scales),
            values: address(values),
            words: self.packed.numel() as u64 / 4,
            levels: rounded(self.nibbles.levels(), kind),
        };
        let reads = [self.packed, self.scales];
        chosen.launch(
            c"surefoot::dequantize",
            &reads,
            &[values],
            |kernels, stream| {
                // SAFETY: contiguous tensors on the device, with two values for a byte and a scale for a block, whose memory
                // libtorch gives to no other stream before this one has come so far. A tensor's storage begins at a multiple of 64
                // bytes, and parts of it at whole blocks, of which the smallest has 16 bytes of weights and 64 of values.
                unsafe { kernels.dequantize(weights, stream) }
            },
        )
    }
}

/// As operators on a GPU have them in their tables.
fn rounded(levels: [f32; 16], kind: Kind) -> [f32; 16] {
    levels.map(|level| match kind {
        Kind::Half => half::f16::from_f32(level).to_f32(),
        _ => half::bf16::from_f32(level).to_f32(),
    })
}

/// Compares a kernel with operators, for packed weights of every byte, more than fit a workgroup.
fn compare(chosen: &Chosen, device: Device) -> Result<(), Error> {
    let _no_grad = tch::no_grad_guard();
    let bytes: Vec<u8> = (0..4096_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let packed = Tensor::f_from_slice(&bytes)?.f_to_device(device)?;
    let blocks = |each: usize| 0..(bytes.len() / each) as u32;
    let numbers: Vec<f32> = blocks(32)
        .map(|block| block as f32 * 0.37 * 2_f32.powi(block as i32 % 24 - 20))
        .collect();
    let exponents: Vec<u8> = blocks(16).map(|block| (100 + block % 40) as u8).collect();
    let nf4 = Nf4 {
        packed: packed.f_view([-1, 32])?,
        scales: Tensor::f_from_slice(&numbers)?
            .f_view([-1, 1])?
            .f_to_device(device)?,
        shape: vec![2 * bytes.len() as i64],
    };
    let mxfp4 = Mxfp4 {
        packed: packed.f_view([1, -1])?,
        scales: Tensor::f_from_slice(&exponents)?
            .f_view([1, -1])?
            .f_to_device(device)?,
    };
    for kind in [Kind::BFloat16, Kind::Half] {
        let table = |nibbles| Table::of_two_bytes(device, kind, nibbles);
        let both = [
            (nf4.weights(), nf4.by_operators(&table(Nibbles::Nf4)?)?),
            (
                mxfp4.weights(),
                mxfp4.by_operators(&table(Nibbles::Mxfp4)?)?,
            ),
        ];
        for (weights, expected) in both {
            let values = chosen.memory(&[2 * bytes.len() as i64], (kind, device))?;
            weights.launch(chosen, &values)?;
            if !values.f_equal(&expected.f_view([-1])?)? {
                let reason = format!("other numbers for {:?} in {kind:?}", weights.nibbles);
                return Err(Error::Internal(reason));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::fused::tests::{in_simulated_gpu, name_of};

    #[test]
    fn machine_code_gives_the_numbers_of_operators() {
        in_simulated_gpu(
            name_of!(machine_code_gives_the_numbers_of_operators),
            |executes| {
                // Kernels that are not executed write nothing, which has to be seen.
                let chosen = Chosen::on(Device::Cpu, Family::Weights, compare);
                assert_eq!(chosen.is_some(), executes);
            },
        );
    }
}
