//! Installing under an accelerator, against a stand-in for libtorch_cuda. The test
//! of the ROCm spelling is in a file of its own: the first spelling found wins.

mod support;

use torch_ext::Error;
use torch_ext::allocator::Library;

#[test]
fn the_pluggable_allocator_of_a_cuda_build_calls_the_library() {
    let library = Library::open(support::shared_library("allocator.c", &[])).unwrap();
    assert!(
        matches!(
            library.install_for_accelerator(),
            Err(Error::NoAccelerator(_))
        ),
        "this process has no libtorch_cuda yet"
    );
    support::pluggable::drive(&library, "CUstream_st");
}
