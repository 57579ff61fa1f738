//! The state of the allocators in the format of PyTorch's memory snapshots: a pickle for
//! `torch/cuda/_memory_viz.py` and the memory_viz page.

use crate::history::{Action, Entry, StackId};
use crate::pickle::Writer;
use crate::pool::{BlockLayout, SpanUse};
use crate::units::{DeviceIndex, PoolId};
use std::collections::HashMap;

/// The state of a device's allocator, and its history.
pub(crate) struct DeviceState {
    pub(crate) device: DeviceIndex,
    /// With the private pool of each block; in address order within a pool.
    pub(crate) blocks: Vec<(Option<PoolId>, BlockLayout)>,
    /// Oldest first.
    pub(crate) history: Vec<Entry>,
    /// Where the program was when it requested the live memory at an address, if known.
    pub(crate) stacks: HashMap<u64, StackId>,
}

impl DeviceState {
    /// PyTorch's index; the host takes the place of the first accelerator.
    fn index(&self) -> i64 {
        self.device.0.max(0).into()
    }
}

/// The snapshot of these devices.
pub(crate) fn pickle(devices: &[DeviceState]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.dict(|writer| {
        writer.text("segments");
        writer.list(|writer| {
            for device in devices {
                for (pool, block) in &device.blocks {
                    segment(writer, device, *pool, block);
                }
            }
        });
        // Viewers require a list for each device.
        writer.text("device_traces");
        writer.list(|writer| {
            let count = devices.iter().map(|device| device.index() + 1).max();
            for index in 0..count.unwrap_or(0) {
                let device = devices.iter().find(|device| device.index() == index);
                let history = device.map_or(&[][..], |device| &device.history);
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

/// PyTorch's list of frames is empty: a stack is an id here, under a key of our own, which
/// the provider of the id replaces by frames.
fn frames(writer: &mut Writer, stack: StackId) {
    writer.text("frames");
    writer.list(|_| {});
    if stack != StackId::UNKNOWN {
        writer.entry("stack", stack.0 as i64);
    }
}

fn segment(writer: &mut Writer, device: &DeviceState, pool: Option<PoolId>, block: &BlockLayout) {
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
        writer.entry("device", device.index());
        writer.entry("address", block.address as i64);
        writer.entry("total_size", block.bytes as i64);
        writer.entry("allocated_size", sum(live, false));
        writer.entry("active_size", sum(|state| state != SpanUse::Free, false));
        writer.entry("requested_size", sum(live, true));
        writer.entry("stream", stream as i64);
        writer.text("segment_type");
        writer.text(if block.direct { "large" } else { "small" });
        writer.text("segment_pool_id");
        // The device's pool has these two numbers, which no private pool has.
        let id = pool.map_or([0, 0], |id| [id.first, id.second]);
        writer.list(|writer| id.iter().for_each(|part| writer.number(*part as i64)));
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
                    let stack = device.stacks.get(&span.address);
                    frames(writer, stack.copied().unwrap_or_default());
                });
            }
        });
    });
}
