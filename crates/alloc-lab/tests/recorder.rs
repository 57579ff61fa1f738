//! What hip-alloc writes is read back: recordings, also of a killed program, and snapshots.

#![allow(clippy::unwrap_used, reason = "tests")]

use alloc_lab::trace::snapshot::{SnapshotError, read};
use alloc_lab::trace::{Event, Trace};
use hip_alloc::allocator::Allocator;
use hip_alloc::driver::sim::{SimConfig, SimDriver};
use hip_alloc::recorder::{Recorder, UNWRITTEN_BYTES};
use hip_alloc::units::{DeviceIndex, MIB, StreamId};
use std::path::Path;

fn record(name: &str) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut recorder = Recorder::create(&path).unwrap();
    recorder.allocated(0x1000, 512, StreamId(0));
    recorder.step();
    recorder.allocated(0x2000, 64, StreamId(7));
    recorder.freed(0x1000);
    recorder.allocated(0x1000, 8, StreamId(0));
    recorder.freed(0x9999);
    drop(recorder);
    Trace::read(&path).unwrap()
}

#[test]
fn what_is_recorded_is_read_back() {
    let expected = [
        Event::Allocate {
            id: 0,
            bytes: 512,
            stream: 0,
        },
        Event::Step,
        Event::Allocate {
            id: 1,
            bytes: 64,
            stream: 7,
        },
        Event::Free { id: 0 },
        Event::Allocate {
            id: 2,
            bytes: 8,
            stream: 0,
        },
    ];
    assert_eq!(record("run.trace").events, expected);
    assert_eq!(record("run.trace.zst").events, expected);
}

#[test]
fn a_killed_program_loses_only_the_end_of_its_recording() {
    const LINES: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    for name in ["run.trace", "run.trace.zst"] {
        let path = folder.path().join(name);
        let mut recorder = Recorder::create(&path).unwrap();
        let mut text = Vec::new();
        for address in 0..LINES {
            recorder.allocated(address, 4096 * address, StreamId(address % 3));
            text.push(Event::Allocate {
                id: address as u32,
                bytes: 4096 * address,
                stream: address % 3,
            });
        }
        // Neither flushed nor finished, as under SIGKILL.
        std::mem::forget(recorder);
        let trace = Trace::read(&path).unwrap();
        assert!(trace.is_cut_off, "{name}");
        let (read, whole) = (trace.events.len(), text.len());
        assert_eq!(trace.events, text[..read], "{name}");
        // The shortest line has eight bytes.
        assert!(
            whole - read <= UNWRITTEN_BYTES / 8,
            "{name}: {read} of {whole}"
        );
    }
}

#[test]
fn each_device_has_a_file() {
    let named = Path::new("a/run.trace.zst");
    assert_eq!(Recorder::path_for(named, DeviceIndex(0), true), named);
    assert_eq!(
        Recorder::path_for(named, DeviceIndex::HOST, false),
        Path::new("a/run.trace.host.zst")
    );
    assert_eq!(
        Recorder::path_for(Path::new("run"), DeviceIndex(1), false),
        Path::new("run.1")
    );
}

#[test]
fn two_processes_that_are_told_one_name_have_a_file_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.trace.zst");
    let record = |process, bytes| {
        let (mut recorder, used) = Recorder::create_or_beside(&path, process).unwrap();
        recorder.allocated(0x1000, bytes, StreamId(0));
        (recorder, used)
    };
    let (first, second) = (record(7, 512), record(8, 64));
    assert_eq!(first.1, path);
    assert_eq!(second.1, folder.path().join("run.trace.8.zst"));
    drop((first.0, second.0));
    assert_eq!(Trace::read(&path).unwrap().to_text(), "a 0 512\n");
    assert_eq!(Trace::read(&second.1).unwrap().to_text(), "a 0 64\n");
    // Of a run that has ended the recording is replaced.
    drop(record(9, 8));
    assert_eq!(Trace::read(&path).unwrap().to_text(), "a 0 8\n");
}

#[test]
fn the_process_is_named_where_its_place_is_marked() {
    let named = Recorder::path_in_process(Path::new("%p/run-%p.trace"), 42);
    assert_eq!(named, Path::new("42/run-42.trace"));
}

#[test]
fn a_history_is_a_trace_that_can_be_replayed() {
    let driver = SimDriver::new(SimConfig::default());
    let allocator = Allocator::builder(DeviceIndex(2), driver).build();
    let before = allocator.allocate(5 * MIB, StreamId(0)).unwrap();
    assert_eq!(
        read(&allocator.snapshot()).unwrap_err(),
        SnapshotError::NoHistory
    );
    allocator.record_history(100);
    let passing = allocator.allocate(300 * MIB, StreamId(0)).unwrap();
    allocator.allocate(7 * MIB, StreamId(4)).unwrap();
    allocator.free(passing);
    allocator.free(before);
    let (five, seven, large) = (5 * MIB, 7 * MIB, 300 * MIB);
    let expected = format!("a 0 {five}\na 1 {large}\na 2 {seven} 4\nf 1\nf 0\n");
    assert_eq!(read(&allocator.snapshot()).unwrap().to_text(), expected);
}
