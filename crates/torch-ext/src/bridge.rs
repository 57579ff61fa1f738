//! The functions of `raw` in a build without C++: the files in `bridge` do what they are for, in the
//! Python that has loaded PyTorch.
//!
//! ```text
//! python.exe   import torch; load the library; exec(surefoot_bridge())      the usual way
//! a program    load Python; import torch; exec of the same                  where LIBTORCH is that of a Python environment
//!                    │
//!                    └─▶ provide(name, address) for each function ─▶ raw
//! ```
//!
//! Python's lock is taken when a function is called, and released while one calls back.

mod host;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Code;

/// What Python executes, in one namespace.
const PROGRAM: &str = concat!(
    include_str!("bridge/boundary.py"),
    include_str!("bridge/graph.py"),
    include_str!("bridge/operators.py"),
    include_str!("bridge/accelerator.py"),
    include_str!("bridge/fake.py"),
);

/// What Python has provided: addresses by names.
static FUNCTIONS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    static LAST_FAILURE: RefCell<(i32, String)> = const { RefCell::new((0, String::new())) };
}

/// What Python has to execute after `import torch`, and before anything here is called. It lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn surefoot_bridge() -> *const c_char {
    static SOURCE: OnceLock<CString> = OnceLock::new();
    let source = SOURCE.get_or_init(|| {
        let (provide, report) = (provide as *const c_void, report as *const c_void);
        let text = format!("{PROGRAM}\ninstall({provide:p}, {report:p})\n");
        CString::new(text).unwrap_or_default()
    });
    source.as_ptr()
}

/// # Safety
/// `name` is a C string, and `function` one with the parameters that `raw` has for this name, which stays.
unsafe extern "C" fn provide(name: *const c_char, function: *const c_void) {
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned();
    let mut functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    functions.insert(name, function as usize);
}

/// Keeps the accelerator's number and the message of what fails on this thread.
///
/// # Safety
/// `message` is a C string.
unsafe extern "C" fn report(number: i32, message: *const c_char) {
    // SAFETY: the caller's.
    let message = unsafe { CStr::from_ptr(message) };
    LAST_FAILURE.set((number, message.to_string_lossy().into_owned()));
}

/// What was reported last on this thread.
pub(crate) fn last_failure() -> (i32, String) {
    LAST_FAILURE.take()
}

/// The address of a function. Python is loaded if it is not there.
pub(crate) fn function(name: &str) -> Option<usize> {
    python().as_ref().ok()?;
    let functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    functions.get(name).copied()
}

/// Whether Python is there, which is loaded if it is not.
fn python() -> &'static Result<(), String> {
    static PYTHON: OnceLock<Result<(), String>> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let is_here = !functions.is_empty();
        drop(functions);
        if is_here { Ok(()) } else { host::load() }
    })
}

/// What a function returns that Python does not have.
pub(crate) trait Missing {
    fn missing(name: &str) -> Self;
}

impl Missing for i32 {
    fn missing(name: &str) -> Self {
        let message = match python() {
            Err(error) => error.clone(),
            Ok(()) if name == "surefoot_install_cpu_allocator" => {
                "an allocator for the CPU needs a build with C++, as those for Linux are".to_owned()
            }
            Ok(()) => {
                "training in several processes needs a build with C++, as those for Linux are"
                    .to_owned()
            }
        };
        LAST_FAILURE.set((0, message));
        Code::NotImplemented.to_raw()
    }
}

impl Missing for bool {
    fn missing(_: &str) -> Self {
        false
    }
}

impl Missing for u64 {
    fn missing(_: &str) -> Self {
        0
    }
}

impl Missing for () {
    fn missing(_: &str) {}
}
