//! libtorch's worker threads for operators on the CPU.

use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result, raw};

/// Sets how many threads one operator on the CPU may use.
///
/// # Errors
/// [`Error::InvalidArgument`] for zero.
pub fn set_count(threads: usize) -> Result<()> {
    let count = i32::try_from(threads)
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| {
            Error::InvalidArgument(format!("{threads} threads; at least one is needed"))
        })?;
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_set_num_threads(count) })
}

/// How many threads one operator on the CPU may use.
///
/// # Errors
/// None known; libtorch does not promise so.
pub fn count() -> Result<usize> {
    let mut threads = 0;
    // SAFETY: `threads` is a valid place for the result.
    raw::check(unsafe { raw::surefoot_num_threads(&mut threads) })?;
    Ok(usize::try_from(threads).unwrap_or(1))
}

/// Runs `work` on parts of `0..count`, side by side on the threads of libtorch's operators; every number is in
/// one part. `grain` is libtorch's: there are no more parts than grains, counting a broken one, but they are cut
/// evenly, so that a part may be smaller than a grain: 1000 numbers with a grain of 300 are four parts of 250
/// where there are four threads.
///
/// These threads wait awake for a moment between two operators, so that work which comes in between starts in
/// a microsecond or two, where another pool's threads would have to be woken first.
///
/// # Panics
/// When `work` does, after the other parts are done.
pub fn in_shares(count: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) -> Result<()> {
    let job = Job {
        work,
        panic: Mutex::new(None),
    };
    let (run, pointer) = (entry_of(&job), std::ptr::from_ref(&job).cast_mut().cast());
    // SAFETY: `run` is `Job::run` of the very type that `pointer` points to, which is borrowed until the call
    // returns, when no thread uses it any more; it may be shared between threads, since `work` is `Sync` and the
    // rest is a mutex.
    let code = unsafe { raw::surefoot_in_shares(count, grain, run, pointer) };
    let panic = job.panic.into_inner();
    if let Some(panic) = panic.unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
    raw::check(code)
}

/// What the threads of one [`in_shares`] have in common.
struct Job<W> {
    work: W,
    /// The first panic of a part: none may unwind into libtorch.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

type Entry = unsafe extern "C" fn(i64, i64, *mut c_void);

/// [`Job::run`] of a job whose type has no name.
fn entry_of<W: Fn(Range<usize>) + Sync>(_: &Job<W>) -> Entry {
    Job::<W>::run
}

impl<W: Fn(Range<usize>) + Sync> Job<W> {
    /// # Safety
    /// `job` points to a `Job<W>` that lives until this returns, and that nobody has exclusively.
    unsafe extern "C" fn run(begin: i64, end: i64, job: *mut c_void) {
        // SAFETY: as the caller promises.
        let job = unsafe { &*job.cast::<Self>() };
        let [begin, end] = [begin, end].map(|bound| bound as usize);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (job.work)(begin..end))) {
            let mut first = job.panic.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(panic);
        }
    }
}
