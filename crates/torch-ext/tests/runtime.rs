//! Seeds, threads, copies, and an accelerator that is not there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::accelerator::{self, DeviceIndex, Event, Stream};
use torch_ext::random::manual_seed;

fn random(size: [i64; 2]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

#[test]
fn a_seed_repeats_the_numbers() {
    manual_seed(11).unwrap();
    let first = random([5, 5]);
    manual_seed(11).unwrap();
    assert!(random([5, 5]).equal(&first));
}

/// One test at a time sets the number of threads: libtorch keeps it for the process.
static THREADS: Mutex<()> = Mutex::new(());

#[test]
fn every_number_is_in_one_share_however_many_threads_there_are() {
    let _alone = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    for threads in [1, 2, 3, 4, 16] {
        torch_ext::threads::set_count(threads).unwrap();
        for (count, grain) in [(0, 1), (1, 1), (1000, 1), (1000, 300), (5, 100)] {
            let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            let shares = AtomicUsize::new(0);
            torch_ext::threads::in_shares(count, grain, |share| {
                shares.fetch_add(1, Ordering::Relaxed);
                for number in share {
                    seen[number].fetch_add(1, Ordering::Relaxed);
                }
            })
            .unwrap();
            let once = seen.iter().all(|times| times.load(Ordering::Relaxed) == 1);
            assert!(once, "{count} {grain} on {threads}: {seen:?}");
            let shares = shares.into_inner();
            let most = threads.min(count.div_ceil(grain));
            assert!(shares <= most, "{shares} of {count} {grain} on {threads}");
        }
    }
}

#[test]
fn a_panic_in_a_share_is_the_callers() {
    let panicked = std::panic::catch_unwind(|| {
        torch_ext::threads::in_shares(100, 1, |share| assert!(!share.contains(&70), "seventy"))
    });
    let message = panicked.unwrap_err();
    assert_eq!(message.downcast_ref::<&str>(), Some(&"seventy"));
}

#[test]
fn the_number_of_threads_is_set() {
    let _alone = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    torch_ext::threads::set_count(1).unwrap();
    assert_eq!(torch_ext::threads::count().unwrap(), 1);
    assert!(torch_ext::threads::set_count(0).is_err());
}

#[test]
fn a_copy_converts_and_is_not_recorded() {
    let source = random([3, 3]).set_requires_grad(true);
    let mut destination = Tensor::zeros([3, 3], (Kind::Double, Device::Cpu));
    torch_ext::copy_into(&mut destination, &source, true).unwrap();
    assert!(!destination.requires_grad());
    assert!(destination.equal(&source.detach().to_kind(Kind::Double)));
    let mut wrong = Tensor::zeros([4], (Kind::Float, Device::Cpu));
    assert!(torch_ext::copy_into(&mut wrong, &source, false).is_err());
}

#[test]
fn without_an_accelerator_everything_says_so() {
    if accelerator::device_count() > 0 {
        return; // the tests of a machine with one are elsewhere
    }
    let device = DeviceIndex(0);
    let tensor = random([2, 2]);
    for outcome in [
        accelerator::synchronize(device),
        accelerator::set_current_device(device),
        accelerator::empty_cache(),
        accelerator::memory_info(device).map(drop),
        accelerator::pin_memory(&tensor).map(drop),
        accelerator::map_pinned(&tensor, device).map(drop),
        Stream::new(device).map(drop),
        Event::new(device).map(drop),
    ] {
        assert!(
            matches!(outcome, Err(Error::NoAccelerator(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn other_devices_of_tch_are_refused() {
    for device in [Device::Mps, Device::Cpu] {
        let refused = DeviceIndex::try_from(device);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn errors_of_libtorch_come_without_its_stack() {
    let error = Error::from(random([2, 3]).f_matmul(&random([2, 3])).unwrap_err()).to_string();
    assert!(error.contains("mat1 and mat2"), "{error}");
    assert!(!error.contains("Exception raised from"), "{error}");
}

#[test]
fn a_gradient_is_taken_once() {
    let mut leaf = Tensor::from_slice(&[1.0f32, 2.0]).set_requires_grad(true);
    assert!(torch_ext::take_gradient(&mut leaf).unwrap().is_none());
    torch_ext::backward(&leaf.square().sum(Kind::Float)).unwrap();
    let gradient = torch_ext::take_gradient(&mut leaf).unwrap().unwrap();
    assert_eq!(Vec::<f32>::try_from(gradient).unwrap(), [2.0, 4.0]);
    assert!(torch_ext::take_gradient(&mut leaf).unwrap().is_none());
    assert!(!leaf.grad().defined());
}
