//! Stacks: where the program is when it makes a request, according to a function that it passes to us.

use super::{ERROR_ARGUMENT, ERROR_DRIVER, OK, failed, guarded};
use crate::history::StackId;
use crate::python_stacks::{self, Python};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns a number for the stack of the calling thread.
type NameStack = extern "C" fn() -> u64;
/// The function passed to [`hip_alloc_record_stacks`]; null while stacks are not wanted.
static NAME_STACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// How many threads may be in that function.
static NAMING: AtomicUsize = AtomicUsize::new(0);
/// How long to wait until they have left it.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

thread_local! {
    /// Whether this thread is in that function; requests that it makes there have no stack.
    static IS_NAMING: Cell<bool> = const { Cell::new(false) };
}

/// Has `name_stack` called before every request and free, and its result kept with the entry.
/// When this returns, no thread is in the previous function.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_record_stacks(name_stack: Option<NameStack>) -> c_int {
    let function = name_stack.map_or(ptr::null_mut(), |function| function as *mut c_void);
    let before = NAME_STACK.swap(function, Ordering::SeqCst);
    if before == function || before.is_null() {
        return OK;
    }
    // The function itself may end this; do not wait for it.
    let own = usize::from(IS_NAMING.get());
    let began = Instant::now();
    while NAMING.load(Ordering::SeqCst) > own {
        if began.elapsed() > LONGEST_WAIT {
            let message = "hip_alloc_record_stacks: a thread is still naming its stack; does it wait \
                           for a lock that this thread has?";
            return failed(ERROR_DRIVER, message);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    OK
}

/// Records Python's stacks, with frames if `walks`; without functions it stops, and forgets everything.
///
/// # Safety
/// `python` is null, or points to `python_size` bytes: functions of Python's C interface, whose
/// interpreter runs until this is ended.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_record_python_stacks(
    python: *const c_void,
    python_size: usize,
    walks: c_int,
    tag: u64,
) -> c_int {
    const FUNCTION: &str = "hip_alloc_record_python_stacks";
    const FUNCTIONS: usize = size_of::<Python>() / size_of::<*const c_void>();
    if python.is_null() {
        let ended = hip_alloc_record_stacks(None);
        guarded(FUNCTION, python_stacks::forget);
        return ended;
    }
    if python_size < size_of::<Python>() {
        return failed(ERROR_ARGUMENT, &format!("{FUNCTION}: too few functions"));
    }
    // SAFETY: the pointer is to enough bytes, which need not be aligned for us; any bytes are
    // pointers that are only compared.
    let pointers = unsafe { python.cast::<[*const c_void; FUNCTIONS]>().read_unaligned() };
    if pointers.iter().any(|pointer| pointer.is_null()) {
        return failed(ERROR_ARGUMENT, &format!("{FUNCTION}: a function is null"));
    }
    // SAFETY: as above, and none is null, which is all that a function's type forbids; the caller
    // promises that they are functions of these types.
    let python = unsafe { python.cast::<Python>().read_unaligned() };
    guarded(FUNCTION, || python_stacks::start(python, walks != 0, tag));
    hip_alloc_record_stacks(Some(python_stacks::name))
}

/// The tag of a stack and its innermost frames, and the number of its frames; 0 also if it is
/// unknown.
///
/// # Safety
/// `tag` is null or may be written; so are `codes` and `places`, each with `most` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_python_stack(
    number: u64,
    tag: *mut u64,
    codes: *mut *const c_void,
    places: *mut c_int,
    most: usize,
) -> usize {
    let behind = guarded("hip_alloc_python_stack", || python_stacks::behind(number));
    let (tag_of, frames) = behind.unwrap_or_default();
    let frames = frames.unwrap_or_default();
    if !tag.is_null() {
        // SAFETY: not null, and the caller promises that it may be written.
        unsafe { tag.write(tag_of) };
    }
    if !codes.is_null() && !places.is_null() {
        for (at, (code, place)) in frames.iter().take(most).enumerate() {
            // SAFETY: neither is null, the caller promises that `most` elements of both may be
            // written, and `at` is below `most`.
            unsafe {
                codes.add(at).write(*code as *const c_void);
                places.add(at).write(*place);
            }
        }
    }
    frames.len()
}

/// Where the program is, according to its function. None of our locks is held
/// meanwhile: it may wait for its own locks (Python's), and may free memory.
#[inline]
pub(super) fn stack() -> StackId {
    if NAME_STACK.load(Ordering::Relaxed).is_null() {
        return StackId::UNKNOWN;
    }
    ask()
}

fn ask() -> StackId {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            IS_NAMING.set(false);
            NAMING.fetch_sub(1, Ordering::SeqCst);
        }
    }
    if IS_NAMING.replace(true) {
        return StackId::UNKNOWN;
    }
    // First count, then read: a caller that removes the function first removes it, then checks the count. So
    // either the function is not seen here, or this thread is seen there.
    NAMING.fetch_add(1, Ordering::SeqCst);
    let _done = Done;
    let function = NAME_STACK.load(Ordering::SeqCst);
    if function.is_null() {
        return StackId::UNKNOWN;
    }
    // SAFETY: only `hip_alloc_record_stacks` writes here, null or a `NameStack`; a pointer to
    // a function has the size of one to data on every platform that has `dlsym`.
    let name_stack: NameStack = unsafe { std::mem::transmute(function) };
    StackId(name_stack())
}

#[cfg(unix)]
/// The other threads, which may have been in the function, do not exist in a forked child.
pub(super) fn after_fork() {
    NAMING.store(usize::from(IS_NAMING.get()), Ordering::SeqCst);
}
