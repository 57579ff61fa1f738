//! What the placer does on the CPU, where nothing is copied.

use super::*;

fn placer() -> Placer {
    Placer::new(Device::Cpu, Policy::default()).unwrap()
}

fn random(size: [i64; 2]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

#[test]
fn on_the_cpu_a_tensor_that_is_right_already_is_not_copied() {
    let source = random([3, 4]).set_requires_grad(true);
    let placed = placer().weight("w", &source, None).unwrap();
    assert_eq!(placed.data_ptr(), source.data_ptr());
    assert!(placed.requires_grad());
}

#[test]
fn gaps_are_closed_and_the_kind_is_changed() {
    let source = random([3, 4]).tr().set_requires_grad(true);
    let placed = placer().weight("w", &source, Some(Kind::BFloat16)).unwrap();
    assert!(placed.is_contiguous() && placed.requires_grad() && placed.is_leaf());
    assert!(
        placed
            .detach()
            .equal(&source.detach().to_kind(Kind::BFloat16))
    );
}

#[test]
fn a_batch_goes_through_the_same_door() {
    let batch = placer().batch(vec![Some(random([2, 2]).tr()), None]);
    let batch = batch.unwrap();
    let [Some(tokens), None] = &batch[..] else {
        panic!("another batch")
    };
    assert!(tokens.is_contiguous());
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    if torch_ext::accelerator::device_count() == 0 {
        let error = Placer::new(Device::Cuda(0), Policy::default())
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "this libtorch sees no accelerator");
    }
}
