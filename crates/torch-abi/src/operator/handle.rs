//! Handles of tensors: each is a pointer to an `at::Tensor`.

use std::ptr::null_mut;

use super::{AsWord, Operator, operator};
use crate::library::{Interface, Word};
use crate::{C_tensor, Result};

/// A handle that is ours to end.
pub(crate) struct Owned(pub(crate) *mut C_tensor);

impl Owned {
    pub(crate) fn into_raw(self) -> *mut C_tensor {
        let handle = self.0;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Ok(torch) = Interface::get() {
            // SAFETY: nobody else has it. There is no error: it is a C++ destructor.
            unsafe { (torch.delete)(self.0) };
        }
    }
}

impl Interface {
    /// The result of an operator that has one tensor.
    ///
    /// # Safety
    /// As `Operator::call`.
    pub(crate) unsafe fn one(&self, operator: &Operator, words: &[Word]) -> Result<Owned> {
        let mut tensor = null_mut();
        // SAFETY: the caller's; there is room for one.
        unsafe { operator.dispatch(self, &mut tensor, words) }?;
        Ok(Owned(tensor))
    }

    /// A tensor without elements, of a dtype and on a device as tch has them.
    pub(crate) fn empty(&self, dtype: Word, device: Word) -> Result<Owned> {
        let shape = [0_i64];
        let operator = operator!(c"aten::empty".c"memory_format", "Ao_", "1");
        // SAFETY: a list of one integer and the options.
        unsafe { self.one(operator, &[shape.as_ptr().word(), 1, dtype, device]) }
    }

    /// Another handle for the same tensor.
    pub(crate) fn share(&self, tensor: *mut C_tensor) -> Result<*mut C_tensor> {
        let mut shared = null_mut();
        // SAFETY: tch's tensors are handles that live for the call.
        self.check(unsafe { (self.share)(tensor, &mut shared) })?;
        Ok(shared)
    }

    /// A new handle, of an undefined tensor.
    pub(crate) fn undefined(&self) -> Result<Owned> {
        let mut tensor = null_mut();
        // SAFETY: a valid place for the result.
        self.check(unsafe { (self.undefined)(&mut tensor) })?;
        Ok(Owned(tensor))
    }

    /// A handle for a tensor that C++ returned by value.
    pub(crate) fn handle(&self, tensor: Word) -> Result<*mut C_tensor> {
        let handle = self.undefined()?.into_raw();
        // SAFETY: a handle points to an `at::Tensor`, whose one word is its tensor. An undefined one owns none, so that
        // it can be overwritten.
        unsafe { *handle.cast::<Word>() = tensor };
        Ok(handle)
    }
}
