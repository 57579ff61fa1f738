//! Where the library is looked for. Alone in its process, since it sets a variable.

mod support;

use torch_ext::allocator::{LIBRARY_VARIABLE, Library};

#[test]
fn the_variable_comes_first_and_is_named_when_it_is_wrong() {
    // SAFETY: the only test of this process, and no other thread reads the environment.
    unsafe { std::env::set_var(LIBRARY_VARIABLE, "/nowhere/at/all.so") };
    let error = Library::find().unwrap_err().to_string();
    assert!(error.ends_with("(named by HIP_ALLOC_LIB)"), "{error}");

    let path = support::shared_library("allocator.c", &[]);
    // SAFETY: as above.
    unsafe { std::env::set_var(LIBRARY_VARIABLE, &path) };
    assert_eq!(Library::find().unwrap().path(), path);
}
