//! `libhip_alloc.so` from the outside: a C++ program loads it, as PyTorch does.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{compile, library};
use std::path::Path;
use std::process::{Command, Output};

fn run(conf: &str, arguments: &[&Path]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("client.cpp", folder.path());
    Command::new(program)
        .args(arguments)
        .env("HIP_ALLOC_CONF", conf)
        .output()
        .unwrap()
}

#[test]
fn out_of_memory_is_bad_alloc_without_libc10() {
    let output = run("", &[&library()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "caught std::bad_alloc\ncode 0 live 0 refused 1 frees 1\n"
    );
    assert!(output.status.success());
}

/// With the real libc10 of the libtorch that this workspace uses.
#[test]
fn out_of_memory_is_the_exception_of_pytorch_with_libc10() {
    // Cargo gives `.cargo/libtorch.toml` to the compiler; nextest does not read it.
    let libtorch = env!("LIBTORCH", "LIBTORCH is set by `cargo xtask setup`");
    let libc10 = Path::new(libtorch).join("lib/libc10.so");
    let output = run("", &[&library(), &libc10]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with(
            "caught c10::OutOfMemoryError: Host out of memory. Tried to allocate 1073741824.00 GiB. \
             The host has a total capacity of "
        ),
        "{text}"
    );
    assert!(
        text.ends_with("code 0 live 0 refused 1 frees 1\n"),
        "{text}"
    );
    assert!(output.status.success());
}

#[test]
fn a_wrong_setting_is_an_exception_that_says_what_is_allowed_until_it_is_right() {
    let output = run("warmup_mb:lots", &[&library()]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "no memory: HIP_ALLOC_CONF: `warmup_mb` cannot be `lots`; \
         allowed: `auto`, or whole numbers from 0 to 1048576\n\
         caught std::bad_alloc\ncode 0 live 0 refused 1 frees 0\n"
    );
    assert!(output.status.success());
}

#[test]
fn a_cpp_program_directs_requests_to_a_pool_as_pytorch_does() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("pools.cpp", folder.path());
    let output = Command::new(program)
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:host")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[..2],
        ["2 of the filter and 1 of the pool", "again 1 other 0"]
    );
    assert!(
        lines[2].contains("which memory pool a request is for")
            && lines[2].contains("no such stream"),
        "{text}"
    );
    assert_eq!(
        lines[3..],
        [
            "memory pool (3, 4) is in use already: requests on this device go there",
            "1 of the filter and 1 of the pool",
            "0"
        ]
    );
    assert!(
        errors.contains("memory pool (3, 4) is not in use"),
        "{errors}"
    );
}

#[test]
fn the_library_needs_neither_hip_nor_libtorch_and_stays_loaded() {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(library())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("NEEDED"), "{text}");
    assert!(
        text.contains("NODELETE"),
        "its memory outlives a dlclose: {text}"
    );
    for forbidden in ["libamdhip64", "libcudart", "libtorch", "libc10"] {
        assert!(!text.contains(forbidden), "{forbidden} is linked: {text}");
    }
}

#[test]
fn a_fraction_of_the_memory_is_all_that_a_program_gets() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("fraction.cpp", folder.path());
    for backend in ["sim", "host"] {
        let output = Command::new(&program)
            .arg(library())
            .env("HIP_ALLOC_CONF", format!("warmup_mb:0,backend:{backend}"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // What the machine has free may be less than a quarter of it, but never more.
        let (before, pieces) = text.trim_end().rsplit_once(' ').unwrap();
        let expected = "codes 0 2, a quarter: 1, within it: 1, pieces:";
        assert_eq!(before, expected, "{backend}");
        let pieces: u32 = pieces.parse().unwrap();
        assert!((1..=16).contains(&pieces), "{backend}: {pieces}");
        assert!(backend == "host" || pieces == 16, "{pieces}");
    }
}
