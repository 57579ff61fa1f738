//! The function table of a GPU runtime that is loaded in this process.
//!
//! HIP and CUDA runtimes have the same functions under two prefixes, with the
//! same signatures and, for the errors that matter here, the same codes. The
//! runtime that the program already uses is used, never a second one, since two
//! runtimes in one process do not know each other's memory. So the global scope is
//! searched first, then private libraries that are loaded, and the disk only if the user
//! names the backend.
//!
//! One table serves HIP 5, 6 and 7, because it contains no function whose binary interface
//! changed between them: HIP 6 gave `hipDeviceProp_t` another layout and its users another
//! symbol (`hipGetDevicePropertiesR0600`), so facts about a device are queried
//! as single attributes, whose numbers are stable.

use super::numbers::{self, NO_DEVICE, SUCCESS};
use crate::system::{self, Library};
use crate::units::DeviceIndex;
use platform::rocm_libraries::HIP_RUNTIMES;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

/// The runtime: HIP or CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// AMD's, `libamdhip64`.
    Hip,
    /// NVIDIA's, `libcudart`.
    Cuda,
}

impl Family {
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Family::Hip => "hip",
            Family::Cuda => "cuda",
        }
    }

    /// The device attributes for PCI domain, bus and device, and whether it
    /// shares the host's memory.
    fn place_attributes(self) -> [c_int; 4] {
        match self {
            Family::Hip => numbers::HIP_PLACE_ATTRIBUTES,
            Family::Cuda => numbers::CUDA_PLACE_ATTRIBUTES,
        }
    }

    /// The usual reasons why a runtime sees no device, for the user.
    fn why_no_device(self) -> String {
        let (name, why) = match self {
            Family::Hip => ("HIP", system::WHY_NO_HIP_DEVICE),
            Family::Cuda => (
                "CUDA",
                "Does `nvidia-smi` list one, and does no CUDA_VISIBLE_DEVICES hide it?",
            ),
        };
        let host = "HIP_ALLOC_CONF=backend:host runs without a GPU";
        let join = if why.ends_with('?') { "" } else { ";" };
        format!("the {name} runtime works but sees no GPU. {why}{join} {host}")
    }

    /// File names, newest first.
    fn file_names(self) -> &'static [&'static str] {
        match self {
            Family::Hip => HIP_RUNTIMES,
            Family::Cuda => system::CUDA_RUNTIMES,
        }
    }
}

/// A device's PCI address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PciDevice {
    /// PCI domain number.
    pub domain: u32,
    /// PCI bus number.
    pub bus: u32,
    /// PCI device; GPUs are function 0.
    pub slot: u32,
    /// The device shares the host's memory.
    pub integrated: bool,
    /// The runtime's family.
    pub family: Family,
}

/// Where to look for a runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Libraries that the process has loaded.
    Loaded,
    /// Also libraries that the loader finds on the disk.
    LoadedOrDisk,
}

/// Why there is no runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// No library was found.
    #[error("no {family:?} runtime: none is loaded in this process{}", if *.searched_disk { ", and the loader finds none" } else { "" })]
    NotFound {
        /// The requested family.
        family: Family,
        /// Whether the disk was searched too.
        searched_disk: bool,
    },
    /// The process has loaded more than one: they do not know each other's memory.
    #[error("{} {family:?} runtimes are loaded in this process, and memory of one is unknown to the other: {}. \
             Remove all but the one that PyTorch loads from the search path", paths.len(), list(paths))]
    Several {
        /// The requested family.
        family: Family,
        /// Their files.
        paths: Vec<PathBuf>,
    },
    /// A library lacks a function.
    #[error("the {family:?} runtime has no function `{symbol}`")]
    Symbol {
        /// The requested family.
        family: Family,
        /// The name looked up.
        symbol: String,
    },
    /// The runtime works, but sees no GPU that it can use.
    #[error("{call}: {name} (error {code}): {}", family.why_no_device())]
    NoDevice {
        /// The runtime: HIP or CUDA.
        family: Family,
        /// Name of the function that was called.
        call: String,
        /// The runtime's code.
        code: u32,
        /// The runtime's name for it.
        name: String,
    },
    /// The runtime returned an error.
    #[error("{call}: {name} (error {code})")]
    Refused {
        /// Name of the function that was called.
        call: String,
        /// The runtime's code.
        code: u32,
        /// The runtime's name for it.
        name: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" and ")
}

/// Error codes are plain numbers: a value that is unknown to an enum of ours
/// would be undefined behaviour.
pub(super) type Status = u32;

/// A struct of functions, and how to look them up in a library.
macro_rules! function_table {
    ($(#[$about:meta])* $table:ident {
        $($field:ident: $name:literal fn($($argument:ty),*) -> $result:ty;)*
    }) => {
        $(#[$about])*
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            pub(super) fn load(library: &Library, family: Family, prefix: &str) -> Result<Self, RuntimeError> {
                Ok($table { $($field: {
                    let name = format!(concat!("{}", $name), prefix);
                    type Function = unsafe extern "C" fn($($argument),*) -> $result;
                    // SAFETY: the documentation of both runtimes gives this function
                    // exactly this signature (types behind pointers are opaque here).
                    let symbol = unsafe { library.get::<Function>(name.as_bytes()) };
                    // The copied pointer stays valid: the library is never closed.
                    *symbol.map_err(|_| RuntimeError::Symbol { family, symbol: name })?
                },)* })
            }

            /// The names of all functions, without prefix.
            #[allow(dead_code, reason = "for tests")]
            pub(super) const NAMES: &'static [&'static str] = &[$($name),*];
        }
    };
}

pub(super) use function_table;

function_table! {
    /// The functions, as the runtime exports them.
    Functions {
    get_device_count: "GetDeviceCount" fn(*mut c_int) -> Status;
    get_device: "GetDevice" fn(*mut c_int) -> Status;
    set_device: "SetDevice" fn(c_int) -> Status;
    malloc: "Malloc" fn(*mut *mut c_void, usize) -> Status;
    free: "Free" fn(*mut c_void) -> Status;
    mem_get_info: "MemGetInfo" fn(*mut usize, *mut usize) -> Status;
    stream_query: "StreamQuery" fn(*mut c_void) -> Status;
    event_create: "EventCreateWithFlags" fn(*mut *mut c_void, c_uint) -> Status;
    event_record: "EventRecord" fn(*mut c_void, *mut c_void) -> Status;
    event_query: "EventQuery" fn(*mut c_void) -> Status;
    event_synchronize: "EventSynchronize" fn(*mut c_void) -> Status;
    event_destroy: "EventDestroy" fn(*mut c_void) -> Status;
    device_synchronize: "DeviceSynchronize" fn() -> Status;
    device_get_attribute: "DeviceGetAttribute" fn(*mut c_int, c_int, c_int) -> Status;
    get_last_error: "GetLastError" fn() -> Status;
    get_error_name: "GetErrorName" fn(Status) -> *const c_char;
    }
}

function_table! {
    /// Functions about captures of graphs; runtimes without these have no captures.
    CaptureFunctions {
    stream_is_capturing: "StreamIsCapturing" fn(*mut c_void, *mut c_int) -> Status;
    exchange_capture_mode: "ThreadExchangeStreamCaptureMode" fn(*mut c_int) -> Status;
    }
}

function_table! {
    /// Properties of a device in the layout of HIP 6 and newer.
    PropertyFunctions {
    get: "GetDevicePropertiesR0600" fn(*mut c_void, c_int) -> Status;
    }
}

/// A runtime of this process.
pub struct Runtime {
    /// Which one it is.
    pub family: Family,
    pub(super) functions: Functions,
    pub(super) capture_functions: Option<CaptureFunctions>,
    property_functions: Option<PropertyFunctions>,
}

impl Runtime {
    /// Finds the runtime and its functions. The library stays loaded.
    pub fn find(family: Family, search: Search) -> Result<Runtime, RuntimeError> {
        let searched_disk = search == Search::LoadedOrDisk && system::FINDS_RUNTIMES;
        let probe = format!("{}Malloc", family.prefix());
        let library = system::runtime_library(&probe, family.file_names(), searched_disk)
            .map_err(|paths| RuntimeError::Several { family, paths })?
            .ok_or(RuntimeError::NotFound {
                family,
                searched_disk,
            })?;
        let functions = Functions::load(&library, family, family.prefix())?;
        let capture_functions = CaptureFunctions::load(&library, family, family.prefix()).ok();
        let wanted = system::KNOWS_DEVICES_BY_LUID && family == Family::Hip;
        let property_functions = wanted
            .then(|| PropertyFunctions::load(&library, family, family.prefix()).ok())
            .flatten();
        // Closing it would unload a runtime that holds our memory.
        std::mem::forget(library);
        Ok(Runtime {
            family,
            functions,
            capture_functions,
            property_functions,
        })
    }

    /// The number of devices that the runtime sees; none is an error.
    pub fn device_count(&self) -> Result<i32, RuntimeError> {
        let mut count = 0;
        // SAFETY: writes one int to a live local.
        let status = unsafe { (self.functions.get_device_count)(&mut count) };
        match status {
            SUCCESS if count > 0 => Ok(count),
            SUCCESS => Err(self.refused("GetDeviceCount", NO_DEVICE)),
            status => Err(self.refused("GetDeviceCount", status)),
        }
    }

    /// A device's PCI address, and whether it shares the host's memory. `None` if the
    /// runtime does not report it.
    pub fn place(&self, device: DeviceIndex) -> Option<PciDevice> {
        let [domain, bus, slot, integrated] = self.family.place_attributes();
        let attribute = |attribute| self.attribute(device, attribute).map(c_int::unsigned_abs);
        Some(PciDevice {
            domain: attribute(domain)?,
            bus: attribute(bus)?,
            slot: attribute(slot)?,
            integrated: attribute(integrated)? != 0,
            family: self.family,
        })
    }

    /// The major version of an AMD GPU's architecture; `None` for others, and if the runtime does not report it.
    pub fn architecture(&self, device: DeviceIndex) -> Option<u32> {
        match self.family {
            Family::Hip => self
                .attribute(device, numbers::HIP_ARCHITECTURE_ATTRIBUTE)?
                .try_into()
                .ok(),
            Family::Cuda => None,
        }
    }

    /// The number by which Windows knows a device; `None` elsewhere.
    pub fn luid(&self, device: DeviceIndex) -> Option<[u8; 8]> {
        let functions = self.property_functions.as_ref()?;
        let mut properties = [0u8; numbers::HIP_PROPERTIES_BYTES];
        // SAFETY: writes a `hipDeviceProp_tR0600`, whose size is part of this function's name, to a live local with more
        // room; refuses devices that do not exist.
        let status = unsafe { (functions.get)(properties.as_mut_ptr().cast(), device.0) };
        let luid = properties.get(numbers::HIP_LUID)?.try_into().ok()?;
        (status == SUCCESS && luid != [0; 8]).then_some(luid)
    }

    fn attribute(&self, device: DeviceIndex, attribute: c_int) -> Option<c_int> {
        let mut value = 0;
        // SAFETY: writes one int to a live local; refuses attributes and devices that do not exist.
        let status =
            unsafe { (self.functions.device_get_attribute)(&mut value, attribute, device.0) };
        (status == SUCCESS).then_some(value)
    }

    /// The runtime's name for an error code.
    pub fn error_name(&self, status: u32) -> String {
        // SAFETY: takes any code, and returns null or a static string.
        let name = unsafe { (self.functions.get_error_name)(status) };
        if name.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: not null, so a static string that ends with a zero.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    fn refused(&self, call: &str, code: u32) -> RuntimeError {
        let call = format!("{}{call}", self.family.prefix());
        let name = self.error_name(code);
        if code == NO_DEVICE {
            let family = self.family;
            return RuntimeError::NoDevice {
                family,
                call,
                code,
                name,
            };
        }
        RuntimeError::Refused { call, code, name }
    }
}

/// The runtime that the PyTorch of this process was built for, if one is loaded. It need not
/// be the only runtime in the process: other libraries load theirs.
pub fn of_pytorch() -> Option<Family> {
    let builds = [Family::Hip, Family::Cuda].into_iter();
    let mut builds = builds.zip(system::PYTORCH_FOR);
    let found = builds.find(|(_, name)| system::loaded(name).is_some());
    found.map(|(family, _)| family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_runtime_is_told_so() {
        // Nothing in this test process loads CUDA.
        let message = match Runtime::find(Family::Cuda, Search::Loaded) {
            Ok(_) => panic!("this test process has loaded CUDA"),
            Err(error) => error.to_string(),
        };
        assert_eq!(message, "no Cuda runtime: none is loaded in this process");
    }

    #[test]
    fn no_function_has_an_interface_that_depends_on_the_version() {
        // The functions that HIP 6 exports twice, with and without the suffix R0600.
        for versioned in ["GetDeviceProperties", "ChooseDevice"] {
            assert!(!Functions::NAMES.contains(&versioned), "{versioned}");
        }
    }

    #[test]
    fn no_function_is_asked_for_twice() {
        let mut names = Functions::NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Functions::NAMES.len());
    }
}
