//! Libraries that the process has loaded. Nothing here searches a folder.

use std::ffi::OsString;
use std::os::windows::ffi::OsStringExt;
use std::path::PathBuf;
use windows_sys::Win32::Foundation::{HMODULE, MAX_PATH};
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleFileNameW,
    GetModuleHandleExW,
};
use windows_sys::Win32::System::ProcessStatus::K32EnumProcessModules;
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// A loaded library, which stays loaded at least as long as this exists.
pub(crate) struct Library(libloading::os::windows::Library);

impl Library {
    /// A function by its name.
    ///
    /// # Safety
    /// If the library exports the name, it is a function of type `T`, which is that of a pointer to a function.
    pub(crate) unsafe fn get<T: Copy>(
        &self,
        name: &[u8],
    ) -> Result<Function<T>, libloading::Error> {
        // SAFETY: as the caller promises.
        unsafe { self.0.get::<T>(name) }.map(|symbol| Function(*symbol))
    }

    /// The same; `None` if there is no such function.
    ///
    /// # Safety
    /// As for [`get`](Library::get).
    pub(crate) unsafe fn function<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: as the caller promises.
        unsafe { self.get::<T>(name.as_bytes()) }
            .ok()
            .map(|function| *function)
    }
}

/// The address of a function. The library of one that is called must stay loaded.
pub(crate) struct Function<T>(T);

impl<T> std::ops::Deref for Function<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The library with this file name, if the process has loaded it.
pub(crate) fn loaded(name: &str) -> Option<Library> {
    let library = libloading::os::windows::Library::open_already_loaded(name);
    library.ok().map(Library)
}

/// The library of a runtime that the process has loaded. The error is for several in one process: their files.
///
/// Two libraries with the same file name may be loaded from different folders, so all that are loaded are looked at.
pub(crate) fn runtime_library(
    _probe: &str,
    names: &[&str],
    _from_disk: bool,
) -> Result<Option<Library>, Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = modules().into_iter().filter_map(file_of).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default();
        names.iter().any(|wanted| name.eq_ignore_ascii_case(wanted))
    });
    match &files[..] {
        [] => Ok(None),
        [file] => Ok(file.to_str().and_then(loaded)),
        _ => Err(files),
    }
}

/// Keeps this library loaded for as long as the process runs: others keep addresses of its functions.
pub(crate) fn stay_loaded() {
    let mut module = std::ptr::null_mut();
    let flags = GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS;
    // SAFETY: with these flags the name is an address, of which only the module is asked for; a handle is written to a
    // live local.
    unsafe { GetModuleHandleExW(flags, stay_loaded as *const u16, &mut module) };
}

/// The handles of all loaded modules.
fn modules() -> Vec<HMODULE> {
    let mut modules: Vec<HMODULE> = vec![std::ptr::null_mut(); 256];
    loop {
        let room = (modules.len() * size_of::<HMODULE>()) as u32;
        let mut needed = 0;
        // SAFETY: the pseudo-handle of this process is always valid; at most `room` bytes are written to the vector, and
        // their number to a live local.
        let read = unsafe {
            K32EnumProcessModules(GetCurrentProcess(), modules.as_mut_ptr(), room, &mut needed)
        };
        let count = needed as usize / size_of::<HMODULE>();
        if read == 0 || count <= modules.len() {
            modules.truncate(if read == 0 { 0 } else { count });
            return modules;
        }
        modules.resize(count + 64, std::ptr::null_mut());
    }
}

/// The file of a module; `None` if it was unloaded meanwhile.
fn file_of(module: HMODULE) -> Option<PathBuf> {
    let mut path = vec![0; MAX_PATH as usize];
    loop {
        // SAFETY: at most as many characters are written as there are; a handle that is no longer valid is refused.
        let length = unsafe { GetModuleFileNameW(module, path.as_mut_ptr(), path.len() as u32) };
        match length as usize {
            0 => return None,
            length if length < path.len() => {
                return Some(OsString::from_wide(&path[..length]).into());
            }
            length => path.resize(length * 2, 0),
        }
    }
}
