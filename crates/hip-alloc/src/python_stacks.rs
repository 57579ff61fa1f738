//! Assigns numbers to Python's stacks, and returns the frames for a number.
//!
//! The library neither links nor looks for Python: whoever records a history passes it the functions
//! of Python's C API that read a stack (`surefoot_activate` finds them with
//! `ctypes.pythonapi`). Calling a function in Python instead takes several times as long, at
//! every request and every free.
//!
//! A stack is stored as its code objects and the position in each. Python looks up their names and line
//! numbers when they are needed.

use crate::lock::{Lock, Slot};
use crate::report;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// Programs that generate code could have an unlimited number of stacks.
const MOST_STACKS: usize = 1_000_000;

/// A `PyObject *` or a `PyThreadState *`.
type Object = *mut c_void;

/// `struct hip_alloc_python`: functions of Python's C interface, by their names there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Python {
    /// `PyGILState_GetThisThreadState`
    this_thread_state: unsafe extern "C" fn() -> Object,
    /// `PyGILState_Ensure`
    ensure: unsafe extern "C" fn() -> c_int,
    /// `PyGILState_Release`
    release: unsafe extern "C" fn(c_int),
    /// `PyThreadState_GetFrame`: a new reference.
    frame_of: unsafe extern "C" fn(Object) -> Object,
    /// `PyFrame_GetBack`: a new reference.
    back: unsafe extern "C" fn(Object) -> Object,
    /// `PyFrame_GetCode`: a new reference.
    code: unsafe extern "C" fn(Object) -> Object,
    /// `PyFrame_GetLasti`, or `PyFrame_GetLineNumber` before Python 3.11.
    place: unsafe extern "C" fn(Object) -> c_int,
    /// `Py_IncRef`
    increment: unsafe extern "C" fn(Object),
    /// `Py_DecRef`
    decrement: unsafe extern "C" fn(Object),
}

/// A code object by its address, and the position in it.
type Frame = (usize, c_int);

/// A number given out has that of the stack in its lower bits, and the tag above. So the tag is no part of what is
/// stored: a program that sets another one in every step has as many stacks as without.
const STACK_BITS: u32 = 40;
/// The largest tag.
const LARGEST_TAG: u64 = (1 << (u64::BITS - STACK_BITS)) - 1;

static PYTHON: Slot<Python> = Slot::new();
/// Whether frames are wanted in addition to the tag.
static WALKS: AtomicBool = AtomicBool::new(false);
/// The tag for every stack from now on.
static TAG_NOW: AtomicU64 = AtomicU64::new(0);
/// Taken while holding Python's own lock, which `os.fork` holds too: so no child inherits it locked.
static STACKS: Lock<Stacks> = Lock::new(Stacks {
    numbers: None,
    named: Vec::new(),
    forgotten: 0,
});

/// The known stacks. Their code objects are kept alive, so that their addresses are not
/// reused.
struct Stacks {
    numbers: Option<HashMap<Arc<[Frame]>, u64, BuildHasherDefault<Folding>>>,
    /// By number, starting with the one after `forgotten`.
    named: Vec<Arc<[Frame]>>,
    /// How many stacks had numbers and are no longer kept.
    forgotten: u64,
}

/// Starts recording the stacks of Python's threads with [`name`]: with their frames if
/// `walks`, and each with the tag of its time, as long as it is not above [`LARGEST_TAG`].
pub(crate) fn start(python: Python, walks: bool, tag: u64) {
    PYTHON.get_or_make(|| python);
    let tag = if tag > LARGEST_TAG { 0 } else { tag };
    WALKS.store(walks, Ordering::Relaxed);
    TAG_NOW.store(tag, Ordering::Relaxed);
}

/// Drops all stacks. Their numbers are not reused.
pub(crate) fn forget() {
    let Some(python) = PYTHON.get() else { return };
    let _lock = PythonLock::take(python);
    let mut stacks = STACKS.lock();
    stacks.forgotten += stacks.named.len() as u64;
    stacks.numbers = None;
    let named = std::mem::take(&mut stacks.named);
    drop(stacks);
    for (code, _) in named.iter().flat_map(|stack| stack.iter()) {
        // SAFETY: this thread has Python's lock, and the reference is the one that `keep` took.
        unsafe { (python.decrement)(*code as Object) };
    }
}

/// The number of this thread's stack and tag; 0 if there is neither. A thread that Python does
/// not know, such as autograd's own, has no stack, and does not wait for Python's lock. Equal stacks
/// have the same number, so a training loop adds none after its first iterations.
pub(crate) extern "C" fn name() -> u64 {
    let Some(python) = PYTHON.get() else { return 0 };
    // SAFETY: the caller of `hip_alloc_record_python_stacks` promised that it is Python's function,
    // which any thread may call while the interpreter runs; and ending the recording waits for
    // threads in here.
    let walks = WALKS.load(Ordering::Relaxed) && !unsafe { (python.this_thread_state)() }.is_null();
    let tag = TAG_NOW.load(Ordering::Relaxed) << STACK_BITS;
    if !walks {
        return tag;
    }
    let _lock = PythonLock::take(python);
    let mut stack = Vec::with_capacity(64);
    // SAFETY: `PythonLock` says that this thread has a state, and that it has the lock.
    unsafe { walk(python, &mut stack) };
    match stack.is_empty() {
        true => tag,
        false => tag | keep(python, &stack),
    }
}

/// Adds the frames of this thread, innermost first.
///
/// # Safety
/// This thread has Python's lock.
unsafe fn walk(python: &Python, stack: &mut Vec<Frame>) {
    // SAFETY: this thread has the lock, so also a state, which outlives the call. Each frame is
    // a reference of our own until it is given back below; the code of one that runs is kept
    // alive by it, and it runs for as long as this thread is here.
    unsafe {
        let mut frame = (python.frame_of)((python.this_thread_state)());
        while !frame.is_null() {
            let code = (python.code)(frame);
            stack.push((code as usize, (python.place)(frame)));
            (python.decrement)(code);
            let back = (python.back)(frame);
            (python.decrement)(frame);
            frame = back;
        }
    }
}

/// The number of a stack, which is added if it is new. This thread has Python's lock.
fn keep(python: &Python, stack: &[Frame]) -> u64 {
    let mut stacks = STACKS.lock();
    let Stacks {
        numbers,
        named,
        forgotten,
    } = &mut *stacks;
    let numbers = numbers.get_or_insert_default();
    if let Some(number) = numbers.get(stack) {
        return *number;
    }
    if named.len() == MOST_STACKS {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            report::warn("the memory history has a million stacks: new ones are without frames");
        });
        return 0;
    }
    for (code, _) in stack {
        // SAFETY: this thread has Python's lock, and is inside the frames that keep the code.
        unsafe { (python.increment)(*code as Object) };
    }
    let stack: Arc<[Frame]> = stack.into();
    named.push(Arc::clone(&stack));
    let number = *forgotten + named.len() as u64;
    numbers.insert(stack, number);
    number
}

/// The tag in a number, and the frames of the stack, if it is still known.
pub(crate) fn behind(number: u64) -> (u64, Option<Arc<[Frame]>>) {
    let stack = number & ((1 << STACK_BITS) - 1);
    (number >> STACK_BITS, frames(stack))
}

fn frames(stack: u64) -> Option<Arc<[Frame]>> {
    let _lock = PythonLock::take(PYTHON.get()?);
    let stacks = STACKS.lock();
    let at = stack.checked_sub(stacks.forgotten + 1)?;
    stacks.named.get(usize::try_from(at).ok()?).cloned()
}

/// Python's lock (the GIL, where there is one), and a state of this thread there.
struct PythonLock<'a>(&'a Python, c_int);

impl<'a> PythonLock<'a> {
    fn take(python: &'a Python) -> Self {
        // SAFETY: the caller of `hip_alloc_record_python_stacks` promised that it is Python's
        // function, and that the interpreter runs until the recording has ended, which waits for
        // threads in here. None of our locks is held.
        PythonLock(python, unsafe { (python.ensure)() })
    }
}

impl Drop for PythonLock<'_> {
    fn drop(&mut self) {
        // SAFETY: as above, on the same thread, with what the other function returned.
        unsafe { (self.0.release)(self.1) };
    }
}

/// Mixes addresses and positions with one multiplication each: there are no adversarial keys.
#[derive(Default)]
struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_i32(&mut self, value: i32) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;
    use std::sync::atomic::AtomicI64;

    /// References that somebody holds beyond those of the interpreter itself.
    static HELD: AtomicI64 = AtomicI64::new(0);
    static LOCKED: AtomicI64 = AtomicI64::new(0);
    /// How often the lock was taken.
    static TAKEN: AtomicI64 = AtomicI64::new(0);
    static LINE: AtomicU64 = AtomicU64::new(7);

    /// A thread in two frames: objects 11 and 12, whose codes are 111 and 112.
    fn interpreter() -> Python {
        extern "C" fn state() -> Object {
            ptr::without_provenance_mut(1)
        }
        extern "C" fn ensure() -> c_int {
            TAKEN.fetch_add(1, Ordering::Relaxed);
            LOCKED.fetch_add(1, Ordering::Relaxed);
            5
        }
        extern "C" fn release(state: c_int) {
            assert_eq!(state, 5);
            LOCKED.fetch_sub(1, Ordering::Relaxed);
        }
        fn new_reference(address: usize) -> Object {
            HELD.fetch_add(1, Ordering::Relaxed);
            ptr::without_provenance_mut(address)
        }
        extern "C" fn frame_of(_state: Object) -> Object {
            new_reference(11)
        }
        extern "C" fn back(frame: Object) -> Object {
            match frame.addr() {
                11 => new_reference(12),
                _ => ptr::null_mut(),
            }
        }
        extern "C" fn code(frame: Object) -> Object {
            new_reference(frame.addr() + 100)
        }
        extern "C" fn place(frame: Object) -> c_int {
            LINE.load(Ordering::Relaxed) as c_int + frame.addr() as c_int
        }
        extern "C" fn increment(object: Object) {
            new_reference(object.addr());
        }
        extern "C" fn decrement(_object: Object) {
            assert!(LOCKED.load(Ordering::Relaxed) > 0);
            HELD.fetch_sub(1, Ordering::Relaxed);
        }
        Python {
            this_thread_state: state,
            ensure,
            release,
            frame_of,
            back,
            code,
            place,
            increment,
            decrement,
        }
    }

    #[test]
    fn stacks_have_numbers_and_references_are_given_back() {
        start(interpreter(), true, 0);
        let first = name();
        assert_eq!(name(), first);
        assert_eq!(HELD.load(Ordering::Relaxed), 2, "the codes of one stack");
        LINE.store(8, Ordering::Relaxed);
        let second = name();
        assert_ne!(second, first);
        let frames: Arc<[Frame]> = [(111, 19), (112, 20)].into();
        assert_eq!(behind(second), (0, Some(frames.clone())));
        // Another tag is no other stack.
        for tag in [3, LARGEST_TAG] {
            start(interpreter(), true, tag);
            assert_eq!(behind(name()), (tag, Some(frames.clone())));
        }
        assert_eq!(HELD.load(Ordering::Relaxed), 4, "the codes of two stacks");
        start(interpreter(), true, LARGEST_TAG + 1);
        assert_eq!(name(), second);
        start(interpreter(), false, 3);
        let taken = TAKEN.load(Ordering::Relaxed);
        let tag_alone = name();
        assert_eq!(TAKEN.load(Ordering::Relaxed), taken, "no lock for a tag");
        assert_eq!(behind(tag_alone), (3, None));
        start(interpreter(), false, 0);
        assert_eq!(name(), 0);
        forget();
        assert_eq!(behind(first), (0, None));
        assert_eq!(HELD.load(Ordering::Relaxed), 0);
        start(interpreter(), true, 0);
        assert!(name() > second, "no number is used again");
        forget();
        assert_eq!(LOCKED.load(Ordering::Relaxed), 0);
    }
}
