//! Kernels of our own in the place of operators, on devices where they gave the same numbers.

mod heads;
mod norm;
#[cfg(test)]
#[cfg(unix)]
pub(crate) mod tests;

use std::ffi::{CStr, OsString, c_void};
use std::sync::{Arc, LazyLock};

use kernels::Kernels;
use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Stream};
use torch_ext::fake;

pub(crate) use heads::{Angles, TurnedHeads};
pub(crate) use norm::RowNorm;

use crate::Error;

/// Whether kernels of our own take the place of operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseKernels {
    /// Where they were tried and gave the same numbers.
    Auto,
    /// Nowhere.
    Off,
    /// As with `Auto`, and each result of a forward pass is compared with that of operators.
    Verify,
}

/// Switches kernels of our own off, whatever else says, if it is `off`. With `any` they are tried on GPUs of other makers, too, if
/// the process has AMD's runtime: so `cargo xtask bench step` counts them.
const VARIABLE: &str = "SUREFOOT_KERNELS";

/// What is tried by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Weights,
    Norms,
    Heads,
}

impl Family {
    /// What it does, for the log.
    fn words(self) -> &'static str {
        match self {
            Self::Weights => "weights of 4 bits are converted",
            Self::Norms => "norms are computed",
            Self::Heads => "queries and keys are rotated",
        }
    }
}

/// Those of a device, if they may be used.
type Tried = Vec<(Device, Family, Option<Arc<Kernels>>)>;

/// The word of [`VARIABLE`].
static WORD: LazyLock<Option<OsString>> = LazyLock::new(|| std::env::var_os(VARIABLE));

static CHOSEN: Mutex<UseKernels> = Mutex::new(UseKernels::Auto);
static TRIED: Mutex<Tried> = Mutex::new(Vec::new());

/// Chooses what computes from now on. Kernels are used on AMD's GPUs alone, and only once they gave the numbers of
/// operators there, which is tried when the first of a family are needed, and logged.
pub fn use_kernels(how: UseKernels) {
    *CHOSEN.lock() = how;
}

pub(crate) fn chosen() -> UseKernels {
    *CHOSEN.lock()
}

/// Whether the kernels of a family were tried on a device, and compute there.
pub(crate) fn is_used(device: Device, family: Family) -> bool {
    let is_this = |tried: &(Device, Family, Option<_>)| (tried.0, tried.1) == (device, family);
    may_be_on(device)
        && TRIED
            .lock()
            .iter()
            .any(|tried| is_this(tried) && tried.2.is_some())
}

/// Kernels that may be used.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) kernels: Arc<Kernels>,
    /// Whether each result of a forward pass is compared with that of operators.
    pub(crate) verifies: bool,
    /// Whether they are being tried: then memory is filled with NaN before, so that a launch that writes nothing is seen.
    tries: bool,
}

impl Chosen {
    /// Those of a family on a device, if they may be used, for which `compare` compares them with operators.
    pub(crate) fn on(
        device: Device,
        family: Family,
        compare: impl Fn(&Self, Device) -> Result<(), Error>,
    ) -> Option<Self> {
        if !may_be_on(device) {
            return None;
        }
        let is_this = |tried: &&mut (Device, Family, _)| (tried.0, tried.1) == (device, family);
        let mut all = TRIED.lock();
        let kernels = match all.iter_mut().find(is_this) {
            Some((_, _, kernels)) => kernels.clone(),
            // Nothing can be tried among tensors without numbers.
            None if fake::is_on() => None,
            None => {
                let mut loaded = all.iter().filter(|(other, ..)| *other == device);
                let loaded = loaded.find_map(|(.., kernels)| kernels.clone());
                // Until it is known, other threads use operators: the trial has a backward pass, which may wait for them.
                all.push((device, family, None));
                drop(all);
                let found = found(device, family, loaded, compare);
                if let Some((.., kernels)) = TRIED.lock().iter_mut().find(is_this) {
                    kernels.clone_from(&found);
                }
                found
            }
        };
        kernels.map(|kernels| Self {
            kernels,
            verifies: chosen() == UseKernels::Verify,
            tries: false,
        })
    }

    /// Memory for a result.
    pub(crate) fn memory(
        &self,
        size: &[i64],
        (kind, device): (Kind, Device),
    ) -> Result<Tensor, Error> {
        Ok(match self.tries && !fake::is_on() {
            true => Tensor::f_full(size, f64::NAN, (kind, device))?,
            false => Tensor::f_empty(size, (kind, device))?,
        })
    }

    /// Calls `launch` with the current stream of the tensors' device, on which it launches what reads and writes these. Nothing
    /// is launched for tensors without numbers.
    pub(crate) fn launch(
        &self,
        name: &CStr,
        reads: &[&Tensor],
        writes: &[&Tensor],
        launch: impl FnOnce(&Kernels, *mut c_void) -> Result<(), kernels::Error>,
    ) -> Result<(), Error> {
        let Some(device) = writes.first().map(|tensor| tensor.device()) else {
            return Ok(());
        };
        if fake::is_on() {
            return Ok(());
        }
        #[cfg(all(test, unix))]
        let _shared =
            (device == Device::Cpu).then(|| tests::Shared::new(&[reads, writes].concat()));
        let stream = match device {
            // The simulated GPU of a test.
            Device::Cpu => std::ptr::null_mut(),
            device => {
                let index = DeviceIndex::try_from(device)?;
                accelerator::set_current_device(index)?;
                Stream::current(index)?.handle()?
            }
        };
        torch_ext::launched(name, reads, writes, || launch(&self.kernels, stream))?
            .map_err(|error| Error::Internal(error.to_string()))
    }
}

/// Whether kernels may compute on a device at all, which is asked before anything is prepared for them.
pub(crate) fn may_be_on(device: Device) -> bool {
    let says = |word: &str| WORD.as_ref().is_some_and(|value| value == word);
    let has_runtime = || match device {
        // The simulated GPU of a test takes tensors of the CPU.
        Device::Cpu => cfg!(test) && std::env::var_os("SUREFOOT_KERNELS_CHILD").is_some(),
        _ => accelerator::has_hip() || says("any"),
    };
    has_runtime() && chosen() != UseKernels::Off && !says("off")
}

/// The kernels of a GPU that nobody has switched off, if they give the numbers of operators.
fn found(
    device: Device,
    family: Family,
    loaded: Option<Arc<Kernels>>,
    compare: impl Fn(&Chosen, Device) -> Result<(), Error>,
) -> Option<Arc<Kernels>> {
    let tried = || {
        if let Ok(index) = DeviceIndex::try_from(device) {
            accelerator::set_current_device(index)?;
        }
        let kernels = match loaded {
            Some(kernels) => kernels,
            None => Arc::new(
                Kernels::of_this_process().map_err(|error| Error::Internal(error.to_string()))?,
            ),
        };
        let chosen = Chosen {
            kernels,
            verifies: false,
            tries: true,
        };
        compare(&chosen, device)?;
        Ok::<_, Error>(chosen.kernels)
    };
    let what = family.words();
    match tried() {
        Ok(kernels) => {
            tracing::info!(
                "{what} by a kernel of our own, which gave the numbers of PyTorch's operators on {device:?} \
                 (`train.kernels`, {VARIABLE}=off)"
            );
            Some(kernels)
        }
        Err(error) => {
            tracing::warn!(
                "{what} by PyTorch's operators on {device:?}, because a kernel of our own cannot be used: {error}"
            );
            None
        }
    }
}

/// The type of 16 bits among these, whose others are fp32; `None` if there is none, or another one.
fn half_of(kinds: impl IntoIterator<Item = Kind>) -> Option<Kind> {
    let mut half = None;
    for kind in kinds {
        match kind {
            Kind::Float => {}
            Kind::BFloat16 | Kind::Half if half.is_none_or(|other| other == kind) => {
                half = Some(kind);
            }
            _ => return None,
        }
    }
    half
}

/// A type of 16 bits as kernels call it.
pub(crate) fn kind_of(kind: Kind) -> kernels::Kind {
    match kind {
        Kind::Half => kernels::Kind::Fp16,
        _ => kernels::Kind::Bf16,
    }
}

/// Where its numbers are; null for one without numbers.
pub(crate) fn address(tensor: &Tensor) -> *mut c_void {
    match fake::is_on() {
        true => std::ptr::null_mut(),
        false => tensor.data_ptr(),
    }
}

fn pointer(tensor: Option<&Tensor>) -> *const c_void {
    tensor.map_or(std::ptr::null(), |tensor| address(tensor).cast_const())
}

/// Compares results that were rounded once, of which some may be NaN.
fn compared(
    ours: &[Tensor],
    theirs: &[Tensor],
    (what, may_be_nan): (&str, bool),
) -> Result<(), Error> {
    if ours.len() != theirs.len() {
        return Err(Error::Internal(format!("other results for {what}")));
    }
    for (ours, theirs) in ours.iter().zip(theirs) {
        let [ours, theirs] = [ours, theirs].map(|tensor| tensor.f_to_kind(Kind::Float));
        let (ours, theirs) = (ours?, theirs?);
        // Sums of rounded numbers may be nearly nothing.
        let largest = theirs.f_abs()?.f_max()?.f_double_value(&[])?;
        let nothing = largest.min(1.0) / 64.0;
        if !ours.f_allclose(&theirs, 1.0 / 64.0, nothing, may_be_nan)? {
            return Err(Error::Internal(format!("other numbers for {what}")));
        }
    }
    Ok(())
}

/// Any numbers between −2 and 2, the same ones each time.
pub(crate) fn numbers(size: &[i64], (kind, device): (Kind, Device)) -> Result<Tensor, Error> {
    let count = size.iter().product::<i64>();
    let places = Tensor::f_arange_start(1, count + 1, (Kind::Double, Device::Cpu))?;
    let numbers = places.f_square()?.f_mul_scalar(0.7)?.f_sin()?;
    let numbers = numbers.f_mul_scalar(2.0)?.f_view(size)?;
    Ok(numbers.f_to_kind(kind)?.f_to_device(device)?)
}
