//! A trace from PyTorch's own recording: `torch.cuda.memory._record_memory_history()` and
//! `torch.cuda.memory._dump_snapshot("snapshot.pickle")`.
//!
//! The snapshot has the requests and frees since the recording began, and what was live at its end. Memory that was
//! live before it began is known only if it is freed or still live at the end; it becomes requests at the beginning of
//! the trace. A snapshot has no steps.

use std::collections::{HashMap, HashSet};

use super::{Event, SizeError, Tally, Trace};
use crate::pickle::{Pickle, PickleError, Value};

/// Why a snapshot gives no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The file is no pickle of plain data.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// It is a pickle of something else.
    #[error("the pickle is no snapshot of PyTorch's allocator: it has no `{0}`")]
    Foreign(&'static str),
    /// Nothing was recorded.
    #[error(
        "nothing was recorded before this snapshot; call torch.cuda.memory._record_memory_history() at the start of \
         the program"
    )]
    NoHistory,
    /// Sizes that no machine has.
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// The trace of the device that made the most requests.
///
/// # Errors
/// When the bytes are no such snapshot, or it has no history.
pub fn read(bytes: &[u8]) -> Result<Trace, SnapshotError> {
    let pickle = Pickle::read(bytes)?;
    let root = pickle.root();
    let traces = root
        .get("device_traces")
        .filter(|traces| traces.is_list())
        .ok_or(SnapshotError::Foreign("device_traces"))?;
    let (device, history) = traces
        .items()
        .enumerate()
        .max_by_key(|(_, history)| history.len())
        .ok_or(SnapshotError::NoHistory)?;
    let steps = events(history);
    if steps.is_empty() {
        return Err(SnapshotError::NoHistory);
    }
    build(&steps, &live_at_the_end(root, device as u64))
}

/// One entry of the history: a request or a free.
#[derive(Clone, Copy)]
struct Step {
    address: u64,
    bytes: u64,
    stream: u64,
    is_free: bool,
}

fn events(history: Value<'_>) -> Vec<Step> {
    let number = |entry: Value<'_>, key| entry.get(key).and_then(Value::number);
    let step = |entry: Value<'_>| {
        let is_free = match entry.get("action")?.text()? {
            "alloc" => false,
            // The program gave it back here; `free_completed` is when streams let go of it.
            "free_requested" => true,
            _ => return None,
        };
        Some(Step {
            address: number(entry, "addr")?,
            bytes: number(entry, "size")?,
            stream: number(entry, "stream").unwrap_or(0),
            is_free,
        })
    };
    // Each entry is read once, however often it is referred to.
    let mut read = HashMap::new();
    let steps = history
        .items()
        .filter_map(|entry| *read.entry(entry.identity()).or_insert_with(|| step(entry)));
    steps.collect()
}

/// Live blocks by address, and their sizes.
fn live_at_the_end(root: Value<'_>, device: u64) -> Vec<(u64, u64)> {
    let mut live = Vec::new();
    // In a real snapshot every segment and block is a value of its own.
    let mut seen = HashSet::new();
    let segments = root.get("segments").into_iter().flat_map(Value::items);
    for segment in segments {
        if !seen.insert(segment.identity()) {
            continue;
        }
        if segment.get("device").and_then(Value::number) != Some(device) {
            continue;
        }
        let mut at = segment.get("address").and_then(Value::number).unwrap_or(0);
        let blocks = segment.get("blocks");
        if !blocks.is_some_and(|blocks| seen.insert(blocks.identity())) {
            continue;
        }
        for block in blocks.into_iter().flat_map(Value::items) {
            if !seen.insert(block.identity()) {
                continue;
            }
            let number = |key| block.get(key).and_then(Value::number);
            let bytes = number("size").unwrap_or(0);
            // Older versions leave the address to be added up.
            let address = number("address").unwrap_or(at);
            if block.get("state").and_then(Value::text) == Some("active_allocated") {
                live.push((address, number("requested_size").unwrap_or(bytes)));
            }
            at = address.saturating_add(bytes);
        }
    }
    live
}

fn build(steps: &[Step], live_at_the_end: &[(u64, u64)]) -> Result<Trace, SnapshotError> {
    let mut before = Vec::new();
    let mut known = HashSet::new();
    for step in steps {
        if step.is_free {
            if !known.remove(&step.address) {
                before.push((step.address, step.bytes));
            }
        } else {
            known.insert(step.address);
        }
    }
    let unseen = live_at_the_end
        .iter()
        .filter(|(address, _)| !known.contains(address));
    before.extend(unseen);

    let mut trace = Trace::default();
    let mut live = HashMap::new();
    let mut tally = Tally::default();
    let mut request = |trace: &mut Trace, bytes: u64, stream: u64| {
        let id = trace.requests;
        tally.request(bytes)?;
        trace.requests += 1;
        trace.events.push(Event::Allocate { id, bytes, stream });
        Ok::<_, SizeError>(id)
    };
    for (address, bytes) in before {
        let id = request(&mut trace, bytes, 0)?;
        live.entry(address).or_insert_with(Vec::new).push(id);
    }
    for step in steps {
        if step.is_free {
            let ids = live.get_mut(&step.address);
            if let Some(id) = ids.and_then(Vec::pop) {
                trace.events.push(Event::Free { id });
            }
        } else {
            let id = request(&mut trace, step.bytes, step.stream)?;
            live.entry(step.address).or_insert_with(Vec::new).push(id);
        }
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hip_alloc::pickle::Writer;

    fn entry(writer: &mut Writer, action: &str, address: i64, bytes: i64) {
        writer.dict(|writer| {
            writer.text("action");
            writer.text(action);
            writer.entry("addr", address);
            writer.entry("size", bytes);
            writer.entry("stream", 0);
        });
    }

    fn snapshot(history: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.dict(|writer| {
            writer.text("segments");
            writer.list(|writer| {
                writer.dict(|writer| {
                    writer.entry("device", 0);
                    writer.entry("address", 1000);
                    writer.text("blocks");
                    writer.list(|writer| {
                        writer.dict(|writer| {
                            writer.entry("size", 512);
                            writer.entry("requested_size", 500);
                            writer.text("state");
                            writer.text("active_allocated");
                        });
                    });
                });
            });
            writer.text("device_traces");
            writer.list(|writer| {
                writer.list(history);
                writer.list(|_| {});
            });
        });
        writer.finish()
    }

    #[test]
    fn what_was_live_before_the_recording_comes_first() {
        let bytes = snapshot(|writer| {
            entry(writer, "segment_alloc", 1000, 2_097_152);
            entry(writer, "alloc", 2000, 100);
            entry(writer, "free_requested", 9000, 77);
            entry(writer, "free_completed", 9000, 77);
            entry(writer, "free_requested", 2000, 100);
            entry(writer, "alloc", 2000, 300);
        });
        let trace = read(&bytes).unwrap();
        let expected = "a 0 77\na 1 500\na 2 100\nf 0\nf 2\na 3 300\n";
        assert_eq!(trace.to_text(), expected);
        assert_eq!(Trace::parse(expected).unwrap(), trace);
    }

    /// One block in one list in one segment, each referred to thousands of times.
    #[test]
    fn values_that_are_shared_are_walked_once() {
        let mut bytes = b"\x80\x02}(X\x0d\x00\x00\x00device_traces](](".to_vec();
        // An entry, remembered as 0, and a thousand times again.
        bytes.extend(b"}(X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x04\x00\x00\x00addrK\x01");
        bytes.extend(b"X\x04\x00\x00\x00sizeK\x08uq\x00");
        bytes.extend(b"h\x00".repeat(1000));
        bytes.extend(b"eeX\x08\x00\x00\x00segments](");
        bytes.extend(b"}(X\x06\x00\x00\x00deviceK\x00X\x06\x00\x00\x00blocks](");
        bytes.extend(b"}(X\x05\x00\x00\x00stateX\x10\x00\x00\x00active_allocated");
        bytes.extend(b"X\x04\x00\x00\x00sizeK\x08X\x07\x00\x00\x00addressK\x09uq\x01");
        bytes.extend(b"h\x01".repeat(20_000));
        bytes.extend(b"euq\x02");
        bytes.extend(b"h\x02".repeat(20_000));
        bytes.extend(b"eu.");
        let trace = read(&bytes).unwrap();
        // The entries are a thousand requests and one; the block was live once before them.
        assert_eq!(trace.requests, 1001 + 1);
    }

    #[test]
    fn what_is_no_snapshot_says_so() {
        assert_eq!(
            read(&snapshot(|_| {})).unwrap_err(),
            SnapshotError::NoHistory
        );
        let mut writer = Writer::default();
        writer.dict(|writer| writer.entry("a", 1));
        let error = read(&writer.finish()).unwrap_err();
        assert_eq!(error, SnapshotError::Foreign("device_traces"));
        assert!(read(b"PK\x03\x04").is_err());
    }
}
