#![doc = include_str!("../README.md")]
#![allow(non_camel_case_types, non_snake_case, reason = "the names are tch's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "tch alone calls these functions, by the rules of its own bindings"
)]

mod library;
mod operator;
mod tensor;
mod unsupported;

pub mod cuda;
pub mod io;

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

pub use cuda::{
    at_get_num_interop_threads, at_get_num_threads, at_manual_seed, at_set_num_interop_threads,
    at_set_num_threads,
};
pub use operator::{
    C_scalar, ats_float, ats_free, ats_int, ats_to_float, ats_to_int, ats_to_string,
};
pub use tensor::*;
pub use unsupported::*;

/// tch's functions for operators, from `operators.txt`.
#[allow(
    missing_docs,
    clippy::too_many_arguments,
    reason = "they are PyTorch's operators"
)]
pub mod c_generated {
    use std::ffi::c_int;
    use std::ptr::null_mut;

    use crate::operator::{AsWord, FromWord, Operator, Way};
    pub use crate::tensor::{atg_full_like, atg_grad, atg_set_requires_grad};
    use crate::{C_scalar, C_tensor};

    include!(concat!(env!("OUT_DIR"), "/operators.rs"));
}

/// A handle: a pointer to an `at::Tensor`.
#[repr(C)]
pub struct C_tensor {
    _private: [u8; 0],
}

/// The message of an error.
type Result<T> = std::result::Result<T, String>;

thread_local! {
    static LAST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Whether a scalar was freed since the last question: tch drops those of a call before it asks about the call.
    static SCALAR_FREED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the error for tch, which asks after every call.
fn or_default<T: Default>(call: impl FnOnce() -> Result<T>) -> T {
    call().unwrap_or_else(|error| {
        LAST_ERROR.set(Some(error));
        T::default()
    })
}

/// As `or_default`, for a pointer.
fn or_null<T>(call: impl FnOnce() -> Result<*mut T>) -> *mut T {
    call().unwrap_or_else(|error| {
        LAST_ERROR.set(Some(error));
        null_mut()
    })
}

/// The error of this thread since the last time, as a string that tch frees; null if there was none.
pub unsafe fn get_and_reset_last_err() -> *mut c_char {
    if SCALAR_FREED.take() {
        return null_mut();
    }
    LAST_ERROR
        .take()
        .map_or(null_mut(), |error| c_string(&error))
}

/// A string that is freed by `libc::free`.
fn c_string(text: &str) -> *mut c_char {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: it copies a valid string.
    unsafe { libc::strdup(text.as_ptr()) }
}

macro_rules! lists {
    ($list:ident of $item:ty: $([$($generic:tt)*] $type:ty),*) => {
        #[doc = concat!("A list of `", stringify!($item), "` as C has it; a single one is a list, too.")]
        pub trait $list {
            /// Its first item.
            fn as_ptr(&self) -> *const $item;
            /// How many there are.
            fn len_i32(&self) -> i32;
        }
        impl $list for $item {
            fn as_ptr(&self) -> *const $item {
                self
            }
            fn len_i32(&self) -> i32 {
                1
            }
        }
        $(impl<$($generic)*> $list for $type {
            fn as_ptr(&self) -> *const $item {
                self[..].as_ptr()
            }
            fn len_i32(&self) -> i32 {
                self[..].len() as i32
            }
        })*
    };
}
lists!(IntList of i64: [] [i64], [] &[i64], [] Vec<i64>, [] &Vec<i64>, [] &Box<[i64]>, [const N: usize] [i64; N], [const N: usize] &[i64; N]);
lists!(DoubleList of f64: [] [f64], [] &[f64], [] Vec<f64>, [] &Vec<f64>, [] &Box<[f64]>, [const N: usize] [f64; N], [const N: usize] &[f64; N]);

/// A list of integers that may be missing.
pub trait IntListOption {
    /// Its first item; null without a list.
    fn as_ptr(&self) -> *const i64;
    /// How many there are; -1 without a list.
    fn len_i32(&self) -> i32;
}

macro_rules! optional_lists {
    ($($type:ty),*) => {
        $(impl IntListOption for $type {
            fn as_ptr(&self) -> *const i64 {
                IntList::as_ptr(self)
            }
            fn len_i32(&self) -> i32 {
                IntList::len_i32(self)
            }
        }
        impl IntListOption for Option<$type> {
            fn as_ptr(&self) -> *const i64 {
                self.as_ref().map_or(null(), IntList::as_ptr)
            }
            fn len_i32(&self) -> i32 {
                self.as_ref().map_or(-1, IntList::len_i32)
            }
        })*
    };
}
optional_lists!(i64, &[i64], Vec<i64>, &Vec<i64>, &Box<[i64]>);
