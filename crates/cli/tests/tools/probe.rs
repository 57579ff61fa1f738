//! `surefoot probe`: every way in which a check can end is told apart.
//!
//! The interpreter is a shell script that behaves badly to order; with real PyTorch on
//! the simulated device the same is shown in `python/tests`.
use crate::common::{show, surefoot};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A "Python" that imports well and then runs `behaviour` for every other check.
fn interpreter(folder: &tempfile::TempDir, behaviour: &str) -> PathBuf {
    let path = folder.path().join("python");
    let script = format!(
        "#!/bin/sh\nif [ \"$2\" = import ]; then echo '{{\"verdict\": \"ok\", \"detail\": \"a torch\"}}'; exit; fi\n{behaviour}\n"
    );
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    path
}

fn probe(behaviour: &str) -> (Option<i32>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let python = interpreter(&folder, behaviour);
    let output = surefoot()
        .args([
            "probe",
            "--json",
            "--only",
            "copy-small",
            "--patience",
            "0.02",
            "--python",
        ])
        .arg(&python)
        .output()
        .expect("it runs");
    let json: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", show(&output)));
    (output.status.code(), json["checks"][1].clone())
}

#[test]
fn every_end_has_a_name_of_its_own() {
    let answer =
        |verdict: &str| format!("echo '{{\"verdict\": \"{verdict}\", \"detail\": \"d\"}}'");
    let cases = [
        (answer("ok"), "ok", 0),
        (answer("skipped"), "skipped", 0),
        (answer("wrong"), "wrong", 3),
        (answer("nan"), "nan", 3),
        (answer("zeros"), "zeros", 3),
        (answer("slow"), "slow", 0),
        (answer("oom"), "out-of-memory", 3),
        (answer("error"), "error", 3),
        ("kill -SEGV $$".to_owned(), "crash", 3),
        ("kill -ABRT $$".to_owned(), "crash", 3),
        ("exec sleep 60".to_owned(), "hang", 3),
        ("exit 0".to_owned(), "no-answer", 3),
        ("echo nonsense; exit 1".to_owned(), "no-answer", 3),
        // An answer, and then a crash on the way out.
        (answer("ok") + "; kill -SEGV $$", "crash", 3),
    ];
    for (behaviour, outcome, code) in cases {
        let (actual_code, result) = probe(&behaviour);
        assert_eq!(
            (result["outcome"].as_str(), actual_code),
            (Some(outcome), Some(code)),
            "{behaviour}: {result}"
        );
    }
}

#[test]
fn what_was_found_is_told_in_the_words_of_a_lora_for_wan() {
    for (verdict, met) in [("ok", true), ("wrong", false)] {
        let folder = tempfile::tempdir().expect("a folder");
        let python = interpreter(&folder, &format!("echo '{{\"verdict\": \"{verdict}\"}}'"));
        let run = |json: &[&str]| {
            surefoot()
                .args(["probe", "--only", "attention-aotriton", "--python"])
                .arg(&python)
                .args(json)
                .output()
                .expect("it runs")
        };
        let output = run(&["--json"]);
        let json: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", show(&output)));
        let needs = json["wan"].as_array().expect("a list");
        let named = |what: &str| needs.iter().find(|need| need["what"] == what);
        for what in ["conv3d", "attention", "ffmpeg", "memory"] {
            assert!(named(what).is_some(), "{what}: {json}");
        }
        assert_eq!(named("attention").expect("it is there")["met"], met);
        let output = run(&[]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("A LoRA for Wan\n  yes conv3d"), "{text}");
    }
}

#[test]
fn a_process_that_writes_much_is_not_taken_for_a_hang() {
    let (_, result) =
        probe("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo '{\"verdict\": \"ok\"}'");
    assert_eq!(result["outcome"], "ok", "{result}");
}

#[test]
fn a_message_on_stderr_is_explained() {
    let (_, result) = probe(
        "echo 'Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Page not present or supervisor privilege.' >&2; kill -ABRT $$",
    );
    assert!(
        result["advice"][0]
            .as_str()
            .is_some_and(|advice| advice.contains("not mapped")),
        "{result}"
    );
    assert!(
        result["stderr"]
            .as_str()
            .is_some_and(|text| text.contains("node-1")),
        "{result}"
    );
}

/// The exit code, what is printed, and the report, where each check answers this.
fn reported(answer: &str) -> (Option<i32>, String, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("python");
    std::fs::write(&path, format!("#!/bin/sh\necho '{answer}'\n")).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let report = folder.path().join("probe.json");
    let output = surefoot()
        .env("SUREFOOT_CACHE", folder.path())
        .args(["probe", "--python"])
        .arg(&path)
        .arg("--report")
        .arg(&report)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = std::fs::read_to_string(&report).expect("a report");
    let json = serde_json::from_str(&json).expect("JSON");
    (output.status.code(), text, json)
}

#[test]
fn without_a_gpu_it_says_what_it_could_not_test() {
    let (code, text, json) = reported(r#"{"verdict": "error", "detail": "torch sees no GPU"}"#);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("not tested: copy-small, copy-image"),
        "{text}"
    );
    assert_eq!(json["not_tested"].as_array().map(Vec::len), Some(17));
}

#[test]
fn a_report_says_why_nothing_was_timed() {
    let (_, text, json) = reported(r#"{"verdict": "ok"}"#);
    let why = json["not_timed"].as_str().expect(&text);
    assert!(why.contains("sees no GPU"), "{why}");
    assert!(text.contains(&format!("not timed: {why}")), "{text}");
}

#[test]
fn what_a_probe_found_is_used_from_then_on() {
    const AOTRITON: &str = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL";
    let folder = tempfile::tempdir().expect("a folder");
    let machine = folder.path().join("machine.txt");
    let dump = std::fs::read_to_string(crate::common::fixture(
        "synthetic/kfd_gfx1151_128g_gtt110.txt",
    ))
    .expect("a fixture");
    let python = "== python/prefix\n/venv\n== python/packages\ntorch 2.11.0+rocm7.2\n";
    std::fs::write(&machine, dump + python).expect("a file");
    let here = |command: &mut std::process::Command| {
        command
            .env("SUREFOOT_MACHINE", &machine)
            .env("SUREFOOT_CACHE", folder.path())
            .output()
            .expect("it runs")
    };
    let env = || {
        let output = here(surefoot().args(["env", "--json"]));
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", show(&output)))
    };
    let probe = |verdict: &str, torch: &str| {
        let path = folder.path().join("python");
        let answer = format!(
            "#!/bin/sh\necho '{{\"verdict\": \"ok\", \"architecture\": \"gfx1151\", \"torch\": \"{torch}\"}}'\n"
        );
        let answer = match verdict {
            "ok" => answer,
            other => answer.replace(
                "\necho",
                &format!("\nif [ \"$2\" = attention ]; then echo '{{\"verdict\": \"{other}\"}}'; exit; fi\necho"),
            ),
        };
        std::fs::write(&path, answer).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("permissions");
        here(
            surefoot()
                .args(["probe", "--only", "attention", "--python"])
                .arg(&path),
        );
    };
    assert_eq!(env()[AOTRITON], Value::Null, "nothing was tried");
    probe("ok", "2.12.0+rocm7.2");
    assert_eq!(env()[AOTRITON], Value::Null, "that was another torch");
    probe("ok", "2.11.0+rocm7.2");
    assert_eq!(env()[AOTRITON], "1");
    probe("wrong", "2.11.0+rocm7.2");
    assert_eq!(env()[AOTRITON], Value::Null, "the last word counts");
}

/// Before its first step on a GPU, `surefoot train` tries the switch of attention's kernels, once, and sets it where they are right.
#[test]
fn training_tries_attention_by_itself_the_first_time() {
    const AOTRITON: &str = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL";
    for verdict in ["ok", "wrong"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (machine, config) = (
            folder.path().join("machine.txt"),
            folder.path().join("c.yaml"),
        );
        let dump = std::fs::read_to_string(crate::common::fixture(
            "synthetic/kfd_gfx1151_128g_gtt110.txt",
        ))
        .expect("a fixture");
        let prefix = folder.path().display();
        let python =
            format!("== python/prefix\n{prefix}\n== python/packages\ntorch 2.11.0+rocm7.2\n");
        std::fs::write(&machine, dump + &python).expect("a file");
        // Nothing to train on: it ends after the environment is as it should be.
        std::fs::write(&config, "data: {path: nothing.txt}\n").expect("a file");
        let path = folder.path().join("bin/python");
        std::fs::create_dir_all(folder.path().join("bin")).expect("a folder");
        let answer = format!(
            "#!/bin/sh\necho tried >> {prefix}/tries\nif [ \"$2\" = attention ]; then echo '{{\"verdict\": \"{verdict}\"}}'; exit; fi\n\
             echo '{{\"verdict\": \"ok\", \"architecture\": \"gfx1151\", \"torch\": \"2.11.0+rocm7.2\"}}'\n"
        );
        std::fs::write(&path, answer).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("permissions");
        let train = |variables: &[(&str, &str)]| {
            let output = surefoot()
                .arg("train")
                .arg(&config)
                .env("SUREFOOT_MACHINE", &machine)
                .env("SUREFOOT_CACHE", folder.path().join("cache"))
                .env_remove(AOTRITON)
                .envs(variables.iter().copied())
                .output()
                .expect("it runs");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let tries = || {
            let text = std::fs::read_to_string(folder.path().join("tries")).unwrap_or_default();
            text.lines().count()
        };
        let set = format!("surefoot: set {AOTRITON}=1");
        assert!(
            !train(&[(AOTRITON, "0")]).contains(AOTRITON),
            "somebody has decided"
        );
        assert_eq!(tries(), 0);
        let first = train(&[]);
        assert!(first.contains("trying AOTriton's kernels"), "{first}");
        assert_eq!(first.contains(&set), verdict == "ok", "{first}");
        assert_eq!(first.contains("stay off"), verdict == "wrong", "{first}");
        // The import, and the attention.
        assert_eq!(tries(), 2);
        let second = train(&[]);
        assert!(!second.contains("trying"), "{second}");
        assert_eq!(second.contains(&set), verdict == "ok", "{second}");
        assert_eq!(tries(), 2);
    }
}

/// What `surefoot doctor` says of a log with NaN, on a Strix Halo whose attention answers `verdict`.
fn doctor_measures(verdict: &str, options: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = folder.path().join("machine.txt");
    let dump = std::fs::read_to_string(crate::common::fixture(
        "synthetic/kfd_gfx1151_128g_gtt110.txt",
    ))
    .expect("a fixture");
    std::fs::write(&machine, dump).expect("a file");
    let log = folder.path().join("train.log");
    std::fs::write(&log, "step 1: loss 3.1\nstep 2: loss nan\n").expect("a file");
    let other = format!("[ \"$2\" = attention ] && echo '{{\"verdict\": \"{verdict}\"}}' && exit");
    let python = interpreter(&folder, &format!("{other}; echo '{{\"verdict\": \"ok\"}}'"));
    let run = |json: &[&str]| {
        surefoot()
            .args(["doctor", "--log"])
            .arg(&log)
            .arg("--python")
            .arg(&python)
            .args(options)
            .args(json)
            .env("SUREFOOT_MACHINE", &machine)
            .env("SUREFOOT_CACHE", folder.path())
            .output()
            .expect("it runs")
    };
    let text = String::from_utf8_lossy(&run(&[]).stdout).into_owned();
    let json = serde_json::from_slice(&run(&["--json"]).stdout).expect("JSON");
    (text, json)
}

fn nan_in(report: &Value) -> &Value {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["id"] == "nan-loss");
    found.expect("the message of the log")
}

#[test]
fn the_doctor_names_the_checks_that_would_decide_and_runs_none() {
    let (text, report) = doctor_measures("nan", &[]);
    assert!(
        text.contains("would decide it (attention, autograd, copy-large, [nan-loss])"),
        "{text}"
    );
    assert!(text.contains("--probe"), "{text}");
    assert_eq!(nan_in(&report)["probe"][0], "attention");
}

#[test]
fn what_the_doctor_measures_chooses_the_cause_and_the_steps() {
    let (text, report) = doctor_measures("nan", &["--probe"]);
    let why = nan_in(&report)["why"].as_str().expect("a reason");
    assert!(why.starts_with("Attention is computed wrongly"), "{why}");
    assert!(why.contains("attention is not as expected here"), "{why}");
    assert!(!text.contains("would decide it"), "{text}");
    let (_, report) = doctor_measures("ok", &["--probe"]);
    let why = nan_in(&report)["why"].as_str().expect("a reason");
    assert!(why.contains("did not find it"), "{why}");
}

#[test]
fn an_unknown_check_is_bad_usage_and_names_the_known_ones() {
    let output = surefoot()
        .args(["probe", "--only", "copie"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("copy-small"),
        "{}",
        show(&output)
    );
}

/// The other binary answers, and a log full of ordered faults stays out of sight.
#[cfg(feature = "torch")]
#[test]
fn the_fault_matrix_of_placement_misses_nothing() {
    let output = surefoot()
        .args(["probe", "--placement", "--json"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", show(&output));
    assert!(output.stderr.is_empty(), "{}", show(&output));
    let matrix: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(matrix["missed"], 0);
    assert!(
        matrix["cells"]
            .as_array()
            .is_some_and(|cells| cells.len() > 800)
    );
}
