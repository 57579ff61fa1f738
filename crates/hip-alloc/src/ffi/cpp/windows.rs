//! The same in Rust, by the binary interface of Microsoft's compiler for x86-64.

mod exceptions;
mod functions;
mod profiler;

pub(in crate::ffi) use exceptions::Exception;
pub(in crate::ffi) use functions::Function;
pub(in crate::ffi) use profiler::{profiler_listens, tell_profiler};

use crate::system::loaded;

/// A function or a table that PyTorch's `c10.dll` exports under this (mangled) name.
///
/// # Safety
/// The name says what it is, which is of type `T`: a pointer.
unsafe fn of_c10<T: Copy>(name: &str) -> Option<T> {
    let library = loaded("c10.dll")?;
    // SAFETY: as the caller promises.
    let found = unsafe { library.function(name) };
    // It is called later.
    std::mem::forget(library);
    found
}
