//! Which allocator serves this run, and what it has counted.
//!
//! hip-alloc is loaded at run time through its C interface, so that anybody may put
//! another library in its place: `HIP_ALLOC=0` leaves PyTorch's allocator, as does Windows
//! without `HIP_ALLOC=1`; `HIP_ALLOC_LIB` names another library.

use tch::Device;
use torch_ext::allocator::{Library, LibraryError, Stats};

use crate::config::Config;
use crate::{Error, device};

/// The device number of host memory in hip-alloc's interface (`HIP_ALLOC_HOST`).
const HOST: i32 = -1;

/// The allocator of the run's device. A process has one, chosen at its start: libtorch
/// takes another only before its first tensor.
#[derive(Debug, Clone)]
pub struct Allocator(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// PyTorch's, and why.
    Torch(&'static str),
    /// A library with hip-alloc's interface.
    Library { library: Library, device: i32 },
}

impl Allocator {
    /// PyTorch's own allocator.
    pub fn torch() -> Self {
        Self(Kind::Torch("no other was asked for"))
    }

    /// Picks the allocator for the device of `config` as the environment says, and installs
    /// it. Once in a process, before the first tensor.
    ///
    /// # Errors
    /// When the device is not there, or a library was asked for and cannot be used.
    pub fn install(config: &Config) -> Result<Self, Error> {
        let device = device::choose(&config.device)?;
        let switch = std::env::var("HIP_ALLOC").unwrap_or_default();
        let required = match switch.as_str() {
            "0" => return Ok(Self(Kind::Torch("HIP_ALLOC=0"))),
            "" if cfg!(windows) => {
                let reason = "HIP_ALLOC=1 takes hip-alloc, which is experimental on Windows";
                return Ok(Self(Kind::Torch(reason)));
            }
            "" => false,
            "1" => true,
            other => {
                return Err(Error::Allocator(format!(
                    "`HIP_ALLOC={other}` is neither 0 nor 1: 0 leaves PyTorch's allocator in \
                     place, 1 requires hip-alloc"
                )));
            }
        };
        let library = match Library::find() {
            Ok(library) => library,
            Err(LibraryError::NotFound { .. }) if !required => {
                let reason = "libhip_alloc.so is not beside the program";
                return Ok(Self(Kind::Torch(reason)));
            }
            Err(error) => return Err(Error::Allocator(error.to_string())),
        };
        let device = match device {
            Device::Cuda(index) => {
                library.install_for_accelerator()?;
                index as i32
            }
            _ => {
                library.install_for_cpu()?;
                HOST
            }
        };
        Ok(Self(Kind::Library { library, device }))
    }

    /// For the start-up message.
    pub(crate) fn describe(&self) -> String {
        match &self.0 {
            Kind::Torch(reason) => format!("PyTorch's own ({reason})"),
            Kind::Library { library, .. } => format!("hip-alloc ({})", library.path().display()),
        }
    }

    /// The counters; `None` when PyTorch's own allocator serves, or the library fails.
    pub(crate) fn stats(&self) -> Option<Stats> {
        match &self.0 {
            Kind::Torch(_) => None,
            Kind::Library { library, device } => library.stats(*device).ok(),
        }
    }

    /// The counters, whose peaks start anew.
    pub(crate) fn take_stats(&self) -> Option<Stats> {
        let stats = self.stats();
        if let Kind::Library { library, device } = &self.0
            && let Err(error) = library.reset_peaks(*device)
        {
            tracing::debug!("the allocator's peaks are not reset: {error}");
        }
        stats
    }

    /// Bytes that can still be allocated, and that could be with nothing in use.
    pub(crate) fn memory_info(&self) -> Option<(u64, u64)> {
        match &self.0 {
            Kind::Torch(_) => None,
            Kind::Library { library, device } => {
                let info = library.mem_info(*device).ok()?;
                Some((info.free, info.total))
            }
        }
    }

    /// The same of host memory, whichever device the run uses.
    pub(crate) fn host_memory_info(&self) -> Option<(u64, u64)> {
        let info = self.library()?.mem_info(HOST).ok()?;
        Some((info.free, info.total))
    }

    /// Hands everything back that is held for nobody.
    pub(crate) fn trim(&self) -> Result<(), Error> {
        match &self.0 {
            Kind::Torch(_) => Ok(()),
            Kind::Library { library, device } => library
                .trim(*device, 0)
                .map_err(|error| Error::Allocator(error.to_string())),
        }
    }

    /// The library, for placement to trim when memory runs out.
    pub(crate) fn library(&self) -> Option<Library> {
        match &self.0 {
            Kind::Torch(_) => None,
            Kind::Library { library, .. } => Some(library.clone()),
        }
    }
}
