//! Processes that train together, as processes: each is this test program again.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod reduction;

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::distributed::{Group, Interface, Store};

/// Longer than any machine takes, and short enough to see that something hangs.
const LONG: Duration = Duration::from_secs(120);
/// What a rank is: its number, how many there are, the store's port, what it does.
const ROLE: &str = "SUREFOOT_TEST_RANK";

/// Starts the ranks `from..size`; the caller is the others, or only hosts the store.
fn start(from: usize, size: usize, port: u16, role: &str) -> Vec<Child> {
    let one = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "distributed::one_rank",
                "--nocapture",
            ])
            .env(ROLE, format!("{rank} {size} {port} {role}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (from..size).map(one).collect()
}

fn finish(children: Vec<Child>) -> Vec<Output> {
    let outputs = children.into_iter();
    outputs
        .map(|child| child.wait_with_output().unwrap())
        .collect()
}

fn expect_success(children: Vec<Child>) {
    for (number, output) in finish(children).iter().enumerate() {
        assert!(
            output.status.success(),
            "process {number}: {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn join(store: &Store, rank: usize, size: usize, timeout: Duration) -> Result<Group, Error> {
    let interface = Interface::Address("127.0.0.1");
    Group::join(store, "test", (rank, size), interface, timeout)
}

/// What each process of the tests below does.
#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn one_rank() {
    let role = std::env::var(ROLE).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().unwrap();
    let (rank, size) = (number(0), number(1));
    let store = Store::connect("127.0.0.1", number(2) as u16, LONG).unwrap();
    match words[3] {
        "compute" => compute(&store, rank, size),
        "reduce" => reduction::reduce(&join(&store, rank, size, LONG).unwrap()),
        "leave-in-pass" => reduction::leave_in_pass(&join(&store, rank, size, LONG).unwrap()),
        "vanish" => {
            let group = join(&store, rank, size, LONG).unwrap();
            group.sum_numbers(&[0.0]).unwrap();
            std::process::abort();
        }
        // Until standard input ends: the test lets go of it when it has seen enough.
        "silent" => {
            store.set("ready", b"").unwrap();
            let group = join(&store, rank, size, LONG).unwrap();
            group.sum_numbers(&[0.0]).unwrap();
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        other => panic!("{other}"),
    }
}

fn compute(store: &Store, rank: usize, size: usize) {
    store.set(&format!("here/{rank}"), b"yes").unwrap();
    let all: Vec<String> = (0..size).map(|rank| format!("here/{rank}")).collect();
    store.wait(&all, LONG).unwrap();
    assert!(store.has(&all).unwrap());
    let group = join(store, rank, size, LONG).unwrap();
    assert_eq!((group.rank(), group.size()), (rank, size));

    // 1 + 2 + … in every place, of a tensor that is sent in pieces.
    let all = (size * (size + 1) / 2) as f64;
    for kind in [Kind::Float, Kind::Double, Kind::BFloat16] {
        let mut tensor = Tensor::full([100_003], rank as f64 + 1.0, (kind, Device::Cpu));
        group.sum(&mut tensor).unwrap();
        assert!(tensor.eq(all).all().int64_value(&[]) == 1, "{kind:?}");
    }
    assert_eq!(
        group.sum_numbers(&[rank as f64, 0.5]).unwrap(),
        [all - size as f64, 0.5 * size as f64]
    );

    let mut tensor = Tensor::from_slice(&[rank as i64, 7]);
    group.broadcast(&mut tensor, size - 1).unwrap();
    assert_eq!(Vec::<i64>::try_from(&tensor).unwrap(), [size as i64 - 1, 7]);

    // What is refused here is refused in all ranks, and the group goes on.
    let mut transposed = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)).transpose(0, 1);
    let refused = group.sum(&mut transposed);
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    assert!(matches!(
        group.broadcast(&mut tensor, size),
        Err(Error::InvalidArgument(_))
    ));
    group.sum_numbers(&[0.0]).unwrap();
}

#[test]
fn two_to_four_processes_add_and_broadcast() {
    for size in [2, 3, 4] {
        let store = Store::host("127.0.0.1", 0).unwrap();
        assert_ne!(store.port(), 0);
        expect_success(start(0, size, store.port(), "compute"));
        assert!(store.has(&["here/0", "here/1"]).unwrap());
    }
}

#[test]
fn a_process_that_ends_is_an_error_for_the_others_at_once() {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let children = start(1, 2, store.port(), "vanish");
    let group = join(&store, 0, 2, LONG).unwrap();
    group.sum_numbers(&[0.0]).unwrap();
    let began = Instant::now();
    let mut tensor = Tensor::zeros([8], (Kind::Float, Device::Cpu));
    let error = group.sum(&mut tensor).unwrap_err();
    assert!(matches!(error, Error::Peer(_)), "{error:?}");
    assert!(began.elapsed() < LONG, "it was not waited for");
    assert!(!finish(children)[0].status.success());
}

#[test]
fn a_process_that_does_not_answer_is_an_error_when_the_time_is_over() {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let mut children = start(1, 2, store.port(), "silent");
    // Joining takes a moment once both are there; the wait below is what must end.
    store.wait(&["ready"], LONG).unwrap();
    let timeout = Duration::from_secs(15);
    let group = join(&store, 0, 2, timeout).unwrap();
    group.sum_numbers(&[0.0]).unwrap();
    let mut tensor = Tensor::zeros([8], (Kind::Float, Device::Cpu));
    let error = group.sum(&mut tensor).unwrap_err();
    assert!(matches!(error, Error::Peer(_)), "{error:?}");
    assert!(
        children[0].try_wait().unwrap().is_none(),
        "it is still there"
    );
    let _ = children[0].stdin.as_mut().unwrap().write_all(b"enough\n");
    finish(children);
}

#[test]
fn keys_are_waited_for_and_numbers_counted() {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let other = Store::connect("127.0.0.1", store.port(), LONG).unwrap();
    store.set("a", b"one").unwrap();
    assert_eq!(other.get("a", LONG).unwrap(), b"one");
    other.set("a", b"").unwrap();
    assert!(store.get("a", LONG).unwrap().is_empty());
    assert_eq!(store.add("count", 3).unwrap(), 3);
    assert_eq!(other.add("count", -1).unwrap(), 2);

    assert!(!store.has(&["a", "b"]).unwrap());
    let soon = Duration::from_millis(50);
    for error in [
        store.get("b", soon).map(drop).unwrap_err(),
        store.wait(&["a", "b"], soon).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Peer(_)), "{error:?}");
    }
    // The store answers on.
    other.set("b", b"two").unwrap();
    store.wait(&["a", "b"], LONG).unwrap();
    assert!(matches!(
        store.set("a\0b", b""),
        Err(Error::InvalidArgument(_))
    ));
}

#[test]
fn a_store_that_is_not_there_and_a_port_that_is_taken_are_errors() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let taken = Store::host("127.0.0.1", port).unwrap_err();
    assert!(matches!(taken, Error::Peer(_)), "{taken:?}");
    drop(free);
    let gone = Store::connect("127.0.0.1", port, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(gone, Error::Peer(_)), "{gone:?}");
}

#[test]
fn a_group_of_one_and_what_is_no_group() {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let group = join(&store, 0, 1, LONG).unwrap();
    assert_eq!(group.sum_numbers(&[4.0]).unwrap(), [4.0]);
    assert!(matches!(
        join(&store, 1, 1, LONG),
        Err(Error::InvalidArgument(_))
    ));
    let missing = Interface::Name("no-such-interface");
    let error = Group::join(&store, "x", (0, 1), missing, LONG).unwrap_err();
    assert!(matches!(error, Error::Peer(_)), "{error:?}");
}
