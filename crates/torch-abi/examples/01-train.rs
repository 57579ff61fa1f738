//! Trains a small network by these functions, as tch calls them, and prints the loss of every tenth step: the same
//! program with PyTorch on Linux and on Windows.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use torch_sys::c_generated::*;
use torch_sys::*;

const FLOAT: i32 = 6;
const CPU: i32 = -1;

/// The tensor that a function makes.
fn made(call: impl FnOnce(*mut *mut C_tensor)) -> *mut C_tensor {
    let mut tensor = null_mut();
    call(&mut tensor);
    // SAFETY: it is a string, or null if nothing has failed.
    unsafe {
        let error = get_and_reset_last_err();
        assert!(
            error.is_null(),
            "{}",
            CStr::from_ptr(error).to_string_lossy()
        );
    }
    tensor
}

fn main() {
    // SAFETY: every tensor and scalar is one of these functions', and lives until the end of the program.
    unsafe {
        let wave = |shape: [i64; 2], length: f64| {
            let numbers = made(|out| {
                atg_linspace(
                    out,
                    ats_float(0.0),
                    ats_float(length),
                    shape[0] * shape[1],
                    FLOAT,
                    CPU,
                )
            });
            let wave = made(|out| atg_sin(out, numbers));
            let wave = made(|out| atg_mul_scalar(out, wave, ats_float(0.4)));
            made(|out| atg_reshape(out, wave, shape.as_ptr(), 2))
        };
        let input = wave([32, 8], 7.0);
        let wanted = wave([32, 8], 10.0);
        let weights = [([16, 8], 30.0), ([8, 16], 50.0)].map(|(shape, length)| {
            let weight = wave(shape, length);
            made(|out| atg_set_requires_grad(out, weight, 1))
        });
        for step in 0..50 {
            let hidden = made(|out| atg_linear(out, input, weights[0], null_mut()));
            let hidden = made(|out| atg_silu(out, hidden));
            let output = made(|out| atg_linear(out, hidden, weights[1], null_mut()));
            let difference = made(|out| atg_sub(out, output, wanted));
            let square = made(|out| atg_pow_tensor_scalar(out, difference, ats_int(2)));
            let loss = made(|out| atg_mean(out, square, FLOAT));
            at_backward(loss, 0, 0);
            at_grad_set_enabled(0);
            for weight in weights {
                let gradient = made(|out| atg_grad(out, weight));
                let change = made(|out| atg_mul_scalar(out, gradient, ats_float(0.5)));
                made(|out| atg_sub_(out, weight, change));
                made(|out| atg_zero_(out, gradient));
            }
            at_grad_set_enabled(1);
            if step % 10 == 9 {
                println!("{:.9}", at_double_value_at_indexes(loss, null(), 0));
            }
        }
    }
}
