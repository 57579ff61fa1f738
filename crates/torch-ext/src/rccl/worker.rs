//! The thread that calls the library for one communicator. Only it has the handle, so that calls never overlap, and only
//! this thread hangs if the library does.

use std::ffi::c_int;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use tch::{Device, Tensor};

use super::library::{self, Handle, Library, UniqueId};
use crate::accelerator::{self, DeviceIndex, Event, Stream};
use crate::{Error, Result};

/// How long to wait for a sum without pausing, and the polling interval afterwards.
const BUSY: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(200);

/// A tensor to be summed in place.
pub(super) struct Job {
    pub(super) tensor: Tensor,
    pub(super) timeout: Duration,
    pub(super) reply: Sender<Result<Tensor>>,
}

pub(super) struct Worker {
    library: Library,
    device: Device,
}

impl Worker {
    pub(super) fn new(library: Library, device: Device) -> Self {
        Self { library, device }
    }

    /// Joins, reports it, and serves requests until the channel is closed.
    pub(super) fn run(
        &self,
        id: UniqueId,
        place: (usize, usize),
        ready: &Sender<Result<()>>,
        jobs: &Receiver<Job>,
    ) {
        let handle = match self.join(id, place) {
            Ok(handle) => handle,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        if ready.send(Ok(())).is_err() {
            // SAFETY: made by this thread just now, and not used again.
            unsafe { self.library.abort(handle) };
            return;
        }
        for job in jobs {
            let done = self.sum(handle, &job.tensor, job.timeout);
            let failed = done.is_err();
            if failed {
                // Before the answer: its memory is of no use to the library any more.
                // SAFETY: live until here, of this thread, and not used again.
                unsafe { self.library.abort(handle) };
            }
            let _ = job.reply.send(done.map(|()| job.tensor));
            if failed {
                return;
            }
        }
        // SAFETY: live, of this thread, nothing in progress, and not used again.
        unsafe { self.library.destroy(handle) };
    }

    fn join(&self, id: UniqueId, (rank, size): (usize, usize)) -> Result<Handle> {
        let number = |number: usize| {
            c_int::try_from(number)
                .map_err(|_| Error::InvalidArgument(format!("RCCL has no {number} ranks")))
        };
        if self.device != Device::Cpu {
            accelerator::set_current_device(DeviceIndex::try_from(self.device)?)?;
        }
        self.library.init(id, number(rank)?, number(size)?)
    }

    /// Sums a tensor and waits for that.
    fn sum(&self, handle: Handle, tensor: &Tensor, timeout: Duration) -> Result<()> {
        let data_type = library::data_type(tensor.kind())?;
        let (data, count) = (tensor.data_ptr(), tensor.numel());
        // SAFETY: the handle is live and of this thread. The tensor is contiguous, of this type and
        // on the communicator's device, as `Communicator::sum_within` has seen, and this thread
        // has it. It lets go of it when the sum is finished, or after an error, when `ncclCommAbort`
        // follows: then the kernels of the communicator end without touching it, as NCCL documents.
        unsafe { self.library.all_reduce(handle, data, count, data_type)? };
        let event = self.event()?;
        let began = Instant::now();
        loop {
            // SAFETY: live and of this thread.
            unsafe { self.library.asynchronous_error(handle)? };
            let is_done = match &event {
                Some(event) => event.is_done()?,
                None => {
                    // SAFETY: live and of this thread.
                    let is_done = unsafe { self.library.simulated_is_done(handle) };
                    is_done == Some(true)
                }
            };
            if is_done {
                return Ok(());
            }
            match began.elapsed() {
                waited if waited >= timeout => {
                    return Err(Error::Peer(format!(
                        "RCCL: a sum was not there after {} seconds",
                        timeout.as_secs()
                    )));
                }
                waited if waited >= BUSY => std::thread::sleep(PAUSE),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Marks the end of the work on the default stream; `None` if the library is simulated.
    fn event(&self) -> Result<Option<Event>> {
        if self.device == Device::Cpu {
            return Ok(None);
        }
        let device = DeviceIndex::try_from(self.device)?;
        let mut event = Event::new(device)?;
        event.record(Stream::current(device)?.default_of_device())?;
        Ok(Some(event))
    }
}
