//! Functions beside the C++ ones that they replace, in one process and on the same tensors: results, gradients and errors
//! are equal, to the bit. Windows has no C++ ones to compare with.
#![cfg(unix)]

use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard};

use torch_sys as ours;

/// A tensor of the one or the other, since both have handles of the same PyTorch.
type Handle = *mut cpp::C_tensor;
/// The dtype, shape and bytes of a tensor.
type Content = (c_int, Vec<i64>, Vec<u8>);
/// The tensors that a function returns, or the first line of its error.
type Made = Result<Vec<Handle>, String>;

/// The numbers of dtypes, and the bytes of an element.
const KINDS: [(c_int, usize); 6] = [
    (0, 1),
    (INT64, 8),
    (FLOAT, 4),
    (DOUBLE, 8),
    (11, 1),
    (15, 2),
];
const INT64: c_int = 4;
const FLOAT: c_int = 6;
const DOUBLE: c_int = 7;
const CPU: c_int = -1;
/// A dimension, a length.
const LAST: [i64; 1] = [-1];
const TWO: [i64; 2] = [1, 2];

/// A call in one of the two, whose tensors are returned; `x` is the tensor that the tests are about, `(f 0.1)` and `(i 3)`
/// are scalars, and a number is itself.
macro_rules! call {
    ($bindings:ident::$function:ident($x:ident; $($argument:tt)*)) => {{
        let mut made = [null_mut(); 4];
        // SAFETY: the parameters that the function has, as the C++ one checks; there is room for its results.
        let error = unsafe {
            $bindings::c_generated::$function(made.as_mut_ptr(), $(call!(@ $bindings $x $argument)),*);
            first_line($bindings::get_and_reset_last_err())
        };
        let made = made.into_iter().filter(|tensor| !tensor.is_null()).map(|tensor| tensor.cast());
        error.map_or_else(|| Ok(made.collect()), Err)
    }};
    (@ $bindings:ident $x:ident x) => { $x.cast() };
    (@ $bindings:ident $x:ident (f $value:expr)) => { $bindings::ats_float($value) };
    (@ $bindings:ident $x:ident (i $value:expr)) => { $bindings::ats_int($value) };
    (@ $bindings:ident $x:ident $value:expr) => { $value };
}

macro_rules! agree {
    ($($function:ident($($argument:tt),*);)*) => {
        $(compare(
            concat!(stringify!($function), stringify!(($($argument),*))),
            |_x| call!(cpp::$function(_x; $($argument)*)),
            |_x| call!(ours::$function(_x; $($argument)*)),
        );)*
    };
}

#[test]
fn scalars_are_those_of_cpp() {
    agree! {
        atg_mul_scalar(x, (f 0.1)); atg_mul_scalar(x, (i 3)); atg_mul_scalar_(x, (f 0.1)); atg_mul_scalar_(x, (i 3));
        atg_add_scalar(x, (f 0.1)); atg_add_scalar(x, (i 3)); atg_add_scalar_(x, (i 3)); atg_sub_scalar(x, (f 0.1));
        atg_sub_scalar_(x, (f 0.1)); atg_div_scalar(x, (f 0.3)); atg_div_scalar(x, (i 3)); atg_div_scalar_(x, (f 0.3));
        atg_add(x, x); atg_sub(x, x); atg_add_(x, x); atg_sub_(x, x); atg_rsub(x, x); atg_addcmul_(x, x, x);
        atg_addcdiv(x, x, x); atg_addmm(x, x, x); atg_addmm_(x, x, x); atg_lerp(x, x, (f 0.3)); atg_lerp_(x, x, (f 0.3));
        atg_pow_tensor_scalar(x, (i 2)); atg_pow_tensor_scalar(x, (f 0.5)); atg_pow_tensor_scalar(x, (i -1));
        atg_pow_(x, (i 3)); atg_pow_scalar((f 1.5), x); atg_fmod(x, (f 0.7)); atg_remainder(x, (i 3));
        atg_clamp(x, (f -0.5), (f 1.5)); atg_clamp_(x, (i 0), (i 1)); atg_clamp_min(x, (f 0.25)); atg_clamp_max_(x, (i 1));
        atg_eq(x, (i 1)); atg_ne(x, (f 0.5)); atg_lt(x, (f 0.5)); atg_le(x, (i 1)); atg_gt(x, (f 0.5)); atg_ge(x, (i 0));
        atg_fill_(x, (f 1.7)); atg_fill(x, (i 2)); atg_masked_fill(x, x, (f 0.5)); atg_where_scalarother(x, x, (f 0.3));
        atg_norm(x); atg_norm_scalaropt_dim(x, (f 2.0), (LAST.as_ptr()), 1, 1); atg_leaky_relu(x); atg_elu(x); atg_celu_(x);
        atg_softplus(x); atg_hardtanh(x); atg_threshold(x, (f 0.1), (f 0.2)); atg_constant_pad_nd(x, (TWO.as_ptr()), 2);
        atg_index_fill(x, 0, x, (f 0.5)); atg_bitwise_and(x, (i 3)); atg_add_out(x, x, x); atg_mul_scalar_out(x, x, (f 0.1));
        atg_clamp_out(x, x, (f -0.5), (f 1.5)); atg_dist(x, x); atg_full_like(x, (f 0.7)); atg_bitwise_left_shift_scalar_tensor((i 3), x);
    }
}

#[test]
fn operators_are_those_of_cpp() {
    agree! {
        atg_silu(x); atg_exp_(x); atg_matmul(x, x); atg_mul(x, x); atg_div_(x, x); atg_softmax(x, (-1), FLOAT);
        atg_log_softmax(x, (-1), (-1)); atg_sum(x, FLOAT); atg_sum_dim_intlist(x, (LAST.as_ptr()), 1, 1, FLOAT); atg_sum(x, (-1));
        atg_mean(x, FLOAT); atg_mean_dim(x, (null()), (-1), 0, FLOAT); atg_std(x, 1); atg_cumsum(x, (-1), FLOAT);
        atg_topk(x, 2, (-1), 1, 1); atg_max_dim(x, 0, 1); atg_sort(x, (-1), 0); atg_transpose(x, 0, (-1)); atg_t_(x);
        atg_view(x, (TWO[..0].as_ptr()), 0); atg_reshape(x, (LAST.as_ptr()), 1); atg_slice(x, 0, 1, 0, 3, 0, 2);
        atg_slice(x, 0, 0, 1, 0, 1, 1); atg_narrow(x, 0, 1, 2); atg_linear(x, x, (null_mut())); atg_linear(x, x, x);
        atg_layer_norm(x, ([4_i64].as_ptr()), 1, (null_mut()), (null_mut()), 1e-5, 0);
        atg_rms_norm(x, ([4_i64].as_ptr()), 1, (null_mut()), 1e-6, 0); atg_rms_norm(x, ([4_i64].as_ptr()), 1, x, 0.0, 1);
        atg_gelu(x, (c"tanh".as_ptr().cast()), 4); atg_gelu(x, (c"tangent".as_ptr().cast()), 7); atg_dropout(x, 0.5, 1);
        atg_to(x, CPU); atg_totype(x, FLOAT); atg_to_dtype(x, INT64, 0, 1); atg_zeros_like(x); atg_randn_like(x);
        atg_contiguous(x); atg_detach(x); atg_masked_select(x, x); atg_nonzero(x); atg_argmax(x, 0, 0, 1);
        atg_uniform_(x, (-1.0), 2.0); atg_normal_(x, 0.5, 2.0); atg_bernoulli_(x, x); atg_embedding(x, x, (-1), 0, 0);
        atg_repeat_interleave_self_int(x, 2, 0, 0, 0, 1); atg_set_requires_grad(x, 1);
        atg_scaled_dot_product_attention(x, x, x, (null_mut()), 0.0, 1, 0.5, 0, 0);
        atg_scaled_dot_product_attention(x, x, x, (null_mut()), 0.0, 0, 0.0, 1, 0);
        atg_cross_entropy_loss(x, x, (null_mut()), 1, (-100), 0.1); atg_mul_out(x, x, x); atg_grad(x);
    }
}

#[test]
fn factories_are_those_of_cpp() {
    agree! {
        atg_arange((i 7), FLOAT, CPU); atg_arange((f 7.5), FLOAT, CPU); atg_arange((i 7), INT64, CPU);
        atg_arange_start((i 2), (i 7), INT64, CPU); atg_arange_start_step((f 2.0), (f 7.0), (f 0.3), FLOAT, CPU);
        atg_full((TWO.as_ptr()), 2, (f 1.7), 15, CPU); atg_full((TWO.as_ptr()), 2, (i 9_007_199_254_740_993), INT64, CPU);
        atg_linspace((f 0.1), (f 0.9), 11, FLOAT, CPU); atg_scalar_tensor((f 0.1), 7, CPU); atg_range((i 1), (i 4), FLOAT, CPU);
        atg_zeros((TWO.as_ptr()), 2, FLOAT, CPU); atg_rand((TWO.as_ptr()), 2, FLOAT, CPU); atg_randperm(9, INT64, CPU);
        atg_randint(9, (TWO.as_ptr()), 2, INT64, CPU); atg_eye(3, FLOAT, CPU);
    }
}

#[test]
fn an_operator_beyond_the_c_interface_is_refused_by_name() {
    let _torch = torch();
    let x = tensor(FLOAT, &[4, 4]);
    let floor = c"floor".as_ptr().cast();
    let refused = |made: Made| made.err().unwrap_or_default();
    let divided = refused(call!(ours::atg_div_scalar_mode(x; x (i 2) floor 5)));
    assert!(
        divided.contains("`aten::div.Scalar_mode` cannot be called"),
        "{divided}"
    );
    let activated = refused(call!(ours::atg_rrelu(x; x 1)));
    assert!(
        activated.contains("`aten::rrelu` cannot be called"),
        "{activated}"
    );
    // SAFETY: no parameters.
    let error = unsafe {
        assert!(ours::ato_adam(0.1, 0.9, 0.99, 0.0, 1e-8, false).is_null());
        first_line(ours::get_and_reset_last_err())
    };
    assert!(error.unwrap_or_default().contains("`ato_adam`"));
}

/// tch frees a scalar, and asks about that, before it asks about the call.
#[test]
fn an_error_outlives_the_scalars_of_its_call() {
    let _torch = torch();
    let x = tensor(FLOAT, &[4, 4]);
    let mut made = null_mut();
    // SAFETY: a mask of no tensor that could be one.
    unsafe {
        let scalar = ours::ats_float(0.5);
        ours::c_generated::atg_masked_fill(&mut made, x.cast(), x.cast(), scalar);
        ours::ats_free(scalar);
        assert_eq!(first_line(ours::get_and_reset_last_err()), None);
        assert_eq!(
            first_line(ours::get_and_reset_last_err()).as_deref(),
            Some("masked_fill_ only supports boolean masks, but got mask with dtype float")
        );
    }
}

/// A layer, its loss, backward and a step, fifty times.
macro_rules! train {
    ($bindings:ident) => {{
        let weight = tensor(FLOAT, &[4, 4]).cast();
        let input = tensor(FLOAT, &[4, 4]).cast();
        let one = |call: &dyn Fn(*mut *mut $bindings::C_tensor)| {
            let mut made = null_mut();
            call(&mut made);
            made
        };
        // SAFETY: tensors and scalars of these bindings.
        unsafe {
            use $bindings::c_generated::*;
            use $bindings::*;
            at_free(one(&|out| atg_set_requires_grad(out, weight, 1)));
            for _ in 0..50 {
                let output = one(&|out| atg_linear(out, input, weight, null_mut()));
                let gated = one(&|out| atg_silu(out, output));
                let scaled = one(&|out| atg_mul_scalar(out, gated, ats_float(1.3)));
                let square = one(&|out| atg_pow_tensor_scalar(out, scaled, ats_int(2)));
                let loss = one(&|out| atg_mean(out, square, FLOAT));
                at_backward(loss, 0, 0);
                assert_eq!(at_grad_set_enabled(0), 1);
                let gradient = one(&|out| atg_grad(out, weight));
                let step = one(&|out| atg_mul_scalar(out, gradient, ats_float(0.5)));
                at_free(one(&|out| atg_sub_(out, weight, step)));
                at_free(one(&|out| atg_zero_(out, gradient)));
                assert_eq!(at_grad_set_enabled(1), 0);
                assert_eq!(first_line(get_and_reset_last_err()), None);
            }
            let squares = one(&|out| atg_mul(out, weight, weight));
            let total = one(&|out| atg_sum(out, squares, FLOAT));
            let mut gradient = null_mut();
            at_run_backward(
                [total].as_ptr(),
                1,
                [weight].as_ptr(),
                1,
                &mut gradient,
                0,
                0,
            );
            let left = one(&|out| atg_grad(out, weight));
            let value = at_double_value_at_indexes(weight, TWO.as_ptr(), 2);
            assert_eq!(at_requires_grad(weight), 1);
            (
                content(weight.cast()),
                content(gradient.cast()),
                content(left.cast()),
                value,
            )
        }
    }};
}

#[test]
fn training_is_that_of_cpp() {
    let _torch = torch();
    let cpp = train!(cpp);
    let ours = train!(ours);
    assert_eq!(cpp, ours);
    let zeros = ours.2.2.iter().all(|&byte| byte == 0);
    assert!(
        zeros,
        "the gradient of the last step was set to zero, and the pass for chosen inputs left it"
    );
}

#[test]
fn tensors_are_read_and_made_as_by_cpp() {
    let _torch = torch();
    let data = [1.5_f32, 2.5, 3.5, 4.5, 5.5, 6.5];
    // SAFETY: the data of the shapes.
    unsafe {
        let made =
            ours::at_tensor_of_data(data.as_ptr().cast(), [2_i64, 3].as_ptr(), 2, 4, FLOAT).cast();
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_ne_bytes()).collect();
        assert_eq!(content(made), (FLOAT, vec![2, 3], bytes));
        let blob = ours::at_tensor_of_blob(
            data.as_ptr().cast(),
            [2_i64, 3].as_ptr(),
            2,
            null(),
            0,
            FLOAT,
            CPU,
        );
        let mut strides = [0; 2];
        ours::at_stride(blob, strides.as_mut_ptr());
        assert_eq!(
            (strides, ours::at_data_ptr(blob).cast_const().cast()),
            ([3, 1], data.as_ptr())
        );
        assert_eq!(
            (
                ours::at_dim(blob),
                ours::at_scalar_type(blob),
                ours::at_device(blob)
            ),
            (2, FLOAT, CPU)
        );
        let row = ours::at_get(blob, 1);
        let mut copied = [0.0_f32; 3];
        ours::at_copy_data(row, copied.as_mut_ptr().cast(), 3, 4);
        assert_eq!(copied, data[3..]);
        assert_eq!(ours::at_int64_value_at_indexes(row, [2_i64].as_ptr(), 1), 6);
        let undefined = ours::at_new_tensor();
        assert_eq!((ours::at_defined(undefined), ours::at_defined(row)), (0, 1));
        assert_eq!(first_line(ours::get_and_reset_last_err()), None);
        ours::at_copy_data(row, copied.as_mut_ptr().cast(), 4, 4);
        assert_eq!(
            first_line(ours::get_and_reset_last_err()).as_deref(),
            Some("the tensor has less than 4 elements")
        );
        for tensor in [row, blob, undefined] {
            ours::at_free(tensor);
        }
    }
}

#[test]
fn lists_are_those_of_cpp() {
    let _torch = torch();
    let x = tensor(FLOAT, &[4, 4]);
    let read = |list: *mut Handle| {
        // SAFETY: it ends in null.
        (0..)
            .map_while(|at| unsafe { (!(*list.add(at)).is_null()).then(|| content(*list.add(at))) })
            .collect::<Vec<_>>()
    };
    // SAFETY: tensors of the two.
    unsafe {
        let cpp = read(cpp::c_generated::atg_split(x, 3, 0));
        let mine = read(ours::c_generated::atg_split(x.cast(), 3, 0).cast());
        assert_eq!((mine.len(), &cpp), (2, &mine));
        let mut joined = null_mut();
        ours::c_generated::atg_cat(&mut joined, [x, x].as_ptr().cast(), 2, 0);
        assert_eq!(content(joined.cast()).1, [8, 4]);
        let mut picked = null_mut();
        let rows =
            ours::at_tensor_of_data([2_i64, 0].as_ptr().cast(), [2_i64].as_ptr(), 1, 8, INT64);
        ours::c_generated::atg_index(&mut picked, x.cast(), [null_mut(), rows].as_ptr(), 2);
        assert_eq!(content(picked.cast()).1, [4, 2]);
        assert_eq!(ours::c_generated::atg_equal(x.cast(), x.cast()), 1);
        assert_eq!(ours::c_generated::atg_sparse_dim(rows), 0);
    }
}

/// Compares the two for tensors of all dtypes, with dimensions and without, and the gradients where there are some.
fn compare(call: &str, cpp: impl Fn(Handle) -> Made, ours: impl Fn(Handle) -> Made) {
    let _torch = torch();
    for (kind, _) in KINDS.into_iter().filter(|(kind, _)| *kind != DOUBLE) {
        for shape in [&[4, 4][..], &[]] {
            for differentiated in [false, matches!(kind, FLOAT | 15)] {
                let run = |call: &dyn Fn(Handle) -> Made| {
                    let x = tensor(kind, shape);
                    if differentiated {
                        set_requires_grad(x);
                    }
                    // SAFETY: no pointers.
                    unsafe { cpp::at_manual_seed(3) };
                    let made = call(x)?;
                    let gradient = differentiated.then(|| gradient(&made, x));
                    Ok::<_, String>((made.into_iter().map(content).collect::<Vec<_>>(), gradient))
                };
                assert_eq!(run(&cpp), run(&ours), "{call} of dtype {kind}, {shape:?}");
            }
        }
    }
}

fn set_requires_grad(x: Handle) {
    let mut same = null_mut();
    // SAFETY: a tensor; for integers it is an error, which is not asked for.
    unsafe {
        cpp::c_generated::atg_set_requires_grad(&mut same, x, 1);
        cpp::get_and_reset_last_err();
    }
}

/// The gradient of `x` after a backward pass from the sum of the first result, if that has one.
fn gradient(made: &[Handle], x: Handle) -> Option<Content> {
    let (mut sum, mut gradient) = (null_mut(), null_mut());
    // SAFETY: tensors.
    unsafe {
        if made.is_empty() || cpp::at_defined(made[0]) == 0 || cpp::at_requires_grad(made[0]) == 0 {
            return None;
        }
        cpp::c_generated::atg_sum(&mut sum, made[0], -1);
        cpp::at_backward(sum, 0, 0);
        cpp::c_generated::atg_grad(&mut gradient, x);
        assert_eq!(first_line(cpp::get_and_reset_last_err()), None);
        Some(content(gradient))
    }
}

/// A tensor of numbers from about -3 to 3, the same ones every time.
fn tensor(kind: c_int, shape: &[i64]) -> Handle {
    let count: i64 = shape.iter().product();
    let numbers: Vec<f64> = (0..count)
        .map(|at| ((at * 37 + 11) % 64) as f64 / 10.0 - 3.0)
        .collect();
    let mut made = null_mut();
    // SAFETY: as many numbers as the shape has.
    unsafe {
        let doubles = cpp::at_tensor_of_data(
            numbers.as_ptr().cast(),
            shape.as_ptr(),
            shape.len(),
            8,
            DOUBLE,
        );
        cpp::c_generated::atg_totype(&mut made, doubles, kind);
    }
    made
}

/// Reads a tensor by C++, and frees it.
fn content(tensor: Handle) -> Content {
    // SAFETY: a tensor that is not used again; there is room for its elements.
    unsafe {
        if cpp::at_defined(tensor) == 0 {
            return (-1, Vec::new(), Vec::new());
        }
        let mut shape = vec![0; cpp::at_dim(tensor)];
        cpp::at_shape(tensor, shape.as_mut_ptr());
        let count = shape.iter().product::<i64>() as usize;
        let kind = cpp::at_scalar_type(tensor);
        let element = KINDS
            .iter()
            .find(|(of, _)| *of == kind)
            .map_or(1, |(_, bytes)| *bytes);
        let mut bytes = vec![0; count * element];
        cpp::at_copy_data(tensor, bytes.as_mut_ptr().cast(), count, element);
        assert_eq!(first_line(cpp::get_and_reset_last_err()), None);
        cpp::at_free(tensor);
        (kind, shape, bytes)
    }
}

/// The first line of an error, without the place in C++ from which it comes.
fn first_line(error: *mut std::ffi::c_char) -> Option<String> {
    if error.is_null() {
        return None;
    }
    // SAFETY: a string, which is leaked.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy();
    Some(text.lines().next().unwrap_or("").to_owned())
}

/// One test at a time: the generator of random numbers is the process's.
fn torch() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
