//! Gives this crate's tests a run path to libtorch, and passes it on to `cli`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let libtorch = std::env::var("DEP_SUREFOOT_TORCH_EXT_LIBTORCH_LIB").unwrap_or_default();
    println!("cargo::metadata=libtorch_lib={libtorch}");
    if !libtorch.is_empty() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libtorch}");
    }
}
