//! Which of libtorch's operators a piece of work runs.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

use crate::{Result, raw};

/// Runs `work`, and counts the operators that it runs on this thread by their names, as in
/// `aten::conv2d`; those that are made of others count with these. Calls do not nest: an inner one
/// ends the outer one's count.
///
/// # Errors
/// When libtorch refuses the callback.
///
/// # Panics
/// When `work` does.
pub fn counted<T>(work: impl FnOnce() -> T) -> Result<(T, BTreeMap<String, u64>)> {
    /// Ends the count, also when `work` panics.
    struct Counting;
    impl Drop for Counting {
        fn drop(&mut self) {
            // SAFETY: no pointers. A failure leaves a callback that only counts.
            let _ = unsafe { raw::surefoot_operators_stop() };
        }
    }
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_operators_start() })?;
    let counting = Counting;
    let result = work();
    drop(counting);
    let mut counts = BTreeMap::new();
    let context = std::ptr::from_mut(&mut counts).cast();
    // SAFETY: `visit` is called only during the call, with the `context` that is `counts`.
    raw::check(unsafe { raw::surefoot_operators_counted(visit, context) })?;
    Ok((result, counts))
}

/// # Safety
/// `name` is a C string that is valid for the call, `counts` the map of [`counted`], which nobody
/// else uses meanwhile.
unsafe extern "C" fn visit(name: *const c_char, times: u64, counts: *mut c_void) {
    // SAFETY: as the caller promises.
    let (name, counts) = unsafe {
        let counts = &mut *counts.cast::<BTreeMap<String, u64>>();
        (CStr::from_ptr(name), counts)
    };
    counts.insert(name.to_string_lossy().into_owned(), times);
}
