//! Stopping real processes that hold a run's lock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use surefoot_ui::runs::{Error, Process, RunName, Runs, Status, Stopping, wait};

struct Place {
    _folder: tempfile::TempDir,
    runs: Runs,
    name: RunName,
    child: Child,
}

impl Place {
    /// A process that locks the folder of a run as the trainer does, and then is `program`.
    fn new(program: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("a");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("config.yaml"), "name: a\n").unwrap();
        let child = Command::new("flock")
            .arg("--no-fork")
            .arg(&run)
            .args(["sh", "-c", program])
            .spawn()
            .unwrap();
        let place = Self {
            runs: Runs::new(folder.path()),
            _folder: folder,
            name: "a".parse().unwrap(),
            child,
        };
        // The program has begun once it says so, and then holds the lock.
        while !run.join("begun").exists() {
            std::thread::yield_now();
        }
        place
    }

    fn process(&self) -> (Process, bool) {
        match self.runs.overview(&self.name).unwrap().status {
            Status::Running {
                process: Some(process),
                stopping,
            } => (process, stopping),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says that it has begun, in the run's folder, which the lock's file descriptor names whatever its number is.
/// What it does with signals is settled by then.
fn program(signals: &str) -> String {
    format!(
        "{signals} for fd in /proc/$$/fd/*; do [ -f \"$fd/config.yaml\" ] && touch \"$fd/begun\"; done; \
         exec sleep 600"
    )
}

#[test]
fn the_holder_of_the_lock_gets_the_signal_of_ctrl_c() {
    let mut place = Place::new(&program(""));
    let (process, stopping) = place.process();
    assert_eq!((process.pid, stopping), (place.child.id(), false));
    assert_eq!(
        place.runs.stop(&place.name, false).unwrap(),
        Stopping::Asked
    );
    assert_eq!(place.child.wait().unwrap().signal(), Some(2));
    wait(&process).unwrap();
    let status = place.runs.overview(&place.name).unwrap().status;
    assert_eq!(status, Status::Interrupted);
}

#[test]
fn a_second_request_sends_nothing_without_again() {
    let place = Place::new(&program("trap '' INT;"));
    let stop = |again| place.runs.stop(&place.name, again).unwrap();
    assert_eq!(stop(false), Stopping::Asked);
    assert!(place.process().1);
    assert_eq!(stop(false), Stopping::AlreadyAsked);
    assert_eq!(stop(true), Stopping::Asked);
    let refused = place.runs.remove(&place.name);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
}

#[test]
fn two_concurrent_requests_send_one_signal() {
    let place = Place::new(&program("trap '' INT;"));
    let answers: Vec<Stopping> = std::thread::scope(|scope| {
        let ask = || place.runs.stop(&place.name, false).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        let answers = threads.into_iter().map(|thread| thread.join().unwrap());
        answers.collect()
    });
    let asked = answers.iter().filter(|answer| **answer == Stopping::Asked);
    assert_eq!(asked.count(), 1, "{answers:?}");
}
