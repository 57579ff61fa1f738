//! Gives `surefoot-trainer` and the tests a run path to libtorch. `surefoot` itself links none.
//!
//! `SUREFOOT_RUN_PATH` is that of the trainer instead, where it is built to run on another machine. And tells
//! both which release of PyTorch the trainer is for.

/// The release that tch binds, where no trainer is built.
const BOUND: &str = "2.13.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SUREFOOT_RUN_PATH");
    let release = std::env::var("DEP_SUREFOOT_TRAINER_LIBTORCH_RELEASE");
    let release = release.unwrap_or_else(|_| BOUND.to_owned());
    println!("cargo::rustc-env=SUREFOOT_TRAINER_TORCH={release}");
    if let Ok(libtorch) = std::env::var("DEP_SUREFOOT_TRAINER_LIBTORCH_LIB") {
        let path = std::env::var("SUREFOOT_RUN_PATH").unwrap_or_else(|_| libtorch.clone());
        println!("cargo::rustc-link-arg-bin=surefoot-trainer=-Wl,-rpath,{path}");
        println!("cargo::rustc-link-arg-tests=-Wl,-rpath,{libtorch}");
    }
}
