//! Programs that make it hard for an allocator: they fork while threads are inside, and
//! they free what is not theirs.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{compile, compile_library, library};
use std::process::Command;

/// The threads of `fork.cpp` and its children record too, if they wrongly do.
#[test]
fn forked_children_find_every_lock_open_and_their_memory_intact() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("run.trace.zst");
    let output = Command::new(compile("fork.cpp", folder.path()))
        .arg(library())
        .arg("busy")
        .env("HIP_ALLOC_TRACE", &recording)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "all children ended well\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");

    // The children ended with the recording open, and none of them wrote into it.
    let trace = zstd::decode_all(std::fs::File::open(recording).unwrap()).unwrap();
    let trace = String::from_utf8(trace).unwrap();
    let mut live = std::collections::HashSet::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["a", id, bytes] | ["a", id, bytes, _] => {
                bytes.parse::<u64>().unwrap();
                assert!(live.insert(id), "{line}");
            }
            ["f", id] => assert!(live.remove(id), "{line}"),
            _ => assert_eq!(line, "s"),
        }
    }
    assert!(live.is_empty() && !trace.is_empty());
}

#[test]
fn a_child_forked_while_an_allocator_is_made_makes_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("fork.cpp", folder.path()))
        .arg(library())
        .arg("first")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "all children ended well\n");
}

#[test]
fn a_runtime_may_fork_inside_a_call() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("forking_runtime.cpp", folder.path()))
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:hip,warmup_mb:0")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "helpers were started, and one more\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn it_works_before_main_and_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("early_and_late.cpp", folder.path()))
        .env("HIP_ALLOC_TEST_LIBRARY", library())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "before main: works\n\
         after dlclose: works\n\
         a thread: works\n\
         a thread's end: works\n\
         the main thread's end: works\n\
         at exit: works\n\
         a static destructor: works\n"
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}

#[test]
fn what_is_wrong_is_reported_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("misuse.cpp", folder.path()))
        .arg(library())
        .current_dir(folder.path())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(
        out,
        "two requests of nothing: two addresses\n\
         codes 1 2 2 1 2\n\
         untouched 1 1 1\n\
         too much: 3 refused\n\
         a snapshot with any name: 0\n\
         live 0, 3 allocated, 3 freed\n\
         ever 4096 bytes, at most 3 requests and 4096 bytes at once\n",
        "{err}"
    );
    assert_eq!(err.matches(": free of ").count(), 5, "{err}");
    assert!(
        err.contains("record_stream of 0x1234: not allocated here"),
        "{err}"
    );
    assert!(output.status.success());
}

#[test]
fn where_no_thread_can_be_started_nothing_is_kept_and_nobody_waits() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("no_thread.cpp", folder.path()))
        .arg(library())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "1 refused, 0 bytes live, little kept\n"
    );
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("no memory is kept between steps"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn a_constructor_of_a_library_may_fork_and_allocate_while_a_device_is_opened_or_a_thread_started() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("loader.cpp", folder.path());
    let constructed = compile_library("in_constructor.cpp", folder.path());
    for does in ["opens", "keeps"] {
        let mut command = Command::new(&program);
        let output = command.arg(library()).arg(&constructed).arg(does).output();
        let output = output.unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "forked in a constructor: 0\nallocated in a constructor: 1\nloaded: 1\n",
            "{does}"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{does}");
    }
}

#[test]
fn a_child_of_a_process_that_uses_a_gpu_never_calls_the_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("orphan.cpp", folder.path()))
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:hip")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "memory: 3, 0 calls\n\
         a fraction: 3, 0 calls\n\
         a user more: 3, 0 calls\n\
         frees and trim: 0, 0 calls\n\
         refused: 0, 0 calls\n\
         refused: 1, 0 calls\n\
         no pool begun: 0, 0 calls\n\
         ended with 0\n"
    );
}

#[test]
fn what_is_freed_when_the_process_ends_calls_no_runtime_and_starts_no_thread() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("ending.cpp", folder.path()))
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:hip")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "0 calls, 0 threads, 0 bytes of the host live\n"
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn when_the_recording_of_stacks_has_ended_no_thread_is_naming_one() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("naming.cpp", folder.path()))
        .arg(library())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "ended with 0 when the thread had left: 1\n\
         without a function: 2\n\
         no such stack: 0\n"
    );
}

#[test]
fn a_device_that_is_opened_during_a_capture_on_another_does_not_end_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("capture.cpp", folder.path()))
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:hip")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "during the capture: ended 0 times\nafter it, memory goes back: 1\n"
    );
}

#[test]
fn a_profiler_that_comes_later_is_found_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("profiled.cpp", folder.path()))
        .arg(library())
        .arg(compile_library("late_profiler.cpp", folder.path()))
        .env("HIP_ALLOC_CONF", "backend:host")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "reported: 1, and all of the last: 4000\n"
    );
}

#[test]
fn a_thread_of_ours_never_touches_a_device_that_the_program_does_not_use() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(compile("own_thread.cpp", folder.path()))
        .arg(library())
        .env("HIP_ALLOC_CONF", "backend:hip")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "the second: 1, the first: 0\n"
    );
}
