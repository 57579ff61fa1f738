//! The one door through which tensors reach the device.

use tch::{Device, Tensor};

use crate::Error;

/// Moves parameters and batches to the device of the run.
pub struct Placing {
    device: Device,
}

impl Placing {
    /// Places on `device`.
    pub fn new(device: Device) -> Self {
        Self { device }
    }

    /// The device of the run.
    pub fn device(&self) -> Device {
        self.device
    }

    /// A parameter on the device, contiguous.
    ///
    /// # Errors
    /// When the device has no room, or refuses the copy.
    pub fn tensor(&mut self, _name: &str, tensor: &Tensor) -> Result<Tensor, Error> {
        Ok(tensor.f_contiguous()?.f_to_device(self.device)?)
    }

    /// A batch on the device.
    ///
    /// # Errors
    /// As [`Placing::tensor`].
    pub fn batch(&mut self, batch: crate::task::Batch) -> Result<crate::task::Batch, Error> {
        batch.try_map(|tensor| Ok(tensor.f_to_device(self.device)?))
    }
}
