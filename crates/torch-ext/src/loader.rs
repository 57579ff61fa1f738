//! Libraries that are loaded while the program runs.

use std::ffi::OsStr;

use libloading::{Error, Library};

/// Who finds the names that a library has.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Names {
    /// Who asks it.
    OfItself,
    /// Also every library that is loaded later; on Windows, where names are looked up in a library, it is all the same.
    OfAll,
}

/// Loads one from a file, or by a name that the dynamic linker finds.
///
/// # Safety
/// Its initialisers run.
pub(crate) unsafe fn load(name: &OsStr, names: Names) -> Result<Library, Error> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
        let scope = if names == Names::OfAll {
            RTLD_GLOBAL
        } else {
            RTLD_LOCAL
        };
        // SAFETY: the caller's.
        unsafe { Library::open(Some(name), RTLD_NOW | scope) }.map(Into::into)
    }
    #[cfg(not(unix))]
    {
        let _ = names;
        // SAFETY: the caller's.
        unsafe { Library::new(name) }
    }
}
