//! PyTorch's memory snapshots: any bytes are read as a pickle of plain data or are refused,
//! and what was read can be walked and written again.

#![no_main]

use alloc_lab::pickle::{Pickle, Value};
use alloc_lab::trace::snapshot;
use hip_alloc::pickle::Writer;
use libfuzzer_sys::fuzz_target;

/// How much of a value is walked: one that contains itself has no end.
const VALUES: usize = 10_000;

fuzz_target!(|bytes: &[u8]| {
    let Ok(pickle) = Pickle::read(bytes) else {
        assert!(snapshot::read(bytes).is_err());
        return;
    };
    let texts = texts(pickle.root());
    let mut writer = Writer::default();
    writer.list(|writer| texts.iter().for_each(|text| writer.text(text)));
    let again = Pickle::read(&writer.finish()).expect("what is written can be read");
    let read: Vec<_> = again.root().items().filter_map(Value::text).collect();
    assert_eq!(read, texts);

    if let Ok(trace) = snapshot::read(bytes) {
        assert!(trace.events.len() >= trace.requests as usize);
    }
});

/// The texts in a value and in what it lists, to a limit.
fn texts(root: Value<'_>) -> Vec<&str> {
    let (mut waiting, mut seen, mut texts) = (vec![root], 0, Vec::new());
    while let Some(value) = waiting.pop() {
        seen += 1;
        if seen > VALUES {
            break;
        }
        texts.extend(value.text());
        for key in ["segments", "device_traces", "blocks", "frames"] {
            waiting.extend(value.get(key));
        }
        waiting.extend(value.items().take(VALUES));
    }
    texts
}
