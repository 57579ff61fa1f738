//! What every module needs of tensors: their memory filled from a file, another type, and the map
//! over a layer's own tensors. The only place of this crate that touches memory raw.

use tch::{Device, Kind, Tensor};

use crate::Error;

/// A new host tensor whose bytes `fill` writes, for example straight from a file, so
/// that nothing is held twice.
pub(crate) fn tensor_from(
    shape: &[i64],
    kind: Kind,
    fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
) -> Result<Tensor, Error> {
    // Zeroed rather than empty: a byte slice over memory that was never written would be
    // undefined behaviour.
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

/// Bytes of the elements of `tensor`.
pub fn bytes(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// `tensor` in `kind`; no copy when it is already.
pub fn to_kind(tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    if tensor.kind() == kind {
        return Ok(tensor.shallow_clone());
    }
    Ok(tensor.f_to_kind(kind)?)
}

/// The same numbers in memory of their own: a view keeps all that it is a view of in memory.
/// Gradients go through.
pub(crate) fn copied(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(Tensor::f_cat(&[tensor], 0)?)
}

/// Maps each frozen tensor of a layer to another, always in the same order; what learns is shared,
/// not mapped. With it a layer is split into its tensors and rebuilt from them, which is
/// how blocks are swapped.
pub type BaseMap<'a> = &'a mut dyn FnMut(&Tensor) -> Result<Tensor, Error>;

/// What `map` makes of a tensor that may be one that learns, which is shared instead.
pub(crate) fn map_frozen(tensor: &Tensor, map: BaseMap<'_>) -> Result<Tensor, Error> {
    match tensor.requires_grad() {
        true => shared(tensor),
        false => map(tensor),
    }
}

/// [`bytes`] of a tensor that does not learn; those of others are counted with the
/// [`Parameters`](crate::Parameters).
pub(crate) fn frozen_bytes(tensor: &Tensor) -> u64 {
    match tensor.requires_grad() {
        true => 0,
        false => bytes(tensor),
    }
}

/// A [`BaseMap`] that shares every tensor: [`Tensor::shallow_clone`].
///
/// # Errors
/// None; it returns a `Result` to be a [`BaseMap`].
pub fn shared(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.shallow_clone())
}
