//! Sums over the GPUs of several processes, by RCCL or NCCL, which share their C interface.
//!
//! The library is loaded when it is asked for, and never unloaded. A [`Communicator`] has a thread
//! of its own, the only one that calls the library for it: a call that hangs keeps no one else
//! waiting longer than the time that was agreed. Work is on the device's default stream, in order with the
//! stream that is current for the caller.

mod library;
mod worker;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tch::{Device, Tensor};

use crate::accelerator::{DeviceIndex, Event, Stream};
use crate::{Error, Result};

pub use library::{LIBRARY_VARIABLE, Library, UniqueId};
use worker::{Job, Worker};

/// How often one who waits looks around.
const GLANCE: Duration = Duration::from_millis(50);
/// What the thread of a communicator is given beyond the time agreed, to say itself what is wrong.
const MARGIN: Duration = Duration::from_secs(2);

/// One of several processes, each with a GPU, whose tensors are summed.
#[derive(Debug)]
pub struct Communicator {
    /// None once a call has failed: what the others do is not known any more.
    jobs: Option<Sender<Job>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    device: Device,
    timeout: Duration,
}

impl Communicator {
    /// Joins the others that have the same `id`, as number `rank` of `size`, with the GPU `device`.
    /// Waits for them no longer than `patience`, and no longer than `go_on` says so. No sum
    /// takes longer than `timeout`.
    ///
    /// # Errors
    /// [`Error::Peer`] with the library's words, or when its time is over. A thread that hangs in
    /// the library is left there.
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

    /// The sum over all ranks of `tensor` (contiguous, fp32, fp64 or bf16, of the same shape and kind
    /// everywhere), in its place, which nobody else may use meanwhile.
    ///
    /// # Errors
    /// [`Error::Peer`] when the library reports an error, now or later, or another rank is late: after
    /// that, nothing can be summed any more. [`Error::InvalidArgument`] for a tensor elsewhere, with
    /// gaps, or of another kind.
    pub fn sum(&mut self, tensor: Tensor) -> Result<Tensor> {
        self.sum_within(tensor, self.timeout)
    }

    /// As [`Communicator::sum`], with a time of its own.
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
    /// Waits a little for the library to let go of its own.
    fn drop(&mut self) {
        if self.jobs.take().is_some() {
            let _ = self.ended.recv_timeout(MARGIN);
        }
    }
}

/// The caller's stream, and the default one, which RCCL works on.
struct Streams {
    current: Stream,
    default: Stream,
}

impl Streams {
    /// Nothing where there are no streams, with a simulated library.
    fn here(device: Device) -> Result<Option<Self>> {
        if device == Device::Cpu {
            return Ok(None);
        }
        let current = Stream::current(DeviceIndex::try_from(device)?)?;
        let default = current.default_of_device();
        Ok(Some(Self { current, default }))
    }

    /// What comes next on the default stream comes after what is on the current one.
    fn enter(&self) -> Result<()> {
        let mut event = Event::new(self.current.device())?;
        event.record(self.current)?;
        self.default.wait_for(&event)
    }
}

fn vanished() -> Error {
    Error::Peer("the thread that calls RCCL has ended".into())
}
