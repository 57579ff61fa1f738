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

use std::ffi::{CStr, c_int, c_uint};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{Result, raw};

pub use crate::library_error::{ABI_VERSION, LIBRARY_VARIABLE, LibraryError};

/// Device number of host memory, `HIP_ALLOC_HOST`.
pub const HOST: i32 = -1;

const FILE_NAME: &str = if cfg!(windows) {
    "hip_alloc.dll"
} else {
    "libhip_alloc.so"
};

/// The file that has this code: the program, or on Windows the library that Python has loaded.
fn own_file() -> std::io::Result<PathBuf> {
    #[cfg(unix)]
    return std::env::current_exe();
    #[cfg(windows)]
    {
        use std::os::windows::ffi::OsStringExt;
        use windows_sys::Win32::System::LibraryLoader::{
            GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
            GetModuleFileNameW, GetModuleHandleExW,
        };
        const FLAGS: u32 =
            GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
        // The longest path of Windows.
        let mut path = vec![0; 1 << 15];
        let mut module = std::ptr::null_mut();
        let here: *const u16 = (own_file as *const ()).cast();
        // SAFETY: an address of this library takes the place of a name, and the module is written.
        let found = unsafe { GetModuleHandleExW(FLAGS, here, &mut module) };
        if found == 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the module is this one, which is loaded; no more than the length is written.
        let length = unsafe { GetModuleFileNameW(module, path.as_mut_ptr(), path.len() as u32) };
        path.truncate(length as usize);
        Ok(std::ffi::OsString::from_wide(&path).into())
    }
}

/// Counters of one device, `struct hip_alloc_stats`; `xtask/tests/abi.rs` holds it to the header.
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
    /// Bytes ever asked for; less [`live_bytes`](Self::live_bytes), ever freed.
    pub allocated_bytes: u64,
    /// Bytes ever taken from the driver; less [`held_bytes`](Self::held_bytes), ever given back.
    pub driver_alloc_bytes: u64,
    /// Most live allocations since the last reset.
    pub live_allocations_peak: u64,
    /// Most blocks held from the driver since the last reset.
    pub driver_blocks_peak: u64,
    /// Most bytes live or pending since the last reset.
    pub active_peak_bytes: u64,
    /// Times the driver refused and was asked again, with less held.
    pub alloc_retries: u64,
    /// Times all streams were waited for, to give memory back.
    pub stream_syncs: u64,
    /// Bytes ever given back to the driver.
    pub driver_free_bytes: u64,
    /// Nanoseconds in calls that take memory from the driver and give it back.
    pub driver_nanoseconds: u64,
    /// Times kept memory went back because somebody needed it, or nobody used it.
    pub give_backs: u64,
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
    /// beside the executable; on Windows `hip_alloc.dll` beside the library that this is in.
    ///
    /// # Errors
    /// [`LibraryError`] saying which file, and what about it.
    pub fn find() -> Result<Self, LibraryError> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
            return Self::load(PathBuf::from(path), true);
        }
        let folder = own_file()
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
        // As it was meant here, whatever folder the program goes to.
        let path = std::path::absolute(&path).unwrap_or(path);
        // Said here, because the dynamic linker's "cannot open shared object file"
        // also stands for a missing dependency.
        if !path.exists() {
            return Err(LibraryError::Missing {
                path,
                from_variable,
            });
        }
        check_whole(&path)?;
        let file = path.canonicalize().unwrap_or_else(|_| path.clone());
        // SAFETY: loading runs the initialisers of a library that the user chose to
        // run inside this process; that is what the option is for.
        let library = unsafe { libloading::Library::new(&file) }.map_err(|error| {
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
    /// libtorch reads which allocator it has without a lock: call this before other threads make
    /// tensors, at the start of a program.
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
    pub fn stats(&self, device: i32) -> Result<Stats, LibraryError> {
        let mut stats = Stats::default();
        // SAFETY: a valid place of the size that is passed along; the library fills
        // at most that many bytes, and all fields are plain integers.
        let code = unsafe { (self.functions.stats)(device, &mut stats, size_of::<Stats>()) };
        self.done("hip_alloc_stats", code)?;
        Ok(stats)
    }

    /// How much memory there honestly is.
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
    pub fn trim(&self, device: i32, keep_bytes: u64) -> Result<(), LibraryError> {
        let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: no pointers.
        let code = unsafe { (self.functions.trim)(device, keep) };
        self.done("hip_alloc_trim", code)
    }

    /// Makes the peaks of [`Self::stats`] start from what is held now.
    pub fn reset_peaks(&self, device: i32) -> Result<(), LibraryError> {
        // SAFETY: no pointers.
        let code = unsafe { (self.functions.reset_peaks)(device) };
        self.done("hip_alloc_reset_peaks", code)
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

/// An error for a file that was cut off, as by a full disk: the dynamic linker would map what is
/// not there, and the process die of SIGBUS. Other trouble with it the linker tells.
fn check_whole(path: &Path) -> Result<(), LibraryError> {
    let (mut header, mut size) = ([0; 64], 0);
    let read = File::open(path).and_then(|mut file| {
        size = file.metadata()?.len();
        file.read_exact(&mut header)
    });
    // ELF64, little endian: every machine that libtorch has GPU builds for.
    if read.is_err() || !header.starts_with(b"\x7fELF\x02\x01") {
        return Ok(());
    }
    let number = |at: usize, bytes: usize| {
        let number = header[at..at + bytes].iter().rev();
        number.fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    // The table of sections is the last thing that a linker writes.
    let (sections, entry, count) = (number(0x28, 8), number(0x3A, 2), number(0x3C, 2));
    let needed = sections.saturating_add(entry * count);
    match size < needed {
        true => Err(LibraryError::Unloadable {
            path: path.to_owned(),
            reason: format!(
                "it is cut off: it has {size} of at least {needed} bytes; copy or install it again"
            ),
        }),
        false => Ok(()),
    }
}
