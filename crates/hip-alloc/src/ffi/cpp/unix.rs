//! The functions of `cpp/`.

use crate::refusal::Refusal;
use crate::units::StreamId;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C-unwind" {
    /// `cpp/exceptions.cpp`: throws; copies the message first.
    fn hip_alloc_throw_out_of_memory(message: *const c_char) -> !;
    /// The same for errors other than a lack of memory.
    fn hip_alloc_throw_failure(message: *const c_char) -> !;
}

unsafe extern "C" {
    /// `cpp/profiler.cpp`: whether the memory of this thread is being profiled.
    #[link_name = "hip_alloc_profiler_listens"]
    pub(in crate::ffi) safe fn profiler_listens() -> bool;
    /// In a forked child, which then does not ask the loader for the profiler.
    #[link_name = "hip_alloc_profiler_after_fork"]
    pub(in crate::ffi) safe fn profiler_after_fork();
    /// Reports a request, or (below zero) a free, to that profiler. Never throws.
    #[link_name = "hip_alloc_tell_profiler"]
    pub(in crate::ffi) safe fn tell_profiler(
        address: *mut c_void,
        change: i64,
        allocated: usize,
        reserved: usize,
        device: c_int,
    );
    /// `cpp/pools.cpp`: a copy of a `std::function<bool(stream)>`, or null. Never throws.
    fn hip_alloc_copy_filter(filter: *const c_void) -> *mut c_void;
    /// Frees such a copy.
    fn hip_alloc_drop_filter(filter: *mut c_void);
    /// Calls it: 1, 0, or -1 with the reason in `message`. Never throws.
    fn hip_alloc_ask_filter(
        filter: *const c_void,
        stream: *mut c_void,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
}

/// What is thrown for a refusal.
pub(in crate::ffi) struct Exception {
    message: CString,
    throw: unsafe extern "C-unwind" fn(*const c_char) -> !,
}

impl Exception {
    pub(in crate::ffi) fn new(refusal: Refusal) -> Self {
        let (message, throw): (_, unsafe extern "C-unwind" fn(_) -> !) = match refusal {
            Refusal::OutOfMemory(message) => (message, hip_alloc_throw_out_of_memory),
            Refusal::Failed(message) => (message, hip_alloc_throw_failure),
        };
        let mut bytes = message.into_bytes();
        bytes.retain(|byte| *byte != 0);
        let message = CString::new(bytes).unwrap_or_default();
        Exception { message, throw }
    }

    pub(in crate::ffi) fn throw(self) -> ! {
        // SAFETY: the pointer is to a string that ends with a zero and outlives the
        // call's use of it (it is copied before anything is thrown). The exception
        // passes through this frame, which frees the message, and through `extern "C-unwind"`
        // ones; none of them has a `catch_unwind`.
        unsafe { (self.throw)(self.message.as_ptr()) }
    }
}

/// A copy of PyTorch's `std::function<bool(stream)>`.
pub(in crate::ffi) struct Function(*mut c_void);

// SAFETY: called in the thread of each request, and destroyed in any: the header demands of a filter
// that it owns nothing that belongs to one thread. PyTorch's compare a thread's or a stream's name, or
// ask the runtime for the capture of a stream. All access goes through `&mut self`.
unsafe impl Send for Function {}

impl Function {
    /// A copy of the one at this address; `None` if there is no memory for it, or if it is empty.
    ///
    /// # Safety
    /// It is a `std::function` that takes one pointer and returns a `bool`, and lives through the call.
    pub(in crate::ffi) unsafe fn copy(original: *const c_void) -> Option<Self> {
        // SAFETY: as the caller promises.
        let copy = unsafe { hip_alloc_copy_filter(original) };
        (!copy.is_null()).then_some(Function(copy))
    }

    /// Calls it.
    pub(in crate::ffi) fn call(&mut self, stream: StreamId) -> Result<bool, String> {
        let mut message: [c_char; 512] = [0; 512];
        // SAFETY: the pointer is to our own copy, which lives until it is dropped; as many bytes
        // as are said may be written to the local.
        let answer = unsafe {
            hip_alloc_ask_filter(
                self.0,
                stream.0 as *mut c_void,
                message.as_mut_ptr(),
                message.len(),
            )
        };
        if answer >= 0 {
            return Ok(answer != 0);
        }
        // SAFETY: all zeros at first, and whoever wrote there ended with a zero within the size.
        let message = unsafe { CStr::from_ptr(message.as_ptr()) };
        Err(message.to_string_lossy().into_owned())
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // SAFETY: `hip_alloc_copy_filter` gave it, and it is dropped once.
        unsafe { hip_alloc_drop_filter(self.0) };
    }
}
