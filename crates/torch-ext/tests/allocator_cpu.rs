//! A library serves libtorch's CPU tensors.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::sync::LazyLock;

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::allocator::{HOST, Library};

/// Installed once per process, after a first tensor was made by libtorch's own.
static LIBRARY: LazyLock<(Library, std::sync::Mutex<Option<Tensor>>)> = LazyLock::new(|| {
    let before = Tensor::ones([1000], (Kind::Float, Device::Cpu));
    let library = Library::open(support::shared_library("allocator.c", &[])).unwrap();
    library.install_for_cpu().unwrap();
    (library, std::sync::Mutex::new(Some(before)))
});

#[test]
fn tensors_come_from_the_library() {
    let (library, _) = &*LIBRARY;
    let before = library.stats(HOST).unwrap();
    let tensor = Tensor::f_arange(100_000, (Kind::Float, Device::Cpu)).unwrap();
    assert_eq!(
        f64::try_from(tensor.sum(Kind::Double)).unwrap(),
        4_999_950_000.0
    );
    drop(tensor);
    let after = library.stats(HOST).unwrap();
    assert!(after.allocations > before.allocations);
    assert!(after.frees > before.frees);
}

#[test]
fn memory_of_the_previous_allocator_goes_back_to_it() {
    let (library, before) = &*LIBRARY;
    let tensor = before.lock().unwrap().take().unwrap();
    assert_eq!(f64::try_from(tensor.sum(Kind::Double)).unwrap(), 1000.0);
    drop(tensor); // glibc would end the process if it went to the wrong `free`
    let stats = library.stats(HOST).unwrap();
    assert!(stats.frees <= stats.allocations);
}

#[test]
fn an_empty_tensor_needs_no_memory() {
    let _ = &*LIBRARY;
    let tensor = Tensor::f_zeros([0, 3], (Kind::Float, Device::Cpu)).unwrap();
    assert_eq!(tensor.size(), [0, 3]);
}

#[test]
fn a_refused_request_is_out_of_memory_and_harms_nothing() {
    let (library, _) = &*LIBRARY;
    let error = Tensor::f_zeros([1 << 31], (Kind::Float, Device::Cpu)).unwrap_err();
    assert!(Error::from(error).is_out_of_memory());
    assert!(library.stats(HOST).unwrap().out_of_memory > 0);
    let _ = Tensor::f_zeros([1 << 10], (Kind::Float, Device::Cpu)).unwrap();
}

#[test]
fn a_second_library_is_refused() {
    let (library, _) = &*LIBRARY;
    let error = library.install_for_cpu().unwrap_err().to_string();
    assert_eq!(error, "an allocator library already serves the CPU");
}
