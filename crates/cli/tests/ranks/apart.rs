//! Local SGD and DiLoCo (`train.sync_every`) with real processes.

use std::fs;

use super::{CONFIG, Place, assert_fine, distance, doubles, stderr};

const APART: [&str; 2] = ["--set", "train.sync_every=2"];

/// Of every block of a text that says one thing, all learn the same.
#[test]
fn ranks_that_see_the_same_are_one() {
    let place = Place::new();
    fs::write(place.path("text.txt"), "a".repeat(6000)).unwrap();
    let plain = [
        "--set",
        "train.outer_learning_rate=1",
        "--set",
        "train.outer_momentum=0",
    ];
    // Adam divides by the size of gradients, which would make much of the last digit of small ones.
    let steady = ["--set", "train.adam_epsilon=1e-2"];
    assert_fine(&place.train(&[&["--set", "name=one"][..], &steady].concat()));
    let apart = [
        &["--set", "name=two", "--nproc", "2"][..],
        &APART,
        &plain,
        &steady,
    ]
    .concat();
    assert_fine(&place.train(&apart));
    for step in [4, 8] {
        let both = [place.weights("one", step), place.weights("two", step)];
        let [one, two] = both.map(|weights| doubles(&weights));
        let apart = distance(&one, &two);
        assert!(apart < 1e-4, "weights of step {step} differ by {apart}");
    }
    assert!(distance(&place.losses("one"), &place.losses("two")) < 1e-5);
}

#[test]
fn what_is_learned_apart_goes_on_where_it_stopped() {
    let place = Place::new();
    let run = |name: &str, steps: u32| {
        let (name, steps) = (format!("name={name}"), format!("train.max_steps={steps}"));
        let keys = ["--set", &name, "--set", &steps, "--nproc", "2"];
        place.train(&[&keys[..], &APART].concat())
    };
    assert_fine(&run("whole", 8));
    let losses = place.losses("whole");
    assert!(losses[7] < losses[0], "{losses:?}");
    assert_fine(&run("parts", 4));
    let resume = |further: &[&str]| {
        let keys = [
            "--set",
            "train.resume_from_checkpoint=runs/parts",
            "--set",
            "name=parts",
        ];
        place.train(&[&keys[..], &APART, further].concat())
    };
    // What has a momentum and what has none are two things.
    let refused = resume(&["--set", "train.sync_every=1"]);
    assert!(
        stderr(&refused).contains("train.sync_every"),
        "{}",
        stderr(&refused)
    );
    assert_fine(&resume(&["--nproc", "2"]));
    assert_eq!(place.weights("whole", 8), place.weights("parts", 8));
    // One alone is one of one.
    assert_fine(&resume(&["--set", "train.max_steps=10"]));
}

#[test]
fn what_has_no_mean_is_refused() {
    let place = Place::new();
    for (key, told) in [
        ("train.optim=adamw_8bit", "moments cannot be averaged"),
        ("train.ema_decay=0.9", "average its own weights"),
    ] {
        let refused = place.train(&[&APART[..], &["--set", key]].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(told), "{}", stderr(&refused));
    }
    assert!(CONFIG.contains("max_steps: 8"));
}
