//! AMD's own HIP runtime, on a machine without a GPU: everything up to the first device.
//!
//! `cargo xtask test --heavy` unpacks Debian's package of the runtime into the cache, puts
//! it on the library path and runs this file by name; a plain `cargo test` leaves it out.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{compile, library};
use hip_alloc::driver::runtime::{Family, Runtime, RuntimeError, Search};
use std::process::Command;

/// `find` looks every function of the table up: one that did not resolve would be the error.
fn runtime() -> Runtime {
    Runtime::find(Family::Hip, Search::LoadedOrDisk).unwrap()
}

#[test]
fn every_function_of_the_table_is_in_amds_runtime() {
    runtime();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("/libamdhip64.so"), "{maps}");
}

#[test]
fn no_gpu_is_an_error_of_its_own() {
    let error = runtime().device_count().unwrap_err();
    let RuntimeError::NoDevice {
        call, code, name, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (call.as_str(), *code, name.as_str()),
        ("hipGetDeviceCount", 100, "hipErrorNoDevice")
    );
}

/// What AMD's runtime answers to questions about a device that does not exist.
#[test]
fn a_device_that_is_not_there_has_no_place() {
    assert_eq!(runtime().place(hip_alloc::units::DeviceIndex(0)), None);
}

#[test]
fn codes_have_the_names_that_the_table_takes_them_for() {
    let runtime = runtime();
    for (code, name) in [
        (0, "hipSuccess"),
        (2, "hipErrorOutOfMemory"),
        (100, "hipErrorNoDevice"),
        (600, "hipErrorNotReady"),
    ] {
        assert_eq!(runtime.error_name(code), name);
    }
}

/// The whole way: a C++ program, the C ABI, AMD's runtime, and back as an exception.
#[test]
fn a_program_is_told_what_is_missing_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("no_device.cpp", folder.path()))
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:hip")
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    let message =
        "hipGetDeviceCount: hipErrorNoDevice (error 100): the HIP runtime works but sees no GPU.";
    assert!(out.starts_with(message), "{out}{err}");
    assert!(out.contains("`surefoot doctor`"), "{out}");
    assert!(out.ends_with("code 1\nhost 1\n"), "{out}");
    assert!(err.contains(message), "{err}");
}
