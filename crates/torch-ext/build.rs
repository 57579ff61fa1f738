//! Tells dependants where libtorch is, so that their binaries carry a run path.

fn main() {
    let lib = std::env::var("DEP_TCH_LIBTORCH_LIB").unwrap_or_default();
    println!("cargo::metadata=libtorch_lib={lib}");
}
