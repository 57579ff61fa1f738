//! Several runs at once, and what the doctor refuses.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use surefoot_ui::queue::{Concurrency, Ended, JobId, State, WorkerExit};
use surefoot_ui::runs::{Process, boot_id};

use super::place::{Place, report};

/// A machine with so many cards of 16 GiB.
fn with_cards(count: usize) -> Place {
    let mut place = Place::new();
    let mut machine = report("kfd_gfx1201_plus_gfx1036").machine;
    machine.gpus.truncate(1);
    for index in 1..count {
        let mut gpu = machine.gpus[0].clone();
        gpu.index = index;
        machine.gpus.push(gpu);
    }
    place.report = doctor::diagnose(machine);
    assert_eq!(place.report.visible.len(), count);
    place
}

/// Waits until something is so.
fn until(what: &str, is: impl Fn() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Place {
    /// Works while `meanwhile` looks on, then lets all runs end.
    fn work_while(&self, meanwhile: impl FnOnce()) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.work());
            // Whatever `meanwhile` finds, the runs end.
            let go = Go(self);
            meanwhile();
            drop(go);
        });
    }

    fn word(&self, id: JobId) -> &'static str {
        self.queue.job(id).unwrap().state.word()
    }

    fn device(&self, id: JobId) -> Option<String> {
        self.queue.job(id).unwrap().device
    }

    fn running(&self) -> usize {
        let jobs = self.jobs();
        let running = jobs.iter();
        running
            .filter(|job| {
                matches!(
                    &job.state,
                    State::Running {
                        process: Some(_),
                        ..
                    }
                )
            })
            .count()
    }
}

struct Go<'a>(&'a Place);

impl Drop for Go<'_> {
    fn drop(&mut self) {
        fs::write(self.0.queue.runs().root().join("go"), "").unwrap();
    }
}

const SLOW: &str = "# slow\n";

#[test]
fn each_gpu_has_a_run_and_the_next_waits() {
    let place = with_cards(2);
    place.queue.set_at_once(Concurrency::PerGpu).unwrap();
    let ids = ["a", "b", "c"].map(|name| place.add(name, SLOW));
    let pinned = place.add("d", "# slow\ndevice: gpu:1\n");
    let cpu = place.add("e", "device: cpu\n");
    place.work_while(|| {
        until("two run", || place.running() == 2);
        until("what needs no GPU is done", || {
            place.word(cpu) == "completed"
        });
        assert_eq!(place.running(), 2);
        assert_eq!(place.word(ids[2]), "waiting");
        assert_eq!(place.word(pinned), "waiting");
    });
    let devices = [ids[0], ids[1]].map(|id| place.device(id).unwrap());
    assert_eq!(devices, ["gpu:0", "gpu:1"]);
    for line in place.started() {
        let is_told = |device: &str| line.contains(&format!("--set device=\"{device}\""));
        let [a, b] = ["\"a\"", "\"b\""].map(|name| line.contains(&format!("name={name}")));
        assert_eq!(
            is_told("gpu:0") && a || is_told("gpu:1") && b,
            a || b,
            "{line}"
        );
        if line.contains("name=\"d\"") || line.contains("name=\"e\"") {
            assert!(!line.contains("device="), "{line}");
        }
    }
    assert_eq!(place.device(pinned).as_deref(), Some("gpu:1"));
    assert!(
        place
            .jobs()
            .iter()
            .all(|job| job.state.word() == "completed")
    );
}

#[test]
fn a_gpu_has_as_many_runs_as_it_has_memory_for() {
    let place = with_cards(1);
    place.queue.set_at_once(Concurrency::Memory).unwrap();
    let gib = |gib: u64| format!("# slow\n# peak: {}\n", gib << 30);
    let [four, nine, six] =
        [("a", 4), ("b", 9), ("c", 6)].map(|(name, size)| place.add(name, &gib(size)));
    let last = place.add("d", &gib(1));
    place.work_while(|| {
        until("two run", || place.running() == 2);
        // Its check said that it does not fit, and nobody overtakes it.
        until("the third was checked", || {
            place.queue.job(six).unwrap().expected.is_some() || place.word(six) == "waiting"
        });
        assert_eq!(place.running(), 2);
        assert_eq!([place.word(four), place.word(nine)], ["running"; 2]);
        assert_eq!(place.word(last), "waiting");
        let expected = place.queue.job(nine).unwrap().expected;
        assert_eq!(expected, Some(9 << 30));
    });
    assert!(
        place
            .jobs()
            .iter()
            .all(|job| job.state.word() == "completed")
    );
    // One GPU is everybody's: nothing is said of it.
    assert!(place.started().iter().all(|line| !line.contains("device=")));
}

/// A check that finds memory full because of others says nothing of the job.
#[test]
fn a_job_that_does_not_fit_beside_others_waits_for_them() {
    let place = with_cards(1);
    place.queue.set_at_once(Concurrency::Memory).unwrap();
    let first = place.add("a", "# slow\n# peak: 1\n");
    let busy = place.queue.runs().root().join("busy");
    fs::write(&busy, "").unwrap();
    let full = place.add("b", "# full\n# peak: 2\n");
    let large = place.add("c", "# peak: 3\n# advice: a smaller batch\n");
    place.work_while(|| {
        until("the second waits", || place.queue.job(full).unwrap().alone);
        assert_eq!(place.word(full), "waiting");
        assert_eq!(place.word(first), "running");
        fs::remove_file(&busy).unwrap();
    });
    assert_eq!(place.how(first).0, Ended::Completed);
    assert_eq!(place.how(full).0, Ended::Completed);
    let (how, error) = place.how(large);
    assert_eq!(how, Ended::Refused, "alone, it does not fit either");
    assert!(
        error
            .unwrap()
            .contains("what helps, most effective first:\n- a smaller batch")
    );
}

#[test]
fn a_forced_run_of_unknown_size_gets_its_own_gpu() {
    let place = with_cards(1);
    place.queue.set_at_once(Concurrency::Memory).unwrap();
    let forced = place.add("a", SLOW);
    place.leave(forced, &json!({ "force": true }));
    let small = place.add("b", "# peak: 1\n");
    place.work_while(|| {
        until("the first runs", || place.running() == 1);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(place.word(small), "waiting");
    });
    assert_eq!(place.how(small).0, Ended::Completed);
}

#[test]
fn the_concurrency_can_change_while_runs_are_active() {
    let place = with_cards(2);
    let ids = ["a", "b"].map(|name| place.add(name, SLOW));
    place.work_while(|| {
        until("one runs", || place.running() == 1);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(place.word(ids[1]), "waiting");
        place.queue.set_at_once(Concurrency::PerGpu).unwrap();
        until("the other, too, on the other GPU", || place.running() == 2);
        assert_eq!(place.device(ids[1]).as_deref(), Some("gpu:1"));
    });
}

/// Two pages on a folder: whoever works, each job is begun once, and a GPU has one run.
#[test]
fn workers_that_share_a_folder_start_each_job_once_on_its_own_gpu() {
    let place = with_cards(2);
    place.queue.set_at_once(Concurrency::PerGpu).unwrap();
    for _ in 0..6 {
        place.add("a", "");
    }
    let is_done = || {
        let jobs = place.jobs();
        jobs.iter()
            .all(|job| matches!(job.state, State::Ended { .. }))
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_done() {
                    place.work();
                }
            });
        }
        while !is_done() {
            let jobs = place.jobs();
            let active = jobs.iter().filter(|job| job.state.is_active());
            let mut devices: Vec<_> = active.map(|job| job.device.clone().unwrap()).collect();
            devices.sort();
            devices.dedup();
            let jobs = jobs.iter().filter(|job| job.state.is_active()).count();
            assert_eq!(devices.len(), jobs);
        }
    });
    assert_eq!(place.started().len(), 6);
    assert!(place.jobs().iter().all(|job| job.attempts == 1));
}

/// Two runs that a worker left are followed side by side, and nothing else is begun before both have ended.
#[test]
fn jobs_of_another_worker_are_all_taken_over_at_once() {
    let place = Place::new();
    let mut sleeps: Vec<_> = (0..2)
        .map(|_| Command::new("sleep").arg("1").spawn().unwrap())
        .collect();
    for (name, sleep) in ["a", "b"].into_iter().zip(&sleeps) {
        place.cut_off(name, false);
        let id = place.add(name, "");
        let process = Process::of(sleep.id()).unwrap();
        let state = json!({
            "state": "running", "run": name, "boot": boot_id(), "attempts": 1, "process": process,
        });
        place.leave(id, &state);
    }
    let next = place.add("c", "");
    let reaped = std::thread::spawn(move || {
        for sleep in &mut sleeps {
            sleep.wait().unwrap();
        }
    });
    let began = Instant::now();
    place.work();
    assert!(began.elapsed() >= Duration::from_millis(800));
    reaped.join().unwrap();
    let words: Vec<_> = place.jobs().iter().map(|job| job.state.word()).collect();
    assert_eq!(
        words.iter().filter(|word| **word == "failed").count(),
        2,
        "{words:?}"
    );
    assert_eq!(place.how(next).0, Ended::Completed);
}

#[test]
fn a_gpu_that_cannot_train_is_only_used_by_force() {
    let mut place = Place::new();
    place.report = report("kfd_gfx1033_steamdeck");
    let refused = place.add("a", "# on: GPU 0\n");
    let on_cpu = place.add("b", "# on: CPU, 4 threads\n");
    place.work();
    let (how, error) = place.how(refused);
    let error = error.unwrap();
    assert_eq!(how, Ended::Refused);
    assert!(
        error.contains("the doctor says") && error.contains("gradients"),
        "{error}"
    );
    assert_eq!(place.how(on_cpu).0, Ended::Completed);
    assert_eq!(place.started().len(), 1);
    place.queue.retry(refused, true).unwrap();
    place.work();
    assert_eq!(place.how(refused).0, Ended::Completed);
}

/// The disk fills up while a run goes on: its end cannot be noted. The run ends all the same, and whoever works when
/// there is room again finds how.
#[test]
fn a_disk_that_fills_up_loses_no_run() {
    let place = Place::new();
    let first = place.add("a", SLOW);
    let next = place.add("b", "");
    let queue = place.queue.runs().state_folder().join("queue");
    let draft = queue.join("job-000001.tmp");
    let worked = std::thread::scope(|scope| {
        let worked = scope.spawn(|| place.try_work(&|_| {}));
        let go = Go(&place);
        until("the first runs", || place.running() == 1);
        std::os::unix::fs::symlink("/dev/full", &draft).unwrap();
        drop(go);
        worked.join().unwrap()
    });
    let error = worked.unwrap_err().to_string();
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(
        [place.word(first), place.word(next)],
        ["running", "waiting"]
    );
    assert!(place.queue.needs_worker().unwrap());
    assert_eq!(place.work(), WorkerExit::Done);
    assert_eq!(place.how(first), (Ended::Completed, None));
    assert_eq!(place.how(next).0, Ended::Completed);
    assert_eq!(place.started().len(), 2);
}
