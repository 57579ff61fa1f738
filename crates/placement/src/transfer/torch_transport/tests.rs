//! The transport on the CPU, where a copy is a copy in memory.

use tch::Kind;

use super::sums::{SLAB_ROWS, Summing, bytes_of, rows_of};
use super::*;
use crate::transfer::checksum::{ROW_BYTES, ROW_WORDS};

fn transport() -> TorchTransport {
    TorchTransport::new(Device::Cpu, TransportOptions::default()).unwrap()
}

fn sample(kind: Kind, count: i64) -> Tensor {
    let numbers = Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 - 3.0;
    numbers.to_kind(kind)
}

#[test]
fn sums_by_tensor_operations_equal_sums_of_bytes() {
    let weights = weights_on(Device::Cpu).unwrap();
    let kinds = [
        Kind::Float,
        Kind::BFloat16,
        Kind::Bool,
        Kind::Int64,
        Kind::Float8e4m3fn,
    ];
    for kind in kinds {
        for count in [0, 1, 3, 4096, 5000, 300_001] {
            let tensor = sample(kind, count);
            let by_bytes = Checksum::of(HostTensor(tensor.shallow_clone()).bytes().unwrap());
            assert_eq!(
                sum_rows(&tensor, &weights).unwrap(),
                by_bytes,
                "{count} of {kind:?}"
            );
        }
    }
}

#[test]
fn a_slab_boundary_does_not_show_in_the_sums() {
    let weights = weights_on(Device::Cpu).unwrap();
    let tensor = sample(Kind::Int, SLAB_ROWS * ROW_WORDS as i64 + 4097);
    let by_bytes = Checksum::of(HostTensor(tensor.shallow_clone()).bytes().unwrap());
    assert_eq!(sum_rows(&tensor, &weights).unwrap(), by_bytes);
}

/// Of every size that takes another way through the slabs: empty, short, odd, full rows, and more than a slab.
const COUNTS: [i64; 7] = [
    0,
    3,
    5000,
    2 * ROW_WORDS as i64,
    1,
    SLAB_ROWS * ROW_WORDS as i64 + 4097,
    300_001,
];

#[test]
fn tensors_that_share_slabs_have_the_sums_of_their_own_bytes() {
    let weights = weights_on(Device::Cpu).unwrap();
    for kind in [Kind::Float, Kind::Uint8] {
        let tensors: Vec<Tensor> = COUNTS.iter().map(|&count| sample(kind, count)).collect();
        let rows = tensors.iter().map(rows_of).sum();
        let mut summing = Summing::new(rows, &weights).unwrap();
        let mut expected = Vec::new();
        for tensor in &tensors {
            let bytes = bytes_of(tensor).unwrap();
            let (total, row_bytes) = (bytes.numel() as i64, ROW_BYTES as i64);
            // In pieces of seven rows, as a copy goes on.
            let mut start = 0;
            while start < total {
                let length = (7 * row_bytes).min(total - start);
                summing.add(&bytes, start, length).unwrap();
                start += length;
            }
            let sum = Checksum::of(HostTensor(tensor.shallow_clone()).bytes().unwrap());
            expected.extend_from_slice(sum.rows());
        }
        assert_eq!(summing.read().unwrap(), expected, "{kind:?}");
    }
}

#[test]
fn what_is_copied_together_is_what_was_summed_ahead() {
    let loads: Vec<CopyJob> = COUNTS
        .iter()
        .enumerate()
        .map(|(at, &count)| (HostTensor(sample(Kind::Float, count)), at != 2))
        .collect();
    let copied = copy_batched(&loads, Device::Cpu, None).unwrap();
    assert_eq!(copied.len(), loads.len());
    for ((source, summed), copied) in loads.iter().zip(copied) {
        let copied = copied.unwrap();
        assert!(copied.remote.equal(&source.0));
        assert_ne!(copied.remote.as_ptr(), source.0.as_ptr());
        let sum = summed.then(|| Checksum::of(source.bytes().unwrap()));
        assert_eq!((copied.sent, copied.arrived), (sum, None));
    }
}

#[test]
fn the_cpu_is_believed_to_compute_and_a_device_without_right_weights_is_not() {
    let weights = weights_on(Device::Cpu).unwrap();
    assert!(computes(Device::Cpu, &weights).unwrap());
    let nothing = weights.zeros_like();
    assert!(!computes(Device::Cpu, &nothing).unwrap());
}

#[test]
fn a_copy_that_is_summed_on_the_way_is_the_same_copy() {
    let mut transport = transport();
    for count in [0, 3, 4097, 3_000_001] {
        let host = HostTensor::new(&sample(Kind::Float, count)).unwrap();
        let summed = transport
            .copy_with_checksum(&host, CopyMethod::Direct)
            .unwrap();
        assert!(summed.remote.equal(&host.0), "{count}");
        assert_eq!(summed.sent, Some(transport.sum_host(&host).unwrap()));
        assert_eq!(
            summed.arrived,
            transport.sum_device(&summed.remote).unwrap()
        );
    }
}

#[test]
fn every_way_to_copy_delivers_the_same_bytes() {
    let mut transport = transport();
    let host = HostTensor::new(&sample(Kind::Float, 1000).view([10, 100])).unwrap();
    for method in [
        CopyMethod::Direct,
        CopyMethod::Chunked { chunk: Bytes(40) },
        CopyMethod::Chunked { chunk: Bytes(1) },
        CopyMethod::Chunked {
            chunk: Bytes(u64::MAX),
        },
    ] {
        let remote = transport.copy(&host, method).unwrap();
        assert!(remote.equal(&host.0), "{method:?}");
        assert_ne!(remote.data_ptr(), host.0.data_ptr());
        assert_eq!(
            transport.sum_device(&remote).unwrap(),
            Some(transport.sum_host(&host).unwrap())
        );
    }
}

#[test]
fn an_empty_tensor_travels_too() {
    let mut transport = transport();
    let host = HostTensor::new(&Tensor::zeros([0, 7], (Kind::Float, Device::Cpu))).unwrap();
    let remote = transport
        .copy(&host, CopyMethod::Chunked { chunk: Bytes(8) })
        .unwrap();
    assert_eq!(remote.size(), [0, 7]);
    assert_eq!(
        transport.sum_device(&remote).unwrap(),
        Some(Checksum::of(&[]))
    );
}

#[test]
fn what_the_cpu_lacks_is_refused_and_not_retried_as_something_else() {
    let mut transport = transport();
    let host = HostTensor::new(&sample(Kind::Float, 4)).unwrap();
    for outcome in [
        transport.stage(&host).map(drop),
        transport.copy(&host, CopyMethod::OtherStream).map(drop),
        transport.copy(&host, CopyMethod::ZeroCopy).map(drop),
    ] {
        assert!(
            matches!(outcome, Err(TransportError::Refused { .. })),
            "{outcome:?}"
        );
    }
}

#[test]
fn gaps_are_closed_on_the_host() {
    let mut transport = transport();
    let host = HostTensor::new(&sample(Kind::Float, 12).view([3, 4]).tr()).unwrap();
    let contiguous = transport.contiguous(&host).unwrap();
    assert!(contiguous.0.is_contiguous());
    assert!(contiguous.0.equal(&host.0));
}

#[test]
fn the_classes_of_errors_are_kept() {
    let copy = |error| explain(Operation::Copy, Pool::Device, error);
    let message = || "HIP out of memory".to_owned();
    assert!(matches!(
        copy(Error::OutOfMemory { message: message() }),
        TransportError::OutOfMemory {
            pool: Pool::Device,
            ..
        }
    ));
    assert!(matches!(
        copy(Error::DeviceLost { message: message() }),
        TransportError::ContextLost { .. }
    ));
    assert!(matches!(
        copy(Error::Torch(message())),
        TransportError::Refused { .. }
    ));
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    if accelerator::device_count() == 0 {
        let made = TorchTransport::new(Device::Cuda(0), TransportOptions::default());
        assert!(matches!(made, Err(Error::NoAccelerator(_))));
    }
}

#[test]
fn elements_and_kinds_are_inverse() {
    for element in [
        Element::Bool,
        Element::U8,
        Element::I8,
        Element::I16,
        Element::I32,
        Element::I64,
        Element::F8E4M3,
        Element::F8E5M2,
        Element::F8E4M3Fnuz,
        Element::F8E5M2Fnuz,
        Element::F16,
        Element::BF16,
        Element::F32,
        Element::F64,
        Element::C64,
        Element::C128,
    ] {
        assert_eq!(element_of(kind_of(element)), Some(element));
        assert_eq!(kind_of(element).elt_size_in_bytes() as u64, element.size());
    }
}

#[test]
fn what_goes_over_a_slow_link_gets_its_time_and_what_hangs_is_noticed() {
    let options = TransportOptions::default();
    assert_eq!(options.timeout(Bytes::ZERO), options.deadline);
    // 20 GiB at 64 MiB/s are 320 s, more than the whole deadline of an operation.
    let long = options.timeout(Bytes::gib(20));
    assert_eq!(long, options.deadline + Duration::from_secs(320));
    assert!(options.timeout(Bytes(u64::MAX)) > long);
}

/// Of the first there are fewer bytes than elements, of the second others lie in between.
fn in_pieces() -> [Tensor; 2] {
    let options = (Kind::Float, Device::Cpu);
    [
        Tensor::zeros([1], options).expand([1 << 30], false),
        Tensor::zeros([4, 6], options).narrow(1, 0, 3),
    ]
}

#[test]
fn the_bytes_of_a_tensor_in_pieces_are_refused_and_not_read() {
    let mut transport = TorchTransport::new(Device::Cpu, TransportOptions::default()).unwrap();
    for tensor in in_pieces() {
        let mut host = HostTensor::new(&tensor).unwrap();
        assert!(matches!(host.bytes(), Err(Error::InvalidArgument(_))));
        assert!(host.bytes_mut().is_err());
        let refused = transport.sum_host(&host).unwrap_err();
        assert!(
            refused.to_string().contains("only a contiguous tensor"),
            "{refused}"
        );
        assert!(transport.sum_device(&tensor).is_err());
    }
}

#[test]
fn a_copy_between_tensors_of_two_sizes_is_refused() {
    let options = (Kind::Float, Device::Cpu);
    let mut target = HostTensor(Tensor::zeros([3], options));
    let source = HostTensor(Tensor::zeros([4], options));
    assert!(target.fill_from(&source).is_err());
}
