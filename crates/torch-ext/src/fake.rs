//! Fake tensors: what a piece of work allocates is counted, and nothing is allocated or computed.
//!
//! A fake tensor has a device, a type and a size, and no memory. Autograd, and what libtorch makes of other operators, work as
//! with real ones (`cpp/fake.cpp`), so that what is kept for a backward pass, and the peak within it, are those of a real one
//! on that device. What kernels allocate for themselves is not seen. To look at the numbers of a fake tensor is an error.

use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::{Device, Tensor};

use crate::accelerator::DeviceIndex;
use crate::{Error, Result, raw};

/// One thread at a time is in fake mode.
static TURN: Mutex<()> = Mutex::new(());

/// While it exists, tensors that are made on a device on this thread are fake. Those made of a list of numbers are real,
/// and so is what is computed of real ones if it is small or not of a floating type. Random generators stay as they are.
///
/// Weights that exist already should not take part: large results of real tensors alone are computed first.
#[derive(Debug)]
#[must_use = "fake mode ends when it is dropped"]
pub struct FakeMode {
    _turn: MutexGuard<'static, ()>,
    of_this_thread: PhantomData<*const ()>,
}

impl FakeMode {
    /// Begins it, and the count of bytes on `device`, when no other thread is in it.
    ///
    /// # Errors
    /// If there is no such device, or libtorch has another kind of fake tensors.
    pub fn begin(device: Device) -> Result<Self> {
        let index = match device {
            Device::Cpu => -1,
            other => i32::from(DeviceIndex::try_from(other)?.0),
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no pointers.
        raw::check(unsafe { raw::surefoot_fake_begin(index) })?;
        Ok(Self {
            _turn: turn,
            of_this_thread: PhantomData,
        })
    }

    /// Bytes of the fake tensors on the device now, and the most since the last call.
    pub fn bytes(&self) -> (u64, u64) {
        let (mut live, mut peak) = (0, 0);
        // SAFETY: two places for the results.
        unsafe { raw::surefoot_fake_bytes(&mut live, &mut peak) };
        (live, peak)
    }
}

impl Drop for FakeMode {
    fn drop(&mut self) {
        // SAFETY: no pointers; this is the thread that began it, since the guard cannot be sent to another.
        unsafe { raw::surefoot_fake_end() };
    }
}

/// Whether this thread is in fake mode.
pub fn is_on() -> bool {
    // SAFETY: no pointers.
    unsafe { raw::surefoot_is_faking() }
}

/// What a pass allocates, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassMemory {
    /// Weights.
    pub weights: u64,
    /// What exists between the forward and the backward pass besides them.
    pub kept: u64,
    /// What more there is at the peak, gradients of weights included.
    pub temporary: u64,
}

/// Measures a pass forward to the `loss` and back, of a model that `build` makes, on `device`.
///
/// # Errors
/// Those of `build` and `loss`; or something looks at the numbers of a fake tensor.
pub fn pass<M, E: From<Error>>(
    device: Device,
    build: impl FnOnce() -> std::result::Result<M, E>,
    loss: impl FnOnce(&M) -> std::result::Result<Tensor, E>,
) -> std::result::Result<PassMemory, E> {
    let fake = FakeMode::begin(device)?;
    let model = build()?;
    let (weights, _) = fake.bytes();
    let loss = loss(&model)?;
    let (all, forward) = fake.bytes();
    crate::backward(&loss)?;
    let peak = fake.bytes().1.max(forward);
    let kept = all.saturating_sub(weights);
    Ok(PassMemory {
        weights,
        kept,
        temporary: peak.saturating_sub(weights + kept),
    })
}
