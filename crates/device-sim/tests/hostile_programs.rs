//! Programs that misuse the runtime: they get the errors that a real one gives, nothing of
//! theirs is touched that is not the simulator's to touch, and nothing is lost or given twice.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::compiled;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

const RUNTIMES: [&str; 2] = ["hip", "cuda"];

fn command(runtime: &str, scene: &str) -> Command {
    let mut command = Command::new(compiled("hostile.cpp"));
    let library = device_sim::install::library_path().expect("cargo builds it with the tests");
    command.arg(library).arg(runtime).arg(scene);
    command
}

fn check(runtime: &str, output: &Output, expected: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.trim(), expected, "under {runtime}: {told}");
    assert!(output.status.success(), "under {runtime}: {told}");
}

/// The scene prints this under both runtimes, after its name.
fn expect(scene: &str, expected: &str) {
    for runtime in RUNTIMES {
        let output = command(runtime, scene).output().unwrap();
        check(runtime, &output, &format!("{scene} {expected}"));
    }
}

#[test]
fn what_has_nowhere_to_go_is_not_made() {
    expect("nowhere", "1 1 1 1 1 1 1 1 1, 0 MiB gone");
}

#[test]
fn sizes_that_no_address_can_have_are_refused() {
    expect("sizes", "2 2 1 700 1 1 1 1 1 1");
}

#[test]
fn a_request_of_nothing_takes_no_place() {
    expect("nothing", "0 1 0 1, apart");
}

#[test]
fn what_is_not_the_devices_is_left_alone() {
    expect("foreign", "1 1 700 1 1 1 1 1 1, registered 0 712 713 0 713");
}

#[test]
fn mappings_are_only_what_was_mapped() {
    expect("mapping", "0 1 1 1 1 1 0 1 1");
}

#[test]
fn memory_on_its_way_out_is_nobodys_to_free() {
    expect("freed_twice", "0 1 1 1 0, given out again");
}

#[test]
fn destroyed_handles_are_known_as_such() {
    expect("destroyed", "400 400 400 400 400 400 400 400 1");
}

#[test]
fn a_device_is_not_at_rest_before_the_work_of_destroyed_streams_is_done() {
    expect("orphaned", "7");
}

#[test]
fn unregistering_waits_for_copies() {
    expect("unregistered", "0 0");
}

#[test]
fn a_late_copy_does_not_write_to_memory_that_is_gone() {
    expect("late", "0 0");
}

#[test]
fn a_copy_to_memory_that_is_registered_in_part_waits() {
    expect("half_registered", "5");
}

#[test]
fn work_behind_a_host_function_waits_for_it() {
    expect("in_order", "7, a call from inside 800");
}

#[test]
fn a_stream_is_busy_while_another_thread_is_in_its_host_function() {
    expect("while_called", "600 1 1");
}

#[test]
fn children_of_a_busy_process_are_refused_and_end() {
    for runtime in RUNTIMES {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report.json");
        let output = command(runtime, "forks")
            .env("DEVICE_SIM_REPORT", &report)
            .output()
            .unwrap();
        check(runtime, &output, "forks 200");
        // The parent's, which ended last; and no child's before it.
        let report = std::fs::read_to_string(report).unwrap();
        assert!(report.contains("\"peak_bytes\""), "{report}");
    }
}

#[test]
fn functions_of_the_driver_are_found_by_name_in_either_way() {
    expect("by_name", "0 1 1 0 1");
}

#[test]
fn numbers_that_are_too_large_are_refused() {
    expect("numbers", "0 9 1 1");
}

#[test]
fn times_may_add_up_to_ages() {
    for runtime in RUNTIMES {
        // It does not wait for them either.
        let output = command(runtime, "ages").output().unwrap();
        check(runtime, &output, "ages 0 600");
    }
}

#[test]
fn an_environment_need_not_be_text() {
    for runtime in RUNTIMES {
        let output = command(runtime, "orphaned")
            .env("SOMEBODYS_NAME", OsStr::from_bytes(b"Ren\xe9"))
            .env(OsStr::from_bytes(b"\xff"), "1")
            .output()
            .unwrap();
        check(runtime, &output, "orphaned 7");
        let output = command(runtime, "orphaned")
            .env("DEVICE_SIM_CAPACITY", OsStr::from_bytes(b"16\xff"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("DEVICE_SIM_CAPACITY"), "{told}");
    }
}
