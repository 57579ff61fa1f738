//! Batches that are made ahead: order, bounds, failures, panics and the end.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use surefoot_placement::prefetch::{Activity, BoxError, Prefetcher};
use surefoot_placement::{FieldPath, TensorTree};
use tch::{Device, Tensor};

fn prefetcher(
    first: u64,
    ahead: usize,
    mut make: impl FnMut(u64) -> Result<Tensor, BoxError> + Send + 'static,
) -> Prefetcher<Tensor> {
    Prefetcher::new(first, ahead, Device::Cpu, move |n, _: &Activity| make(n)).unwrap()
}

fn taken(prefetcher: &mut Prefetcher<Tensor>) -> i64 {
    prefetcher.next().unwrap().unwrap().int64_value(&[])
}

#[test]
fn batches_come_in_order_from_any_number_on() {
    let make = |number: u64| Ok(Tensor::from(number as i64));
    let mut whole = prefetcher(0, 2, make);
    let all: Vec<i64> = (0..9).map(|_| taken(&mut whole)).collect();
    assert_eq!(all, (0..9).collect::<Vec<_>>());
    assert_eq!(whole.position(), 9);
    let mut rest = prefetcher(5, 3, make);
    let rest: Vec<i64> = (0..4).map(|_| taken(&mut rest)).collect();
    assert_eq!(rest, all[5..]);
}

#[test]
fn no_more_than_asked_is_made_ahead() {
    let (begun, seen) = channel();
    let mut ahead = prefetcher(0, 3, move |number| {
        begun.send(number).unwrap();
        Ok(Tensor::from(number as i64))
    });
    // Without a consumer three are made, and a fourth never begins.
    for number in 0..3 {
        assert_eq!(seen.recv().unwrap(), number);
    }
    assert!(seen.try_recv().is_err());
    taken(&mut ahead);
    assert_eq!(seen.recv().unwrap(), 3);
}

/// A batch that counts how many of it live.
struct Counted(Arc<AtomicI64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TensorTree for Counted {
    fn try_map<E, F>(self, _: &FieldPath, _: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        Ok(self)
    }
}

#[test]
fn no_more_batches_live_than_are_made_ahead_and_the_one_in_use() {
    let (live, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (counted, peak) = (Arc::clone(&live), Arc::clone(&most));
    let make = move |_, _: &Activity| {
        peak.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Ok(Counted(Arc::clone(&counted)))
    };
    let mut ahead = Prefetcher::new(0, 2, Device::Cpu, make).unwrap();
    for _ in 0..50 {
        drop(ahead.next().unwrap().unwrap());
    }
    assert!(most.load(Ordering::SeqCst) <= 3);
    drop(ahead);
    assert_eq!(live.load(Ordering::SeqCst), 0);
}

#[test]
fn a_batch_that_fails_or_panics_is_an_error_in_its_place_and_the_rest_still_comes() {
    let mut ahead = prefetcher(0, 2, |number| match number {
        1 => Err("torn page".into()),
        2 => panic!("on purpose"),
        3 => std::panic::panic_any(PanicsAgain),
        _ => Ok(Tensor::from(number as i64)),
    });
    assert_eq!(taken(&mut ahead), 0);
    let said = |made: Option<Result<Tensor, BoxError>>| made.unwrap().unwrap_err().to_string();
    assert_eq!(said(ahead.next()), "torn page");
    assert_eq!(said(ahead.next()), "making batch 2 panicked: on purpose");
    assert!(said(ahead.next()).contains("batch 3 panicked: with a payload"));
    assert_eq!(taken(&mut ahead), 4);
}

/// A payload that would panic when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_dropped_one_has_released_what_its_closure_owns() {
    let owned = Arc::new(AtomicUsize::new(0));
    let inside = Arc::clone(&owned);
    let mut ahead = prefetcher(0, 4, move |number| {
        inside.fetch_add(1, Ordering::SeqCst);
        Ok(Tensor::from(number as i64))
    });
    taken(&mut ahead);
    drop(ahead);
    assert_eq!(Arc::strong_count(&owned), 1);
}

#[test]
fn a_thread_that_waits_for_a_lock_of_the_dropper_is_left_behind_and_ends_later() {
    let owned = Arc::new(());
    let inside = Arc::clone(&owned);
    let (arrive, arrived) = channel();
    let (open, opened) = channel::<()>();
    let ahead = prefetcher(0, 1, move |number| {
        let _inside = &inside;
        arrive.send(()).unwrap();
        // An error means that nobody will open the gate.
        let _ = opened.recv();
        Ok(Tensor::from(number as i64))
    });
    arrived.recv().unwrap();
    // The gate opens only afterwards, like a lock that is held here.
    drop(ahead);
    assert_eq!(Arc::strong_count(&owned), 2, "it is still in use");
    open.send(()).unwrap();
    while Arc::strong_count(&owned) > 1 {
        std::thread::yield_now();
    }
}
