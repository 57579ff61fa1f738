//! In which type adapters compute where `adapter.lora_bf16` is `auto`: measured once for a GPU and a libtorch.
//!
//! Some GPUs multiply fp32 many times more slowly than bf16 (Strix Halo: 3 against 30 TFLOP/s), and everywhere adding
//! to an output in fp32 reads and writes several times as much. What adapters of a layer take is timed both ways, and the answer kept
//! in the cache folder: a run that goes on later, or on another day, computes as before.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

use models::Error;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex};

use crate::config::{AdapterConfig, Bf16};
use crate::data::cache_folder;
use crate::device;

/// fp32 stays unless bf16 takes less than this share of its time: what bf16 loses in precision should be worth it.
const WORTH: f64 = 0.7;

/// The type of the adapters' products on `device`, where those of their layers are in `compute`.
pub(crate) fn computes_in(adapter: &AdapterConfig, (compute, device): (Kind, Device)) -> Kind {
    let obstacle = match (compute, adapter.use_dora) {
        (Kind::Float, _) => Some("matrix products are in fp32 (`train.bf16`)"),
        (_, true) => Some("DoRA computes in fp32"),
        _ => None,
    };
    match (adapter.lora_bf16, obstacle) {
        (Bf16::On, Some(obstacle)) => {
            tracing::warn!("`adapter.lora_bf16: true` has no effect: {obstacle}");
            Kind::Float
        }
        (Bf16::On, None) => compute,
        (Bf16::Auto, None) => measured(device),
        _ => Kind::Float,
    }
}

/// The type of the products of adapters on `device`.
fn measured(device: Device) -> Kind {
    let Ok(index) = DeviceIndex::try_from(device) else {
        return Kind::Float;
    };
    // The memory distinguishes GPUs better than nothing where libtorch does not tell their names.
    let memory = accelerator::memory_info(index).map_or(0, |memory| memory.total);
    let name = format!(
        "{} {memory} {}",
        device::describe(device),
        device::describe_libtorch()
    );
    let kept = remembered(&cache_folder().join("adapters"), &name, || {
        let half = seconds(device, Kind::BFloat16)?;
        Ok([seconds(device, Kind::Float)?, half])
    });
    match kept {
        Ok([full, half]) => {
            let kind = match half < WORTH * full {
                true => Kind::BFloat16,
                false => Kind::Float,
            };
            tracing::info!(
                "adapters compute in {kind:?}: one took {:.3} ms in bf16 and {:.3} ms in fp32 on this GPU",
                1e3 * half,
                1e3 * full
            );
            kind
        }
        Err(reason) => {
            tracing::warn!(
                "adapters compute in fp32, because bf16 could not be measured: {reason}"
            );
            Kind::Float
        }
    }
}

/// The two numbers that were kept in `folder` under `name`, or those that `measure` gives, which are then kept. Of several
/// processes that measure at the same time, all get the numbers of one.
fn remembered(
    folder: &Path,
    name: &str,
    measure: impl FnOnce() -> Result<[f64; 2], Error>,
) -> Result<[f64; 2], String> {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    let path = folder.join(name.chars().map(safe).collect::<String>());
    let read = || -> Option<[f64; 2]> {
        let text = fs::read_to_string(&path).ok()?;
        let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
        numbers.try_into().ok()
    };
    if let Some(numbers) = read() {
        return Ok(numbers);
    }
    let [full, half] = measure().map_err(|error| error.to_string())?;
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        // Complete before it has its name, and never replaced.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        write!(file, "{full:e} {half:e}")?;
        match file.persist_noclobber(&path) {
            Err(error) if error.error.kind() != ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    };
    write().map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
    read().ok_or_else(|| format!("`{}` is damaged: delete it", path.display()))
}

/// Seconds that adding an adapter of rank 16 to a layer's output takes, in this type, for 2,048 tokens.
fn seconds(device: Device, kind: Kind) -> Result<f64, Error> {
    const TIMES: u32 = 10;
    let _no_grad = tch::no_grad_guard();
    let zeros = |size: [i64; 2], kind| Tensor::f_zeros(size, (kind, device));
    let rows = zeros([2048, 4096], Kind::BFloat16)?;
    let output = zeros([2048, 4096], Kind::BFloat16)?;
    let (a, b) = (
        zeros([16, 4096], Kind::Float)?,
        zeros([4096, 16], Kind::Float)?,
    );
    let add = || -> Result<(), Error> {
        let (a, b) = (a.f_to_kind(kind)?, b.f_to_kind(kind)?);
        let low = rows.f_to_kind(kind)?.f_linear(&a, None::<&Tensor>)?;
        let mut sum = output.f_to_kind(kind)?;
        let _ = sum.f_addmm_(&low, &b.f_tr()?)?.f_to_kind(Kind::BFloat16)?;
        Ok(())
    };
    let wait = || match DeviceIndex::try_from(device) {
        Ok(index) => accelerator::synchronize(index),
        Err(_) => Ok(()),
    };
    // The first ones load kernels.
    for _ in 0..3 {
        add()?;
    }
    wait()?;
    let began = Instant::now();
    for _ in 0..TIMES {
        add()?;
    }
    wait()?;
    Ok(began.elapsed().as_secs_f64() / f64::from(TIMES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_first_stays() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("adapters");
        let first = remembered(&place, "GPU 0: 2.13", || Ok([2.5e-3, 1.0e-3])).unwrap();
        let second = remembered(&place, "GPU 0: 2.13", || Ok([1.0, 1.0])).unwrap();
        assert_eq!((first, second), ([2.5e-3, 1.0e-3], first));
        let other = remembered(&place, "GPU 1: 2.13", || Ok([1.0, 1.0])).unwrap();
        assert_eq!(other, [1.0, 1.0]);
        let failed = remembered(&place, "GPU 2", || Err(Error::Internal("no GPU".into())));
        assert!(failed.unwrap_err().contains("no GPU"));
    }

    #[test]
    fn both_types_can_be_timed() {
        for kind in [Kind::Float, Kind::BFloat16] {
            assert!(seconds(Device::Cpu, kind).unwrap() > 0.0);
        }
        // Nothing is measured for the CPU, where results are compared from run to run.
        assert_eq!(measured(Device::Cpu), Kind::Float);
    }
}
