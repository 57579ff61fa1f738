//! The queue with a program that trains nothing: order, locks, and what a reboot leaves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod place;
mod several;

use std::fs;
use std::sync::Mutex;

use serde_json::{Value, json};
use surefoot_ui::queue::{Ended, InterruptedRun, JobId, State, WorkerExit};
use surefoot_ui::runs::{Error, boot_id};

use place::Place;

fn dead(boot: &str) -> Value {
    json!({
        "state": "running", "run": "a", "boot": boot, "attempts": 1,
        "process": { "pid": 1, "started": 1, "boot": boot },
    })
}

#[test]
fn jobs_run_in_order_and_each_has_its_log() {
    let place = Place::new();
    let ids: Vec<_> = ["a", "b", "c", "a"].map(|name| place.add(name, "")).into();
    place.queue.move_to(ids[2], 0).unwrap();
    place.queue.move_to(ids[0], 99).unwrap();
    let order: Vec<_> = place.jobs().iter().map(|job| job.id).collect();
    assert_eq!(order, [ids[2], ids[1], ids[3], ids[0]]);
    place.queue.remove(ids[1]).unwrap();
    assert_eq!(place.work(), WorkerExit::Done);
    let names: Vec<_> = place
        .started()
        .iter()
        .map(|line| line.split("name=").nth(1).unwrap()[..4].trim().to_owned())
        .collect();
    assert_eq!(names, ["\"c\"", "\"a\"", "\"a-2"]);
    assert_eq!(place.how(ids[0]), (Ended::Completed, None));
    let log = place.queue.job_log(ids[0], None).unwrap().unwrap();
    assert_eq!(log.text, "trained\n");
    assert!(place.queue.runs().root().join("a-2/output.log").exists());
}

#[test]
fn a_job_that_fails_the_check_is_only_started_by_force() {
    let place = Place::new();
    let (refused, next) = (place.add("a", "refuse: 1"), place.add("b", ""));
    place.work();
    assert_eq!(
        place.how(refused),
        (Ended::Refused, Some("no such thing".into()))
    );
    assert_eq!(place.how(next).0, Ended::Completed);
    assert_eq!(place.started().len(), 1);
    place.queue.retry(refused, true).unwrap();
    place.work();
    assert_eq!(place.how(refused).0, Ended::Completed);
}

#[test]
fn two_workers_start_each_job_once() {
    let place = Place::new();
    for _ in 0..6 {
        place.add("a", "");
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while place
                    .jobs()
                    .iter()
                    .any(|job| !matches!(job.state, State::Ended { .. }))
                {
                    place.work();
                }
            });
        }
    });
    assert_eq!(place.started().len(), 6);
    assert!(place.jobs().iter().all(|job| job.attempts == 1));
}

#[test]
fn a_paused_queue_starts_nothing() {
    let place = Place::new();
    let id = place.add("a", "");
    place.queue.pause(true).unwrap();
    assert!(!place.queue.needs_worker().unwrap());
    assert_eq!(place.work(), WorkerExit::Done);
    assert_eq!(place.queue.job(id).unwrap().state, State::Waiting);
    place.queue.pause(false).unwrap();
    assert!(place.queue.needs_worker().unwrap());
    place.work();
    assert_eq!(place.how(id).0, Ended::Completed);
}

#[test]
fn a_run_interrupted_by_a_reboot_resumes_from_its_checkpoint() {
    let place = Place::new();
    place.cut_off("a", true);
    let id = place.add("a", "");
    place.leave(id, &dead("another-start-of-the-machine"));
    assert!(place.queue.needs_worker().unwrap());
    place.work();
    let started = place.started();
    assert_eq!(started.len(), 1);
    assert!(
        started[0].contains("--resume") && started[0].ends_with("/runs/a"),
        "{started:?}"
    );
}

#[test]
fn a_run_interrupted_before_its_first_checkpoint_starts_again() {
    let place = Place::new();
    place.cut_off("a", false);
    let id = place.add("a", "");
    place.leave(id, &dead("another-start-of-the-machine"));
    place.work();
    assert_eq!(place.how(id), (Ended::Completed, None));
    assert_eq!(
        place.queue.job(id).unwrap().state.run().unwrap().as_str(),
        "a-2"
    );
}

#[test]
fn a_run_killed_without_a_reboot_is_not_restarted() {
    let place = Place::new();
    place.cut_off("a", true);
    let id = place.add("a", "");
    place.leave(id, &dead(&boot_id()));
    let config = place.queue.runs().root().join("a/config.yaml");
    fs::write(config, "name: a\nnotify: {url: 'https://a.org/b'}\n").unwrap();
    let told = Mutex::new(Vec::new());
    place.work_and_tell(&|cut| told.lock().unwrap().push(cut.clone()));
    assert_eq!(place.how(id).0, Ended::Failed);
    assert!(place.started().is_empty());
    let cut = InterruptedRun {
        run: "a".parse().unwrap(),
        step: 0,
        notify_url: Some("https://a.org/b".into()),
    };
    assert_eq!(told.into_inner().unwrap(), [cut]);
}

/// A queue whose run dies this often of a page fault: how it ended, the starts, and the log.
fn faulting(place: &Place, faults: u32) -> ((Ended, Option<String>), Vec<String>, String) {
    let faults = faults.to_string();
    fs::write(place.queue.runs().root().join("faults"), faults).unwrap();
    let id = place.add("a", "");
    place.work();
    let log = place.queue.job_log(id, None).unwrap().unwrap();
    (place.how(id), place.started(), log.text)
}

#[test]
fn a_run_that_died_of_a_page_fault_goes_on_from_its_checkpoint() {
    let place = Place::new();
    let (how, started, log) = faulting(&place, 2);
    assert_eq!(how, (Ended::Completed, None));
    assert_eq!(started.len(), 3);
    for resumed in &started[1..] {
        assert!(
            resumed.contains("--resume") && resumed.ends_with("/runs/a"),
            "{started:?}"
        );
    }
    assert!(
        log.contains(
            "ended the run; starting it again from its checkpoint of step 7 (restart 1 of 3)"
        ) && log.contains("step 8 (restart 2 of 3)"),
        "{log}"
    );
    let told = fs::read_to_string(place.queue.runs().root().join("restarts")).unwrap();
    assert_eq!(told, "0\n1\n2\n", "what the run records");
}

#[test]
fn a_run_that_always_faults_is_given_up_after_three_restarts() {
    let (how, started, _) = faulting(&Place::new(), 9);
    let error = how.1.unwrap();
    assert!(
        how.0 == Ended::Failed && error.ends_with("it was started again 3 times"),
        "{error}"
    );
    assert_eq!(started.len(), 4);
}

#[test]
fn a_run_that_faults_without_a_new_checkpoint_is_given_up_at_once() {
    let place = Place::new();
    fs::write(place.queue.runs().root().join("stuck"), "").unwrap();
    let (how, started, log) = faulting(&place, 9);
    assert_eq!(how.0, Ended::Failed);
    assert!(
        log.contains("it came no further than before the fault before"),
        "{log}"
    );
    assert_eq!(started.len(), 2);
}

#[test]
fn a_job_that_repeatedly_crashes_the_machine_is_given_up() {
    let place = Place::new();
    place.cut_off("a", true);
    let id = place.add("a", "");
    let mut state = dead("another-start-of-the-machine");
    state["attempts"] = 3.into();
    place.leave(id, &state);
    place.work();
    assert_eq!(place.how(id).0, Ended::Failed);
    assert!(place.started().is_empty());
}

#[test]
fn unreadable_job_files_are_reported_and_not_touched() {
    let place = Place::new();
    let id = place.add("a", "");
    let folder = place.queue.runs().state_folder().join("queue");
    fs::write(folder.join("job-000007.json"), "{\"id\":").unwrap();
    fs::copy(
        folder.join("job-000001.json"),
        folder.join("job-000009.json"),
    )
    .unwrap();
    let listing = place.queue.list().unwrap();
    assert_eq!((listing.jobs.len(), listing.unreadable.len()), (1, 2));
    assert!(matches!(
        place.queue.remove(JobId(7)),
        Err(Error::NoJob { job: 7 })
    ));
    place.work();
    assert_eq!(place.how(id).0, Ended::Completed);
    assert_eq!(place.add("b", ""), JobId(10));
}

#[test]
fn a_running_job_is_neither_removed_nor_moved() {
    let place = Place::new();
    let id = place.add("a", "");
    place.leave(id, &dead(&boot_id()));
    for refused in [
        place.queue.remove(id),
        place.queue.move_to(id, 0),
        place.queue.retry(id, false).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    }
}
