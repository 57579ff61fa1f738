//! Drives an allocator library through the stand-in of `pluggable.cpp`.

use std::ffi::c_void;

use libloading::os::unix;
use torch_ext::allocator::Library;

/// Loads a stand-in for libtorch_cuda whose functions take `stream`, installs
/// `library` there, and makes it allocate, record and free.
pub(crate) fn drive(library: &Library, stream: &str) {
    let stand_in = super::shared_library(
        "pluggable.cpp",
        &["-std=c++17", &format!("-DSTREAM={stream}")],
    );
    // SAFETY: a library made by this test; its initialisers do nothing.
    let stand_in =
        unsafe { unix::Library::open(Some(stand_in), unix::RTLD_NOW | unix::RTLD_GLOBAL) }.unwrap();
    library.install_for_accelerator().unwrap();

    // SAFETY: the functions of tests/support/pluggable.cpp, with their types.
    let (allocate, record, free) = unsafe {
        let allocate = stand_in
            .get::<unsafe extern "C" fn(usize) -> *mut c_void>(b"tensor_allocate")
            .unwrap();
        let record = stand_in
            .get::<unsafe extern "C" fn(*mut c_void)>(b"tensor_record_stream")
            .unwrap();
        let free = stand_in
            .get::<unsafe extern "C" fn(*mut c_void, usize)>(b"tensor_free")
            .unwrap();
        (allocate, record, free)
    };
    // SAFETY: a block is recorded and freed once, with its size.
    unsafe {
        let block = allocate(4096);
        assert!(!block.is_null());
        record(block);
        free(block, 4096);
    }
    let stats = library.stats(0).unwrap();
    assert_eq!(
        (stats.allocations, stats.pending_bytes, stats.frees),
        (1, 1, 1)
    );

    // SAFETY: no block comes out of this.
    let refused = unsafe { allocate(2 << 30) };
    assert!(
        refused.is_null(),
        "null must be thrown, not given to a tensor"
    );

    let again = library.install_for_accelerator().unwrap_err().to_string();
    assert!(again.contains("already initialized"), "{again}");
}
