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
    let [Some(tokens), None] = &batch.unwrap()[..] else {
        panic!("another batch")
    };
    assert!(tokens.is_contiguous());
}

#[test]
fn parameters_keep_their_identity() {
    let mut weight = random([4, 4]).set_requires_grad(true);
    let held_by_the_optimizer = weight.shallow_clone();
    let summary = placer()
        .module([("layer.weight", &mut weight)], Some(Kind::BFloat16))
        .unwrap();
    assert_eq!(held_by_the_optimizer.kind(), Kind::BFloat16);
    assert!(held_by_the_optimizer.requires_grad());
    assert_eq!((summary.tensors, summary.bytes), (1, Bytes(32)));
}

#[test]
fn tied_weights_move_once_and_stay_tied() {
    let mut embedding = random([8, 4]);
    let mut head = embedding.detach();
    let summary = placer()
        .module(
            [("embed.weight", &mut embedding), ("head.weight", &mut head)],
            Some(Kind::Half),
        )
        .unwrap();
    assert_eq!((summary.tied, summary.bytes), (1, Bytes(64)));
    assert_eq!(embedding.data_ptr(), head.data_ptr());
}

/// More than move together, so that the first has arrived when its other handle comes.
#[test]
fn a_tensor_that_is_listed_again_after_it_has_arrived_is_counted_once() {
    let mut weights: Vec<Tensor> = (0..300).map(|_| random([4, 4])).collect();
    weights.push(weights[0].shallow_clone());
    weights.push(weights[1].detach());
    let names = (0..).map(|number| format!("{number}.weight"));
    let summary = placer()
        .module(names.zip(&mut weights), Some(Kind::Half))
        .unwrap();
    assert_eq!((summary.tensors, summary.tied), (302, 2));
    assert_eq!(summary.bytes, Bytes(300 * 32));
    for (first, again) in [(0, 300), (1, 301)] {
        assert_eq!(weights[first].data_ptr(), weights[again].data_ptr());
    }
}

#[test]
fn a_view_with_another_layout_is_not_tied() {
    let mut weight = random([4, 4]);
    let mut transposed = weight.detach().tr();
    let summary = placer()
        .module(
            [("a", &mut weight), ("b", &mut transposed)],
            Some(Kind::Half),
        )
        .unwrap();
    assert_eq!(summary.tied, 0);
    assert!(transposed.equal(&weight.tr()));
}

#[test]
fn integers_keep_their_kind() {
    let mut ids = Tensor::from_slice(&[1_i64, 2]);
    placer()
        .module([("ids", &mut ids)], Some(Kind::BFloat16))
        .unwrap();
    assert_eq!(ids.kind(), Kind::Int64);
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
