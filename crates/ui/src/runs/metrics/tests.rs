//! What is read of `metrics.jsonl`, whole or not.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::*;

fn train(step: u64, loss: f64) -> String {
    format!(
        "{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"learning_rate\":0.001,\"grad_norm\":1.5,\
         \"tokens_per_second\":1000.0,\"memory\":{{\"live\":10,\"held\":20,\"live_peak\":30,\"held_peak\":40,\
         \"resident\":50}}}}\n"
    )
}

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        File::create(&path).unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    fn append(&self, text: impl AsRef<[u8]>) {
        let mut file = File::options().append(true).open(&self.path).unwrap();
        file.write_all(text.as_ref()).unwrap();
    }
}

fn update(metrics: &mut Metrics, path: &Path) -> Change {
    metrics.update(&mut File::open(path).unwrap()).unwrap()
}

fn losses(metrics: &Metrics) -> Vec<f64> {
    let curves = metrics.train().curves;
    let loss = curves.into_iter().find(|curve| curve.name == "loss");
    loss.map_or(Vec::new(), |curve| {
        curve.mean.into_iter().flatten().collect()
    })
}

#[test]
fn an_incomplete_line_is_read_once_it_is_complete() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    place.append(train(1, 5.0));
    let second = train(2, 4.0);
    place.append(&second[..30]);
    assert_eq!(update(&mut metrics, &place.path), Change::Anew);
    assert_eq!(losses(&metrics), [5.0]);
    assert_eq!(update(&mut metrics, &place.path), Change::Same);
    place.append(&second[30..]);
    assert_eq!(update(&mut metrics, &place.path), Change::More);
    assert_eq!(losses(&metrics), [5.0, 4.0]);
    assert_eq!(metrics.unreadable(), 0);
}

#[test]
fn a_file_rewritten_by_a_resumed_run_is_read_again() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    place.append(train(1, 5.0) + &train(2, 4.0));
    update(&mut metrics, &place.path);
    let other = place.path.with_extension("tmp");
    std::fs::write(&other, train(1, 5.0) + &train(2, 3.0) + &train(3, 2.0)).unwrap();
    std::fs::rename(&other, &place.path).unwrap();
    assert_eq!(update(&mut metrics, &place.path), Change::Anew);
    assert_eq!(losses(&metrics), [5.0, 3.0, 2.0]);
    // Shorter, as the same file.
    std::fs::write(&place.path, train(1, 9.0)).unwrap();
    assert_eq!(update(&mut metrics, &place.path), Change::Anew);
    assert_eq!(losses(&metrics), [9.0]);
}

#[test]
fn damaged_lines_are_counted_and_the_others_read() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    place.append(train(1, 5.0));
    place.append(b"\xff\xfe\0 a broken disk\n{\"kind\":\n[]\n\n");
    place.append(train(2, 4.0));
    update(&mut metrics, &place.path);
    assert_eq!(losses(&metrics), [5.0, 4.0]);
    assert_eq!(metrics.unreadable(), 4);
}

#[test]
fn an_endless_line_takes_no_memory_and_is_skipped() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    place.append(train(1, 5.0));
    place.append(vec![b'x'; 3 * MAX_LINE_BYTES]);
    update(&mut metrics, &place.path);
    place.append(b"\n");
    place.append(train(2, 4.0));
    update(&mut metrics, &place.path);
    assert_eq!(metrics.unreadable(), 1);
    assert_eq!(losses(&metrics), [5.0, 4.0]);
}

#[test]
fn losses_that_are_not_numbers_leave_gaps() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    place.append(train(1, 5.0));
    place.append("{\"kind\":\"eval\",\"step\":1,\"eval_loss\":null,\"eval_nats_per_byte\":null,\"complete\":true}\n");
    place.append("{\"kind\":\"skipped\",\"step\":2,\"loss\":\"NaN\",\"grad_norm\":\"inf\",\"batch\":\"3\",\"tensors\":[],\"further_tensors\":0}\n");
    update(&mut metrics, &place.path);
    assert_eq!(metrics.unreadable(), 0);
    let (events, before) = metrics.events();
    assert_eq!((events.len(), before), (1, 0));
    assert_eq!((events[0].step, &*events[0].kind), (2, "skipped"));
    assert!(metrics.eval().curves.is_empty());
}

#[test]
fn a_rollback_removes_later_steps() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    for step in 1..=6 {
        place.append(train(step, step as f64));
    }
    place.append("{\"kind\":\"rolled_back\",\"from_step\":6,\"to_step\":4,\"seen\":[]}\n");
    update(&mut metrics, &place.path);
    assert_eq!(losses(&metrics), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(metrics.latest().step, 4);
    place.append(train(5, 0.5));
    update(&mut metrics, &place.path);
    assert_eq!(losses(&metrics), [1.0, 2.0, 3.0, 4.0, 0.5]);
    assert_eq!(metrics.events().0[0].kind, "rolled_back");
}

#[test]
fn samples_are_found_by_their_position() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    for step in 1..=5 {
        place.append(train(step, 1.0));
        place.append(format!(
            "{{\"kind\":\"samples\",\"step\":{step},\"samples\":[{{\"prompt\":\"a\",\"text\":\"<b>{step}\"}}]}}\n"
        ));
    }
    update(&mut metrics, &place.path);
    let mut file = File::open(&place.path).unwrap();
    let sets = metrics.samples(&mut file, 2, 1 << 20).unwrap();
    let found: Vec<_> = sets
        .iter()
        .map(|set| (set.step, &*set.samples[0].text))
        .collect();
    assert_eq!(found, [(4, "<b>4"), (5, "<b>5")]);
    // The newest one is there, however little may be read.
    assert_eq!(metrics.samples(&mut file, 5, 1).unwrap().len(), 1);
}

#[test]
fn the_number_of_events_is_limited() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    let mut text = String::new();
    for step in 0..MAX_EVENTS + 20 {
        text += &format!("{{\"kind\":\"resumed\",\"step\":{step},\"changes\":[]}}\n");
    }
    place.append(text);
    update(&mut metrics, &place.path);
    let (events, before) = metrics.events();
    assert_eq!((events.len(), before, events[0].step), (MAX_EVENTS, 20, 20));
}

/// However long they are: of one that is too long, what it is and when; of many, the newest.
#[test]
fn the_size_of_events_is_limited() {
    let place = Place::new();
    let mut metrics = Metrics::new(Range::default());
    let long = |step: usize, length: usize| {
        let text = "x".repeat(length);
        format!("{{\"kind\":\"skipped\",\"step\":{step},\"batch\":\"{text}\"}}\n")
    };
    for step in 0..100 {
        place.append(long(step, 60_000));
    }
    place.append(long(100, 1 << 20));
    update(&mut metrics, &place.path);
    let (events, before) = metrics.events();
    assert_eq!(events.len() as u64 + before, 101);
    let kept: usize = events
        .iter()
        .map(|event| event.record.to_string().len())
        .sum();
    assert!(kept <= MAX_EVENT_BYTES && events.len() > 15, "{kept}");
    let last = events.back().unwrap();
    assert_eq!(
        (last.step, &*last.kind, &last.record),
        (100, "skipped", &Value::Null)
    );
}

/// Samples of several hundred kilobytes, as of many prompts, stand behind the last numbers.
#[test]
fn the_latest_numbers_are_found_before_long_samples() {
    let place = Place::new();
    let text = "x".repeat(300_000);
    place.append(train(7, 1.5));
    place.append(format!("{{\"kind\":\"samples\",\"step\":7,\"samples\":[{{\"prompt\":\"a\",\"text\":\"{text}\"}}]}}\n"));
    let (latest, _) = Latest::read(&mut File::open(&place.path).unwrap(), None).unwrap();
    assert_eq!((latest.step, latest.loss), (7, Some(1.5)));
}

#[test]
fn the_latest_numbers_are_read_from_the_end_only() {
    let place = Place::new();
    let mut text = String::new();
    for step in 1..=5000 {
        text += &train(step, f64::from(step as u32));
    }
    text += "{\"kind\":\"eval\",\"step\":5000,\"eval_loss\":1.25,\"eval_nats_per_byte\":null,\"complete\":true}\n{\"kind\":\"tr";
    place.append(text);
    let (latest, _) = Latest::read(&mut File::open(&place.path).unwrap(), None).unwrap();
    assert_eq!(latest.step, 5000);
    assert_eq!(latest.loss, Some(5000.0));
    assert_eq!(latest.eval_loss, Some(1.25));
    assert_eq!(latest.memory, Some(40.0));
}

/// Evaluations are rare: thousands of other records may follow the last one.
#[test]
fn the_held_out_loss_is_found_however_much_follows_it() {
    let place = Place::new();
    place.append("{\"kind\":\"eval\",\"step\":1,\"eval_loss\":2.5}\n");
    place.append("{\"kind\":\"samples\",\"step\":2,\"text\":\"\\\"eval_loss\\\"\"}\n");
    while std::fs::metadata(&place.path).unwrap().len() < 3 * READ_BYTES as u64 {
        place.append((2..500).map(|step| train(step, 1.0)).collect::<String>());
    }
    let read = |before| Latest::read(&mut File::open(&place.path).unwrap(), before).unwrap();
    let (latest, end) = read(None);
    assert_eq!((latest.step, latest.eval_loss), (499, Some(2.5)));
    assert_eq!(end, std::fs::metadata(&place.path).unwrap().len());
    // What is added is seen beside what was known.
    place.append("{\"kind\":\"eval\",\"step\":500,\"eval_loss\":2.0}\n{\"kind\":\"tr");
    let (more, more_end) = read(Some((latest, end)));
    assert_eq!(
        (more.step, more.eval_loss, more.loss),
        (500, Some(2.0), Some(1.0))
    );
    place.append("ain\",\"step\":501,\"loss\":0.5}\n");
    let (last, _) = read(Some((more, more_end)));
    assert_eq!(
        (last.step, last.eval_loss, last.loss),
        (501, Some(2.0), Some(0.5))
    );
}
