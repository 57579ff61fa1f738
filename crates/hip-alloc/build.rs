//! Compiles what speaks C++ to PyTorch: exceptions, which Rust cannot throw, its
//! profiler, and the functions by which it directs requests to pools.

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    // Set by `cargo xtask test --heavy`: see `src/lock.rs` and `tests/stress.rs`.
    println!("cargo:rustc-check-cfg=cfg(surefoot_tsan, surefoot_sanitizer)");
    // Elsewhere there is no allocator for PyTorch, only what a replay needs.
    if std::env::var_os("CARGO_CFG_UNIX").is_none() {
        return;
    }
    // Memory that it gave out, and handlers that it left for exit and fork, outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(true)
        .file("cpp/exceptions.cpp")
        .file("cpp/pools.cpp")
        .file("cpp/profiler.cpp")
        .compile("hip_alloc_cpp");
}
