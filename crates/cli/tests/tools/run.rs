//! `surefoot run`: signals, exit codes, the environment of the child, the explanation.
use crate::common::{fixture, show, surefoot};
use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    surefoot()
        .arg("run")
        .args(arguments)
        .output()
        .expect("it runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_exit_code_comes_through() {
    for code in [0, 1, 7, 255] {
        assert_eq!(
            run(&["--", "sh", "-c", &format!("exit {code}")])
                .status
                .code(),
            Some(code)
        );
    }
}

#[test]
fn a_signal_becomes_the_code_that_a_shell_gives() {
    let output = run(&["--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(output.status.code(), Some(139));
    assert!(stderr(&output).contains("SIGSEGV"), "{}", show(&output));
}

#[test]
fn what_it_prints_comes_through() {
    let output = run(&["--", "sh", "-c", "echo to stdout; echo to stderr >&2"]);
    assert_eq!(output.stdout, b"to stdout\n");
    assert!(stderr(&output).contains("to stderr\n"));
}

#[test]
fn a_known_message_is_explained() {
    let output = run(&[
        "--",
        "sh",
        "-c",
        "echo 'RuntimeError: HIP error: invalid device function' >&2; exit 1",
    ]);
    let text = stderr(&output);
    assert!(
        text.contains("[invalid-device-function, likely]") && text.contains("RAM available"),
        "{text}"
    );
}

#[test]
fn success_is_not_commented() {
    let output = run(&[
        "--",
        "sh",
        "-c",
        "echo 'HIP error: invalid device function' >&2",
    ]);
    assert!(!stderr(&output).contains("the command failed"));
}

#[test]
fn a_command_that_is_not_there_is_bad_usage() {
    let output = run(&["--", "surefoot-test-no-such-command"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("command not found"));
}

#[test]
fn a_signal_reaches_the_child_and_its_answer_counts() {
    let script = "trap 'echo stopping; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = surefoot()
        .args(["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let pid = child.id().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .expect("kill")
            .success()
    );
    assert_eq!(lines.next().expect("a line").expect("text"), "stopping");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(9));
    // Whoever stops a program needs no explanation for its end.
    assert!(!stderr(&output).contains("the command failed"));
}

#[test]
fn a_grandchild_that_holds_stderr_does_not_hold_us() {
    let output = run(&["--", "sh", "-c", "sleep 30 >/dev/null & exit 4"]);
    assert_eq!(output.status.code(), Some(4));
}

#[test]
fn debug_adds_the_serialising_variables_and_respects_the_users() {
    let output = surefoot()
        .args(["run", "--debug", "--", "env"])
        .env("AMD_LOG_LEVEL", "1")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("AMD_SERIALIZE_KERNEL=3\n") && text.contains("AMD_LOG_LEVEL=1\n"),
        "{text}"
    );
    let plain = run(&["--", "env"]);
    assert!(!String::from_utf8_lossy(&plain.stdout).contains("AMD_SERIALIZE_KERNEL"));
}

#[test]
fn harmful_settings_are_named_and_kept() {
    let output = surefoot()
        .args(["run", "--", "env"])
        .env("PYTORCH_MAX_SPLIT_SIZE_MB", "512")
        .output()
        .expect("it runs");
    assert!(
        stderr(&output).contains("PYTORCH_MAX_SPLIT_SIZE_MB does not exist"),
        "{}",
        show(&output)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("PYTORCH_MAX_SPLIT_SIZE_MB=512\n"));
}

#[test]
fn alloc_puts_the_python_part_and_the_library_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libhip_alloc.so");
    std::fs::write(&library, b"").expect("a file");
    let output = surefoot()
        .args([
            "run",
            "--alloc",
            "--",
            "sh",
            "-c",
            "echo $HIP_ALLOC $HIP_ALLOC_LIB; echo $PYTHONPATH",
        ])
        .env("HIP_ALLOC_LIB", &library)
        .env("SUREFOOT_CACHE", folder.path())
        .env("PYTHONPATH", "/mine")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some(format!("1 {}", library.display()).as_str()),
        "{}",
        show(&output)
    );
    let (ours, theirs) = lines
        .next()
        .and_then(|path| path.split_once(':'))
        .expect("two folders");
    assert_eq!(theirs, "/mine");
    assert!(
        std::path::Path::new(ours)
            .join("sitecustomize.py")
            .is_file()
    );
    assert!(
        std::path::Path::new(ours)
            .join("surefoot_activate/__init__.py")
            .is_file()
    );
}

#[test]
fn alloc_without_its_library_is_bad_usage() {
    let output = surefoot()
        .args(["run", "--alloc", "--", "true"])
        .env("HIP_ALLOC_LIB", "/nowhere.so")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", show(&output));
}

#[test]
fn alloc_does_not_run_a_python_that_would_not_see_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libhip_alloc.so");
    std::fs::write(&library, b"").expect("a file");
    for option in ["-E", "-I"] {
        let output = surefoot()
            .args([
                "run",
                "--alloc",
                "--",
                "python3",
                option,
                "-c",
                "print('ran')",
            ])
            .env("HIP_ALLOC_LIB", &library)
            .env("SUREFOOT_CACHE", folder.path())
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", show(&output));
        assert!(output.stdout.is_empty());
        let told = stderr(&output);
        assert!(
            told.contains(&format!("`python3 {option}` does not read PYTHONPATH"))
                && told.contains("surefoot activate --python python3"),
            "{told}"
        );
    }
}

#[test]
fn a_relative_library_is_handed_on_with_its_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("libhip_alloc.so"), b"").expect("a file");
    let output = surefoot()
        .args(["run", "--alloc", "--", "sh", "-c", "echo $HIP_ALLOC_LIB"])
        .env("HIP_ALLOC_LIB", "libhip_alloc.so")
        .env("SUREFOOT_CACHE", folder.path())
        .current_dir(folder.path())
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    let expected = folder.path().canonicalize().expect("a folder");
    assert_eq!(
        told.trim(),
        expected.join("libhip_alloc.so").display().to_string(),
        "{}",
        show(&output)
    );
}

#[test]
fn a_gpu_that_is_not_there_is_bad_usage() {
    let output = run(&["--gpu", "99", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", show(&output));
}

#[test]
fn a_gpu_with_wrong_gradients_is_refused_unless_somebody_insists() {
    let on_a_steam_deck = |insist: &str, more: &[&str]| {
        surefoot()
            .arg("run")
            .args(more)
            .args(["--", "echo", "trained"])
            .env(
                "SUREFOOT_MACHINE",
                fixture("synthetic/kfd_gfx1033_steamdeck.txt"),
            )
            .env("SUREFOOT_ALLOW_GFX1033", insist)
            .output()
            .expect("it runs")
    };
    for arguments in [&[][..], &["--gpu", "0"]] {
        let refused = on_a_steam_deck("0", arguments);
        assert_eq!(refused.status.code(), Some(2), "{}", show(&refused));
        assert!(refused.stdout.is_empty());
        assert!(
            stderr(&refused).contains("wrong gradients")
                && stderr(&refused).contains("SUREFOOT_ALLOW_GFX1033=1"),
            "{}",
            show(&refused)
        );
    }
    let insisted = on_a_steam_deck("1", &[]);
    assert_eq!(insisted.stdout, b"trained\n", "{}", show(&insisted));
}

#[test]
fn the_child_gets_what_the_machine_needs_and_keeps_what_the_user_set() {
    let environment = |name: &str, value: &str| {
        let output = surefoot()
            .args(["run", "--", "env"])
            .env(
                "SUREFOOT_MACHINE",
                fixture("synthetic/kfd_gfx1201_plus_gfx1036.txt"),
            )
            .env(name, value)
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let planned = environment("UNRELATED", "1");
    assert!(planned.contains("ROCR_VISIBLE_DEVICES="), "{planned}");
    let own = environment("HIP_VISIBLE_DEVICES", "1");
    assert!(
        own.contains("HIP_VISIBLE_DEVICES=1\n") && !own.contains("ROCR_VISIBLE_DEVICES"),
        "{own}"
    );
}

const FAULT: &str = "echo 'Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f00. Reason: Page not present.' >&2; kill -ABRT $$";

/// Runs a script as the command, in a folder of its own.
fn restarting(folder: &std::path::Path, command: &[&str], script: &str) -> Output {
    let program = folder.join(command[0]);
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("a mode");
    surefoot()
        .args(["run", "--restart-on-fault", "--"])
        .arg(program)
        .args(&command[1..])
        .current_dir(folder)
        .output()
        .expect("it runs")
}

#[test]
fn a_command_that_a_page_fault_ended_is_started_again_while_it_comes_further() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        "echo restarts ${{SUREFOOT_RESTARTS:-0}}\n[ \"$SUREFOOT_RESTARTS\" = 2 ] || {{ {FAULT}; }}"
    );
    let output = restarting(folder.path(), &["script", "a"], &script);
    assert_eq!(output.status.code(), Some(0), "{}", show(&output));
    assert_eq!(output.stdout, b"restarts 0\nrestarts 1\nrestarts 2\n");
    let said = "starting it again from the beginning (restart 2 of 3)";
    assert!(stderr(&output).contains(said), "{}", show(&output));
    // One that always faults.
    let script = format!("echo restarts $SUREFOOT_RESTARTS\n{FAULT}");
    let output = restarting(folder.path(), &["script"], &script);
    assert_eq!(output.status.code(), Some(134), "{}", show(&output));
    assert_eq!(
        output.stdout,
        b"restarts\nrestarts 1\nrestarts 2\nrestarts 3\n"
    );
    assert!(stderr(&output).contains("is not started again: it was started again 3 times"));
    // One that comes no further.
    let output = restarting(
        folder.path(),
        &["script"],
        &format!("echo step 5 >> starts\n{FAULT}"),
    );
    let starts = std::fs::read_to_string(folder.path().join("starts")).expect("a file");
    assert_eq!(
        (output.status.code(), starts.lines().count()),
        (Some(134), 2)
    );
    assert!(
        stderr(&output).contains("it came no further"),
        "{}",
        show(&output)
    );
    // Another end is none of its business, nor is a fault without the option.
    let output = restarting(
        folder.path(),
        &["script"],
        "echo Segmentation fault >&2; exit 1",
    );
    assert!(!stderr(&output).contains("again"), "{}", show(&output));
    let output = run(&["--", "sh", "-c", FAULT]);
    assert!(
        !stderr(&output).contains("starting it again"),
        "{}",
        show(&output)
    );
}

#[test]
fn a_trainer_that_a_page_fault_ended_resumes_its_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!(
        r#"echo "$*" >> starts
mkdir -p runs/a && echo 'name: a' > runs/a/config.yaml
echo 'run        runs/a' >&2
case $(wc -l < starts) in
  1) mkdir -p runs/a/checkpoints/step-000010; {FAULT};;
  2) mkdir -p runs/a/checkpoints/step-000020; {FAULT};;
esac"#
    );
    let output = restarting(
        folder.path(),
        &["surefoot", "train", "a.yaml", "--set", "x=1"],
        &script,
    );
    assert_eq!(output.status.code(), Some(0), "{}", show(&output));
    let starts = std::fs::read_to_string(folder.path().join("starts")).expect("a file");
    let resumed = "train a.yaml --set x=1 --resume runs/a";
    let wanted = ["train a.yaml --set x=1", resumed, resumed];
    assert_eq!(starts.lines().collect::<Vec<_>>(), wanted);
    assert!(stderr(&output).contains("from its checkpoint of step 20 (restart 2 of 3)"));
}

/// A machine with an RX 9070 XT and a torch whose kernels for it read too far.
fn on_an_rx_9070(torch: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let text = std::fs::read_to_string(fixture("synthetic/kfd_gfx1201_plus_gfx1036.txt"));
    let python = format!("\n== python/prefix\n/venv\n== python/packages\ntorch {torch}\n");
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("machine.txt");
    std::fs::write(&dump, text.expect("a fixture") + &python).expect("a file");
    surefoot()
        .args(arguments)
        .env("SUREFOOT_MACHINE", dump)
        .envs(variables.iter().copied())
        .output()
        .expect("it runs")
}

#[test]
fn on_rx_9000_the_kernels_that_read_too_far_are_left_out_and_that_is_said_once() {
    let seen = |torch: &str, arguments: &[&str], variables: &[(&str, &str)]| {
        let line = [&["run"], arguments, &["--", "env"]].concat();
        let output = on_an_rx_9070(torch, &line, variables);
        let environment = String::from_utf8_lossy(&output.stdout).into_owned();
        let set = environment.contains("TORCH_BLAS_PREFER_HIPBLASLT=0\n")
            && environment.contains("ROCBLAS_USE_HIPBLASLT=0\n");
        (set, stderr(&output))
    };
    const NEW: &str = "2.13.0+rocm7.2";
    let (set, text) = seen(NEW, &[], &[]);
    let hint = "set TORCH_BLAS_PREFER_HIPBLASLT=0 ROCBLAS_USE_HIPBLASLT=0: hipBLASLt's kernels for RX 9000";
    assert!(set && text.matches(hint).count() == 1, "{text}");
    assert!(
        text.contains("TheRock#7699") && !text.contains("may fault ("),
        "{text}"
    );
    // With the guard behind each allocation the faster kernels may stay.
    let alloc = [("HIP_ALLOC_LIB", env!("CARGO_BIN_EXE_surefoot"))];
    let (set, text) = seen(NEW, &["--alloc"], &alloc);
    assert!(
        !set && !text.contains("HIPBLASLT") && !text.contains("may fault"),
        "{text}"
    );
    // What the user asked for is respected, and the risk is named with its cure.
    let (set, text) = seen(NEW, &[], &[("TORCH_BLAS_PREFER_HIPBLASLT", "1")]);
    assert!(
        !set && text.contains("`surefoot run --alloc -- python train.py`"),
        "{text}"
    );
    // A torch that would not heed the variables.
    let (set, text) = seen("2.11.0+rocm7.2", &[], &[]);
    assert!(
        !set && text.contains("LoRA training on this card may fault"),
        "{text}"
    );
    let printed = on_an_rx_9070(NEW, &["env"], &[]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(
        printed.contains("\nexport TORCH_BLAS_PREFER_HIPBLASLT=0\n"),
        "{printed}"
    );
}

#[test]
fn a_message_on_stdout_is_explained_too() {
    let output = run(&[
        "--",
        "sh",
        "-c",
        "echo 'HIP error: invalid argument'; exit 1",
    ]);
    assert_eq!(output.stdout, b"HIP error: invalid argument\n");
    assert!(
        stderr(&output).contains("[invalid-argument,"),
        "{}",
        show(&output)
    );
}

#[test]
fn every_byte_of_stdout_comes_through_a_slow_reader() {
    let script = format!(
        "{} run -- sh -c 'head -c 3000000 /dev/zero' | (sleep 1; wc -c)",
        env!("CARGO_BIN_EXE_surefoot")
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3000000");
}

#[test]
fn a_reader_that_leaves_ends_the_command_as_it_would_without_us() {
    let script = format!("{} run -- yes | head -n 1", env!("CARGO_BIN_EXE_surefoot"));
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .expect("it ends");
    assert_eq!(output.stdout, b"y\n");
    assert!(!stderr(&output).contains("failed"), "{}", show(&output));
}

#[test]
fn the_order_stays_when_both_streams_are_one_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let script = format!(
        "{} run -- sh -c 'for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done' > {} 2>&1",
        env!("CARGO_BIN_EXE_surefoot"),
        log.display()
    );
    let status = std::process::Command::new("sh")
        .args(["-c", &script])
        .status()
        .expect("it runs");
    assert!(status.success());
    let expected: String = (1..=5).map(|i| format!("out {i}\nerr {i}\n")).collect();
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.ends_with(&expected), "{log}");
}

#[test]
fn the_memory_before_the_end_is_told() {
    let output = run(&["--", "sh", "-c", "sleep 1; kill -KILL $$"]);
    assert_eq!(output.status.code(), Some(137));
    let text = stderr(&output);
    assert!(
        text.contains("before its end, the process held ") && text.contains("SIGKILL"),
        "{text}"
    );
}

/// What the child prints goes through a terminal of its own, which must follow ours.
#[test]
fn a_terminal_that_changes_its_size_changes_that_of_the_child() {
    use rustix::process::{Pid, Signal, kill_process};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};

    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&controller).expect("ours");
    unlockpt(&controller).expect("open");
    let name = ptsname(&controller, Vec::new()).expect("a name");
    let terminal = || {
        let path = name.to_str().expect("a path");
        let file = std::fs::File::options().read(true).write(true).open(path);
        Stdio::from(file.expect("its other end"))
    };
    let resize = |rows, columns| {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&controller, size).expect("it is resized");
    };
    resize(24, 80);
    let script = "trap 'stty size <&2; exit 0' WINCH; stty size <&2; while :; do sleep 0.05; done";
    let mut child = surefoot()
        .args(["run", "--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(terminal())
        .stderr(terminal())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(std::fs::File::from(controller.try_clone().expect("a copy")));
    let mut wait_for = |wanted: &str| {
        let mut line = String::new();
        while !line.trim_end().ends_with(wanted) {
            line.clear();
            let read = lines.read_line(&mut line).expect("readable");
            assert!(read > 0, "the terminal closed before {wanted:?}");
        }
    };
    wait_for("24 80");
    resize(50, 132);
    // Only a terminal that controls its processes sends this by itself.
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::WINCH).expect("it is told");
    wait_for("50 132");
    assert!(child.wait().expect("it ends").success());
}
