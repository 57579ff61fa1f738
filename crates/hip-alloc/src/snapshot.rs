//! What the allocators hold, written as PyTorch's memory snapshots are: a pickle that
//! `torch/cuda/_memory_viz.py` and the memory_viz page open.

use crate::allocator::Looks;
use crate::history::{Action, Entry, StackId};
use crate::pool::{BlockLayout, SpanUse};
use crate::trace::pickle::Writer;

/// A device and its blocks.
pub(crate) struct Device {
    /// As PyTorch numbers it.
    pub index: i64,
    /// Its blocks in address order.
    pub looks: Looks,
}

/// The snapshot of these devices.
pub(crate) fn pickle(devices: &[Device]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.dict(|writer| {
        writer.text("segments");
        writer.list(|writer| {
            for device in devices {
                for block in &device.looks.blocks {
                    segment(writer, device, block);
                }
            }
        });
        // Viewers want a list for each device.
        writer.text("device_traces");
        writer.list(|writer| {
            let count = devices.iter().map(|device| device.index + 1).max();
            for index in 0..count.unwrap_or(0) {
                let device = devices.iter().find(|device| device.index == index);
                let history = device.map_or(&[][..], |device| &device.looks.history);
                writer.list(|writer| history.iter().for_each(|each| entry(writer, each)));
            }
        });
        writer.text("external_annotations");
        writer.list(|_| {});
        writer.text("allocator_settings");
        writer.dict(|writer| {
            writer.text("allocator");
            writer.text(concat!("hip-alloc ", env!("CARGO_PKG_VERSION")));
        });
    });
    writer.finish()
}

fn entry(writer: &mut Writer, entry: &Entry) {
    writer.dict(|writer| {
        writer.text("action");
        writer.text(entry.action.name());
        match entry.action {
            Action::OutOfMemory { free } => writer.entry("device_free", free as i64),
            _ => writer.entry("addr", entry.address as i64),
        }
        writer.entry("size", entry.bytes as i64);
        writer.entry("stream", entry.stream.0 as i64);
        writer.entry("time_us", entry.time as i64);
        frames(writer, entry.stack);
    });
}

/// PyTorch's list of frames is empty: a stack is a name here, under a key of our own, that
/// whoever gave it replaces by frames.
fn frames(writer: &mut Writer, stack: StackId) {
    writer.text("frames");
    writer.list(|_| {});
    if stack != StackId::UNKNOWN {
        writer.entry("stack", stack.0 as i64);
    }
}

fn segment(writer: &mut Writer, device: &Device, block: &BlockLayout) {
    let sum = |count: fn(SpanUse) -> bool, requested: bool| -> i64 {
        let spans = block.spans.iter().filter(|span| count(span.state));
        let bytes = spans.map(|span| {
            if requested {
                span.requested
            } else {
                span.bytes
            }
        });
        bytes.sum::<u64>() as i64
    };
    let live = |state| state == SpanUse::Live;
    let stream = block.spans.first().map_or(0, |span| span.stream.0);
    writer.dict(|writer| {
        writer.entry("device", device.index);
        writer.entry("address", block.address as i64);
        writer.entry("total_size", block.bytes as i64);
        writer.entry("allocated_size", sum(live, false));
        writer.entry("active_size", sum(|state| state != SpanUse::Free, false));
        writer.entry("requested_size", sum(live, true));
        writer.entry("stream", stream as i64);
        writer.text("segment_type");
        writer.text(if block.direct { "large" } else { "small" });
        writer.text("segment_pool_id");
        writer.list(|writer| (0..2).for_each(|_| writer.number(0)));
        writer.text("is_expandable");
        writer.bool(false);
        writer.text("frames");
        writer.list(|_| {});
        writer.text("blocks");
        writer.list(|writer| {
            for span in &block.spans {
                let (state, requested) = match span.state {
                    SpanUse::Live => ("active_allocated", span.requested),
                    SpanUse::AwaitingFree => ("active_pending_free", span.requested),
                    SpanUse::Free => ("inactive", 0),
                };
                writer.dict(|writer| {
                    writer.entry("address", span.address as i64);
                    writer.entry("size", span.bytes as i64);
                    writer.entry("requested_size", requested as i64);
                    writer.text("state");
                    writer.text(state);
                    let stack = device.looks.stacks.get(&span.address);
                    frames(writer, stack.copied().unwrap_or_default());
                });
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::driver::sim::{SimDriver, SimOrders};
    use crate::pool::PoolConfig;
    use crate::trace::snapshot::{SnapshotError, read};
    use crate::units::{DeviceIndex, MIB, StreamId};

    fn snapshot(allocator: &Allocator) -> Vec<u8> {
        let looks = allocator.look();
        let device = Device { index: 2, looks };
        pickle(&[device])
    }

    #[test]
    fn a_history_is_a_trace_that_can_be_replayed() {
        let driver = Box::new(SimDriver::new(SimOrders::default()));
        let allocator = Allocator::new(DeviceIndex(2), PoolConfig::default(), driver, None);
        let before = allocator.allocate(5 * MIB, StreamId(0)).unwrap();
        assert_eq!(
            read(&snapshot(&allocator)).unwrap_err(),
            SnapshotError::NoHistory
        );
        allocator.keep_history(100);
        let passing = allocator.allocate(300 * MIB, StreamId(0)).unwrap();
        allocator.allocate(7 * MIB, StreamId(4)).unwrap();
        allocator.free(passing);
        allocator.free(before);
        let (five, seven, large) = (5 * MIB, 7 * MIB, 300 * MIB);
        let expected = format!("a 0 {five}\na 1 {large}\na 2 {seven} 4\nf 1\nf 0\n");
        assert_eq!(read(&snapshot(&allocator)).unwrap().to_text(), expected);
    }
}
