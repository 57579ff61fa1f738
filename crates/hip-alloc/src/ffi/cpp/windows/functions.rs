//! Calls functions of C++, and copies a `std::function`.

use crate::units::StreamId;
use std::ffi::c_void;

// Calls the function in rcx with what is in rdx; returns 0, or 1 if it threw an exception that `filter` accepts. The
// table says so, in the form of `__C_specific_handler`: from where to where, whether it is caught, where to go on.
std::arch::global_asm!(
    ".text",
    ".globl hip_alloc_call_catching",
    ".def hip_alloc_call_catching",
    ".scl 2",
    ".type 32",
    ".endef",
    ".seh_proc hip_alloc_call_catching",
    "hip_alloc_call_catching:",
    "sub rsp, 40",
    ".seh_stackalloc 40",
    ".seh_endprologue",
    ".Lhip_alloc_begin:",
    "mov rax, rcx",
    "mov rcx, rdx",
    "call rax",
    "nop",
    ".Lhip_alloc_end:",
    "xor eax, eax",
    "add rsp, 40",
    "ret",
    ".Lhip_alloc_caught:",
    "mov eax, 1",
    "add rsp, 40",
    "ret",
    ".seh_handler __C_specific_handler, @except",
    ".seh_handlerdata",
    ".long 1",
    ".rva .Lhip_alloc_begin, .Lhip_alloc_end, {filter}, .Lhip_alloc_caught",
    ".text",
    ".seh_endproc",
    filter = sym is_of_cpp,
);

unsafe extern "C" {
    fn hip_alloc_call_catching(
        function: unsafe extern "C-unwind" fn(*mut c_void),
        argument: *mut c_void,
    ) -> i32;
}

/// `EXCEPTION_POINTERS`, of which only the code of the exception is of interest.
#[repr(C)]
struct Pointers {
    record: *const u32,
    context: *const c_void,
}

/// Whether an exception is one of C++ (then it is caught). Others are crashes, which are for the program.
unsafe extern "C" fn is_of_cpp(pointers: *const Pointers, _frame: *const c_void) -> i32 {
    const CPP: u32 = 0xE06D_7363;
    // SAFETY: Windows calls this with pointers that live through the call; a record begins with the code.
    i32::from(unsafe { *(*pointers).record } == CPP)
}

/// Calls functions of C++; `None` if they throw. What was thrown is not destroyed, which costs the memory of a message.
///
/// Nothing in `call` is dropped then, so it owns nothing.
pub(super) fn catching<T: Copy>(call: impl FnOnce() -> T + Copy) -> Option<T> {
    struct Call<F, T> {
        call: F,
        result: Option<T>,
    }
    unsafe extern "C-unwind" fn run<F: FnOnce() -> T + Copy, T: Copy>(call: *mut c_void) {
        // SAFETY: the address of the local below, which nothing else uses meanwhile.
        let call = unsafe { &mut *call.cast::<Call<F, T>>() };
        call.result = Some((call.call)());
    }
    fn function_of<F: FnOnce() -> T + Copy, T: Copy>(
        _: &Call<F, T>,
    ) -> unsafe extern "C-unwind" fn(*mut c_void) {
        run::<F, T>
    }
    let mut call = Call { call, result: None };
    let function = function_of(&call);
    // SAFETY: the function is for a value of this type, which lives through the call.
    let thrown = unsafe { hip_alloc_call_catching(function, (&raw mut call).cast()) };
    if thrown == 0 { call.result } else { None }
}

/// Microsoft's `std::function`: the last word is the address of what is called, which is in the others if it is small.
#[repr(C)]
struct StdFunction([usize; 8]);

/// The virtual functions of what is called.
#[repr(C)]
struct Callable {
    /// Into the room of another `std::function`, or new; returns where.
    copy: unsafe extern "C-unwind" fn(*const *const Callable, *mut StdFunction) -> usize,
    _move: usize,
    /// Arguments are passed by reference.
    call: unsafe extern "C-unwind" fn(*const *const Callable, *const *mut c_void) -> bool,
    _type: usize,
    /// Whether it also frees the memory: it does if that is not in the `std::function`.
    delete: unsafe extern "C-unwind" fn(*const *const Callable, bool),
}

/// A copy of PyTorch's `std::function<bool(stream)>`. It is called in the thread of each request and destroyed in any: the
/// header demands of a filter that it owns nothing that belongs to one thread.
pub(in crate::ffi) struct Function(Box<StdFunction>);

impl Function {
    /// A copy of the one at this address; `None` if that throws, or if it is empty.
    ///
    /// # Safety
    /// It is a `std::function` that takes one pointer and returns a `bool`, and lives through the call.
    pub(in crate::ffi) unsafe fn copy(original: *const c_void) -> Option<Self> {
        // SAFETY: as the caller promises.
        let callable = unsafe { (*original.cast::<StdFunction>()).0[7] } as *const *const Callable;
        if callable.is_null() {
            return None;
        }
        let mut copy = Box::new(StdFunction([0; 8]));
        let room: *mut StdFunction = &mut *copy;
        // SAFETY: not null, so an object whose first word is the address of its virtual functions; the copy is in the
        // room of ours, which stays where it is, or new.
        copy.0[7] = catching(|| unsafe { ((**callable).copy)(callable, room) })?;
        Some(Function(copy))
    }

    fn callable(&self) -> *const *const Callable {
        self.0.0[7] as *const *const Callable
    }

    /// Calls it.
    pub(in crate::ffi) fn call(&mut self, stream: StreamId) -> Result<bool, String> {
        let callable = self.callable();
        let stream = stream.0 as *mut c_void;
        let argument = &raw const stream;
        // SAFETY: our own copy, which is never empty; the argument lives through the call.
        let answer = catching(|| unsafe { ((**callable).call)(callable, argument) });
        answer.ok_or_else(|| "the filter of a memory pool threw an exception".to_owned())
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let callable = self.callable();
        let room: *const StdFunction = &*self.0;
        let is_outside = callable.cast::<StdFunction>() != room;
        // SAFETY: our own copy, which is destroyed once.
        catching(|| unsafe { ((**callable).delete)(callable, is_outside) });
    }
}
