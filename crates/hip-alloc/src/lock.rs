//! The lock of an allocator, and the slot that an allocator is created in.
//!
//! An operation holds the lock for a tenth of a microsecond. For two threads that do nothing else, almost
//! everything but the waiting itself is expensive: a standard mutex wakes a sleeping thread with a system call, which
//! the thread that holds the lock pays for, and the protected memory moves to the other core at every change of the
//! holder. So unlocking here is a single store, nobody is woken, and a waiting thread retries at increasing
//! intervals: the other thread does many operations meanwhile, and two threads on one device take twice as long as
//! one, while they took five times as long with a standard
//! mutex.
//!
//! All state of the lock is in the lock itself, so it survives a fork. Queues of waiting threads beside the lock (as
//! in parking_lot) would be copied into the child with threads that do not exist
//! there.
//!
//! For ThreadSanitizer a slot itself announces when it is filled: the standard library is
//! precompiled, so its synchronisation would be invisible.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often to retry before the thread sleeps: a thousand pauses in total, about as
/// long as the shortest sleep.
const SPIN_ROUNDS: u32 = 10;
/// Each sleep is twice as long as the one before, up to this: the most that a thread can be late
/// after a long driver call.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// A mutex without poisoning: a panic inside was reported, and a program that
/// cannot free its memory would be worse.
pub struct Lock<T: ?Sized> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a `Guard` or by who owns the lock, and of guards there is
// at most one at a time: `try_lock` makes one where it has turned `taken` from false to true,
// which acquires what the last guard released when it was dropped. So sharing the lock sends
// the value from thread to thread, and no two of them see it at once.
unsafe impl<T: Send + ?Sized> Sync for Lock<T> {}

/// Exclusive access to the value, until it is dropped.
pub struct Guard<'a, T: ?Sized> {
    lock: &'a Lock<T>,
    /// Not `Send`, like the standard library's guard: a `&Guard` would be a `&T`.
    _on_one_thread: PhantomData<*mut T>,
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Lock<T> {
    /// Waits until no other thread has the lock. A thread that has it already would wait for ever.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Retries while another thread has the lock, doubling the interval each time.
    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        for round in 0..SPIN_ROUNDS {
            (0..1 << round).for_each(|_| std::hint::spin_loop());
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        let mut sleep = Duration::from_micros(1);
        loop {
            std::thread::sleep(sleep);
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
    }

    /// The guard, unless another thread has the lock.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // While only reading, the cache line stays with the holder of the lock.
        let free = !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire);
        // Created only on success, since dropping a guard unlocks.
        free.then(|| Guard {
            lock: self,
            _on_one_thread: PhantomData,
        })
    }
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard of the lock (see `Sync`), and it is borrowed for as
        // long as the reference lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.taken.store(false, Ordering::Release);
    }
}

/// A value that is created once.
pub(crate) struct Slot<T> {
    value: OnceLock<T>,
    #[cfg(surefoot_tsan)]
    filled: AtomicBool,
}

impl<T> Slot<T> {
    pub(crate) const fn new() -> Self {
        Slot {
            value: OnceLock::new(),
            #[cfg(surefoot_tsan)]
            filled: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        #[cfg(surefoot_tsan)]
        if !self.filled.load(Ordering::Acquire) {
            return None;
        }
        self.value.get()
    }

    /// The value; created now, unless another thread was first.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(make);
        #[cfg(surefoot_tsan)]
        self.filled.store(true, Ordering::Release);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_thread_gets_its_turn_also_when_one_takes_long() {
        let lock = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..1000 {
                        let mut count = lock.lock();
                        let before = *count;
                        if turn % 250 == 0 {
                            // Longer than any thread spins.
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 4000);
    }

    #[test]
    fn a_panic_inside_leaves_it_usable() {
        let lock = Lock::new(7);
        let result = std::thread::scope(|scope| {
            let panicking = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("inside");
            });
            panicking.join()
        });
        assert!(result.is_err());
        assert_eq!(*lock.lock(), 7);
        assert_eq!(lock.try_lock().as_deref(), Some(&7));
    }

    #[test]
    fn who_does_not_get_it_leaves_it_taken() {
        let lock = Lock::new(7);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn what_one_thread_wrote_the_next_one_reads() {
        // Several words, so that a torn or old one would be seen.
        let lock = Lock::new([0u64; 8]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut words = lock.lock();
                        let first = words[0];
                        assert!(words.iter().all(|word| *word == first));
                        words.iter_mut().for_each(|word| *word += 1);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [80_000; 8]);
    }
}
