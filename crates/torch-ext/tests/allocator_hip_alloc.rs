//! The real `libhip_alloc.so` under libtorch's CPU tensors. This crate does not depend
//! on `hip-alloc`, so the test asks cargo to build the library.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::allocator::{HOST, Library};

/// Installed once per process. The tests read its counters, so they take turns.
static LIBRARY: LazyLock<Mutex<Library>> = LazyLock::new(|| {
    let library = Library::open(build()).unwrap();
    library.install_for_cpu().unwrap();
    Mutex::new(library)
});

/// Builds the library and returns the file that cargo says it made.
fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "hip-alloc",
            "--message-format",
            "json",
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let messages = String::from_utf8(output.stdout).unwrap();
    let file = messages
        .split('"')
        .find(|text| text.ends_with("/libhip_alloc.so"));
    PathBuf::from(file.expect("hip-alloc is a cdylib"))
}

fn zeros(count: i64) -> Result<Tensor, Error> {
    Ok(Tensor::f_zeros([count], (Kind::Float, Device::Cpu))?)
}

#[test]
fn live_bytes_follow_the_tensors() {
    let library = LIBRARY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = library.stats(HOST).unwrap();
    let tensor = zeros(1 << 20).unwrap();
    let during = library.stats(HOST).unwrap();
    assert!(
        during.live_bytes >= before.live_bytes + (4 << 20),
        "{before:?} {during:?}"
    );
    assert!(during.held_bytes >= during.live_bytes);
    drop(tensor);
    assert_eq!(library.stats(HOST).unwrap().live_bytes, before.live_bytes);
}

#[test]
fn a_training_step_computes_as_ever() {
    let _library = LIBRARY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let weight = Tensor::eye(64, (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let input = Tensor::ones([8, 64], (Kind::Float, Device::Cpu));
    torch_ext::backward(&input.matmul(&weight).sum(Kind::Float)).unwrap();
    assert_eq!(
        f64::try_from(weight.grad().sum(Kind::Double)).unwrap(),
        8.0 * 64.0 * 64.0
    );
}

#[test]
fn more_than_there_is_is_out_of_memory() {
    let library = LIBRARY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let error = zeros(1 << 48).unwrap_err();
    assert!(error.is_out_of_memory(), "{error:?}");
    assert!(library.stats(HOST).unwrap().out_of_memory > 0);
    drop(zeros(16).unwrap());
}

#[test]
fn memory_trim_and_peaks_are_answered() {
    let library = LIBRARY
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let memory = library.mem_info(HOST).unwrap();
    assert!(memory.free > 0 && memory.free <= memory.total, "{memory:?}");
    library.trim(HOST, 0).unwrap();
    library.reset_peaks(HOST).unwrap();
    let stats = library.stats(HOST).unwrap();
    assert_eq!(stats.live_peak_bytes, stats.live_bytes);
}
