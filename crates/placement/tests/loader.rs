//! The prefetching loader: order, bounds, failures and resuming.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use placement::loader::{BoxError, LoadError, Loader, LoaderOptions, Source};
use tch::Tensor;

/// Samples are their own numbers; some of them are bad.
#[derive(Default)]
struct Numbers {
    count: usize,
    fails: Option<usize>,
    panics: Option<usize>,
    read: Arc<AtomicUsize>,
}

impl Source for Numbers {
    type Sample = i64;
    type Batch = Tensor;

    fn len(&self) -> usize {
        self.count
    }

    fn sample(&self, index: usize, _: u64) -> Result<i64, BoxError> {
        self.read.fetch_add(1, Ordering::SeqCst);
        if self.fails == Some(index) {
            return Err("torn page".into());
        }
        assert_ne!(self.panics, Some(index), "on purpose");
        Ok(index as i64)
    }

    fn collate(&self, samples: Vec<i64>) -> Result<Tensor, BoxError> {
        Ok(Tensor::f_from_slice(&samples)?)
    }
}

fn options(workers: usize) -> LoaderOptions {
    LoaderOptions {
        batch_size: 4,
        shuffle: Some(3),
        workers,
        ..LoaderOptions::default()
    }
}

fn numbers(loaded: &Tensor) -> Vec<i64> {
    loaded.try_into().unwrap()
}

fn take(loader: &mut Loader<Numbers>, count: usize) -> Vec<Vec<i64>> {
    loader
        .take(count)
        .map(|loaded| numbers(&loaded.unwrap().batch))
        .collect()
}

#[test]
fn the_order_does_not_depend_on_the_workers() {
    let order = |workers| {
        let source = Numbers {
            count: 30,
            ..Numbers::default()
        };
        take(&mut Loader::new(source, options(workers)).unwrap(), 20)
    };
    let alone = order(0);
    assert_eq!(order(1), alone);
    assert_eq!(order(5), alone);
}

#[test]
fn a_resumed_loader_goes_on_with_the_same_batches() {
    let source = || Numbers {
        count: 30,
        ..Numbers::default()
    };
    let mut whole = Loader::new(source(), options(2)).unwrap();
    let expected = take(&mut whole, 17);
    let mut first = Loader::new(source(), options(3)).unwrap();
    take(&mut first, 9);
    let saved = serde_json::to_string(&first.state()).unwrap();
    let state = serde_json::from_str(&saved).unwrap();
    let mut second = Loader::resume(source(), options(1), &state).unwrap();
    assert_eq!(take(&mut second, 8), expected[9..]);
}

#[test]
fn a_state_of_another_loader_is_refused() {
    let source = |count| Numbers {
        count,
        ..Numbers::default()
    };
    let state = Loader::new(source(30), options(0)).unwrap().state();
    let error = Loader::resume(source(31), options(0), &state)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.ends_with("its number of samples is 30, and now it is 31"),
        "{error}"
    );
    let other = LoaderOptions {
        shuffle: None,
        ..options(0)
    };
    assert!(Loader::resume(source(30), other, &state).is_err());
}

#[test]
fn a_short_last_batch_is_kept_when_it_is_asked_for_and_resumed_at() {
    let source = || Numbers {
        count: 10,
        ..Numbers::default()
    };
    let kept = LoaderOptions {
        drop_last: false,
        shuffle: None,
        ..options(2)
    };
    let mut loader = Loader::new(source(), kept).unwrap();
    assert_eq!(
        take(&mut loader, 3),
        [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]
    );
    let state = loader.state();
    let mut again = Loader::resume(source(), kept, &state).unwrap();
    assert_eq!(take(&mut again, 1), [[0, 1, 2, 3]]);
    let dropped = LoaderOptions {
        drop_last: true,
        ..kept
    };
    let error = Loader::resume(source(), dropped, &state).err().unwrap();
    assert!(
        error
            .to_string()
            .ends_with("its short last batch is kept, and now it is left out"),
        "{error}"
    );
    let few = Numbers {
        count: 3,
        ..Numbers::default()
    };
    assert_eq!(
        take(&mut Loader::new(few, kept).unwrap(), 2),
        [[0, 1, 2], [0, 1, 2]]
    );
}

/// States that were saved before the option existed.
#[test]
fn an_older_state_left_the_short_batch_out() {
    let saved = r#"{"batches": 1, "shuffle": 3, "batch_size": 4, "samples": 30}"#;
    let state = serde_json::from_str(saved).unwrap();
    let source = Numbers {
        count: 30,
        ..Numbers::default()
    };
    assert!(Loader::resume(source, options(0), &state).is_ok());
}

#[test]
fn no_more_than_the_depth_is_read_ahead() {
    let read = Arc::new(AtomicUsize::new(0));
    let source = Numbers {
        count: 1000,
        read: Arc::clone(&read),
        ..Numbers::default()
    };
    let mut loader = Loader::new(
        source,
        LoaderOptions {
            depth: 3,
            ..options(8)
        },
    )
    .unwrap();
    for taken in 1..50 {
        loader.next().unwrap().unwrap();
        assert!(
            read.load(Ordering::SeqCst) <= 4 * (taken + 3),
            "after {taken} batches"
        );
    }
}

#[test]
fn a_bad_sample_is_named_in_its_place_and_the_rest_still_comes() {
    for workers in [0, 3] {
        let source = Numbers {
            count: 12,
            fails: Some(5),
            ..Numbers::default()
        };
        let options = LoaderOptions {
            shuffle: None,
            ..options(workers)
        };
        let mut loader = Loader::new(source, options).unwrap();
        assert_eq!(take(&mut loader, 1), [[0, 1, 2, 3]]);
        let error = loader.next().unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "sample 5 (epoch 0) cannot be read: torn page"
        );
        assert_eq!(take(&mut loader, 1), [[8, 9, 10, 11]]);
    }
}

#[test]
fn a_panic_in_a_worker_is_named_and_does_not_hang() {
    let source = Numbers {
        count: 12,
        panics: Some(9),
        ..Numbers::default()
    };
    let loader = Loader::new(
        source,
        LoaderOptions {
            shuffle: None,
            ..options(2)
        },
    )
    .unwrap();
    let outcomes: Vec<_> = loader.take(4).collect();
    assert!(
        matches!(
            &outcomes[2],
            Err(LoadError::SamplePanicked { sample: 9, epoch: 0, message }) if message.contains("on purpose")
        ),
        "{:?}",
        outcomes[2]
    );
    assert_eq!(outcomes[3].as_ref().unwrap().epoch, 1);
}

#[test]
fn too_few_samples_are_an_error_at_once() {
    let source = Numbers {
        count: 3,
        ..Numbers::default()
    };
    let error = Loader::new(source, options(1)).err().unwrap().to_string();
    assert_eq!(error, "3 samples do not fill one batch of 4");
}

#[test]
fn dropping_a_loader_ends_its_workers() {
    let read = Arc::new(AtomicUsize::new(0));
    let source = Numbers {
        count: 100,
        read: Arc::clone(&read),
        ..Numbers::default()
    };
    drop(Loader::new(source, options(4)).unwrap());
    // The source goes with the last worker, and with it its handle on the counter.
    while Arc::strong_count(&read) > 1 {
        std::thread::yield_now();
    }
}
