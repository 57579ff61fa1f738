//! The prefetching loader: order, bounds, failures and resuming.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use surefoot_placement::loader::{
    BatchSampler, BoxError, LoadError, Loader, LoaderOptions, Source,
};
use surefoot_placement::{FieldPath, TensorTree};
use tch::Tensor;

/// Samples are their own indices; some of them fail.
#[derive(Default)]
struct Numbers {
    count: usize,
    fails: Option<usize>,
    panics: Option<usize>,
    /// The sample before which a worker reports and waits.
    waits: Option<(usize, Gate)>,
    read: Arc<AtomicUsize>,
}

type Gate = Mutex<(Sender<()>, Receiver<()>)>;

/// A gate, a receiver that tells when a worker waits at it, and a sender that opens it.
fn gate() -> (Gate, Receiver<()>, Sender<()>) {
    let (arrive, arrived) = channel();
    let (open, opened) = channel();
    (Mutex::new((arrive, opened)), arrived, open)
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
        if let Some((at, gate)) = &self.waits
            && *at == index
        {
            let gate = gate.lock().unwrap();
            gate.0.send(()).unwrap();
            // An error means that nobody will open the gate: the test is over.
            let _ = gate.1.recv();
        }
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

/// Three batches of different sizes in each epoch; the first sample is the number of the epoch.
struct Ragged;

impl BatchSampler for Ragged {
    fn batches_per_epoch(&self) -> u64 {
        3
    }

    fn samples_of(&self, number: u64) -> Vec<usize> {
        let (epoch, number) = self.place_of(number);
        (epoch as usize..).take(number as usize + 1).collect()
    }
}

#[test]
fn an_order_of_the_callers_own_is_followed_from_any_batch_on() {
    for workers in [0, 1, 4] {
        let source = Numbers {
            count: 30,
            ..Numbers::default()
        };
        let options = LoaderOptions {
            workers,
            ..LoaderOptions::default()
        };
        let mut loader = Loader::with_order(source, Ragged, options, 4).unwrap();
        let taken: Vec<_> = loader.by_ref().take(4).map(Result::unwrap).collect();
        let places: Vec<_> = taken.iter().map(|one| (one.epoch, one.number)).collect();
        assert_eq!(places, [(1, 1), (1, 2), (2, 0), (2, 1)]);
        let samples: Vec<_> = taken.iter().map(|one| numbers(&one.batch)).collect();
        assert_eq!(samples, [&[1, 2][..], &[1, 2, 3], &[2], &[2, 3]]);
        assert_eq!(loader.position(), 8);
    }
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
        error.ends_with("its number of samples was 30 and is now 31"),
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
            .ends_with("its short last batch was kept and is now left out"),
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
    let mut loader = Loader::new(source, options(4)).unwrap();
    take(&mut loader, 7);
    drop(loader);
    // The source is dropped with the last worker, and with it its handle on the counter.
    assert_eq!(Arc::strong_count(&read), 1);
}

#[test]
fn a_worker_that_is_told_to_end_does_not_finish_its_batch() {
    let (gate, arrived, open) = gate();
    let read = Arc::new(AtomicUsize::new(0));
    let source = Numbers {
        count: 1000,
        waits: Some((0, gate)),
        read: Arc::clone(&read),
        ..Numbers::default()
    };
    let whole = LoaderOptions {
        batch_size: 1000,
        shuffle: None,
        ..options(1)
    };
    let loader = Loader::new(source, whole).unwrap();
    arrived.recv().unwrap();
    let dropped = std::thread::spawn(move || drop(loader));
    // The loader sets the flag before it waits for its worker, some time from now.
    std::thread::sleep(Duration::from_millis(200));
    open.send(()).unwrap();
    dropped.join().unwrap();
    assert!(read.load(Ordering::SeqCst) < 1000);
}

#[test]
fn a_worker_that_waits_for_a_lock_of_the_dropper_is_left_behind_and_ends_later() {
    let (gate, arrived, open) = gate();
    let read = Arc::new(AtomicUsize::new(0));
    let source = Numbers {
        count: 100,
        waits: Some((6, gate)),
        read: Arc::clone(&read),
        ..Numbers::default()
    };
    let in_order = LoaderOptions {
        shuffle: None,
        ..options(1)
    };
    let loader = Loader::new(source, in_order).unwrap();
    arrived.recv().unwrap();
    // The gate opens only after the loader is dropped, like a lock that is held here.
    drop(loader);
    assert_eq!(Arc::strong_count(&read), 2, "its source is still in use");
    open.send(()).unwrap();
    while Arc::strong_count(&read) > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn a_sample_that_hangs_is_named_and_its_batch_comes_when_it_is_read() {
    let (gate, arrived, open) = gate();
    let source = Numbers {
        count: 12,
        waits: Some((5, gate)),
        ..Numbers::default()
    };
    let impatient = LoaderOptions {
        shuffle: None,
        timeout: Some(Duration::from_millis(20)),
        ..options(3)
    };
    let mut loader = Loader::new(source, impatient).unwrap();
    arrived.recv().unwrap();
    let mut next = || match loader.next().unwrap() {
        Err(LoadError::TimedOut { sample, what, .. }) => Err((sample, what)),
        other => Ok(numbers(&other.unwrap().batch)),
    };
    // On a busy machine other batches may be waited for, too.
    while next() != Ok(vec![0, 1, 2, 3]) {}
    let what = "sample 5 (epoch 0) is still being read".to_owned();
    assert_eq!(next(), Err((Some(5), what)));
    assert!(next().is_err(), "and again: the batch is not skipped");
    open.send(()).unwrap();
    let batch = std::iter::repeat_with(&mut next).find_map(Result::ok);
    assert_eq!(batch, Some(vec![4, 5, 6, 7]));
    assert_eq!(loader.state().batches, 2);
}

/// Live batches exist and are not dropped yet; the consumer holds one.
#[derive(Default)]
struct Counted {
    live: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TensorTree for Held {
    fn try_map<E, F>(self, _: &FieldPath, _: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        Ok(self)
    }
}

impl Source for Counted {
    type Sample = ();
    type Batch = Held;

    fn len(&self) -> usize {
        64
    }

    fn sample(&self, _: usize, _: u64) -> Result<(), BoxError> {
        Ok(())
    }

    fn collate(&self, _: Vec<()>) -> Result<Held, BoxError> {
        let live = self.live.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(live, Ordering::SeqCst);
        Ok(Held(Arc::clone(&self.live)))
    }
}

#[test]
fn no_more_batches_live_than_the_depth_and_the_one_in_use() {
    for (depth, pause) in [(1, 2), (3, 2), (3, 0), (8, 0)] {
        let source = Counted::default();
        let (live, most) = (Arc::clone(&source.live), Arc::clone(&source.most));
        let mut loader = Loader::new(
            source,
            LoaderOptions {
                depth,
                ..options(6)
            },
        )
        .unwrap();
        for _ in 0..60 {
            let batch = loader.next().unwrap().unwrap();
            std::thread::sleep(Duration::from_millis(pause));
            drop(batch);
        }
        drop(loader);
        assert!(most.load(Ordering::SeqCst) <= depth + 1, "depth {depth}");
        assert_eq!(live.load(Ordering::SeqCst), 0, "nothing is left behind");
    }
}

/// A source that grows while it is read.
struct Growing(AtomicUsize);

impl Source for Growing {
    type Sample = i64;
    type Batch = Tensor;

    fn len(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    fn sample(&self, index: usize, _: u64) -> Result<i64, BoxError> {
        Ok(index as i64)
    }

    fn collate(&self, samples: Vec<i64>) -> Result<Tensor, BoxError> {
        Ok(Tensor::f_from_slice(&samples)?)
    }
}

#[test]
fn a_state_names_the_samples_that_the_order_was_made_for() {
    let loader = Loader::new(Growing(AtomicUsize::new(30)), options(0)).unwrap();
    assert_eq!((loader.state().samples, loader.state().samples), (30, 30));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A run may be interrupted anywhere, even between two epochs, and resumed with any number of workers.
    #[test]
    fn a_run_cut_anywhere_is_the_run_that_was_not_cut(
        samples in 4..40_usize,
        cut in 0..40_usize,
        (before, after) in (0..4_usize, 0..4_usize),
        drop_last: bool,
        shuffle in prop::option::of(any::<u64>()),
        depth in 1..5_usize,
    ) {
        let source = || Numbers { count: samples, ..Numbers::default() };
        let with = |workers| LoaderOptions { drop_last, shuffle, depth, ..options(workers) };
        let whole = take(&mut Loader::new(source(), with(0)).unwrap(), cut + 12);
        let mut first = Loader::new(source(), with(before)).unwrap();
        prop_assert_eq!(&take(&mut first, cut)[..], &whole[..cut]);
        let mut second = Loader::resume(source(), with(after), &first.state()).unwrap();
        prop_assert_eq!(&take(&mut second, 12)[..], &whole[cut..]);
    }
}
