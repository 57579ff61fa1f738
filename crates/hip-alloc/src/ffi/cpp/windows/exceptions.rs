//! Throws the exceptions that PyTorch expects: `c10::OutOfMemoryError` if memory runs out, `c10::Error` if the device
//! fails (so that a program does not retry with smaller batches, which would not help).
//!
//! PyTorch treats NULL from a pluggable allocator as a valid address, so both must be thrown. An exception of Microsoft's
//! compiler is an object on the stack of who throws it, and a table that says how it is destroyed, which types catch it,
//! and how each of these is copied. `c10.dll` exports what makes, copies and destroys a `c10::Error`, and the table of
//! virtual functions of `c10::OutOfMemoryError`, which adds nothing else to it: all of this since PyTorch 2.8, whether
//! Microsoft's compiler built it or clang. Without one of these `c10::detail::torchCheckFail` throws a `c10::Error`,
//! and without that, or without PyTorch, there is nobody to catch anything: the process ends with the message.
//!
//! The exception passes through the frames from which it is thrown without unwinding them. So these own nothing: an
//! [`Exception`] is plain numbers, and `throw` is part of the function of the C interface that calls it.

use super::of_c10;
use crate::refusal::Refusal;
use crate::report;
use crate::system::loaded;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Room for a `c10::Error`, whatever its release. It has 136 bytes in PyTorch 2.13.
const OBJECT_BYTES: usize = 512;
/// Microsoft's allocator for strings keeps a note before a text from 4096 bytes on.
const LONGEST_MESSAGE: usize = 4000;

/// `_ThrowInfo`, as the table below has it.
#[repr(C)]
struct ThrowInfo([u32; 4]);

unsafe extern "C" {
    static hip_alloc_throws_out_of_memory: ThrowInfo;
    static hip_alloc_throws_error: ThrowInfo;
}

// Addresses in these tables are 32 bits long and relative to the image that contains the `ThrowInfo`, so that only the
// linker can write them. Types are found by their names. `std::exception` is caught by reference only (2): a copy would
// have the virtual functions of what it was copied from.
std::arch::global_asm!(
    ".data",
    ".balign 8",
    "hip_alloc_type_out_of_memory:",
    ".quad 0, 0",
    ".asciz \".?AVOutOfMemoryError@c10@@\"",
    ".balign 8",
    "hip_alloc_type_error:",
    ".quad 0, 0",
    ".asciz \".?AVError@c10@@\"",
    ".balign 8",
    "hip_alloc_type_exception:",
    ".quad 0, 0",
    ".asciz \".?AVexception@std@@\"",
    ".section .rdata, \"dr\"",
    ".balign 8",
    // CatchableType: properties; type; where the base is in the object (three numbers); size; how it is copied.
    "hip_alloc_catch_out_of_memory:",
    ".long 0",
    ".rva hip_alloc_type_out_of_memory",
    ".long 0, -1, 0, {size}",
    ".rva {copy_out_of_memory}",
    "hip_alloc_catch_error:",
    ".long 0",
    ".rva hip_alloc_type_error",
    ".long 0, -1, 0, {size}",
    ".rva {copy_error}",
    "hip_alloc_catch_exception:",
    ".long 2",
    ".rva hip_alloc_type_exception",
    ".long 0, -1, 0, 24, 0",
    // CatchableTypeArray, the most derived type first.
    "hip_alloc_catches_out_of_memory:",
    ".long 3",
    ".rva hip_alloc_catch_out_of_memory, hip_alloc_catch_error, hip_alloc_catch_exception",
    "hip_alloc_catches_error:",
    ".long 2",
    ".rva hip_alloc_catch_error, hip_alloc_catch_exception",
    // ThrowInfo: attributes; how it is destroyed; unused; what catches it.
    ".globl hip_alloc_throws_out_of_memory",
    "hip_alloc_throws_out_of_memory:",
    ".long 0",
    ".rva {destroy}",
    ".long 0",
    ".rva hip_alloc_catches_out_of_memory",
    ".globl hip_alloc_throws_error",
    "hip_alloc_throws_error:",
    ".long 0",
    ".rva {destroy}",
    ".long 0",
    ".rva hip_alloc_catches_error",
    ".text",
    size = const OBJECT_BYTES,
    copy_out_of_memory = sym copy_out_of_memory,
    copy_error = sym copy_error,
    destroy = sym destroy,
);

type Object = *mut c_void;

/// What it takes to throw an exception of PyTorch.
struct Thrower {
    construct: unsafe extern "C-unwind" fn(Object, *const SourceLocation, *mut Text) -> Object,
    copy: unsafe extern "C-unwind" fn(Object, Object) -> Object,
    destroy: unsafe extern "C-unwind" fn(Object),
    /// The virtual functions of `c10::OutOfMemoryError`.
    out_of_memory: *const c_void,
    throw: unsafe extern "C-unwind" fn(Object, *const ThrowInfo) -> !,
}

// SAFETY: the pointer is to a constant of `c10.dll`, which stays loaded.
unsafe impl Send for Thrower {}
// SAFETY: as above.
unsafe impl Sync for Thrower {}

static THROWER: OnceLock<Thrower> = OnceLock::new();

impl Thrower {
    fn find() -> Option<&'static Self> {
        if let Some(found) = THROWER.get() {
            return Some(found);
        }
        // SAFETY: the mangled names contain the types: a constructor, a copy constructor and a destructor, which take the
        // object first; classes by value are passed by their address, and owned by who is called. The table is the
        // address of its first entry. The last function is documented by Microsoft.
        let found = unsafe {
            Thrower {
                construct: of_c10(
                    "??0Error@c10@@QEAA@USourceLocation@1@V?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@std@@@Z",
                )?,
                copy: of_c10("??0Error@c10@@QEAA@AEBV01@@Z")?,
                destroy: of_c10("??1Error@c10@@UEAA@XZ")?,
                out_of_memory: of_c10("??_7OutOfMemoryError@c10@@6B@")?,
                throw: loaded("vcruntime140.dll")?.function("_CxxThrowException")?,
            }
        };
        Some(THROWER.get_or_init(|| found))
    }
}

/// `c10::SourceLocation`.
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// Microsoft's `std::string`: a text of up to 15 bytes is in the object, a longer one at the address in its first word.
#[repr(C)]
#[derive(Clone, Copy)]
struct Text {
    buffer: [usize; 2],
    size: usize,
    capacity: usize,
}

impl Text {
    /// A text with memory of the runtime that frees it, whose functions PyTorch shares with Python.
    fn new(message: &str) -> Self {
        type Malloc = unsafe extern "C" fn(usize) -> *mut u8;
        let end = message.floor_char_boundary(LONGEST_MESSAGE);
        let bytes = &message.as_bytes()[..end];
        // A capacity of 15 would mean that there is no address. One byte more is for the zero at the end.
        let capacity = bytes.len() | 31;
        // SAFETY: the Universal C Runtime exports the function of this name of the C standard.
        let malloc = loaded("ucrtbase.dll")
            .and_then(|runtime| unsafe { runtime.function::<Malloc>("malloc") });
        // SAFETY: takes any size.
        let memory = malloc.map_or(std::ptr::null_mut(), |malloc| unsafe {
            malloc(capacity + 1)
        });
        if memory.is_null() {
            return Self::without_memory();
        }
        // SAFETY: new memory of more than `bytes.len()` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len());
            memory.add(bytes.len()).write(0);
        }
        Text {
            buffer: [memory as usize, 0],
            size: bytes.len(),
            capacity,
        }
    }

    fn without_memory() -> Self {
        const SHORT: [u8; 16] = *b"out of memory\0\0\0";
        let (first, second) = SHORT.split_at(8);
        let word = |half: &[u8]| half.try_into().map_or(0, usize::from_le_bytes);
        Text {
            buffer: [word(first), word(second)],
            size: 13,
            capacity: 15,
        }
    }

    /// Where the text is.
    fn start(&self) -> *const c_char {
        match self.capacity {
            15 => self.buffer.as_ptr().cast(),
            _ => self.buffer[0] as *const c_char,
        }
    }
}

/// `c10::detail::torchCheckFail(function, file, line, message)`.
type CheckFail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> !;

fn check_fail() -> Option<CheckFail> {
    // SAFETY: the mangled name contains the types.
    unsafe { of_c10("?torchCheckFail@detail@c10@@YAXPEBD0I0@Z") }
}

/// What is thrown for a refusal. It owns nothing, so that nothing has to be done where it is thrown; its text belongs to
/// what is thrown.
#[derive(Clone, Copy)]
pub(in crate::ffi) struct Exception {
    text: Text,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    OutOfMemory(&'static Thrower),
    Error(&'static Thrower),
    Check(CheckFail),
}

impl Exception {
    /// Ends the process with the message if nothing can be thrown.
    pub(in crate::ffi) fn new(refusal: Refusal) -> Self {
        let message = refusal.to_string().replace('\0', "");
        let how = match (Thrower::find(), &refusal) {
            (Some(thrower), Refusal::OutOfMemory(_)) => Some(How::OutOfMemory(thrower)),
            (Some(thrower), Refusal::Failed(_)) => Some(How::Error(thrower)),
            (None, _) => check_fail().map(How::Check),
        };
        match how {
            Some(how) => Exception {
                text: Text::new(&message),
                how,
            },
            None => {
                report::warn(&message);
                std::process::abort()
            }
        }
    }

    /// Throws it. Part of who calls this, so that no frame of Rust is in between that would have to be unwound.
    #[inline(always)]
    pub(in crate::ffi) fn throw(self) -> ! {
        const FUNCTION: *const c_char = c"hip_alloc_malloc".as_ptr();
        const FILE: *const c_char = c"hip-alloc".as_ptr();
        let Exception { mut text, how } = self;
        let (thrower, out_of_memory) = match how {
            How::OutOfMemory(thrower) => (thrower, true),
            How::Error(thrower) => (thrower, false),
            // SAFETY: three strings that end with a zero; the message is copied, and is never freed.
            How::Check(fail) => unsafe { fail(FUNCTION, FILE, 0, text.start()) },
        };
        let location = SourceLocation {
            function: FUNCTION,
            file: FILE,
            line: 0,
        };
        let mut object = MaybeUninit::<[u64; OBJECT_BYTES / 8]>::zeroed();
        let object: Object = object.as_mut_ptr().cast();
        // SAFETY: the object has room for a `c10::Error`, which is made here, from a location that lives through the call
        // and a text that now belongs to it. The first word of an object with virtual functions is the address of
        // their table. What is thrown stays on this stack until it was caught, since a handler runs before the frames
        // below it are left, and is then destroyed by the function in the table.
        unsafe {
            (thrower.construct)(object, &location, &mut text);
            if !out_of_memory {
                (thrower.throw)(object, &raw const hip_alloc_throws_error)
            }
            object.cast::<*const c_void>().write(thrower.out_of_memory);
            (thrower.throw)(object, &raw const hip_alloc_throws_out_of_memory)
        }
    }
}

/// Copies a `c10::Error`, for who catches it by value or keeps it for another thread.
unsafe extern "C-unwind" fn copy_error(this: Object, from: Object) -> Object {
    let Some(thrower) = THROWER.get() else {
        std::process::abort()
    };
    // SAFETY: C++ calls this with memory of the size in the table, and an object that was thrown.
    unsafe { (thrower.copy)(this, from) }
}

/// Copies a `c10::OutOfMemoryError`: a `c10::Error` with other virtual functions.
unsafe extern "C-unwind" fn copy_out_of_memory(this: Object, from: Object) -> Object {
    let Some(thrower) = THROWER.get() else {
        std::process::abort()
    };
    // SAFETY: as above; the first word of the copy is the address of the table of its virtual functions.
    unsafe {
        (thrower.copy)(this, from);
        this.cast::<*const c_void>().write(thrower.out_of_memory);
    }
    this
}

/// Destroys either.
unsafe extern "C-unwind" fn destroy(this: Object) {
    let Some(thrower) = THROWER.get() else {
        std::process::abort()
    };
    // SAFETY: C++ calls this once for an object that was thrown or copied.
    unsafe { (thrower.destroy)(this) }
}
