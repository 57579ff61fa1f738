//! Which allocator serves this run, and what it has counted.
//!
//! hip-alloc is loaded at run time through its C interface, so that anybody may put
//! another library in its place: `HIP_ALLOC=0` leaves PyTorch's allocator,
//! `HIP_ALLOC_LIB` names another library.

use tch::Device;
use torch_ext::allocator::{Library, LibraryError, Stats};

use crate::Error;

/// The device number of host memory in hip-alloc's interface (`HIP_ALLOC_HOST`).
const HOST: i32 = -1;

/// The allocator of the run's device.
pub(crate) enum Allocator {
    /// PyTorch's, and why.
    Torch(&'static str),
    /// A library with hip-alloc's interface.
    Library { library: Library, device: i32 },
}

impl Allocator {
    /// Picks and installs the allocator. Must come before the first tensor.
    ///
    /// # Errors
    /// When a library was asked for and cannot be used.
    pub(crate) fn install(device: Device) -> Result<Self, Error> {
        let switch = std::env::var("HIP_ALLOC").unwrap_or_default();
        let required = match switch.as_str() {
            "0" => return Ok(Self::Torch("HIP_ALLOC=0")),
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
                return Ok(Self::Torch("libhip_alloc.so is not beside the program"));
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
        Ok(Self::Library { library, device })
    }

    /// For the start-up message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Torch(reason) => format!("PyTorch's own ({reason})"),
            Self::Library { library, .. } => format!("hip-alloc ({})", library.path().display()),
        }
    }

    /// The counters; `None` when PyTorch's own allocator serves, or the library fails.
    pub(crate) fn stats(&self) -> Option<Stats> {
        match self {
            Self::Torch(_) => None,
            Self::Library { library, device } => library.stats(*device).ok(),
        }
    }

    /// The library, for placement to trim when memory runs out.
    pub(crate) fn library(&self) -> Option<Library> {
        match self {
            Self::Torch(_) => None,
            Self::Library { library, .. } => Some(library.clone()),
        }
    }
}
