//! tch's functions for tensors that are no operators.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::slice;

use crate::library::{Interface, Word, is_loaded};
use crate::operator::{AsWord, CPU, CUDA, Operator, Owned, VULKAN, Way, device_parts, operator};
use crate::{C_scalar, C_tensor, Result, or_default, or_null};

impl Interface {
    /// Calls a method of `c10::TensorImpl` that takes nothing.
    ///
    /// # Safety
    /// It returns a word, and the tensor lives.
    unsafe fn method(&self, tensor: *mut C_tensor, unix: &CStr, windows: &CStr) -> Result<Word> {
        let method = self.cpp(if cfg!(windows) { windows } else { unix })?;
        // SAFETY: a handle points to a pointer to the `TensorImpl`, which the method takes as `this`.
        unsafe { self.call_cpp(method, &[*tensor.cast::<Word>()], false) }
    }

    /// Where a leaf's gradient is: an `at::Tensor`, which may be undefined.
    ///
    /// # Safety
    /// The tensor lives as long as the place is used, and nobody else uses it.
    unsafe fn gradient(&self, tensor: *mut C_tensor) -> Result<*mut Word> {
        let unix = c"_ZN3c1010TensorImpl12mutable_gradEv";
        let windows = c"?mutable_grad@TensorImpl@c10@@QEAAAEAVTensor@at@@XZ";
        // SAFETY: the caller's.
        Ok(unsafe { self.method(tensor, unix, windows) }? as *mut Word)
    }

    /// Runs the backward pass from `root`.
    ///
    /// # Safety
    /// All are tensors.
    unsafe fn backward(
        &self,
        root: *mut C_tensor,
        inputs: &[*mut C_tensor],
        keep: c_int,
        create: c_int,
    ) -> Result<()> {
        let operator = operator!(c"aten::_backward", "TL_b?b", "0");
        let list = [inputs.as_ptr().word(), inputs.len() as Word];
        // SAFETY: the caller's.
        unsafe {
            operator.dispatch(
                self,
                null_mut(),
                &[root.word(), list[0], list[1], keep.word(), create.word()],
            )
        }?;
        Ok(())
    }
}

/// What a function of the C interface says of a tensor.
macro_rules! ask {
    ($torch:ident.$function:ident($($argument:expr),*), $start:expr) => {{
        let mut value = $start;
        // SAFETY: tch's tensor, which lives for the call, and a valid place.
        let code = unsafe { ($torch.$function)($($argument,)* &mut value) };
        $torch.check(code).map(|()| value)
    }};
}

/// The same for tch.
macro_rules! tell {
    ($function:ident($tensor:expr), $start:expr) => {
        or_default(|| {
            let torch = Interface::get()?;
            ask!(torch.$function($tensor), $start).map(From::from)
        })
    };
}

/// An undefined tensor.
pub unsafe fn at_new_tensor() -> *mut C_tensor {
    or_null(|| Ok(Interface::get()?.undefined()?.into_raw()))
}

/// Another handle for the tensor.
pub unsafe fn at_shallow_clone(tensor: *mut C_tensor) -> *mut C_tensor {
    or_null(|| Interface::get()?.share(tensor))
}

/// Ends the handle.
pub unsafe fn at_free(tensor: *mut C_tensor) {
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: tch does not use it again.
        torch.check(unsafe { (torch.delete)(tensor) })
    });
}

/// Copies into a tensor.
pub unsafe fn at_copy_(destination: *mut C_tensor, source: *mut C_tensor) {
    or_default(|| {
        let words = [destination.word(), source.word(), 0];
        // SAFETY: tch's tensors.
        unsafe { Interface::get()?.one(operator!(c"aten::copy_", "TTb", "1"), &words) }.map(drop)
    });
}

/// Where the elements are.
pub unsafe fn at_data_ptr(tensor: *mut C_tensor) -> *mut c_void {
    or_null(|| {
        let torch = Interface::get()?;
        ask!(torch.data(tensor), null_mut())
    })
}

/// Whether there is a tensor.
pub unsafe fn at_defined(tensor: *mut C_tensor) -> c_int {
    tell!(is_defined(tensor), false)
}

/// Whether only elements that are not zero are stored.
pub unsafe fn at_is_sparse(tensor: *mut C_tensor) -> c_int {
    let layout: i32 = tell!(layout(tensor), 0);
    c_int::from(layout == SPARSE)
}

/// Whether it is oneDNN's.
pub unsafe fn at_is_mkldnn(tensor: *mut C_tensor) -> c_int {
    let layout: i32 = tell!(layout(tensor), 0);
    c_int::from(layout == ONEDNN)
}

/// Numbers of `c10::Layout`.
const SPARSE: i32 = 1;
const ONEDNN: i32 = 3;

/// Whether the elements follow each other.
pub unsafe fn at_is_contiguous(tensor: *mut C_tensor) -> c_int {
    tell!(is_contiguous(tensor), false)
}

fn dim(torch: &Interface, tensor: *mut C_tensor) -> Result<usize> {
    Ok(usize::try_from(ask!(torch.dim(tensor), 0)?).unwrap_or(0))
}

/// The number of dimensions.
pub unsafe fn at_dim(tensor: *mut C_tensor) -> usize {
    or_default(|| dim(Interface::get()?, tensor))
}

/// Writes the length of each dimension.
pub unsafe fn at_shape(tensor: *mut C_tensor, to: *mut i64) {
    or_default(|| {
        let torch = Interface::get()?;
        let sizes = ask!(torch.sizes(tensor), null_mut())?;
        // SAFETY: there are as many as dimensions, and tch has room for them.
        unsafe { to.copy_from(sizes, dim(torch, tensor)?) };
        Ok(())
    });
}

/// Writes the stride of each dimension.
pub unsafe fn at_stride(tensor: *mut C_tensor, to: *mut i64) {
    or_default(|| {
        let torch = Interface::get()?;
        let strides = ask!(torch.strides(tensor), null_mut())?;
        // SAFETY: as above.
        unsafe { to.copy_from(strides, dim(torch, tensor)?) };
        Ok(())
    });
}

/// The number of its dtype.
pub unsafe fn at_scalar_type(tensor: *mut C_tensor) -> c_int {
    tell!(dtype(tensor), 0)
}

/// Its device as tch has it.
pub unsafe fn at_device(tensor: *mut C_tensor) -> c_int {
    or_default(|| {
        let torch = Interface::get()?;
        Ok(match ask!(torch.device_type(tensor), 0)? {
            CPU => -1,
            CUDA => ask!(torch.device_index(tensor), 0)?,
            VULKAN => -3,
            _ => -2,
        })
    })
}

/// Runs the backward pass from a tensor.
pub unsafe fn at_backward(tensor: *mut C_tensor, keep_graph: c_int, create_graph: c_int) {
    // SAFETY: tch's tensor.
    or_default(|| unsafe { Interface::get()?.backward(tensor, &[], keep_graph, create_graph) });
}

/// Writes the gradients of `inputs`, and leaves those that they have as they are.
pub unsafe fn at_run_backward(
    roots: *const *mut C_tensor,
    root_count: c_int,
    inputs: *const *mut C_tensor,
    input_count: c_int,
    outputs: *mut *mut C_tensor,
    keep_graph: c_int,
    create_graph: c_int,
) {
    or_default(|| {
        let torch = Interface::get()?;
        if root_count != 1 {
            return Err(format!(
                "a backward pass from {root_count} tensors; PyTorch's C interface has one from a tensor"
            ));
        }
        // SAFETY: tch's lists; a gradient is swapped with that of a handle of ours, each of which is an `at::Tensor`.
        unsafe {
            let inputs = slice::from_raw_parts(inputs, input_count as usize);
            let kept = inputs
                .iter()
                .map(|_| torch.undefined())
                .collect::<Result<Vec<_>>>()?;
            let swap = || -> Result<()> {
                inputs.iter().zip(&kept).try_for_each(|(&input, kept)| {
                    torch.gradient(input)?.swap(kept.0.cast());
                    Ok(())
                })
            };
            swap()?;
            let done = torch.backward(*roots, inputs, keep_graph, create_graph);
            swap()?;
            done?;
            for (index, gradient) in kept.into_iter().enumerate() {
                *outputs.add(index) = gradient.into_raw();
            }
        }
        Ok(())
    });
}

/// The gradient of a leaf, which may be undefined.
#[allow(missing_docs)]
pub unsafe fn atg_grad(out: *mut *mut C_tensor, tensor: *mut C_tensor) {
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: the place of the gradient is an `at::Tensor`, and so a handle for the call.
        unsafe { *out = torch.share(torch.gradient(tensor)?.cast())? };
        Ok(())
    });
}

/// A tensor like another, of one number: its operator has options beside the `Scalar`, and does this.
pub unsafe fn atg_full_like(out: *mut *mut C_tensor, tensor: *mut C_tensor, value: *mut C_scalar) {
    static FILL: Operator = Operator::new(Way::Scalar, c"aten::fill_", c"Scalar", "&TS", "1");
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: tch's tensor and scalar, and its room for another tensor.
        unsafe {
            let like = torch.one(
                operator!(c"aten::empty_like", "T_____", "1"),
                &[tensor.word()],
            )?;
            *out = FILL.call_with_scalar(torch, &[like.0.word(), value.word()])?;
        }
        Ok(())
    });
}

/// Whether operators on the tensor are recorded.
pub unsafe fn at_requires_grad(tensor: *mut C_tensor) -> c_int {
    or_default(|| {
        let unix = c"_ZNK3c1010TensorImpl13requires_gradEv";
        let windows = c"?requires_grad@TensorImpl@c10@@QEBA_NXZ";
        // SAFETY: tch's tensor; a `bool` is in the lowest byte.
        Ok(c_int::from(
            unsafe { Interface::get()?.method(tensor, unix, windows) }? as u8 != 0,
        ))
    })
}

/// Sets that.
pub unsafe fn atg_set_requires_grad(out: *mut *mut C_tensor, tensor: *mut C_tensor, value: c_int) {
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: tch's tensor, and its room for another handle.
        unsafe {
            torch.check((torch.set_requires_grad)(tensor, value != 0))?;
            *out = torch.share(tensor)?;
        }
        Ok(())
    });
}

/// Sets whether operators of this thread are recorded, and returns whether they were.
pub unsafe fn at_grad_set_enabled(value: c_int) -> c_int {
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: no pointers.
        unsafe {
            let before = (torch.grad_mode)();
            (torch.set_grad_mode)(value != 0);
            Ok(c_int::from(before))
        }
    })
}

/// The part at an index of the first dimension.
pub unsafe fn at_get(tensor: *mut C_tensor, index: c_int) -> *mut C_tensor {
    // SAFETY: tch's tensor.
    or_null(|| Ok(unsafe { select(Interface::get()?, tensor, index.into()) }?.into_raw()))
}

/// # Safety
/// A tensor.
unsafe fn select(torch: &Interface, tensor: *mut C_tensor, index: i64) -> Result<Owned> {
    // SAFETY: the caller's.
    unsafe {
        torch.one(
            operator!(c"aten::select".c"int", "Tii", "1"),
            &[tensor.word(), 0, index.word()],
        )
    }
}

/// The tensor at the indexes.
///
/// # Safety
/// A tensor, and as many indexes.
unsafe fn at(
    torch: &Interface,
    tensor: *mut C_tensor,
    indexes: *const i64,
    count: c_int,
) -> Result<Owned> {
    let part = Owned(torch.share(tensor)?);
    // SAFETY: the caller's.
    (0..count as usize).try_fold(part, |part, at| unsafe {
        select(torch, part.0, *indexes.add(at))
    })
}

/// The one element at the indexes, as a float.
pub unsafe fn at_double_value_at_indexes(
    tensor: *mut C_tensor,
    indexes: *const i64,
    count: c_int,
) -> f64 {
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: tch's tensor and list.
        let part = unsafe { at(torch, tensor, indexes, count) }?;
        ask!(torch.float_item(part.0), 0.0)
    })
}

/// The one element at the indexes, as an integer.
pub unsafe fn at_int64_value_at_indexes(
    tensor: *mut C_tensor,
    indexes: *const i64,
    count: c_int,
) -> i64 {
    or_default(|| {
        let torch = Interface::get()?;
        // SAFETY: as above.
        let part = unsafe { at(torch, tensor, indexes, count) }?;
        ask!(torch.int_item(part.0), 0)
    })
}

fn check_element(torch: &Interface, dtype: i32, bytes: usize) -> Result<()> {
    // SAFETY: no pointers.
    match unsafe { (torch.element_size)(dtype) } {
        size if size == bytes => Ok(()),
        size => Err(format!("elements of {bytes} bytes in place of {size}")),
    }
}

/// Copies the first elements of a tensor.
pub unsafe fn at_copy_data(tensor: *mut C_tensor, to: *const c_void, count: usize, element: usize) {
    or_default(|| {
        let torch = Interface::get()?;
        let dtype = ask!(torch.dtype(tensor), 0)?;
        check_element(torch, dtype, element)?;
        if ask!(torch.numel(tensor), 0)? < count as i64 {
            return Err(format!("the tensor has less than {count} elements"));
        }
        let to_cpu = operator!(c"aten::to".c"dtype_layout", "T__d?____", "1");
        let contiguous = operator!(c"aten::contiguous", "T_", "1");
        // SAFETY: tch's tensor, and one that was made of it.
        let whole = unsafe {
            let on_cpu = torch.one(to_cpu, &[tensor.word(), (-1).word()])?;
            torch.one(contiguous, &[on_cpu.0.word()])?
        };
        let data = ask!(torch.data(whole.0), null_mut())?;
        if data.is_null() && count > 0 {
            return Err("the tensor has no memory that can be read: it is fake".to_owned());
        }
        // SAFETY: as many elements are there, in one piece, and tch has room for them.
        unsafe {
            to.cast_mut()
                .cast::<u8>()
                .copy_from(data.cast(), count * element)
        };
        Ok(())
    });
}

/// A tensor of these elements.
pub unsafe fn at_tensor_of_data(
    data: *const c_void,
    shape: *const i64,
    dims: usize,
    element: usize,
    dtype: c_int,
) -> *mut C_tensor {
    or_null(|| {
        let torch = Interface::get()?;
        check_element(torch, dtype, element)?;
        // No device is named, as in C++: the numbers are real, also among fake tensors.
        let empty = operator!(c"aten::empty".c"memory_format", "Ak____", "1");
        // SAFETY: tch's list.
        let tensor = unsafe { torch.one(empty, &[shape.word(), dims as Word, dtype.word()]) }?;
        let to = ask!(torch.data(tensor.0), null_mut())?;
        let count = ask!(torch.numel(tensor.0), 0)? as usize;
        if count > 0 {
            // SAFETY: tch's data has as many elements as the shape.
            unsafe { to.cast::<u8>().copy_from(data.cast(), count * element) };
        }
        Ok(tensor.into_raw())
    })
}

/// A tensor on memory that somebody else has.
pub unsafe fn at_tensor_of_blob(
    data: *const c_void,
    shape: *const i64,
    dims: usize,
    strides: *const i64,
    stride_count: usize,
    dtype: c_int,
    device: c_int,
) -> *mut C_tensor {
    or_null(|| {
        let torch = Interface::get()?;
        // SAFETY: tch's list.
        let sizes =
            unsafe { slice::from_raw_parts(if dims == 0 { [0].as_ptr() } else { shape }, dims) };
        let mut dense = vec![1; dims];
        for dim in (1..dims).rev() {
            dense[dim - 1] = dense[dim] * sizes[dim].max(1);
        }
        let strides = if stride_count == 0 {
            dense.as_ptr()
        } else {
            strides
        };
        let [kind, index] = device_parts(device);
        ask!(
            torch.from_blob(
                data,
                dims as i64,
                sizes.as_ptr(),
                strides,
                0,
                dtype,
                kind,
                index
            ),
            null_mut()
        )
    })
}

/// Whether PyTorch's library for CUDA, or that for HIP in its place, is in the process.
pub unsafe fn at_context_has_cuda() -> bool {
    // SAFETY: no pointers.
    is_loaded("torch_cuda") || unsafe { at_context_has_hip() }
}

/// Whether PyTorch's library for HIP is in the process.
pub unsafe fn at_context_has_hip() -> bool {
    Interface::get().is_ok() && is_loaded("torch_hip")
}
