//! Installing under a ROCm build, whose functions take `ihipStream_t*`.

mod support;

use torch_ext::allocator::Library;

#[test]
fn the_pluggable_allocator_of_a_rocm_build_calls_the_library() {
    support::pluggable::drive(
        &Library::open(support::shared_library("allocator.c", &[])).unwrap(),
        "ihipStream_t",
    );
}
