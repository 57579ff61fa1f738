//! Sums over the GPUs of several processes with RCCL or NCCL, which have the same C interface.
//!
//! The library is loaded on demand and never unloaded. Each [`Communicator`] calls it from a thread of its own, so that a
//! call that hangs blocks its caller no longer than the timeout. Work runs on the device's default stream, ordered with
//! the caller's current stream.

mod library;
mod worker;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tch::{Device, Tensor};

use crate::accelerator::{DeviceIndex, Event, Stream};
use crate::{Error, Result};

pub use library::{LIBRARY_VARIABLE, Library, UniqueId};
use worker::{Job, Worker};

/// Polling interval of waits.
const GLANCE: Duration = Duration::from_millis(50);
/// How much longer than the timeout the caller waits, so that the thread can report the reason itself.
const MARGIN: Duration = Duration::from_secs(2);

/// One of several processes, each with a GPU, whose tensors are summed.
#[derive(Debug)]
pub struct Communicator {
    /// `None` once a call has failed, since the state of the other ranks is unknown then.
    jobs: Option<Sender<Job>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    device: Device,
    timeout: Duration,
}

impl Communicator {
    /// Joins the other processes with the same `id` as rank `rank` of `size`, with the GPU `device`. Waits for them at
    /// most `patience`, and only while `go_on` returns true. A sum takes at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Peer`] with the library's message, or after a timeout. A thread that hangs in the library is abandoned.
    pub fn join(
        library: &Library,
        id: UniqueId,
        (rank, size): (usize, usize),
        device: Device,
        (patience, timeout): (Duration, Duration),
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Self> {
        library.expect_usable_with(device)?;
        let (jobs, todo) = mpsc::channel();
        let (ready, joined) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let worker = Worker::new(library.clone(), device);
        let thread = std::thread::Builder::new().name("rccl".into());
        let spawned = thread.spawn(move || {
            worker.run(id, (rank, size), &ready, &todo);
            drop(end);
        });
        spawned.map_err(|error| Error::Peer(format!("no thread for RCCL: {error}")))?;
        let began = Instant::now();
        loop {
            match joined.recv_timeout(GLANCE) {
                Ok(joined) => {
                    joined?;
                    return Ok(Self {
                        jobs: Some(jobs),
                        ended,
                        device,
                        timeout,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(vanished()),
                Err(RecvTimeoutError::Timeout) if began.elapsed() >= patience => {
                    return Err(Error::Peer(format!(
                        "ncclCommInitRank did not return within {} seconds",
                        patience.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Timeout) if !go_on() => {
                    return Err(Error::Peer("another rank has given up".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Sums `tensor` (contiguous; fp32, fp64 or bf16; with the same shape and kind on all ranks) in place. Nothing else may
    /// use it meanwhile.
    ///
    /// # Errors
    /// [`Error::Peer`] if the library reports an error, now or later, or another rank is late: the communicator is unusable
    /// afterwards. [`Error::InvalidArgument`] for a tensor on another device, with gaps, or of another kind.
    pub fn sum(&mut self, tensor: Tensor) -> Result<Tensor> {
        self.sum_within(tensor, self.timeout)
    }

    /// Like [`Communicator::sum`], with its own timeout.
    pub fn sum_within(&mut self, tensor: Tensor, timeout: Duration) -> Result<Tensor> {
        if tensor.device() != self.device || !tensor.is_contiguous() {
            return Err(Error::InvalidArgument(format!(
                "RCCL sums contiguous tensors on {:?}, and this one is on {:?}{}",
                self.device,
                tensor.device(),
                if tensor.is_contiguous() {
                    ""
                } else {
                    " and not contiguous"
                }
            )));
        }
        library::data_type(tensor.kind())?;
        let jobs = self.jobs.take().ok_or_else(|| {
            Error::Peer("RCCL has failed before, and sums nothing any more".into())
        })?;
        let streams = Streams::here(self.device)?;
        let (reply, answer) = mpsc::channel();
        // With the tensor, which so outlives a call that does not return.
        let job = Job {
            tensor,
            timeout,
            reply,
        };
        if let Some(streams) = &streams {
            streams.enter()?;
        }
        jobs.send(job).map_err(|_| vanished())?;
        let sum = match answer.recv_timeout(timeout.saturating_add(MARGIN)) {
            Ok(done) => done?,
            Err(RecvTimeoutError::Disconnected) => return Err(vanished()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::Peer(format!(
                    "ncclAllReduce did not return within {} seconds",
                    timeout.as_secs()
                )));
            }
        };
        // Only now: without it, the thread ends and lets go of the library's communicator.
        self.jobs = Some(jobs);
        Ok(sum)
    }
}

impl Drop for Communicator {
    /// Waits briefly for the library to release its resources.
    fn drop(&mut self) {
        if self.jobs.take().is_some() {
            let _ = self.ended.recv_timeout(MARGIN);
        }
    }
}

/// The caller's stream, and the default stream, on which RCCL works.
struct Streams {
    current: Stream,
    default: Stream,
}

impl Streams {
    /// `None` with a simulated library, which has no streams.
    fn here(device: Device) -> Result<Option<Self>> {
        if device == Device::Cpu {
            return Ok(None);
        }
        let current = Stream::current(DeviceIndex::try_from(device)?)?;
        let default = current.default_of_device();
        Ok(Some(Self { current, default }))
    }

    /// Orders later work on the default stream after what is on the current one.
    fn enter(&self) -> Result<()> {
        let mut event = Event::new(self.current.device())?;
        event.record(self.current)?;
        self.default.wait_for(&event)
    }
}

fn vanished() -> Error {
    Error::Peer("the thread that calls RCCL has ended".into())
}
