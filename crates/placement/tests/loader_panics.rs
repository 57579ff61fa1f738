//! The prefetching loader with a source that panics: the sample is reported, nobody waits forever, and all
//! others arrive.

#![allow(clippy::unwrap_used, reason = "tests")]

use surefoot_placement::loader::{BoxError, LoadError, Loader, LoaderOptions, Source};
use surefoot_placement::{FieldPath, TensorTree};
use tch::Tensor;

fn options(workers: usize) -> LoaderOptions {
    LoaderOptions {
        batch_size: 4,
        shuffle: None,
        workers,
        ..LoaderOptions::default()
    }
}

/// Panics at the given place, with a payload that is not text.
struct Panics(&'static str);

impl Source for Panics {
    type Sample = ();
    type Batch = PanicsWhenMapped;

    fn len(&self) -> usize {
        4
    }

    fn sample(&self, index: usize, _: u64) -> Result<(), BoxError> {
        if self.0 == "sample" && index == 2 {
            std::panic::panic_any(42);
        }
        Ok(())
    }

    fn collate(&self, _: Vec<()>) -> Result<PanicsWhenMapped, BoxError> {
        if self.0 == "collate" {
            std::panic::panic_any(format!("{} of a kind", 3));
        }
        Ok(PanicsWhenMapped)
    }
}

#[derive(Debug)]
struct PanicsWhenMapped;

impl TensorTree for PanicsWhenMapped {
    fn try_map<E, F>(self, _: &FieldPath, _: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        panic!("no field of that name")
    }
}

#[test]
fn a_panic_anywhere_is_an_error_and_ends_no_worker() {
    let told = |place, pin_for| {
        let plain = LoaderOptions {
            pin_for,
            ..options(1)
        };
        let loader = Loader::new(Panics(place), plain).unwrap();
        // Twice: the worker is still there after the first.
        let errors: Vec<_> = loader.take(2).map(|b| b.unwrap_err().to_string()).collect();
        errors[0].clone()
    };
    let cpu = tch::Device::Cpu;
    assert_eq!(
        told("sample", cpu),
        "reading sample 2 (epoch 0) panicked: with a payload that is not text"
    );
    assert_eq!(
        told("collate", cpu),
        "making a batch of samples [0, 1, 2, 3] (epoch 0) panicked: 3 of a kind"
    );
    assert_eq!(
        told("pinning", tch::Device::Cuda(0)),
        "making a batch of samples [0, 1, 2, 3] (epoch 0) panicked: no field of that name"
    );
}

/// Its second sample fails, and the first one panics when it is dropped because of that.
struct PanicsWhenDropped;

struct Sample(usize);

impl Drop for Sample {
    fn drop(&mut self) {
        assert!(self.0 != 0, "on purpose");
    }
}

impl Source for PanicsWhenDropped {
    type Sample = Sample;
    type Batch = Tensor;

    fn len(&self) -> usize {
        40
    }

    fn sample(&self, index: usize, _: u64) -> Result<Sample, BoxError> {
        match index {
            1 => Err("bad".into()),
            _ => Ok(Sample(index)),
        }
    }

    fn collate(&self, samples: Vec<Sample>) -> Result<Tensor, BoxError> {
        Ok(Tensor::f_from_slice(&[samples[0].0 as i64])?)
    }
}

#[test]
fn a_batch_whose_worker_has_died_is_an_error_and_others_go_on() {
    for workers in [1, 2] {
        let mut loader = Loader::new(PanicsWhenDropped, options(workers)).unwrap();
        let lost = |loaded: Result<_, LoadError>| match loaded {
            Err(LoadError::WorkerDied { batch, epoch }) => Some((batch, epoch)),
            _ => None,
        };
        assert_eq!(lost(loader.next().unwrap()), Some((0, 0)));
        let next = loader.next().unwrap();
        match workers {
            1 => assert_eq!(lost(next), Some((1, 0))),
            _ => assert_eq!(i64::try_from(next.unwrap().batch).unwrap(), 4),
        }
    }
}
