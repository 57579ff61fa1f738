//! Python, for a program that it has not started.

/// Loads the Python of the environment that `LIBTORCH` is in, for good, and with it PyTorch and the functions of this library.
#[cfg(unix)]
pub(super) fn load() -> Result<(), String> {
    use std::ffi::{CString, c_char, c_int, c_void};
    use std::path::{Path, PathBuf};

    use crate::loader::{self, Names};

    let torch = std::env::var_os("LIBTORCH").map_or_else(PathBuf::new, PathBuf::from);
    // …/lib/python3.11/site-packages/torch
    let [_, packages, version, _, environment] =
        [0, 1, 2, 3, 4].map(|level| torch.ancestors().nth(level).unwrap_or(Path::new("")));
    let name = version.file_name().unwrap_or_default().to_string_lossy();
    let home = std::fs::canonicalize(environment.join("bin/python3")).ok();
    let home = home
        .as_deref()
        .and_then(|program| program.parent()?.parent());
    let Some(home) = home.filter(|_| name.starts_with("python3.")) else {
        return Err(format!(
            "this build has no C++, and needs a Python with PyTorch: LIBTORCH=`{}` is not the folder `torch` of a Python environment",
            torch.display()
        ));
    };
    let file = format!("lib{name}.so.1.0");
    let path = home.join("lib").join(&file);
    let path = if path.exists() { path } else { file.into() };
    let failed = |error: libloading::Error| format!("`{}` cannot be used: {error}", path.display());
    // SAFETY: Python's library, which is loaded once, and whose functions have these types in all its releases.
    unsafe {
        let library = loader::load(path.as_os_str(), Names::OfAll).map_err(failed)?;
        let set_home: unsafe extern "C" fn(*const c_int) =
            *library.get(b"Py_SetPythonHome\0").map_err(failed)?;
        let initialize: unsafe extern "C" fn(c_int) =
            *library.get(b"Py_InitializeEx\0").map_err(failed)?;
        let run: unsafe extern "C" fn(*const c_char) -> c_int =
            *library.get(b"PyRun_SimpleString\0").map_err(failed)?;
        let release: unsafe extern "C" fn() -> *mut c_void =
            *library.get(b"PyEval_SaveThread\0").map_err(failed)?;
        std::mem::forget(library);
        // A string of `wchar_t`, which Python keeps.
        let home: Vec<c_int> = home
            .to_string_lossy()
            .chars()
            .map(|letter| letter as c_int)
            .chain([0])
            .collect();
        set_home(home.leak().as_ptr());
        const WITHOUT_SIGNAL_HANDLERS: c_int = 0;
        initialize(WITHOUT_SIGNAL_HANDLERS);
        let import = format!("import sys; sys.path.insert(0, {packages:?}); import torch");
        let import = CString::new(import).unwrap_or_default();
        let done = run(import.as_ptr()) == 0 && run(super::surefoot_bridge()) == 0;
        release();
        match done {
            true => Ok(()),
            false => Err(format!(
                "`{}` cannot be used: the reason is above",
                torch.display()
            )),
        }
    }
}

/// An error: without Python there is no PyTorch here.
#[cfg(not(unix))]
pub(super) fn load() -> Result<(), String> {
    Err("this program has to be started by Python, after `import torch`".to_owned())
}
