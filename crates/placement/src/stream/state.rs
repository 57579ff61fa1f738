//! The slots, what is in them, and the copies that fill them.

use tch::{Kind, Tensor};
use torch_ext::accelerator::{Event, Stream};
use torch_ext::{Error, copy_into};

use super::{Layout, StreamOptions, StreamReport};
use crate::bytes::Bytes;
use crate::checksum::{Checksum, Damage};
use crate::ring::{Ring, Walk};
use crate::rung::Rung;
use crate::torch_transport::{HostTensor, TorchTransport};
use crate::transport::{Transport, TransportError};
use crate::verify::{Judge, Role};

#[cfg(test)]
type Fault = Box<dyn FnMut(&mut Tensor) + Send>;

/// Everything that changes while blocks are streamed.
pub(super) struct State {
    transport: TorchTransport,
    judge: Judge,
    ring: Ring,
    slots: Vec<Slot>,
    masters: Vec<Master>,
    copy_stream: Option<Stream>,
    pub(super) report: StreamReport,
    /// Damages what arrived, in tests of the verification.
    #[cfg(test)]
    fault: Option<Fault>,
}

/// Room for one block on the device.
struct Slot {
    buffer: Tensor,
    /// The last copy into the slot, on the copy stream; `None` on the CPU.
    arrived: Option<Event>,
    passed: Option<Event>,
}

/// A block on the host.
pub(super) struct Master {
    pub(super) buffer: Tensor,
    /// The same memory as the device sees it, on unified memory.
    pub(super) mapped: Option<Tensor>,
    /// What its bytes sum to, once it was needed.
    pub(super) sum: Option<Checksum>,
}

impl Slot {
    fn new(bytes: i64, transport: &TorchTransport) -> Result<Self, Error> {
        let buffer = Tensor::f_empty([bytes], (Kind::Uint8, transport.device()))?;
        let event = || transport.index().map(Event::new).transpose();
        Ok(Self {
            buffer,
            arrived: event()?,
            passed: event()?,
        })
    }
}

impl State {
    /// Allocates the ring on the device, unless every block is mapped there.
    pub(super) fn new(
        transport: TorchTransport,
        masters: Vec<Master>,
        layouts: &[Layout],
        options: &StreamOptions,
    ) -> Result<Self, Error> {
        let ring = Ring::new(layouts.len(), options.slots);
        let largest = layouts.iter().map(|layout| layout.bytes).max().unwrap_or(0);
        let unified = masters.iter().all(|master| master.mapped.is_some());
        let slots = if unified { 0 } else { ring.slots() };
        let slots: Vec<Slot> = (0..slots)
            .map(|_| Slot::new(largest, &transport))
            .collect::<Result<_, _>>()?;
        let copy_stream = transport.index().map(Stream::new).transpose()?;
        let report = StreamReport {
            device_bytes: Bytes(slots.len() as u64 * largest as u64),
            host_bytes: layouts
                .iter()
                .map(|layout| Bytes(layout.bytes as u64))
                .sum(),
            ..StreamReport::default()
        };
        tracing::debug!(
            blocks = layouts.len(),
            slots = slots.len(),
            device_bytes = report.device_bytes.0,
            host_bytes = report.host_bytes.0,
            unified,
            "streaming blocks"
        );
        Ok(Self {
            transport,
            judge: Judge::new(options.verify),
            ring,
            slots,
            masters,
            copy_stream,
            report,
            #[cfg(test)]
            fault: None,
        })
    }

    /// Makes the block available and starts fetching the next ones. The result is the
    /// device's buffer of the block, ordered after its arrival on the current stream.
    pub(super) fn fetch(
        &mut self,
        block: usize,
        walk: Walk,
        layouts: &[Layout],
    ) -> Result<Tensor, Error> {
        self.report.used += 1;
        if let Some(mapped) = &self.masters[block].mapped {
            return Ok(mapped.shallow_clone());
        }
        let step = self.ring.step(block, walk);
        self.report.waited += u64::from(step.load);
        let loads = step.load.then_some((step.slot, block));
        for (slot, block) in loads.into_iter().chain(step.prefetch) {
            if let Err(error) = self.copy(slot, block, &layouts[block]) {
                self.ring.forget(slot);
                return Err(error);
            }
        }
        let slot = &self.slots[step.slot];
        if let (Some(arrived), Some(index)) = (&slot.arrived, self.transport.index()) {
            Stream::current(index)?.wait_for(arrived)?;
        }
        Ok(slot.buffer.shallow_clone())
    }

    /// Starts the copy of a block into a slot, after everything that is queued now.
    fn copy(&mut self, slot: usize, block: usize, layout: &Layout) -> Result<(), Error> {
        let turn = self.judge.begin(Role::Weight);
        let verify = self
            .judge
            .wants(turn, &layout.name, Role::Weight, Rung::Direct);
        self.start_copy(slot, block)?;
        if !verify {
            return Ok(());
        }
        for may_repeat in [true, false] {
            self.report.verified += 1;
            let Some(damage) = self.damage(slot, block, layout)? else {
                self.judge.passed(&layout.name, Role::Weight, Rung::Direct);
                return Ok(());
            };
            self.judge.distrust();
            tracing::warn!(block = layout.name, %damage, "a block arrived wrong on the device");
            if !may_repeat {
                return Err(Error::Torch(format!(
                    "block `{}` arrives wrong on the device: {damage}",
                    layout.name
                )));
            }
            self.report.repeated += 1;
            self.start_copy(slot, block)?;
        }
        Ok(())
    }

    fn start_copy(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        self.report.copies += 1;
        let (slot, master) = (&mut self.slots[slot], &self.masters[block].buffer);
        let mut target = slot.buffer.f_narrow(0, 0, master.size1()?)?;
        let streams = (self.copy_stream, self.transport.index());
        let (Some(copy_stream), Some(index)) = streams else {
            copy_into(&mut target, master, false)?;
            #[cfg(test)]
            if let Some(fault) = &mut self.fault {
                fault(&mut target);
            }
            return Ok(());
        };
        if let Some(passed) = &mut slot.passed {
            passed.record(Stream::current(index)?)?;
            copy_stream.wait_for(passed)?;
        }
        {
            let _stream = copy_stream.enter()?;
            copy_into(&mut target, master, true)?;
        }
        match &mut slot.arrived {
            Some(arrived) => arrived.record(copy_stream),
            None => copy_stream.synchronize(),
        }
    }

    /// How the slot differs from the block that should be there. Waits for the copy.
    fn damage(
        &mut self,
        slot: usize,
        block: usize,
        layout: &Layout,
    ) -> Result<Option<Damage>, Error> {
        if let Some(stream) = self.copy_stream {
            stream.synchronize()?;
        }
        let master = &mut self.masters[block];
        let sent = match &master.sum {
            Some(sum) => sum.clone(),
            None => {
                let host = HostTensor::new(&master.buffer)?;
                let sum = self.transport.sum_host(&host).map_err(refused)?;
                master.sum.insert(sum).clone()
            }
        };
        let arrived = self.slots[slot].buffer.f_narrow(0, 0, layout.bytes)?;
        let sum = self.transport.sum_device(&arrived).map_err(refused)?;
        Ok(sum.and_then(|arrived| sent.damage(&arrived)))
    }
}

impl Drop for State {
    /// A block may still be on its way into a slot, ordered on a stream that the slot's
    /// memory knows nothing of: it must not be given to somebody else before.
    fn drop(&mut self) {
        if let Some(stream) = self.copy_stream
            && let Err(error) = stream.synchronize()
        {
            tracing::warn!(%error, "the last block on its way did not arrive");
        }
    }
}

fn refused(error: TransportError) -> Error {
    let message = error.to_string();
    match error {
        TransportError::OutOfMemory { .. } => Error::OutOfMemory { message },
        TransportError::ContextLost { .. } | TransportError::TimedOut { .. } => {
            Error::DeviceLost { message }
        }
        TransportError::Refused { .. } => Error::Torch(message),
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::super::{Block, BlockStream};
    use super::*;
    use crate::verify::Verify;

    /// Two blocks whose weight is all ones, and a device that damages the arrivals
    /// for which `strikes` says so.
    fn faulty(
        verify: Verify,
        mut strikes: impl FnMut(usize) -> bool + Send + 'static,
    ) -> BlockStream {
        let block = |name: &str| Block {
            name: name.to_owned(),
            weights: vec![(
                "w".to_owned(),
                Tensor::ones([100], (Kind::Float, Device::Cpu)),
            )],
        };
        let options = StreamOptions {
            verify,
            ..StreamOptions::default()
        };
        let stream = BlockStream::new(Device::Cpu, [block("a"), block("b")], options).unwrap();
        let mut arrivals = 0;
        stream.lock().fault = Some(Box::new(move |arrived| {
            if strikes(arrivals) {
                let _ = arrived.narrow(0, 8, 4).zero_();
            }
            arrivals += 1;
        }));
        stream
    }

    fn sum(stream: &BlockStream, block: usize) -> Result<f64, Error> {
        stream.evaluate(block, &[], |weights| {
            Ok(f64::try_from(weights.get("w")?.f_sum(Kind::Double)?)?)
        })
    }

    #[test]
    fn a_block_that_arrives_wrong_is_fetched_again() {
        let stream = faulty(Verify::First, |arrival| arrival == 0);
        assert_eq!(sum(&stream, 0).unwrap(), 100.0);
        assert_eq!(stream.report().repeated, 1);
    }

    #[test]
    fn a_block_that_keeps_arriving_wrong_ends_the_run() {
        let stream = faulty(Verify::Always, |_| true);
        let error = sum(&stream, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("block `a` arrives wrong on the device: wrong between"),
            "{error}"
        );
    }

    #[test]
    fn a_failed_block_is_not_taken_for_a_resident_one() {
        let stream = faulty(Verify::Always, |arrival| arrival < 2);
        assert!(sum(&stream, 0).is_err());
        assert_eq!(sum(&stream, 0).unwrap(), 100.0, "fetched again, not reused");
    }

    #[test]
    fn without_verification_the_damage_goes_unseen() {
        let stream = faulty(Verify::Off, |_| true);
        assert_eq!(sum(&stream, 0).unwrap(), 99.0);
    }
}
