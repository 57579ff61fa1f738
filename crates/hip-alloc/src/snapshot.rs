//! What the allocators hold, written as PyTorch's memory snapshots are: a pickle that
//! `torch/cuda/_memory_viz.py` and the memory_viz page open.

use crate::pool::{BlockLayout, SpanUse};
use crate::trace::pickle::Writer;

/// A device and its blocks.
pub(crate) struct Device {
    /// As PyTorch numbers it.
    pub index: i64,
    /// In address order.
    pub blocks: Vec<BlockLayout>,
}

/// The snapshot of these devices.
pub(crate) fn pickle(devices: &[Device]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.dict(|writer| {
        writer.text("segments");
        writer.list(|writer| {
            for device in devices {
                for block in &device.blocks {
                    segment(writer, device.index, block);
                }
            }
        });
        // A recording has its own file (HIP_ALLOC_TRACE); viewers want a list for each device.
        writer.text("device_traces");
        writer.list(|writer| {
            let count = devices.iter().map(|device| device.index + 1).max();
            (0..count.unwrap_or(0)).for_each(|_| writer.list(|_| {}));
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

fn segment(writer: &mut Writer, device: i64, block: &BlockLayout) {
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
        writer.entry("device", device);
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
                    writer.text("frames");
                    writer.list(|_| {});
                });
            }
        });
    });
}
