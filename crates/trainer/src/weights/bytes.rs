//! The bytes of host tensors: the only place in this crate that touches them raw.

use tch::{Device, Kind, Tensor};

use super::WeightsError;

/// A new host tensor whose bytes `fill` writes, for example straight from a file, so
/// that nothing is held twice.
pub(crate) fn tensor_from(
    shape: &[i64],
    kind: Kind,
    fill: impl FnOnce(&mut [u8]) -> Result<(), WeightsError>,
) -> Result<Tensor, WeightsError> {
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

/// The little-endian bytes of a tensor of any device, in row-major order.
pub(crate) fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, WeightsError> {
    let tensor = tensor.detach().f_to_device(Device::Cpu)?.f_contiguous()?;
    let length = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if length == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the tensor is contiguous and in host memory, so `length` initialised bytes lie at
    // `data_ptr`; `tensor` keeps the storage alive while they are copied, and nothing writes to
    // it meanwhile, because in-place operations go through this thread.
    let bytes = unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) };
    Ok(bytes.to_vec())
}
