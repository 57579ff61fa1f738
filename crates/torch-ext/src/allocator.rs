//! A foreign allocator under libtorch: `libhip_alloc.so`, or anything else with
//! its C ABI (`hip_alloc.h`, version 1).
//!
//! ```text
//! Library::find()?  ──▶  install_for_cpu()          c10::SetCPUAllocator
//!                   └─▶  install_for_accelerator()  CUDAPluggableAllocator
//! ```
//!
//! A library stays loaded until the process ends: tensors point to its `free`
//! from the moment it is installed, and code that libtorch may still call must not
//! be unmapped.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{Result, raw};

/// The ABI version that this crate speaks.
pub const ABI_VERSION: u32 = 1;

/// Device number of host memory, `HIP_ALLOC_HOST`.
pub const HOST: i32 = -1;

/// Environment variable that names the library's file.
pub const LIBRARY_VARIABLE: &str = "HIP_ALLOC_LIB";

const FILE_NAME: &str = "libhip_alloc.so";

/// Why an allocator library cannot be used, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// There is no file of that name.
    #[error("the allocator library {} does not exist{}", path.display(), named_by(*from_variable))]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// Whether `HIP_ALLOC_LIB` named it.
        from_variable: bool,
    },
    /// No library was named, and none lies beside the executable.
    #[error("no allocator library: {LIBRARY_VARIABLE} is not set, and {} does not exist", looked_at.display())]
    NotFound {
        /// The place beside the executable.
        looked_at: PathBuf,
    },
    /// The file is no library that can be loaded here.
    #[error("the allocator library {} cannot be loaded: {reason}", path.display())]
    Unloadable {
        /// Its file.
        path: PathBuf,
        /// The dynamic linker's words.
        reason: String,
    },
    /// The library lacks a function of the ABI.
    #[error("{} is no allocator library: it has no `{symbol}`", path.display())]
    MissingSymbol {
        /// Its file.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The library speaks another version of the ABI.
    #[error(
        "the allocator library {} has ABI version {found}, and this program needs version {ABI_VERSION}; \
         build both from the same source", path.display()
    )]
    WrongAbi {
        /// Its file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A call returned an error code.
    #[error("the allocator library {} failed in `{function}` with code {code}", path.display())]
    Failed {
        /// Its file.
        path: PathBuf,
        /// The function.
        function: &'static str,
        /// What it returned; its meaning is in the library's log.
        code: i32,
    },
    /// A path with a NUL byte, which C cannot take.
    #[error("the path {} contains a NUL byte", .0.display())]
    BadPath(PathBuf),
}

fn named_by(from_variable: bool) -> String {
    if from_variable {
        format!(" (named by {LIBRARY_VARIABLE})")
    } else {
        String::new()
    }
}

/// Counters of one device, `struct hip_alloc_stats`.
///
/// An older library fills only the fields that it knows; the rest stay zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in live allocations, as they were asked for.
    pub live_bytes: u64,
    /// Most of them since the last reset.
    pub live_peak_bytes: u64,
    /// Bytes held from the driver.
    pub held_bytes: u64,
    /// Most of them since the last reset.
    pub held_peak_bytes: u64,
    /// Allocations that are live.
    pub live_allocations: u64,
    /// Allocations ever served.
    pub allocations: u64,
    /// Frees ever served.
    pub frees: u64,
    /// Calls of the driver's allocation.
    pub driver_allocs: u64,
    /// Calls of the driver's free.
    pub driver_frees: u64,
    /// Requests refused because memory was exhausted.
    pub out_of_memory: u64,
    /// Freed bytes that wait for a stream.
    pub pending_bytes: u64,
    /// Bytes the library may hold at most on this device.
    pub capacity_bytes: u64,
}

/// Free and total bytes, the library's honest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can still be allocated.
    pub free: u64,
    /// Bytes that could be allocated with nothing else in use.
    pub total: u64,
}

/// Functions of the ABI besides those that libtorch calls.
#[derive(Clone, Copy)]
struct Functions {
    mem_info: unsafe extern "C" fn(c_int, *mut usize, *mut usize) -> c_int,
    stats: unsafe extern "C" fn(c_int, *mut Stats, usize) -> c_int,
    reset_peaks: unsafe extern "C" fn(c_int) -> c_int,
    trim: unsafe extern "C" fn(c_int, usize) -> c_int,
    snapshot: unsafe extern "C" fn(*const c_char) -> c_int,
}

/// A loaded allocator library. Cheap to clone; never unloaded.
#[derive(Clone)]
pub struct Library {
    path: PathBuf,
    for_torch: raw::AllocatorFunctions,
    functions: Functions,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Library")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Library {
    /// Loads the library that `HIP_ALLOC_LIB` names, or else `libhip_alloc.so`
    /// beside the executable.
    ///
    /// # Errors
    /// [`LibraryError`] saying which file, and what about it.
    pub fn find() -> Result<Self, LibraryError> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
            return Self::load(PathBuf::from(path), true);
        }
        let folder = std::env::current_exe()
            .ok()
            .and_then(|executable| Some(executable.parent()?.to_owned()))
            .unwrap_or_default();
        Self::open_in(&folder)
    }

    /// Loads the `libhip_alloc.so` of this folder.
    ///
    /// # Errors
    /// [`LibraryError::NotFound`] when the folder has none, else what about it.
    pub fn open_in(folder: &Path) -> Result<Self, LibraryError> {
        let path = folder.join(FILE_NAME);
        if path.exists() {
            Self::load(path, false)
        } else {
            Err(LibraryError::NotFound { looked_at: path })
        }
    }

    /// Loads the library in this file.
    ///
    /// # Errors
    /// [`LibraryError`] saying what about the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LibraryError> {
        Self::load(path.as_ref().to_owned(), false)
    }

    fn load(path: PathBuf, from_variable: bool) -> Result<Self, LibraryError> {
        // Said here, because the dynamic linker's "cannot open shared object file"
        // also stands for a missing dependency.
        if !path.exists() {
            return Err(LibraryError::Missing {
                path,
                from_variable,
            });
        }
        let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
        // SAFETY: loading runs the initialisers of a library that the user chose to
        // run inside this process; that is what the option is for.
        let library = unsafe { libloading::Library::new(&absolute) }.map_err(|error| {
            let reason = match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            };
            LibraryError::Unloadable {
                path: path.clone(),
                reason,
            }
        })?;
        let loaded = Self::resolve(&library, path);
        // Initialisers may have left threads or exit handlers behind that point into
        // the library; and once it is installed, tensors do.
        std::mem::forget(library);
        loaded
    }

    fn resolve(library: &libloading::Library, path: PathBuf) -> Result<Self, LibraryError> {
        /// # Safety
        /// `T` is the type of the function `name`, which the ABI check vouches for.
        unsafe fn get<T: Copy>(
            library: &libloading::Library,
            path: &Path,
            name: &'static CStr,
        ) -> Result<T, LibraryError> {
            // SAFETY: per this function's contract.
            unsafe { library.get::<T>(name) }
                .map(|symbol| *symbol)
                .map_err(|_| LibraryError::MissingSymbol {
                    path: path.to_owned(),
                    symbol: name.to_str().unwrap_or("?"),
                })
        }

        // SAFETY: every version of the ABI has this function with this type: that is
        // what lets versions be told apart.
        let version = unsafe {
            let version: unsafe extern "C" fn() -> c_uint =
                get(library, &path, c"hip_alloc_abi_version")?;
            version()
        };
        if version != ABI_VERSION {
            return Err(LibraryError::WrongAbi {
                path,
                found: version,
            });
        }
        // SAFETY: ABI version 1, just checked, fixes the types of all functions below.
        unsafe {
            Ok(Self {
                for_torch: raw::AllocatorFunctions {
                    malloc: get(library, &path, c"hip_alloc_malloc")?,
                    free: get(library, &path, c"hip_alloc_free")?,
                    record_stream: get(library, &path, c"hip_alloc_record_stream")?,
                },
                functions: Functions {
                    mem_info: get(library, &path, c"hip_alloc_mem_info")?,
                    stats: get(library, &path, c"hip_alloc_stats")?,
                    reset_peaks: get(library, &path, c"hip_alloc_reset_peaks")?,
                    trim: get(library, &path, c"hip_alloc_trim")?,
                    snapshot: get(library, &path, c"hip_alloc_snapshot")?,
                },
                path,
            })
        }
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the library serve libtorch's CPU tensors from now on. Tensors that are
    /// alive already go back to the allocator that they came from.
    ///
    /// # Errors
    /// When a library serves the CPU already, or when this one refuses a small
    /// trial allocation or returns memory that is not aligned to 64 bytes.
    pub fn install_for_cpu(&self) -> Result<()> {
        // SAFETY: the functions are those of ABI version 1, in a library that is
        // never unloaded; the shim copies the struct.
        raw::check(unsafe { raw::surefoot_install_cpu_allocator(&self.for_torch) })?;
        tracing::debug!(library = %self.path.display(), "allocator installed for the CPU");
        Ok(())
    }

    /// Makes the library serve libtorch's accelerator. Must come before the device
    /// is initialised, that is before the first tensor there.
    ///
    /// # Errors
    /// [`Error::NoAccelerator`](crate::Error::NoAccelerator) when this libtorch has no CUDA and no ROCm; a
    /// torch error when the device was initialised already.
    pub fn install_for_accelerator(&self) -> Result<()> {
        // SAFETY: as in `install_for_cpu`.
        raw::check(unsafe { raw::surefoot_install_accelerator_allocator(&self.for_torch) })?;
        tracing::debug!(library = %self.path.display(), "allocator installed for the accelerator");
        Ok(())
    }

    /// Counters of a device, [`HOST`] or an accelerator's number.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn stats(&self, device: i32) -> Result<Stats, LibraryError> {
        let mut stats = Stats::default();
        // SAFETY: a valid place of the size that is passed along; the library fills
        // at most that many bytes, and all fields are plain integers.
        let code = unsafe { (self.functions.stats)(device, &mut stats, size_of::<Stats>()) };
        self.done("hip_alloc_stats", code)?;
        Ok(stats)
    }

    /// How much memory there honestly is.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn mem_info(&self, device: i32) -> Result<MemoryInfo, LibraryError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two valid places for the results.
        let code = unsafe { (self.functions.mem_info)(device, &mut free, &mut total) };
        self.done("hip_alloc_mem_info", code)?;
        Ok(MemoryInfo {
            free: free as u64,
            total: total as u64,
        })
    }

    /// Gives empty blocks back to the driver, but for `keep_bytes` of them.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn trim(&self, device: i32, keep_bytes: u64) -> Result<(), LibraryError> {
        let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: no pointers.
        let code = unsafe { (self.functions.trim)(device, keep) };
        self.done("hip_alloc_trim", code)
    }

    /// Makes the peaks of [`Self::stats`] start from what is held now.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn reset_peaks(&self, device: i32) -> Result<(), LibraryError> {
        // SAFETY: no pointers.
        let code = unsafe { (self.functions.reset_peaks)(device) };
        self.done("hip_alloc_reset_peaks", code)
    }

    /// Writes what lies where into a file that PyTorch's memory viewer opens.
    ///
    /// # Errors
    /// [`LibraryError::Failed`], for instance when the file cannot be written.
    pub fn snapshot(&self, path: &Path) -> Result<(), LibraryError> {
        let path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| LibraryError::BadPath(path.to_owned()))?;
        // SAFETY: a NUL-terminated string, borrowed for the call.
        let code = unsafe { (self.functions.snapshot)(path.as_ptr()) };
        self.done("hip_alloc_snapshot", code)
    }

    fn done(&self, function: &'static str, code: c_int) -> Result<(), LibraryError> {
        if code == 0 {
            Ok(())
        } else {
            Err(LibraryError::Failed {
                path: self.path.clone(),
                function,
                code,
            })
        }
    }
}
