//! The C functions that replace those of a real runtime.
//!
//! CUDA's runtime, CUDA's driver and HIP agree on most signatures, so most
//! functions are written once and exported under all their names by [`export!`].
//! Pointers of the program are wrapped in [`Out`], [`In`] and [`Text`] at the
//! boundary; bodies are safe code that returns `Result<(), Status>`.

mod cublas;
mod cudnn;
mod devices;
mod driver;
mod graphs;
mod handles;
mod kernels;
mod mapping;
mod memory;
mod modules;
mod nvml;
mod properties;
mod rccl;
mod streams;

use std::ffi::{CStr, c_char};

use crate::calls::{self, CallSite};
use crate::control;
use crate::engine::{Engine, in_host_function};
use crate::process::forked;
use crate::status::Status;

/// An output argument of the program. Created only by C code.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses a null pointer, before a resource is created whose handle could not be returned.
    pub(crate) fn required(self) -> Result<Self, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        Ok(self)
    }

    /// Stores a result; a null pointer is an invalid argument.
    pub(crate) fn set(&self, value: T) -> Result<(), Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an `Out` exists only as an argument that the API documents as a
        // valid pointer to a `T` for the duration of the call; null was excluded, and
        // programs that pack their structures are served too.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores a result unless the pointer is null.
    pub(crate) fn set_if_wanted(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `set`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The value that the program has stored, for in-out arguments.
    pub(crate) fn get(&self) -> Result<T, Status>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: as in `set`, and the API documents the value as initialised.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Out<c_char> {
    /// Stores a terminated string in a buffer of `size` bytes, truncated if necessary.
    pub(crate) fn set_text(&self, text: &str, size: usize) -> Result<(), Status> {
        if self.0.is_null() || size == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let length = text.len().min(size - 1);
        // SAFETY: the API documents a buffer of `size` bytes, and `length` leaves
        // room for the terminator.
        unsafe {
            self.0
                .copy_from_nonoverlapping(text.as_ptr().cast(), length);
            self.0.add(length).write(0);
        }
        Ok(())
    }
}

/// An input structure of the program.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(&self) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: an `In` exists only as an argument that the API documents as a
        // valid pointer to a `T`; null was excluded.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The last of `count` contiguous structures.
    pub(crate) fn last_of(&self, count: u64) -> Result<T, Status> {
        let before = count.checked_sub(1).ok_or(Status::INVALID_VALUE)?;
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // The API documents an array of `count` structures, so the last one is a `T` too.
        In(self.0.wrapping_add(before as usize)).get()
    }
}

/// A null-terminated string of the program.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(&self) -> Result<&CStr, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the API documents a terminated string that outlives the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// Runs the body of a function that needs the engine, and returns its status.
pub(crate) fn call(
    site: &'static CallSite,
    body: impl FnOnce(&'static Engine) -> Result<(), Status>,
) -> Status {
    if forked() {
        site.count_in_child();
        return Status::NOT_INITIALIZED;
    }
    if in_host_function() {
        return Status::NOT_PERMITTED;
    }
    control::report_at_exit();
    let result = calls::guarded(|| {
        // The engine first: it reads the settings in the environment, which apply to the first call too.
        let engine = Engine::get();
        site.enter().and(engine).and_then(body)
    });
    result.err().unwrap_or(Status::SUCCESS)
}

/// A function of a runtime API: failures are stored for `cudaGetLastError`.
pub(crate) fn runtime(
    site: &'static CallSite,
    body: impl FnOnce(&'static Engine) -> Result<(), Status>,
) -> Status {
    calls::remembered(call(site, body))
}

/// A function of the driver API: failures are only returned.
pub(crate) fn driver(
    site: &'static CallSite,
    body: impl FnOnce(&'static Engine) -> Result<(), Status>,
) -> Status {
    call(site, body)
}

/// Defines a function once and exports it under several names, each with the
/// error handling of its API (`runtime` or `driver`).
macro_rules! export {
    ($(
        $(#[doc = $doc:literal])*
        fn $body:ident $arguments:tt as $($manner:ident $name:ident),+ $code:block
    )*) => {$(
        export! { @body [$(#[doc = $doc])*] $body $arguments $code }
        $(export! { @name $name $manner $body $arguments })+
    )*};

    (@body [$($attribute:tt)*] $body:ident ($engine:ident $(, $argument:ident: $type:ty)* $(,)?) $code:block) => {
        $($attribute)*
        #[allow(clippy::too_many_arguments, reason = "the C API decides")]
        fn $body($engine: &'static $crate::engine::Engine $(, $argument: $type)*) -> Result<(), $crate::status::Status> $code
    };

    (@name $name:ident $manner:ident $body:ident ($engine:ident $(, $argument:ident: $type:ty)* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the C API decides")]
        extern "C" fn $name($($argument: $type),*) -> $crate::status::Status {
            static SITE: $crate::calls::CallSite = $crate::calls::CallSite::new(stringify!($name));
            $crate::api::$manner(&SITE, |engine| self::$body(engine $(, $argument)*))
        }
    };
}

/// Exports functions that are counted, succeed, and do nothing.
///
/// On this ABI a function may ignore arguments that it does not declare.
macro_rules! export_nothing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the C API decides")]
        extern "C" fn $name() -> $crate::status::Status {
            static SITE: $crate::calls::CallSite = $crate::calls::CallSite::new(stringify!($name));
            $crate::api::call(&SITE, |_| Ok(()))
        }
    )*};
}

pub(crate) use {export, export_nothing};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_that_stays() {
        static SITE: CallSite = CallSite::new("cudaMistake");
        let panics = call(&SITE, |_| panic!("as this test wants it"));
        let later = call(&SITE, |_| Ok(()));
        calls::reset_faults();
        assert_eq!((panics, later), (Status::UNKNOWN, Status::UNKNOWN));
        assert_eq!(call(&SITE, |_| Ok(())), Status::SUCCESS);
    }
}
