//! The random generators of libtorch: seeding, and states that can be saved.

use tch::{Device, Tensor};

use crate::{Error, Result, raw};

/// Seeds the generators of the CPU and of every accelerator.
///
/// # Errors
/// A torch error, for instance of a device that does not start.
pub fn manual_seed(seed: u64) -> Result<()> {
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_manual_seed(seed) })
}

/// The state of one device's default generator. Equal states give equal numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratorState(Vec<u8>);

impl GeneratorState {
    /// Reads the state of the device's generator (5,056 bytes for the CPU's
    /// Mersenne Twister).
    ///
    /// # Errors
    /// [`Error::NoAccelerator`] or [`Error::InvalidArgument`] for a device that is
    /// not there.
    pub fn of(device: Device) -> Result<Self> {
        let index = raw::device_index(device)?;
        // SAFETY: `out` is a valid place for the result.
        let state = raw::tensor(|out| unsafe { raw::surefoot_generator_state(index, out) })?;
        Vec::try_from(state).map(Self).map_err(Error::from)
    }

    /// Makes the device's generator continue from this state.
    pub fn restore(&self, device: Device) -> Result<()> {
        let index = raw::device_index(device)?;
        let state = Tensor::f_from_slice(&self.0)?;
        // SAFETY: a valid tensor, borrowed for the call.
        raw::check(unsafe { raw::surefoot_set_generator_state(index, state.as_ptr()) })
    }

    /// The state as bytes, for a checkpoint.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A state read back from a checkpoint. Checked when it is restored.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}
