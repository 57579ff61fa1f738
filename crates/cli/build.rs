//! Gives `surefoot-trainer` and the tests a run path to libtorch. `surefoot` itself links none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(libtorch) = std::env::var("DEP_SUREFOOT_TRAINER_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg-bin=surefoot-trainer=-Wl,-rpath,{libtorch}");
        println!("cargo::rustc-link-arg-tests=-Wl,-rpath,{libtorch}");
    }
}
