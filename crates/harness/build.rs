//! Lets these programs find libtorch at run time: link arguments are not inherited from a
//! dependency, so `torch-ext` says where it is.

fn main() {
    if let Ok(lib) = std::env::var("DEP_SUREFOOT_TORCH_EXT_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath={lib}");
    }
}
