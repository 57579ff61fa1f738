//! The engine with real tensors. On a machine without a GPU, the device is the CPU: copies are host copies,
//! and everything else is the same.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use surefoot_placement::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use surefoot_placement::transport::Element;
use surefoot_placement::{Placed, Policy, Request, Role, TransferEngine, TransferStrategy, Verify};
use tch::{Device, Kind, Tensor};

fn place(tensor: &Tensor, cast: Option<Element>) -> (Tensor, surefoot_placement::PlacementReport) {
    let mut transport = TorchTransport::new(Device::Cpu, TransportOptions::default()).unwrap();
    let mut engine = TransferEngine::new(Policy {
        verify: Verify::Always,
        ..Policy::default()
    });
    let host = HostTensor::new(tensor).unwrap();
    let request = Request {
        name: "weight",
        role: Role::Weight,
        cast,
    };
    match engine.to_device(&mut transport, &host, &request).unwrap() {
        Placed::OnDevice(placed) => (placed, engine.report().clone()),
        Placed::OnHost(_) => panic!("it stayed on the host"),
    }
}

#[test]
fn a_tensor_with_gaps_arrives_verified_by_the_first_strategy() {
    let source = Tensor::randn([300, 500], (Kind::Float, Device::Cpu)).tr();
    let (placed, report) = place(&source, None);
    assert!(placed.is_contiguous() && placed.equal(&source));
    assert_ne!(placed.data_ptr(), source.data_ptr());
    let total = report.routes[0];
    assert_eq!(
        (total.strategy, total.tensors, total.verified),
        (TransferStrategy::Direct, 1, 1)
    );
}

#[test]
fn a_cast_on_the_device_is_verified_too() {
    let source = Tensor::randn([1000], (Kind::Float, Device::Cpu));
    let (placed, report) = place(&source, Some(Element::BF16));
    assert!(placed.equal(&source.to_kind(Kind::BFloat16)));
    assert_eq!(report.routes[0].verified, 1);
}

#[test]
fn nan_payloads_are_bytes_like_any_other() {
    let bits = Tensor::from_slice(&[0x7fc0_1234_i32, 0x7f80_0001, -1]);
    let source = bits.view_dtype(Kind::Float);
    let (placed, _) = place(&source, None);
    assert!(placed.view_dtype(Kind::Int).equal(&bits));
}

#[test]
fn a_cast_of_an_infinite_value_arrives() {
    let source = Tensor::from_slice(&[f32::INFINITY, -0.0, 1e30]);
    let (placed, _) = place(&source, Some(Element::F16));
    assert!(placed.equal(&source.to_kind(Kind::Half)));
}

#[test]
fn sparse_tensors_are_refused_with_a_reason() {
    let sparse = Tensor::eye(3, (Kind::Float, Device::Cpu)).to_sparse_sparse_dim(2);
    let error = HostTensor::new(&sparse).err().unwrap().to_string();
    assert!(error.contains("only dense tensors on the CPU"), "{error}");
}
