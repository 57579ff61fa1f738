//! Orders to the simulator below this process.

use std::error::Error;
use std::ffi::{CString, c_char, c_int};

use libloading::os::unix::Library;

/// Tells the simulator what to be or to do wrong from now on, in the words of its `orders.rs`.
pub(crate) fn order(text: &str) -> Result<(), Box<dyn Error>> {
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
