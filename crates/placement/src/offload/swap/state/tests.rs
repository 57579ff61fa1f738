//! Blocks that arrive damaged.

use tch::Device;

use super::super::{BackingStore, Block, BlockSwapper};
use super::*;
use crate::transfer::verify::Verify;

/// Two blocks whose weight is all ones, and a device that damages the arrivals
/// for which `strikes` says so.
fn faulty(verify: Verify, strikes: impl FnMut(usize) -> bool + Send + 'static) -> BlockSwapper {
    faulty_from(BackingStore::Host, verify, strikes)
}

fn faulty_from(
    backing: BackingStore,
    verify: Verify,
    mut strikes: impl FnMut(usize) -> bool + Send + 'static,
) -> BlockSwapper {
    let block = |name: &str| Block {
        name: name.to_owned(),
        weights: vec![(
            "w".to_owned(),
            Tensor::ones([100], (Kind::Float, Device::Cpu)),
        )],
    };
    let options = SwapOptions {
        backing,
        verify,
        ..SwapOptions::default()
    };
    let stream = BlockSwapper::new(Device::Cpu, [block("a"), block("b")], options).unwrap();
    let mut arrivals = 0;
    stream.lock().fault = Some(Box::new(move |arrived| {
        if strikes(arrivals) {
            let _ = arrived.narrow(0, 8, 4).zero_();
        }
        arrivals += 1;
    }));
    stream
}

fn sum(stream: &BlockSwapper, block: usize) -> Result<f64, Error> {
    stream.evaluate(block, &[], |weights| {
        Ok(f64::try_from(weights.get("w")?.f_sum(Kind::Double)?)?)
    })
}

#[test]
fn a_block_that_arrives_wrong_is_fetched_again() {
    let stream = faulty(Verify::First, |arrival| arrival == 0);
    assert_eq!(sum(&stream, 0).unwrap(), 100.0);
    assert_eq!(stream.report().repeated, 1);
}

#[test]
fn a_block_that_arrives_wrong_twice_comes_by_another_strategy() {
    // The first block, the second on its way, and the first again; then in pieces.
    let swapper = faulty(Verify::Always, |arrival| arrival < 3);
    assert_eq!(sum(&swapper, 0).unwrap(), 100.0);
    assert_eq!(swapper.report().repeated, 2);
}

#[test]
fn a_block_that_is_read_wrong_is_read_again() {
    let folder = std::env::temp_dir();
    let disk = BackingStore::Disk { folder };
    let stream = faulty_from(disk.clone(), Verify::Always, |arrival| arrival == 0);
    assert_eq!(sum(&stream, 0).unwrap(), 100.0);
    assert_eq!(stream.report().repeated, 1);
    let stream = faulty_from(disk, Verify::Off, |_| true);
    assert_eq!(sum(&stream, 0).unwrap(), 99.0, "the fault strikes here too");
}

#[test]
fn a_block_that_keeps_arriving_wrong_ends_the_run() {
    let stream = faulty(Verify::Always, |_| true);
    let error = sum(&stream, 0).unwrap_err().to_string();
    assert!(
        error.starts_with("block `a` arrives damaged on the device: wrong between"),
        "{error}"
    );
}

#[test]
fn a_failed_block_is_not_taken_for_a_resident_one() {
    // The first block, the second on its way, and the first again, as a whole and in pieces.
    let stream = faulty(Verify::Always, |arrival| arrival < 4);
    assert!(sum(&stream, 0).is_err());
    assert_eq!(sum(&stream, 0).unwrap(), 100.0, "fetched again, not reused");
}

#[test]
fn without_verification_the_damage_goes_unseen() {
    let stream = faulty(Verify::Off, |_| true);
    assert_eq!(sum(&stream, 0).unwrap(), 99.0);
}
