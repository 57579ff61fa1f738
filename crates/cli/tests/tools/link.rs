//! `surefoot probe --link` and `doctor --ranks`: what the network between machines is like.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::{show, surefoot};

/// A process that ends with the test.
struct Listener(Child);

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that listens, and its port.
fn listener() -> (Listener, u16) {
    let mut child = surefoot()
        .args(["probe", "--listen", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let stderr = child.stderr.take().expect("it is piped");
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    let port = line
        .split_once("port ")
        .and_then(|(_, rest)| rest.split(',').next());
    let port = port.and_then(|port| port.parse().ok());
    let port = port.unwrap_or_else(|| panic!("no port in {line}"));
    (Listener(child), port)
}

#[test]
fn a_link_is_measured_for_people_and_programs() {
    let (_listener, port) = listener();
    let link = |more: &[&str]| {
        surefoot()
            .args(["probe", "--link", &format!("127.0.0.1:{port}")])
            .args(more)
            .output()
            .expect("it runs")
    };
    let output = link(&["--json"]);
    let found: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", show(&output)));
    assert_eq!(found["interface"]["medium"], "loopback", "{found}");
    assert_eq!(found["address"], "127.0.0.1", "{found}");
    for number in [
        "bytes_per_second_both",
        "round_trip_seconds",
        "connect_seconds",
    ] {
        assert!(
            found[number].as_f64().is_some_and(|value| value > 0.0),
            "{found}"
        );
    }
    let text = show(&link(&[]));
    for line in [
        "Link to 127.0.0.1, from 127.0.0.1 by lo (loopback)",
        "both at once",
        "full training of 0.6 B",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn what_keeps_a_link_from_being_measured_is_told() {
    let (closed, port) = listener();
    drop(closed);
    let fails = |arguments: &[&str], code: i32, told: &str| {
        let output = surefoot()
            .arg("probe")
            .args(arguments)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{}", show(&output));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(told), "{text}");
    };
    let nobody = format!("127.0.0.1:{port}");
    fails(
        &["--link", &nobody],
        1,
        "start `surefoot probe --listen` there",
    );
    fails(&["--link", "no-such-host.invalid"], 1, "cannot be resolved");
    fails(&["--link", "box2:x"], 2, "expected a host");
    fails(&["--listen", "box2:x"], 2, "expected a port");
    fails(&["--config", "a.yaml"], 2, "--link");
    fails(
        &["--link", "box2", "--report", "x.json"],
        2,
        "cannot be used with",
    );
}

#[test]
fn what_several_machines_ask_for_is_listed() {
    let doctor = |more: &[&str]| {
        surefoot()
            .args(["doctor", "--no-python", "--ranks"])
            .args(more)
            .output()
            .expect("it runs")
    };
    let text = String::from_utf8_lossy(&doctor(&[]).stdout).into_owned();
    assert!(text.contains("\nTraining on several machines\n"), "{text}");
    let output = doctor(&["--json"]);
    let found: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", show(&output)));
    let needs = found["ranks"].as_array().expect("a list");
    let names: Vec<_> = needs
        .iter()
        .filter_map(|need| need["what"].as_str())
        .collect();
    assert_eq!(
        names,
        ["RCCL", "torchrun", "interface", "name", "ports", "clock"]
    );
    assert!(found["network"]["interfaces"].is_array(), "{found}");
}
