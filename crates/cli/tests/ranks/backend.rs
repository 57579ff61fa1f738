//! What sums up the gradients of several ranks, and in which numbers.

use std::process::Output;

use super::{Place, assert_fine, distance, stderr};

/// Two ranks that sum up by the RCCL that `device-sim` simulates, which takes tensors on the CPU.
fn by_rccl(place: &Place, name: &str, backend: &str, fault: &str) -> Output {
    let library = device_sim::install::library_path().expect("cargo builds it with the tests");
    let (name, backend) = (
        format!("name={name}"),
        format!("train.ddp_backend={backend}"),
    );
    place
        .command(&["--nproc", "2", "--set", &name, "--set", &backend])
        .env("SUREFOOT_RCCL_LIB", library)
        .env("DEVICE_SIM_RCCL", fault)
        .output()
        .unwrap()
}

#[test]
fn rccl_sums_what_gloo_does_where_all_ranks_have_it() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "name=gloo", "--nproc", "2"]));
    let output = by_rccl(&place, "rccl", "nccl", "");
    assert_fine(&output);
    let shown = stderr(&output);
    assert!(shown.contains("gradients by RCCL 2.27.3"), "{shown}");
    assert_eq!(place.weights("gloo", 8), place.weights("rccl", 8));
}

#[test]
fn gloo_sums_where_one_rank_has_no_rccl_and_says_which_and_why() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "name=gloo", "--nproc", "2"]));
    for (name, fault, told) in [
        ("refused", "init-fails:1", "unhandled system error"),
        ("wrong", "wrong-sum:1", "its first sum was wrong"),
    ] {
        let output = by_rccl(&place, name, "auto", fault);
        assert_fine(&output);
        let shown = stderr(&output);
        assert!(shown.contains("not by RCCL: rank 1 on "), "{shown}");
        assert!(shown.contains(told), "{shown}");
        assert_eq!(place.weights("gloo", 8), place.weights(name, 8));
    }
}

#[test]
fn what_rccl_refuses_and_how_it_fails_is_told_by_rank() {
    for (fault, told) in [
        ("init-fails:1", "rank 1 on "),
        (
            "init-hangs:1",
            "ncclCommInitRank did not return within 10 seconds",
        ),
        ("wrong-sum:1", "its first sum was wrong"),
        (
            "async-error:1",
            "RCCL: an asynchronous error: remote process",
        ),
    ] {
        let place = Place::new();
        let output = by_rccl(&place, "rccl", "nccl", fault);
        assert!(!output.status.success(), "{fault}");
        let shown = stderr(&output);
        assert!(
            shown.contains("`train.ddp_backend` is nccl, and rank "),
            "{fault}: {shown}"
        );
        assert!(shown.contains(told), "{fault}: {shown}");
        assert!(!place.path("runs").exists(), "{fault}");
    }
    // The first sum is that of the start, the third that of the second step.
    for fault in ["async-error:1:3", "call-fails:1:3", "dies:1:3"] {
        let place = Place::new();
        let output = by_rccl(&place, "rccl", "nccl", fault);
        assert!(!output.status.success(), "{fault}");
        let shown = stderr(&output);
        assert!(shown.contains("rank 1 on "), "{fault}: {shown}");
    }
}

#[test]
fn without_the_library_gloo_sums_and_says_why_or_the_run_is_refused() {
    let place = Place::new();
    let run = |name: &str, backend: &str| {
        let (name, backend) = (
            format!("name={name}"),
            format!("train.ddp_backend={backend}"),
        );
        place
            .command(&["--nproc", "2", "--set", &name, "--set", &backend])
            .env("SUREFOOT_RCCL_LIB", "libno-such-rccl.so")
            .output()
            .unwrap()
    };
    let output = run("nccl", "nccl");
    assert!(!output.status.success());
    let shown = stderr(&output);
    assert!(shown.contains("libno-such-rccl.so"), "{shown}");
    assert_fine(&run("gloo", "gloo"));
}

#[test]
fn gradients_that_are_sent_as_bf16_are_rounded_and_little_else_changes() {
    let place = Place::new();
    assert_fine(&place.train(&["--set", "name=whole", "--nproc", "4"]));
    let half = ["--set", "name=half", "--set", "train.reduce_dtype=bfloat16"];
    assert_fine(&place.train(&[&half[..], &["--nproc", "4"]].concat()));
    let apart = distance(&place.losses("whole"), &place.losses("half"));
    println!("losses differ by {apart:.1e}");
    assert!(apart > 0.0, "nothing was rounded");
    assert!(apart < 0.01, "{apart}");
}
