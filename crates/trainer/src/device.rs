//! Which device a run uses, and how to say so.

use placement::{Policy, Verify};
use platform::timings::Timing;
use tch::{Cuda, Device};

use crate::Error;
use crate::ranks;

/// The libtorch that this was built against, as its headers say; it runs on no other.
pub(crate) const LIBTORCH_VERSION: &str = env!("SUREFOOT_LIBTORCH_RELEASE");

/// How tensors are moved. A kernel takes tensors of one device: what does not get there is an
/// error, which the loop has an answer to when it is for lack of memory.
pub(crate) fn policy(verify: Verify) -> Policy {
    Policy {
        verify,
        may_stay_on_host: false,
        ..Policy::default()
    }
}

/// How long what a step is made of takes on the device that a config's `device` means: of a model with 8 billion parameters at
/// 2,048 tokens, or on the CPU of a small one.
///
/// # Errors
/// As [`choose`], and what PyTorch says.
pub fn timings(choice: &str) -> Result<Vec<Timing>, Error> {
    let device = choose(choice)?;
    let size = match device {
        Device::Cpu => (128, 512),
        _ => (2048, 4096),
    };
    Ok(models::timing::timings(device, size)?)
}

/// The device that the config's `device` means on this machine.
///
/// # Errors
/// When a GPU is asked for that libtorch does not see.
pub fn choose(choice: &str) -> Result<Device, Error> {
    let count = if Cuda::is_available() {
        Cuda::device_count().max(0) as usize
    } else {
        0
    };
    let index = match choice {
        "cpu" => return Ok(Device::Cpu),
        "auto" if count == 0 => return Ok(Device::Cpu),
        // Each process of several on a machine has a GPU of its own.
        "auto" | "gpu" => ranks::on_this_machine().0,
        other => match other
            .strip_prefix("gpu:")
            .and_then(|index| index.parse().ok())
        {
            Some(index) => index,
            None => return Err(Error::Device(format!("`{other}` is not a device"))),
        },
    };
    if index < count {
        return Ok(Device::Cuda(index));
    }
    let seen = match count {
        0 => "sees no GPU".to_owned(),
        1 => "sees one GPU, `gpu:0`".to_owned(),
        count => format!("sees {count} GPUs, `gpu:0` to `gpu:{}`", count - 1),
    };
    let build = if tch::utils::has_hip() || tch::utils::has_cuda() {
        ""
    } else {
        " (it is a CPU build: `cargo xtask setup` inside a Python environment with a ROCm or CUDA \
         build of PyTorch uses that one)"
    };
    Err(Error::Device(format!(
        "`device: {choice}` is not there: libtorch {seen}{build}"
    )))
}

/// An environment variable with the library of matrix products on the CPU, `onednn` or `mkl`; else the one that is faster on most
/// CPUs of this kind.
pub const PRODUCTS: &str = "SUREFOOT_PRODUCTS";

/// Lets matrix products on the CPU take the faster of libtorch's two libraries. To be called
/// before the first product, so that all of a run are made alike.
pub(crate) fn choose_products(device: Device) -> Result<(), Error> {
    if device != Device::Cpu {
        return Ok(());
    }
    let by_onednn = match std::env::var(PRODUCTS).as_deref() {
        Ok("onednn") => true,
        Ok("mkl") => false,
        Ok(other) if !other.is_empty() => {
            return Err(Error::Device(format!(
                "{PRODUCTS}={other}: expected `onednn` or `mkl`"
            )));
        }
        _ => torch_ext::products::onednn_is_faster(),
    };
    if by_onednn && !torch_ext::products::use_onednn()? && std::env::var_os(PRODUCTS).is_some() {
        tracing::warn!("{PRODUCTS}=onednn has no effect: this libtorch has no oneDNN for it");
    }
    Ok(())
}

/// The number of the GPU, as libtorch counts; `None` for the CPU.
pub fn gpu_index(device: Device) -> Option<usize> {
    match device {
        Device::Cuda(index) => Some(index),
        _ => None,
    }
}

/// As in "CPU, 2 threads".
pub fn describe(device: Device) -> String {
    match device {
        Device::Cpu => match tch::get_num_threads() {
            1 => "CPU, 1 thread".into(),
            threads => format!("CPU, {threads} threads"),
        },
        Device::Cuda(index) => format!("GPU {index}"),
        other => format!("{other:?}"),
    }
}

/// As in "2.13.0, CPU build".
pub fn describe_libtorch() -> String {
    let build = match (tch::utils::has_hip(), tch::utils::has_cuda()) {
        (true, _) => "ROCm build",
        (false, true) => "CUDA build",
        (false, false) => "CPU build",
    };
    format!("{LIBTORCH_VERSION}, {build}")
}
