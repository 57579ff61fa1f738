//! Lets this crate's tests find libtorch at run time. Link arguments are not inherited from a dependency, so
//! `torch-ext` passes on the folder.

fn main() {
    if let Ok(lib) = std::env::var("DEP_SUREFOOT_TORCH_EXT_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath={lib}");
    }
}
