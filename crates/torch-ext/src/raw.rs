//! The functions of `cpp/`, as they are, or Python's in `bridge` in their place. Everything that returns an `i32` returns
//! a [`Code`](crate::error::Code); [`check`] turns it into a `Result`.

use std::ffi::{c_char, c_int, c_void};

use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Code, Error, Result};

pub(crate) const OK: i32 = 0;

/// Turns a return code into a `Result`, fetching this thread's message.
pub(crate) fn check(code: i32) -> Result<()> {
    if code == OK {
        return Ok(());
    }
    let (number, message) = last_failure();
    Err(Error::from_shim(Code::from_raw(code), number, message))
}

#[cfg(bridge)]
use crate::bridge::last_failure;

/// The accelerator's number for the last failure on this thread, and the message.
#[cfg(not(bridge))]
fn last_failure() -> (i32, String) {
    unsafe extern "C" {
        fn surefoot_last_message() -> *const c_char;
        fn surefoot_last_detail() -> i32;
    }
    // SAFETY: the pointer is that of a thread-local std::string, never null, and
    // valid until the next failing call on this thread; we copy it at once. The other is a thread-local integer.
    unsafe {
        let message = std::ffi::CStr::from_ptr(surefoot_last_message());
        let message = message.to_string_lossy().into_owned();
        (surefoot_last_detail(), message)
    }
}

/// Takes ownership of a tensor that the shim made, if it reported success.
pub(crate) fn tensor(make: impl FnOnce(*mut *mut C_tensor) -> i32) -> Result<Tensor> {
    let mut out = std::ptr::null_mut();
    check(make(&mut out))?;
    // SAFETY: on success the shim has stored a fresh `at::Tensor` allocated with
    // `new`, which is what `Tensor::from_ptr` takes over and later deletes.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The handles of borrowed tensors, valid as long as the tensors are.
pub(crate) fn pointers<T: std::borrow::Borrow<Tensor>>(tensors: &[T]) -> Vec<*const C_tensor> {
    tensors
        .iter()
        .map(|tensor| tensor.borrow().as_ptr())
        .collect()
}

/// Mirrors `surefoot_allocator_functions`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocatorFunctions {
    pub(crate) malloc: unsafe extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void,
    pub(crate) free: unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void),
    pub(crate) record_stream: unsafe extern "C" fn(*mut c_void, *mut c_void),
}

/// Mirrors `surefoot_stream`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamIdentity {
    pub(crate) id: i64,
    pub(crate) device: i32,
    pub(crate) device_type: i32,
}

/// Mirrors `surefoot_adamw_options`.
#[repr(C)]
pub(crate) struct AdamWOptions {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) epsilon: f64,
}

/// Mirrors `surefoot_closure`.
#[repr(C)]
pub(crate) struct Closure {
    pub(crate) data: *mut c_void,
    pub(crate) run:
        unsafe extern "C" fn(*mut c_void, *const *mut C_tensor, usize, *mut c_void) -> i32,
    pub(crate) failure: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    pub(crate) drop: unsafe extern "C" fn(*mut c_void),
}

/// A `c10::Event` on the C++ heap.
#[repr(C)]
pub(crate) struct EventHandle {
    _private: [u8; 0],
}

/// A `c10d::TCPStore` on the C++ heap.
#[repr(C)]
pub(crate) struct StoreHandle {
    _private: [u8; 0],
}

/// A `c10d::ProcessGroupGloo` on the C++ heap.
#[repr(C)]
pub(crate) struct GroupHandle {
    _private: [u8; 0],
}

/// Sums of gradients by a group, on the C++ heap.
#[repr(C)]
pub(crate) struct ReductionHandle {
    _private: [u8; 0],
}

/// Functions of C++, or pointers to Python's of these names.
macro_rules! functions {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[cfg(not(bridge))]
        unsafe extern "C" {
            $($(#[$about])* pub(crate) fn $name($($argument: $type),*) $(-> $result)?;)*
        }
        $(#[cfg(bridge)]
        $(#[$about])*
        #[allow(clippy::too_many_arguments, reason = "as in C++")]
        pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
            use crate::bridge::{Missing, function};
            static FUNCTION: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
            match FUNCTION.get_or_init(|| function(stringify!($name))) {
                // SAFETY: Python has provided it under this name, and so with these parameters, for good.
                Some(address) => unsafe {
                    let function: unsafe extern "C" fn($($type),*) $(-> $result)? =
                        std::mem::transmute(*address as *const c_void);
                    function($($argument),*)
                },
                None => Missing::missing(stringify!($name)),
            }
        })*
    };
}

#[cfg(bridge)]
functions! {
    fn surefoot_is_integrated(device: i32, answer: *mut bool) -> i32;
}

functions! {
    fn surefoot_install_cpu_allocator(functions: *const AllocatorFunctions) -> i32;
    fn surefoot_install_accelerator_allocator(
        functions: *const AllocatorFunctions,
    ) -> i32;

    fn surefoot_has_hip(answer: *mut bool) -> i32;
    fn surefoot_device_count(count: *mut i32) -> i32;
    fn surefoot_set_device(device: i32) -> i32;
    fn surefoot_synchronize(device: i32) -> i32;
    fn surefoot_memory_info(device: i32, free: *mut usize, total: *mut usize) -> i32;
    fn surefoot_empty_cache() -> i32;

    fn surefoot_current_stream(device: i32, out: *mut StreamIdentity) -> i32;
    fn surefoot_new_stream(device: i32, out: *mut StreamIdentity) -> i32;
    fn surefoot_set_current_stream(stream: *const StreamIdentity) -> i32;
    fn surefoot_stream_handle(stream: *const StreamIdentity, handle: *mut *mut c_void) -> i32;
    fn surefoot_stream_synchronize(stream: *const StreamIdentity) -> i32;
    fn surefoot_record_stream(
        tensor: *const C_tensor,
        stream: *const StreamIdentity,
    ) -> i32;

    fn surefoot_event_new(device: i32, out: *mut *mut EventHandle) -> i32;
    fn surefoot_event_free(event: *mut EventHandle);
    fn surefoot_event_record(
        event: *mut EventHandle,
        stream: *const StreamIdentity,
    ) -> i32;
    fn surefoot_event_block(
        event: *const EventHandle,
        stream: *const StreamIdentity,
    ) -> i32;
    fn surefoot_event_synchronize(event: *const EventHandle) -> i32;

    fn surefoot_event_query(event: *const EventHandle, done: *mut bool) -> i32;

    fn surefoot_pin_memory(tensor: *const C_tensor, out: *mut *mut C_tensor) -> i32;
    fn surefoot_is_pinned(tensor: *const C_tensor, answer: *mut bool) -> i32;
    fn surefoot_map_pinned(
        pinned: *const C_tensor,
        device: i32,
        out: *mut *mut C_tensor,
    ) -> i32;

    fn surefoot_fused_adamw(
        parameters: *const *const C_tensor,
        gradients: *const *const C_tensor,
        averages: *const *const C_tensor,
        squares: *const *const C_tensor,
        steps: *const *const C_tensor,
        count: usize,
        options: *const AdamWOptions,
    ) -> i32;
    fn surefoot_total_norm(
        tensors: *const *const C_tensor,
        count: usize,
        out: *mut *mut C_tensor,
    ) -> i32;
    fn surefoot_clip_norm(
        tensors: *const *const C_tensor,
        count: usize,
        max_norm: f64,
        out: *mut *mut C_tensor,
    ) -> i32;
    fn surefoot_copy(
        destination: *mut C_tensor,
        source: *const C_tensor,
        non_blocking: bool,
    ) -> i32;
    fn surefoot_backward(loss: *const C_tensor) -> i32;
    fn surefoot_take_gradient(leaf: *mut C_tensor, out: *mut *mut C_tensor) -> i32;
    fn surefoot_put_gradient(leaf: *mut C_tensor, gradient: *const C_tensor) -> i32;

    fn surefoot_gradients_are_recorded() -> bool;

    fn surefoot_onednn_is_faster() -> bool;
    fn surefoot_use_onednn(installed: *mut bool) -> i32;
    fn surefoot_onednn_products() -> u64;

    fn surefoot_operators_start() -> i32;
    fn surefoot_operators_stop() -> i32;
    fn surefoot_operators_counted(
        visit: unsafe extern "C" fn(*const c_char, u64, *mut c_void),
        context: *mut c_void,
    ) -> i32;

    fn surefoot_fake_begin(device: i32) -> i32;
    fn surefoot_fake_end();
    fn surefoot_fake_bytes(live: *mut u64, peak: *mut u64);
    fn surefoot_is_faking() -> bool;

    fn surefoot_manual_seed(seed: u64) -> i32;
    fn surefoot_set_num_threads(threads: i32) -> i32;
    fn surefoot_num_threads(threads: *mut i32) -> i32;
    /// Calls `share` from several threads at a time, all of which it has left on return.
    fn surefoot_in_shares(
        count: usize,
        grain: usize,
        share: unsafe extern "C" fn(i64, i64, *mut c_void),
        work: *mut c_void,
    ) -> i32;

    /// Takes ownership of the closure, also when it fails.
    fn surefoot_checkpoint(
        closure: *const Closure,
        inputs: *const *const C_tensor,
        input_count: usize,
        preserve_generators: bool,
        offload: bool,
        take: unsafe extern "C" fn(*mut c_void, *mut C_tensor),
        context: *mut c_void,
    ) -> i32;
    /// Takes ownership of the closure, also when it fails.
    fn surefoot_differentiable(
        closure: *const Closure,
        inputs: *const *const C_tensor,
        input_count: usize,
        kept: *const *const C_tensor,
        kept_count: usize,
        outputs: *const *const C_tensor,
        output_count: usize,
        take: unsafe extern "C" fn(*mut c_void, *mut C_tensor),
        context: *mut c_void,
    ) -> i32;
    fn surefoot_launched(
        name: *const c_char,
        reads: *const *const C_tensor,
        read_count: usize,
        writes: *const *const C_tensor,
        write_count: usize,
        launch: unsafe extern "C" fn(*mut c_void),
        context: *mut c_void,
    ) -> i32;
    /// Takes ownership of the closure, also when it fails.
    fn surefoot_linear(
        closure: *const Closure,
        input: *const C_tensor,
        bias: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> i32;
    fn surefoot_flash_texts(
        query: *const C_tensor,
        key: *const C_tensor,
        value: *const C_tensor,
        bounds: *const C_tensor,
        longest: i64,
        window: i64,
        scale: f64,
        out: *mut *mut C_tensor,
    ) -> i32;
    /// Takes ownership of the closure, also when it fails.
    fn surefoot_grouped_linear(
        closure: *const Closure,
        input: *const C_tensor,
        bounds: *const i64,
        bound_count: usize,
        outputs: i64,
        most: i64,
        out: *mut *mut C_tensor,
    ) -> i32;
    fn surefoot_store_open(
        host: *const c_char,
        port: u16,
        server: bool,
        timeout_ms: u64,
        out: *mut *mut StoreHandle,
        bound: *mut u16,
    ) -> i32;
    fn surefoot_store_free(store: *mut StoreHandle);
    fn surefoot_store_set(
        store: *mut StoreHandle,
        key: *const c_char,
        value: *const u8,
        length: usize,
    ) -> i32;
    fn surefoot_store_get(
        store: *mut StoreHandle,
        key: *const c_char,
        timeout_ms: u64,
        out: *mut *mut C_tensor,
    ) -> i32;
    fn surefoot_store_add(
        store: *mut StoreHandle,
        key: *const c_char,
        amount: i64,
        out: *mut i64,
    ) -> i32;
    fn surefoot_store_has(
        store: *mut StoreHandle,
        keys: *const *const c_char,
        count: usize,
        answer: *mut bool,
    ) -> i32;
    fn surefoot_store_wait(
        store: *mut StoreHandle,
        keys: *const *const c_char,
        count: usize,
        timeout_ms: u64,
    ) -> i32;
    fn surefoot_group_new(
        store: *mut StoreHandle,
        prefix: *const c_char,
        rank: i32,
        size: i32,
        interface: *const c_char,
        is_address: bool,
        timeout_ms: u64,
        out: *mut *mut GroupHandle,
    ) -> i32;
    fn surefoot_group_free(group: *mut GroupHandle);
    fn surefoot_group_sum(group: *mut GroupHandle, tensor: *mut C_tensor) -> i32;
    fn surefoot_group_broadcast(
        group: *mut GroupHandle,
        tensor: *mut C_tensor,
        root: i32,
    ) -> i32;

    fn surefoot_reduction_new(
        group: *mut GroupHandle,
        leaves: *const *const C_tensor,
        leaf_count: usize,
        buffer: *mut C_tensor,
        counts: *const usize,
        bucket_count: usize,
        out: *mut *mut ReductionHandle,
    ) -> i32;
    fn surefoot_reduction_free(reduction: *mut ReductionHandle);
    fn surefoot_reduction_prepare(reduction: *mut ReductionHandle) -> i32;
    fn surefoot_reduction_started(
        reduction: *mut ReductionHandle,
        out: *mut usize,
    ) -> i32;
    fn surefoot_reduction_finish(
        reduction: *mut ReductionHandle,
        gradients: *const *const C_tensor,
        count: usize,
        is_complete: *mut bool,
    ) -> i32;

    fn surefoot_results_push(results: *mut c_void, tensor: *const C_tensor) -> i32;
}
