//! Compiles the one C++ file: it throws, which Rust cannot.

fn main() {
    println!("cargo:rerun-if-changed=cpp/out_of_memory.cpp");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(true)
        .file("cpp/out_of_memory.cpp")
        .compile("hip_alloc_throw");
}
