//! Kernels of our own in the place of operators, on devices where they gave the same numbers.

use std::ffi::c_void;
use std::sync::Arc;

use kernels::{Dequantize, Format, Kernels};
use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Stream};
use torch_ext::fake;

use super::nf4::{Nibbles, Table};
use super::{Mxfp4, Nf4};
use crate::Error;

/// Whether kernels of our own take the place of operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseKernels {
    /// Where they were tried and gave the same numbers.
    Auto,
    /// Nowhere.
    Off,
    /// As with `Auto`, and each result is compared with that of operators.
    Verify,
}

/// Switches kernels of our own off, whatever else says, if it is `off`.
const VARIABLE: &str = "SUREFOOT_KERNELS";

/// The devices whose kernels were tried, with those that may be used.
type Tried = Vec<(Device, Option<Arc<Kernels>>)>;

static CHOSEN: Mutex<UseKernels> = Mutex::new(UseKernels::Auto);
static TRIED: Mutex<Tried> = Mutex::new(Vec::new());

/// Chooses what computes from now on. Kernels are used on AMD's GPUs alone, and only once they gave the numbers of
/// operators there for packed weights of each format, which is tried when the first of these are needed, and logged.
pub fn use_kernels(how: UseKernels) {
    *CHOSEN.lock() = how;
}

/// The kernels of a device, if they may be used.
fn kernels_of(device: Device) -> Option<(Arc<Kernels>, UseKernels)> {
    let how = *CHOSEN.lock();
    if how == UseKernels::Off {
        return None;
    }
    let mut all = TRIED.lock();
    let known = all.iter().find(|(other, _)| *other == device);
    let kernels = match known {
        Some((_, kernels)) => kernels.clone(),
        // Nothing can be tried among tensors without numbers.
        None if fake::is_on() => None,
        None => {
            let found = found(device);
            all.push((device, found.clone()));
            found
        }
    };
    kernels.map(|kernels| (kernels, how))
}

/// The kernels of an AMD GPU that nobody has switched off, if they give the numbers of operators.
fn found(device: Device) -> Option<Arc<Kernels>> {
    let index = DeviceIndex::try_from(device).ok()?;
    let is_off = std::env::var_os(VARIABLE).is_some_and(|value| value == "off");
    if is_off || !accelerator::has_hip() {
        return None;
    }
    match tried(index) {
        Ok(kernels) => {
            tracing::info!(
                "weights of 4 bits are converted by a kernel of our own, which gave the numbers of PyTorch's operators on \
                 {device:?} (`train.kernels`, {VARIABLE}=off)"
            );
            Some(Arc::new(kernels))
        }
        Err(error) => {
            tracing::warn!(
                "weights of 4 bits are converted by PyTorch's operators on {device:?}, because a kernel of our own cannot \
                 be used: {error}"
            );
            None
        }
    }
}

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
        let fits = device != Device::Cpu
            && matches!(kind, Kind::BFloat16 | Kind::Half)
            && (fake::is_on() || [self.packed, self.scales].into_iter().all(is_whole));
        let Some((kernels, how)) = (if fits { kernels_of(device) } else { None }) else {
            return operators();
        };
        let values = Tensor::f_empty([2 * self.packed.numel() as i64], (kind, device))?;
        if fake::is_on() {
            return Ok(values);
        }
        let index = DeviceIndex::try_from(device)?;
        accelerator::set_current_device(index)?;
        self.launch(&kernels, &values, Stream::current(index)?.handle()?)?;
        if how == UseKernels::Verify {
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

    /// Writes their values to `values`, whose type says which, on a stream of the device that is current.
    fn launch(self, kernels: &Kernels, values: &Tensor, stream: *mut c_void) -> Result<(), Error> {
        let kind = values.kind();
        let weights = Dequantize {
            format: match self.nibbles {
                Nibbles::Nf4 => Format::Nf4,
                Nibbles::Mxfp4 => Format::Mxfp4,
            },
            kind: match kind {
                Kind::Half => kernels::Kind::Fp16,
                _ => kernels::Kind::Bf16,
            },
            packed: self.packed.data_ptr(),
            scales: self.scales.data_ptr(),
            values: values.data_ptr(),
            words: self.packed.numel() as u64 / 4,
            levels: rounded(self.nibbles.levels(), kind),
        };
        // SAFETY: contiguous tensors on the device, with two values for a byte and a scale for a block, whose memory
        // libtorch gives to no other stream before this one has come so far. A tensor's storage begins at a multiple of 64
        // bytes, and parts of it at whole blocks, of which the smallest has 16 bytes of weights and 64 of values.
        unsafe { kernels.dequantize(weights, stream) }
            .map_err(|error| Error::Internal(error.to_string()))
    }
}

/// As operators on a GPU have them in their tables.
fn rounded(levels: [f32; 16], kind: Kind) -> [f32; 16] {
    levels.map(|level| match kind {
        Kind::Half => half::f16::from_f32(level).to_f32(),
        _ => half::bf16::from_f32(level).to_f32(),
    })
}

/// The kernels, if they give the numbers of operators on the device with this index.
fn tried(index: DeviceIndex) -> Result<Kernels, Error> {
    accelerator::set_current_device(index)?;
    let kernels = Kernels::of_this_process().map_err(|error| Error::Internal(error.to_string()))?;
    let stream = Stream::current(index)?.handle()?;
    compare(index.into(), |packed, values| {
        packed.launch(&kernels, values, stream)
    })?;
    Ok(kernels)
}

/// Compares what `launch` writes with what operators give, for packed weights of every byte, more than fit a workgroup.
fn compare(
    device: Device,
    launch: impl Fn(Packed<'_>, &Tensor) -> Result<(), Error>,
) -> Result<(), Error> {
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
            // Not numbers, so that a launch that writes nothing is seen.
            let values = Tensor::f_full([2 * bytes.len() as i64], f64::NAN, (kind, device))?;
            launch(weights, &values)?;
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
    use std::ffi::c_int;
    use std::process::Command;

    use libloading::os::unix::Library;

    use super::*;

    /// Set in the process whose GPU is simulated.
    const CHILD: &str = "SUREFOOT_KERNELS_CHILD";

    /// The library's function, which takes these and returns a status.
    fn hip<F: Copy>(name: &str) -> F {
        // SAFETY: the callers name functions of HIP with their types; the simulated device is preloaded.
        unsafe { *Library::this().get::<F>(name.as_bytes()).unwrap() }
    }

    fn register(tensor: &Tensor) {
        let register: unsafe extern "C" fn(*mut c_void, usize, u32) -> c_int =
            hip("hipHostRegister");
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        // SAFETY: the memory of a tensor, which lives until it is unregistered.
        assert_eq!(unsafe { register(tensor.data_ptr(), bytes, 0) }, 0);
    }

    fn unregister(tensor: &Tensor) {
        let unregister: unsafe extern "C" fn(*mut c_void) -> c_int = hip("hipHostUnregister");
        // SAFETY: it was registered.
        assert_eq!(unsafe { unregister(tensor.data_ptr()) }, 0);
    }

    /// The tensors are on the CPU, whose memory the simulated GPU reads.
    fn compare_in_simulated_gpu(kernels: &Kernels) -> Result<(), Error> {
        compare(Device::Cpu, |weights, values| {
            let tensors = [weights.packed, weights.scales, values];
            tensors.into_iter().for_each(register);
            weights.launch(kernels, values, std::ptr::null_mut())?;
            let synchronise: unsafe extern "C" fn() -> c_int = hip("hipDeviceSynchronize");
            // SAFETY: HIP's function, which takes nothing.
            assert_eq!(unsafe { synchronise() }, 0);
            tensors.into_iter().for_each(unregister);
            Ok(())
        })
    }

    #[test]
    fn machine_code_gives_the_numbers_of_operators() {
        let objdump = std::env::var_os("SUREFOOT_OBJDUMP");
        if std::env::var_os(CHILD).is_some() {
            let found =
                Kernels::of_this_process().map(|kernels| compare_in_simulated_gpu(&kernels));
            // Kernels that are not executed write nothing, which has to be seen.
            assert_eq!(found.unwrap().is_ok(), objdump.is_some());
            return;
        }
        let library = device_sim::install::library_path().expect("cargo builds it with the tests");
        for objdump in [None, objdump] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let test = concat!(
                module_path!(),
                "::machine_code_gives_the_numbers_of_operators"
            );
            let (_, test) = test.split_once("::").unwrap();
            child
                .args([test, "--exact"])
                .env(CHILD, "1")
                .env("LD_PRELOAD", &library);
            child.env_remove("SUREFOOT_OBJDUMP");
            if let Some(objdump) = &objdump {
                child
                    .env("SUREFOOT_OBJDUMP", objdump)
                    .env("DEVICE_SIM_DISASSEMBLER", objdump);
            }
            let output = child.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains("1 passed"),
                "{said}"
            );
        }
    }
}
