//! The C interface of the library.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};

use tch::{Device, Kind};

use crate::loader::{self, Names};
use crate::{Error, Result};

/// Environment variable that names the library's file.
pub const LIBRARY_VARIABLE: &str = "SUREFOOT_RCCL_LIB";
/// The names that are tried: AMD's, which PyTorch's wheels use too, and NVIDIA's.
const NAMES: [&str; 3] = ["librccl.so.1", "librccl.so", "libnccl.so.2"];

/// `ncclSuccess` and `ncclInProgress`.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `ncclSum`.
const SUM: c_int = 0;

/// Identifies a communicator to its processes, `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    /// The bytes to send to the other processes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// An id received from another process.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when these are not 128 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.try_into();
        bytes.map(Self).map_err(|_| {
            Error::InvalidArgument("an id of RCCL has 128 bytes, and this one has not".into())
        })
    }
}

/// An `ncclComm_t`, used only by the thread that created it.
pub(super) type Handle = *mut c_void;

/// A loaded RCCL or NCCL. Cheap to clone; never unloaded.
#[derive(Clone)]
pub struct Library {
    name: String,
    version: String,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Handle,
        *mut c_void,
    ) -> c_int,
    get_async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    comm_abort: unsafe extern "C" fn(Handle) -> c_int,
    comm_destroy: unsafe extern "C" fn(Handle) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Only in the library that `device-sim` simulates: whether all sums of a communicator are done. It has no streams,
    /// and its tensors are in host memory.
    simulated_is_done: Option<unsafe extern "C" fn(Handle) -> c_int>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.name)
    }
}

impl Library {
    /// Loads the library that `SUREFOOT_RCCL_LIB` names, or else `librccl.so.1`, `librccl.so` or `libnccl.so.2`.
    ///
    /// # Errors
    /// [`Error::NoAccelerator`] with the dynamic linker's words.
    pub fn load() -> Result<Self> {
        if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
            // Never another one than the user has named.
            return match path.to_str() {
                Some(path) => Self::open(path),
                None => Err(Error::NoAccelerator(format!(
                    "{LIBRARY_VARIABLE} is not UTF-8: {path:?}"
                ))),
            };
        }
        // What is told is why the first is not there.
        let [first, others @ ..] = NAMES;
        Self::open(first).or_else(|error| {
            let found = others.into_iter().find_map(|name| Self::open(name).ok());
            found.ok_or(error)
        })
    }

    /// Loads the library from a file, or by a name that the dynamic linker finds.
    pub fn open(name: &str) -> Result<Self> {
        // The dynamic linker's words are behind the error.
        let refused = |error: libloading::Error| match std::error::Error::source(&error) {
            Some(words) => Error::NoAccelerator(words.to_string()),
            None => Error::NoAccelerator(format!("{name}: {error}")),
        };
        if name.contains('\0') {
            return Err(Error::InvalidArgument(format!(
                "a name with a NUL byte: {name:?}"
            )));
        }
        // SAFETY: loading runs the initialisers of a library that the user has named, or that bears
        // the name of AMD's or NVIDIA's; that is what using it means.
        let loaded = unsafe { loader::load(OsStr::new(name), Names::OfItself) };
        let loaded = loaded.map_err(refused)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type of the field that this goes into is the function's in `nccl.h`,
                // which has not changed since version 2.0 (`ncclCommAbort`: 2.4), and which RCCL
                // shares. The address stays valid since the library is never closed.
                *unsafe { loaded.get($name.to_bytes_with_nul()) }.map_err(refused)?
            };
        }
        let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = function!(c"ncclGetVersion");
        let mut number = 0;
        // SAFETY: a place for the result.
        unsafe { get_version(&mut number) };
        // SAFETY: a function of `device-sim` alone, whose type it is.
        let simulated = unsafe { loaded.get(c"device_sim_rccl_is_done".to_bytes_with_nul()) };
        let library = Self {
            name: name.to_owned(),
            version: version(number),
            get_unique_id: function!(c"ncclGetUniqueId"),
            comm_init_rank: function!(c"ncclCommInitRank"),
            all_reduce: function!(c"ncclAllReduce"),
            get_async_error: function!(c"ncclCommGetAsyncError"),
            comm_abort: function!(c"ncclCommAbort"),
            comm_destroy: function!(c"ncclCommDestroy"),
            get_error_string: function!(c"ncclGetErrorString"),
            simulated_is_done: simulated.ok().map(|symbol| *symbol),
        };
        // Its threads may run until the process ends.
        std::mem::forget(loaded);
        Ok(library)
    }

    /// The version, as in `2.27.3`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A new id, for all processes of one communicator.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a place for the result.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Checks that it sums tensors on this device: on a GPU or, if simulated, in host memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if not.
    pub fn expect_usable_with(&self, device: Device) -> Result<()> {
        match (device, self.simulated_is_done) {
            (Device::Cuda(_), None) | (Device::Cpu, Some(_)) => Ok(()),
            _ => Err(Error::InvalidArgument(format!(
                "{} sums no tensors on {device:?}",
                self.name
            ))),
        }
    }

    /// Waits for all ranks to join.
    pub(super) fn init(&self, id: UniqueId, rank: c_int, size: c_int) -> Result<Handle> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the result; the id goes by value.
        let status = unsafe { (self.comm_init_rank)(&mut handle, size, id, rank) };
        self.check("ncclCommInitRank", status)?;
        match handle.is_null() {
            true => Err(Error::Peer("ncclCommInitRank made nothing".into())),
            false => Ok(handle),
        }
    }

    /// Starts the sum of `count` elements in place, on the default stream of the current device.
    ///
    /// # Safety
    /// `handle` is live and of this thread; `data` are `count` elements of this type in memory that
    /// the communicator's device reaches, of which nothing else is done until the sum is finished.
    pub(super) unsafe fn all_reduce(
        &self,
        handle: Handle,
        data: *mut c_void,
        count: usize,
        data_type: c_int,
    ) -> Result<()> {
        let stream = std::ptr::null_mut();
        // SAFETY: promised by the caller; the library sums in place where both addresses are equal,
        // and null is the default stream.
        let status =
            unsafe { (self.all_reduce)(data, data, count, data_type, SUM, handle, stream) };
        self.check("ncclAllReduce", status)
    }

    /// The asynchronous error, if there is one.
    ///
    /// # Safety
    /// `handle` is live and of this thread.
    pub(super) unsafe fn asynchronous_error(&self, handle: Handle) -> Result<()> {
        let mut found = SUCCESS;
        // SAFETY: promised by the caller; a place for the result.
        let status = unsafe { (self.get_async_error)(handle, &mut found) };
        self.check("ncclCommGetAsyncError", status)?;
        self.check("an asynchronous error", found)
    }

    /// Whether all sums are done, with a simulated library; `None` with a real one.
    ///
    /// # Safety
    /// `handle` is live and of this thread.
    pub(super) unsafe fn simulated_is_done(&self, handle: Handle) -> Option<bool> {
        // SAFETY: promised by the caller.
        self.simulated_is_done
            .map(|is_done| unsafe { is_done(handle) } != 0)
    }

    /// Aborts what is in progress and frees the communicator.
    ///
    /// # Safety
    /// `handle` is live, of this thread, and not used again.
    pub(super) unsafe fn abort(&self, handle: Handle) {
        // SAFETY: promised by the caller. A failure changes nothing: nobody uses it any more.
        unsafe { (self.comm_abort)(handle) };
    }

    /// Frees a communicator with nothing in progress.
    ///
    /// # Safety
    /// As [`Library::abort`].
    pub(super) unsafe fn destroy(&self, handle: Handle) {
        // SAFETY: promised by the caller.
        unsafe { (self.comm_destroy)(handle) };
    }

    fn check(&self, what: &str, status: c_int) -> Result<()> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: takes any number.
        let words = unsafe { (self.get_error_string)(status) };
        let words = match words.is_null() {
            true => "no words for it".into(),
            // SAFETY: not null, so a terminated string that is never freed.
            false => unsafe { CStr::from_ptr(words) }.to_string_lossy(),
        };
        Err(Error::Peer(format!("RCCL: {what}: {words} ({status})")))
    }
}

/// The `ncclDataType_t` of elements.
pub(super) fn data_type(kind: Kind) -> Result<c_int> {
    match kind {
        Kind::Float => Ok(7),
        Kind::Double => Ok(8),
        Kind::BFloat16 => Ok(9),
        other => Err(Error::InvalidArgument(format!(
            "RCCL is asked for no sums of {other:?}"
        ))),
    }
}

/// Before 2.9, the minor version had one digit.
fn version(number: c_int) -> String {
    let (first, second) = match number {
        ..10_000 => (number / 1000, number / 100 % 10),
        _ => (number / 10_000, number / 100 % 100),
    };
    format!("{first}.{second}.{}", number % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_in_both_ways_of_writing_them() {
        assert_eq!(version(22_703), "2.27.3");
        assert_eq!(version(2_804), "2.8.4");
    }

    #[test]
    fn what_is_no_such_library_is_refused_by_name() {
        let error = Library::open("libno-such-rccl.so").unwrap_err().to_string();
        assert!(error.contains("libno-such-rccl.so"), "{error}");
        let error = Library::open("libc.so.6").unwrap_err().to_string();
        assert!(error.contains("ncclGetVersion"), "{error}");
    }

    #[test]
    fn an_id_has_128_bytes() {
        let id = UniqueId::from_bytes(&[7; 128]).unwrap();
        assert_eq!(id.bytes(), [7; 128]);
        assert!(UniqueId::from_bytes(&[7; 127]).is_err());
    }
}
