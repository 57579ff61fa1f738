//! Gives `surefoot-trainer` and the tests a run path to libtorch. `surefoot` itself links none.
//!
//! `SUREFOOT_RUN_PATH` is that of the trainer instead, where it is built to run on another machine.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SUREFOOT_RUN_PATH");
    if let Ok(libtorch) = std::env::var("DEP_SUREFOOT_TRAINER_LIBTORCH_LIB") {
        let path = std::env::var("SUREFOOT_RUN_PATH").unwrap_or_else(|_| libtorch.clone());
        println!("cargo::rustc-link-arg-bin=surefoot-trainer=-Wl,-rpath,{path}");
        println!("cargo::rustc-link-arg-tests=-Wl,-rpath,{libtorch}");
    }
}
