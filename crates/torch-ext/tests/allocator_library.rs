//! Loading an allocator library: what is refused, and with which words.

use super::support::shared_library;
use torch_ext::allocator::{HOST, Library, LibraryError};

#[test]
fn a_missing_file_is_named() {
    let error = Library::open("/nowhere/libhip_alloc.so").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the allocator library /nowhere/libhip_alloc.so does not exist"
    );
}

#[test]
fn a_folder_without_one_says_where_it_looked_and_what_to_set() {
    let error = Library::open_in("/nowhere".as_ref())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "no allocator library: HIP_ALLOC_LIB is not set, and /nowhere/libhip_alloc.so does not exist"
    );
}

#[test]
fn a_file_that_is_no_library_is_refused_with_the_linkers_reason() {
    let error = Library::open(file!().replace("crates/torch-ext/", "")).unwrap_err();
    assert!(
        matches!(&error, LibraryError::Unloadable { reason, .. } if reason.contains("ELF")),
        "{error}"
    );
}

#[test]
fn a_file_that_was_cut_off_is_refused_before_it_is_mapped() {
    let path = shared_library("allocator.c", &[]);
    let whole = std::fs::read(&path).unwrap();
    for size in [whole.len() - 1, whole.len() / 2, 64] {
        std::fs::write(&path, &whole[..size]).unwrap();
        let error = Library::open(&path).unwrap_err().to_string();
        let cut = format!(
            "it is cut off: it has {size} of at least {} bytes",
            whole.len()
        );
        assert!(error.contains(&cut), "{error}");
    }
}

#[test]
fn a_relative_path_is_meant_from_where_the_program_is_now() {
    let error = Library::open("no/such.so").unwrap_err().to_string();
    let path = std::env::current_dir().unwrap().join("no/such.so");
    assert!(error.contains(&path.display().to_string()), "{error}");
}

#[test]
fn another_abi_version_is_refused_with_both_versions() {
    let path = shared_library("allocator.c", &["-DABI=2"]);
    let error = Library::open(&path).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert!(
        error.contains("has ABI version 2") && error.contains("needs version 1"),
        "{error}"
    );
}

#[test]
fn a_library_without_one_of_the_functions_is_refused() {
    let path = shared_library("allocator.c", &["-DLACKS_TRIM"]);
    let error = Library::open(path).unwrap_err();
    assert!(
        matches!(
            error,
            LibraryError::MissingSymbol {
                symbol: "hip_alloc_trim",
                ..
            }
        ),
        "{error}"
    );
}

#[cfg(not(bridge))]
#[test]
fn memory_that_is_not_aligned_is_found_out_before_it_is_used() {
    let library = Library::open(shared_library("allocator.c", &["-DMISALIGNED"])).unwrap();
    let error = library.install_for_cpu().unwrap_err().to_string();
    assert!(error.contains("not aligned to 64 bytes"), "{error}");
}

#[test]
fn counters_and_memory_come_through() {
    let library = Library::open(shared_library("allocator.c", &[])).unwrap();
    library.trim(0, 4096).unwrap();
    assert_eq!(
        library.stats(0).unwrap().capacity_bytes,
        4096,
        "the last field of the struct"
    );
    let memory = library.mem_info(HOST).unwrap();
    assert_eq!((memory.free, memory.total), (1000, 2000));
}

#[test]
fn an_error_code_names_the_function() {
    let library = Library::open(shared_library("allocator.c", &[])).unwrap();
    let error = library.mem_info(-5).unwrap_err().to_string();
    assert!(
        error.contains("`hip_alloc_mem_info` with code 7"),
        "{error}"
    );
}
