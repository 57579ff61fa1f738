//! Frees device memory safely after an error.
//!
//! Freed memory may be reused at once, so it is kept until nothing on the device can be using it. If the
//! context is lost it is leaked, because freeing it would call into a runtime that must not be called any
//! more. (Tensors that libtorch's own operators drop when they fail are beyond our control.)

use tch::Tensor;
use torch_ext::Error;

/// Drops `held` after `error`: once `wait` confirms that nothing uses it any more, or never. Returns the
/// error to report: the same one, unless waiting showed that the context is lost.
pub(super) fn drop_when_safe<T>(
    held: T,
    error: Error,
    wait: impl FnOnce() -> Result<(), Error>,
) -> Error {
    if !error.context_is_usable() {
        std::mem::forget(held);
        return error;
    }
    match wait() {
        Ok(()) => error,
        Err(worse) => {
            std::mem::forget(held);
            match worse.context_is_usable() {
                true => error,
                false => worse,
            }
        }
    }
}

/// The tensor after `fill` has filled it. If that fails, the tensor is dropped after `wait`.
pub(super) fn filled(
    mut target: Tensor,
    fill: impl FnOnce(&mut Tensor) -> Result<(), Error>,
    wait: impl FnOnce() -> Result<(), Error>,
) -> Result<Tensor, Error> {
    match fill(&mut target) {
        Ok(()) => Ok(target),
        Err(error) => Err(drop_when_safe(target, error, wait)),
    }
}

/// For operations that leave nothing in flight when they fail, or only what their own stream orders.
pub(super) fn nothing_to_wait_for() -> Result<(), Error> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn lost() -> Error {
        Error::DeviceLost {
            message: "the device is gone".into(),
        }
    }

    fn refused() -> Error {
        Error::Torch("no".into())
    }

    /// Returns the order of waiting and freeing, and whether the context was lost.
    fn dropping(error: Error, waited: Result<(), Error>) -> (Vec<&'static str>, bool) {
        struct Held<'a>(&'a RefCell<Vec<&'static str>>);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.borrow_mut().push("freed");
            }
        }
        let seen = RefCell::new(Vec::new());
        let error = drop_when_safe(Held(&seen), error, || {
            seen.borrow_mut().push("waited");
            waited
        });
        (seen.take(), error.context_is_usable())
    }

    #[test]
    fn it_is_freed_when_nothing_uses_it_any_more() {
        let (seen, usable) = dropping(refused(), Ok(()));
        assert_eq!((seen, usable), (vec!["waited", "freed"], true));
    }

    #[test]
    fn nothing_is_waited_for_or_freed_on_a_lost_context() {
        let (seen, usable) = dropping(lost(), Ok(()));
        assert_eq!((seen, usable), (vec![], false));
    }

    #[test]
    fn what_cannot_be_waited_for_is_never_freed() {
        let (seen, usable) = dropping(refused(), Err(refused()));
        assert_eq!((seen, usable), (vec!["waited"], true));
        let (seen, usable) = dropping(refused(), Err(lost()));
        assert_eq!(
            (seen, usable),
            (vec!["waited"], false),
            "the worse error counts"
        );
    }

    #[test]
    fn a_target_whose_copy_failed_is_waited_for() {
        let (waited, target) = (Cell::new(false), Tensor::from_slice(&[1_i64]));
        let wait = || {
            waited.set(true);
            Ok(())
        };
        assert!(filled(target.shallow_clone(), |_| Ok(()), wait).is_ok());
        assert!(!waited.get());
        assert!(filled(target, |_| Err(refused()), wait).is_err());
        assert!(waited.get());
    }
}
