//! The program `surefoot-trainer` as a library, for a Python that has PyTorch. (What cargo calls the library of this package is
//! what its programs share.)

#[allow(dead_code)] // its `main`
#[path = "../src/trainer.rs"]
mod program;

/// Does what the arguments after those of Python say; the exit code.
#[unsafe(no_mangle)]
pub extern "C" fn surefoot_trainer_main() -> i32 {
    surefoot_cli::output::code(program::run()).into()
}
