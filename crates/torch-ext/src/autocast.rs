//! Mixed precision with a chosen dtype; tch's own `autocast` knows neither bf16
//! nor the CPU, and stays on when the closure panics.

use std::marker::PhantomData;

use tch::{Device, Kind};

use crate::{Error, Result, raw};

/// Autocast is on for one type of device while this lives, on this thread.
///
/// Guards nest; the innermost wins. Drop them in reverse order.
#[must_use = "autocast ends when the guard is dropped"]
#[derive(Debug)]
pub struct Autocast {
    device: i32,
    was_enabled: bool,
    was_dtype: i32,
    /// The state is thread-local, so the guard must not change threads.
    not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// Switches autocast on: matrix products and convolutions on `device`'s type
    /// run in `kind` (bf16 or f16), reductions and losses stay in float32.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another kind; [`Error::NoAccelerator`].
    pub fn enter(device: Device, kind: Kind) -> Result<Self> {
        // c10::ScalarType's numbers.
        let dtype = match kind {
            Kind::Half => 5,
            Kind::BFloat16 => 15,
            other => {
                return Err(Error::InvalidArgument(format!(
                    "autocast to {other:?}: only BFloat16 and Half make sense"
                )));
            }
        };
        let device = raw::device_index(device)?;
        let (mut was_enabled, mut was_dtype) = (false, 0);
        // SAFETY: two valid places for the results.
        raw::check(unsafe {
            raw::surefoot_autocast_enter(device, dtype, &mut was_enabled, &mut was_dtype)
        })?;
        Ok(Self {
            device,
            was_enabled,
            was_dtype,
            not_send: PhantomData,
        })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: no pointers; the values are those that `enter` reported.
        let code =
            unsafe { raw::surefoot_autocast_leave(self.device, self.was_enabled, self.was_dtype) };
        if let Err(error) = raw::check(code) {
            tracing::warn!(%error, "autocast could not be switched back");
        }
    }
}
