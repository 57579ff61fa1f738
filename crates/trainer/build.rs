//! Gives this crate's tests a run path to libtorch, and passes it on to `cli`; and tells the crate which
//! release that is.

/// What is said where only the documentation is built.
const NONE: &str = "none";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let libtorch = std::env::var("DEP_SUREFOOT_TORCH_EXT_LIBTORCH_LIB").unwrap_or_default();
    println!("cargo::metadata=libtorch_lib={libtorch}");
    let release = std::env::var("DEP_SUREFOOT_TORCH_EXT_LIBTORCH_RELEASE");
    let release = release.unwrap_or_else(|_| NONE.to_owned());
    println!("cargo::rustc-env=SUREFOOT_LIBTORCH_RELEASE={release}");
    println!("cargo::metadata=libtorch_release={release}");
    if !libtorch.is_empty() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}");
    }
}
