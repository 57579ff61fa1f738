//! Tensor helpers: filling memory from a file, type conversion, and mapping over a layer's tensors. The only
//! place in this crate that accesses raw memory.

use tch::{Device, Kind, Tensor};

use crate::Error;

/// A new host tensor whose bytes are written by `fill`, for example directly from a file, without a second
/// copy.
pub(crate) fn tensor_from(
    shape: &[i64],
    kind: Kind,
    fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
) -> Result<Tensor, Error> {
    // Zeroed rather than empty: a byte slice over uninitialised memory would be undefined behaviour.
    let tensor = Tensor::f_zeros(shape, (kind, Device::Cpu))?;
    let length = tensor.numel() * kind.elt_size_in_bytes();
    if length > 0 {
        // SAFETY: the tensor was made above, so it is contiguous, lies in host memory with
        // `length` initialised bytes at `data_ptr`, and nobody else has a handle to its
        // storage. The slice ends before the tensor is returned. Every bit pattern is a valid
        // element for the numeric kinds, and `fill` is called with those only (see `kind_of`).
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), length) };
        fill(bytes)?;
    }
    Ok(tensor)
}

/// Whether `tensor` only has a shape (all strides are zero): a model that is inspected before it is loaded.
pub(crate) fn is_shape(tensor: &Tensor) -> bool {
    tensor.numel() > 1 && tensor.stride().iter().all(|stride| *stride == 0)
}

/// A tensor of this shape, type and device that only has a shape, and takes no memory.
pub(crate) fn shape_alone(shape: &[i64], options: (Kind, Device)) -> Result<Tensor, Error> {
    let zero = Tensor::f_zeros(vec![1; shape.len()], options)?;
    Ok(zero.f_expand(shape, false)?)
}

/// Tensors one below the other. Where they only have a shape, so has the result.
pub(crate) fn joined(tensors: &[Tensor]) -> Result<Tensor, Error> {
    match tensors.first() {
        Some(first) if is_shape(first) => {
            let mut shape = first.size();
            shape[0] = tensors.iter().map(|tensor| tensor.size()[0]).sum();
            shape_alone(&shape, (first.kind(), first.device()))
        }
        _ => Ok(Tensor::f_cat(tensors, 0)?),
    }
}

/// Bytes that the elements of `tensor` take.
pub fn bytes(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// `tensor` as `kind`, without a copy if it already is.
pub fn to_kind(tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    if tensor.kind() == kind {
        return Ok(tensor.shallow_clone());
    }
    Ok(tensor.f_to_kind(kind)?)
}

/// A copy with its own storage, because a view keeps the whole storage of its base alive. Differentiable.
pub(crate) fn copied(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(Tensor::f_cat(&[tensor], 0)?)
}

/// Maps each frozen tensor of a layer to another one, always in the same order; trainable tensors are shared,
/// not mapped. This is how a layer is split into its tensors and rebuilt from others when blocks are swapped.
pub type BaseMap<'a> = &'a mut dyn FnMut(&Tensor) -> Result<Tensor, Error>;

/// `map` applied to a frozen tensor; a trainable one is shared instead.
///
/// # Errors
/// Those of `map`.
pub fn map_frozen(tensor: &Tensor, map: BaseMap<'_>) -> Result<Tensor, Error> {
    match tensor.requires_grad() {
        true => shared(tensor),
        false => map(tensor),
    }
}

/// [`bytes`] of a frozen tensor, otherwise 0: trainable tensors are counted with the
/// [`Parameters`](crate::Parameters).
pub(crate) fn frozen_bytes(tensor: &Tensor) -> u64 {
    match tensor.requires_grad() {
        true => 0,
        false => bytes(tensor),
    }
}

/// A [`BaseMap`] that shares every tensor, like [`Tensor::shallow_clone`].
///
/// # Errors
/// None; the `Result` is required by [`BaseMap`].
pub fn shared(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.shallow_clone())
}
