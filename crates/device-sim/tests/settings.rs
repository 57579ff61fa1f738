//! Every setting, in the environment and by a control call, for a program that uses
//! HIP's names and for one that uses CUDA's: each has a visible effect.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::compiled;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// How a setting is passed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Environment,
    Control,
}

const WAYS: [Way; 2] = [Way::Environment, Way::Control];
const RUNTIMES: [&str; 2] = ["hip", "cuda"];

/// The program, with `setting` passed in one of the two ways, which then does `what`.
fn command(way: Way, runtime: &str, setting: &str, what: &[&str]) -> Command {
    let mut command = Command::new(compiled("settings.cpp"));
    let library = device_sim::install::library_path().expect("cargo builds it with the tests");
    command.arg(library).arg(runtime);
    if way == Way::Control {
        command.arg(format!("setting={setting}"));
    } else {
        for setting in setting.split(';') {
            let (key, value) = setting.split_once('=').unwrap();
            command.env(format!("DEVICE_SIM_{}", key.to_uppercase()), value);
        }
    }
    command.args(what);
    command
}

/// What the program prints, the same each time.
fn expect(setting: &str, what: &[&str], expected: &str) {
    expect_in(&WAYS, setting, what, expected);
}

fn expect_in(ways: &[Way], setting: &str, what: &[&str], expected: &str) {
    for way in ways {
        for runtime in RUNTIMES {
            let output = command(*way, runtime, setting, what).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            let printed: Vec<_> = printed.lines().collect();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                printed.join("; "),
                expected,
                "{setting} by {way:?} under {runtime}: {told}"
            );
        }
    }
}

#[test]
fn capacity() {
    let what = ["info", "malloc=10", "malloc=10", "info"];
    let expected = "info 16 16; malloc 0; malloc 2; info 6 16";
    expect("capacity=16M", &what, expected);
}

#[test]
fn devices() {
    // A control call would come too late: the devices are made with the first call.
    expect_in(&[Way::Environment], "devices=3", &["count"], "count 3");
    expect_in(
        &[Way::Environment],
        "devices=0",
        &["count"],
        "count error 100",
    );
}

#[test]
fn unified_memory_is_taken_by_both_sides() {
    let what = ["pinned=10", "malloc=10", "malloc=4", "info"];
    let expected = "pinned 0; malloc 2; malloc 0; info 2 16";
    expect("unified=16M", &what, expected);
}

#[test]
fn a_total_that_is_not_true() {
    expect("unified=16M;report_total=8M", &["info"], "info 16 8");
}

#[test]
fn granularity() {
    let what = ["byte", "byte", "byte"];
    let expected = "byte 0; byte 0; byte 2";
    expect("capacity=2M;granularity=1M", &what, expected);
}

#[test]
fn large_copies_without_data() {
    expect(
        "data=none",
        &["large", "copy"],
        "large 7; copy 000: 1 2 3 4 5 6 7 8",
    );
    expect("data=all", &["large"], "large 1");
}

#[test]
fn memory_is_really_taken() {
    expect("populate=on", &["resident"], "taken at once: 1");
    expect("populate=off", &["resident"], "taken at once: 0");
}

#[test]
fn latency() {
    expect("latency=*Malloc:30ms", &["timed"], "took at least 30 ms: 1");
}

#[test]
fn time_on_the_stream() {
    expect("device_time=copy:3600s", &["busy"], "busy 600");
    expect("device_time=copy:0ns", &["busy"], "busy 0");
}

#[test]
fn the_nth_call_fails_with_the_configured_error() {
    let what = ["malloc=1", "malloc=1", "malloc=1"];
    expect(
        "fail=*Malloc@2:out_of_memory",
        &what,
        "malloc 0; malloc 2; malloc 0",
    );
    expect(
        "fail=*Malloc@2+:719",
        &what,
        "malloc 0; malloc 719; malloc 719",
    );
    expect(
        "fail=*Malloc:unknown",
        &what,
        "malloc 999; malloc 999; malloc 999",
    );
}

#[test]
fn a_lost_device_fails_every_call_from_then_on() {
    let what = ["malloc=1", "malloc=1", "copy"];
    expect(
        "lose=*Malloc@2:illegal_address",
        &what,
        "malloc 0; malloc 700; copy 700700700: 0 0 0 0 0 0 0 0",
    );
}

#[test]
fn faults_are_forgotten_and_calls_are_counted_anew() {
    let what = [
        "malloc=1",
        "setting=reset_faults",
        "malloc=1",
        "setting=reset_counters",
        "malloc=1",
        "calls",
    ];
    expect(
        "fail=*Malloc:unknown",
        &what,
        "malloc 999; malloc 0; malloc 0; calls 1",
    );
}

#[test]
fn copies_arrive_damaged() {
    for (damage, arrived) in [
        ("zeros", "0 0 0 0 0 0 0 0"),
        ("nan", "255 255 255 255 255 255 255 255"),
        ("truncate", "1 2 3 4 9 9 9 9"),
        ("stale", "9 9 9 9 9 9 9 9"),
        ("swap", "1 2 7 8 5 6 3 4"),
        ("mutate", "1 2 3 4 6 7 8 9"),
        ("late(3600s)", "9 9 9 9 9 9 9 9"),
    ] {
        let expected = format!("copy 000: {arrived}");
        expect(&format!("copy=h2d@2:{damage}"), &["copy"], &expected);
    }
    // The other direction, and a size that is not reached.
    expect("copy=d2h:zeros", &["copy"], "copy 000: 0 0 0 0 0 0 0 0");
    expect("copy=any>=1K:zeros", &["copy"], "copy 000: 1 2 3 4 5 6 7 8");
}

#[test]
fn one_bit_of_a_copy_is_wrong() {
    for way in WAYS {
        let output = command(way, "hip", "copy=h2d@2:flip", &["copy"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let bytes = text.trim().strip_prefix("copy 000: ").unwrap().split(' ');
        let wrong = bytes
            .zip(1_u8..)
            .map(|(byte, sent)| byte.parse::<u8>().unwrap() ^ sent);
        assert_eq!(wrong.map(u8::count_ones).sum::<u32>(), 1, "{text}");
    }
}

#[test]
fn a_crash() {
    for way in WAYS {
        for runtime in RUNTIMES {
            let Output { status, stderr, .. } =
                command(way, runtime, "crash=*Malloc@2", &["malloc=1", "malloc=1"])
                    .output()
                    .unwrap();
            assert_eq!(status.signal(), Some(6), "SIGABRT");
            let told = String::from_utf8_lossy(&stderr);
            assert_eq!(
                told,
                format!("device-sim: crashing in {runtime}Malloc, as configured\n")
            );
        }
    }
}

#[test]
fn a_hang() {
    for way in WAYS {
        for runtime in RUNTIMES {
            let mut child = command(way, runtime, "hang=*Malloc@2", &["malloc=1", "malloc=1"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut told = String::new();
            // Ends, with nothing in it, if the program does not hang and ends.
            BufReader::new(child.stderr.take().unwrap())
                .read_line(&mut told)
                .unwrap();
            assert_eq!(
                told,
                format!("device-sim: hanging in {runtime}Malloc, as configured\n")
            );
            assert_eq!(child.try_wait().unwrap(), None, "it is still there");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
