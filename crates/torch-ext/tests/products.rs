//! fp32 products by oneDNN are those of a double-precision reference in every layout, and
//! what oneDNN does not take is still libtorch's.

#![allow(clippy::unwrap_used, reason = "tests")]

use tch::{Device, Kind, Tensor};
use torch_ext::{backward, products};

/// Whether oneDNN made the products of `work`: exactly `count` of them. On a CPU without AVX-512 libtorch may
/// refuse to have them made so; `work` is done there too, and is right by libtorch's own products.
fn made(count: u64, work: impl FnOnce()) -> bool {
    // The counter is the process's; tests that share it would count each other's.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|broken| broken.into_inner());
    if !products::use_onednn().unwrap() {
        assert!(!has_avx512(), "this libtorch has oneDNN");
        eprintln!("not tested: products by oneDNN, on a CPU without AVX-512");
        work();
        return products::made_by_onednn() == 0;
    }
    let before = products::made_by_onednn();
    work();
    products::made_by_onednn() - before == count
}

fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

/// The same numbers, laid out the other way.
fn transposed_in_memory(tensor: &Tensor) -> Tensor {
    tensor.transpose(-2, -1).contiguous().transpose(-2, -1)
}

fn close(found: &Tensor, expected: &Tensor) -> bool {
    found.allclose(&expected.to_kind(Kind::Float), 1e-4, 1e-4, false)
}

/// `beta * added + alpha * (a @ b)` in fp64.
fn reference(added: &Tensor, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Tensor {
    let double = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    double(added) * beta + double(a).matmul(&double(b)) * alpha
}

#[test]
fn every_layout_and_every_form_is_right() {
    assert!(made(2 * 4 * 3, || {
        for lead in [&[][..], &[5]] {
            let shape = |rows, columns| [lead, &[rows, columns]].concat();
            let (a, b) = (random(&shape(7, 33)), random(&shape(33, 20)));
            for (a, b) in [
                (a.copy(), b.copy()),
                (transposed_in_memory(&a), b.copy()),
                (a.copy(), transposed_in_memory(&b)),
                (transposed_in_memory(&a), transposed_in_memory(&b)),
            ] {
                let zero = Tensor::zeros(1, (Kind::Float, Device::Cpu));
                assert!(close(&a.matmul(&b), &reference(&zero, &a, &b, 1.0, 1.0)));
                let row = random(&[20]);
                let expected = reference(&row, &a, &b, 0.5, 2.0);
                let mut sum = random(&shape(7, 20));
                let grown = reference(&sum, &a, &b, 1.0, 1.0);
                if lead.is_empty() {
                    let found = row.f_addmm(&a, &b).unwrap();
                    assert!(close(&found, &reference(&row, &a, &b, 1.0, 1.0)));
                    assert!(close(&sum.f_addmm_(&a, &b).unwrap(), &grown));
                } else {
                    assert!(close(&row.f_baddbmm(&a, &b, 0.5, 2.0).unwrap(), &expected));
                    assert!(close(&sum.f_baddbmm_(&a, &b).unwrap(), &grown));
                }
            }
        }
    }));
}

#[test]
fn windows_into_larger_memory_are_right() {
    assert!(made(1, || {
        let (a, b) = (random(&[40, 40]), random(&[40, 40]));
        let (a, b) = (
            a.narrow(0, 3, 9).narrow(1, 5, 21),
            b.narrow(0, 2, 21).narrow(1, 7, 11),
        );
        let zero = Tensor::zeros(1, (Kind::Float, Device::Cpu));
        assert!(close(&a.mm(&b), &reference(&zero, &a, &b, 1.0, 1.0)));
    }));
}

#[test]
fn a_weight_of_zero_hides_what_is_no_number() {
    assert!(made(1, || {
        let nothing = Tensor::full([4, 5, 6], f64::NAN, (Kind::Float, Device::Cpu));
        let (a, b) = (random(&[4, 5, 7]), random(&[4, 7, 6]));
        let found = nothing.f_baddbmm(&a, &b, 0.0, 1.0).unwrap();
        let zero = Tensor::zeros(1, (Kind::Float, Device::Cpu));
        assert!(close(&found, &reference(&zero, &a, &b, 1.0, 1.0)));
    }));
}

#[test]
fn backward_passes_come_here_too() {
    // Forward, and one product for each of the two gradients.
    assert!(made(3, || {
        let input = random(&[9, 4, 16]).set_requires_grad(true);
        let weight = random(&[24, 16]).set_requires_grad(true);
        let bias = random(&[24]);
        let output = input.linear(&weight, Some(&bias));
        let seed = random(&[9, 4, 24]);
        backward(&(&output * &seed).sum(Kind::Float)).unwrap();
        let flat = |tensor: &Tensor, width| tensor.reshape([-1, width]).to_kind(Kind::Double);
        let by_input = flat(&seed, 24).mm(&weight.detach().to_kind(Kind::Double));
        let by_weight = flat(&seed, 24).tr().mm(&flat(&input.detach(), 16));
        assert!(close(&input.grad(), &by_input.view([9, 4, 16])));
        assert!(close(&weight.grad(), &by_weight));
    }));
}

#[test]
fn what_onednn_does_not_take_is_libtorchs() {
    assert!(made(0, || {
        let options = |kind| (kind, Device::Cpu);
        // Other types.
        let whole = Tensor::ones([3, 3], options(Kind::Int64));
        assert_eq!(
            i64::try_from(whole.mm(&whole).sum(Kind::Int64)).unwrap(),
            27
        );
        let double = Tensor::ones([3, 3], options(Kind::Double));
        assert_eq!(
            f64::try_from(double.mm(&double).sum(Kind::Double)).unwrap(),
            27.0
        );
        // Nothing to multiply.
        let empty = Tensor::ones([4, 0], options(Kind::Float));
        let product = empty.mm(&Tensor::ones([0, 5], options(Kind::Float)));
        assert_eq!(product.size(), [4, 5]);
        assert_eq!(f64::try_from(product.abs().sum(Kind::Float)).unwrap(), 0.0);
        // Shapes that do not fit are refused as ever.
        let (a, b) = (random(&[3, 4]), random(&[5, 6]));
        let error = a.f_mm(&b).unwrap_err().to_string();
        assert!(error.contains("cannot be multiplied"), "{error}");
        // A result that shares memory with an input.
        let mut square = random(&[6, 6]);
        let other = square.shallow_clone();
        let _ = square.f_addmm_(&other, &random(&[6, 6]));
    }));
}
