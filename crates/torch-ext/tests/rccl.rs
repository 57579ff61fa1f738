//! Sums by the RCCL that `device-sim` simulates, between processes: each is this test program again.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::distributed::Store;
use torch_ext::rccl::{Communicator, Library, UniqueId};

/// Longer than any machine takes, and short enough to see that something hangs.
const LONG: Duration = Duration::from_secs(120);
/// For what is to hang.
const SHORT: Duration = Duration::from_secs(3);
const ROLE: &str = "SUREFOOT_TEST_RANK";

fn library() -> Library {
    let path = device_sim::install::library_path().expect("cargo builds it with the tests");
    Library::open(path.to_str().unwrap()).unwrap()
}

/// Two ranks, with `fault`; the output of each.
fn ranks(size: usize, role: &str, fault: &str) -> Vec<Output> {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let ranks: Vec<_> = (0..size)
        .map(|rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "rccl::one_rank", "--nocapture"])
                .env(ROLE, format!("{rank} {size} {} {role}", store.port()))
                .env("DEVICE_SIM_RCCL", fault)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ranks = ranks.into_iter();
    ranks.map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn one_rank() {
    let role = std::env::var(ROLE).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().unwrap();
    let (rank, size, role) = (number(0), number(1), words[3]);
    let store = Store::connect("127.0.0.1", number(2) as u16, LONG).unwrap();
    let library = library();
    if rank == 0 {
        store
            .set("id", library.unique_id().unwrap().bytes())
            .unwrap();
    }
    let id = UniqueId::from_bytes(&store.get("id", LONG).unwrap()).unwrap();
    let timeouts = match role {
        "faulty" => (SHORT, SHORT),
        _ => (LONG, LONG),
    };
    let joined = Communicator::join(&library, id, (rank, size), Device::Cpu, timeouts, || {
        !store.has(&["stop"]).unwrap()
    });
    let mut joined = match joined {
        Ok(joined) => joined,
        Err(error) => return println!("join: {error}"),
    };
    if role == "faulty" {
        for number in 1..=3 {
            let tensor = Tensor::full([1000], number as f64, (Kind::Float, Device::Cpu));
            match joined.sum(tensor) {
                Ok(sum) => println!("sum {number}: {}", sum.double_value(&[7])),
                Err(error) => println!("sum {number}: {error}"),
            }
        }
        return;
    }
    let all = (size * (size + 1) / 2) as f64;
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16] {
        let tensor = Tensor::full([100_003], rank as f64 + 1.0, (kind, Device::Cpu));
        let sum = joined.sum(tensor).unwrap();
        assert_eq!(sum.eq(all).all().int64_value(&[]), 1, "{kind:?}");
    }
    // What is refused here is refused in all ranks, and nothing is lost.
    let transposed = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)).tr();
    let integers = Tensor::zeros([2], (Kind::Int64, Device::Cpu));
    for refused in [transposed, integers] {
        let refused = joined.sum(refused);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    let sum = joined.sum(Tensor::from(1.0)).unwrap();
    assert_eq!(sum.double_value(&[]), size as f64);
}

#[test]
fn ranks_sum_tensors_of_each_kind() {
    for size in [2, 4] {
        for output in ranks(size, "compute", "") {
            assert!(output.status.success(), "{}", said(&output));
        }
    }
}

#[test]
fn what_goes_wrong_is_told_by_all_and_nobody_hangs() {
    let began = Instant::now();
    for (fault, first, second) in [
        (
            "init-fails:1",
            "join: ncclCommInitRank did not return within 3 seconds",
            "join: RCCL: ncclCommInitRank: unhandled system error",
        ),
        (
            "init-hangs:1",
            "join: ncclCommInitRank did not return within 3 seconds",
            "join: ncclCommInitRank did not return within 3 seconds",
        ),
        (
            "async-error:1:2",
            "sum 2: RCCL: ",
            "sum 2: RCCL: an asynchronous error: remote process exited",
        ),
        (
            "hangs:0:2",
            "sum 2: RCCL: a sum was not there after 3 seconds",
            "sum 2: RCCL: ",
        ),
        (
            "call-fails:1:2",
            "sum 2: RCCL: ",
            "sum 2: RCCL: ncclAllReduce: unhandled system error",
        ),
        ("dies:1:2", "sum 2: RCCL: an asynchronous error", "sum 1: 2"),
    ] {
        let outputs = ranks(2, "faulty", fault);
        let [one, two] = [0, 1].map(|rank| said(&outputs[rank]));
        assert!(one.contains(first), "{fault}: rank 0: {one}");
        assert!(two.contains(second), "{fault}: rank 1: {two}");
        if one.contains("sum 2") {
            assert!(one.contains("sum 1: 2\n"), "{fault}: {one}");
            assert!(
                one.contains("sum 3: RCCL has failed before"),
                "{fault}: {one}"
            );
        }
    }
    assert!(began.elapsed() < LONG);
}

#[test]
fn one_who_waits_for_others_stops_when_told_to() {
    let library = library();
    let id = library.unique_id().unwrap();
    let joined = Communicator::join(&library, id, (0, 2), Device::Cpu, (LONG, LONG), || false);
    let error = joined.unwrap_err().to_string();
    assert!(error.contains("another rank has given up"), "{error}");
}

#[test]
fn a_library_for_host_memory_sums_nothing_on_a_gpu() {
    let library = library();
    assert_eq!(library.version(), "2.27.3");
    let refused = library.expect_usable_with(Device::Cuda(0));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
}
