//! The lock around an allocator, and the slot that an allocator is made in.
//!
//! The lock is the standard library's, because that one survives a fork: all of its state is in
//! the lock itself. Queues of waiting threads beside the lock (as parking_lot has) would be
//! copied into the child with threads in them that it does not have.
//!
//! Under ThreadSanitizer parking_lot stands in, and a slot says itself when it is filled:
//! the standard library comes compiled, and what it does would be invisible.

#[cfg(surefoot_tsan)]
pub(crate) use parking_lot::MutexGuard as Guard;
#[cfg(not(surefoot_tsan))]
pub(crate) use std::sync::MutexGuard as Guard;

#[cfg(surefoot_tsan)]
use parking_lot::Mutex;
#[cfg(not(surefoot_tsan))]
use std::sync::Mutex;

use std::sync::OnceLock;
#[cfg(surefoot_tsan)]
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a lock is asked for before the thread sleeps: a thousand pauses in all, about as
/// long as it takes to sleep and to be woken.
#[cfg(not(surefoot_tsan))]
const SPIN_ROUNDS: u32 = 10;

/// A mutex that a panic inside leaves usable: the panic was reported, and a program that
/// cannot free its memory is worse off.
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    #[cfg(not(surefoot_tsan))]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    /// Another thread has the lock. It mostly has it for a tenth of a microsecond, so this
    /// one asks again, each time after twice as long, before it sleeps. Asking more often
    /// would be slower for both: with every turn, all that the lock protects moves from one
    /// core's cache to the other's.
    #[cfg(not(surefoot_tsan))]
    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        for round in 0..SPIN_ROUNDS {
            (0..1 << round).for_each(|_| std::hint::spin_loop());
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The guard, unless another thread has it.
    #[cfg(not(surefoot_tsan))]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    #[cfg(surefoot_tsan)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }

    #[cfg(surefoot_tsan)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock()
    }
}

/// A value that is made once.
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

    /// The value; made now, unless another thread was first.
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
                            // Longer than anyone spins.
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
}
