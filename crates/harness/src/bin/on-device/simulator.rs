//! Changes settings of the simulator in this process.

use std::error::Error;
use std::ffi::{CString, c_char, c_int};

use libloading::os::unix::Library;

/// Changes settings of the simulator, in the syntax of its `settings.rs`.
pub(crate) fn configure(text: &str) -> Result<(), Box<dyn Error>> {
    let text_for_c = CString::new(text)?;
    let process = Library::this();
    // SAFETY: device-sim's header declares `int device_sim_control(const char *)`; no other library has a function
    // of this name.
    let control = unsafe {
        process.get::<unsafe extern "C" fn(*const c_char) -> c_int>(c"device_sim_control")
    }?;
    // SAFETY: a text that ends with zero and lives until the call has returned, which keeps no pointer to it.
    match unsafe { control(text_for_c.as_ptr()) } {
        0 => Ok(()),
        _ => Err(format!("the simulator does not understand `{text}`").into()),
    }
}
