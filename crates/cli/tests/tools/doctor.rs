//! `surefoot doctor` and `surefoot explain` as people and programs see them.

use crate::common::{fixture, show, surefoot};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

fn doctor_from(name: &str) -> String {
    show(
        &surefoot()
            .args(["doctor", "--from"])
            .arg(fixture(name))
            .output()
            .expect("it runs"),
    )
}

#[test]
fn strix_halo_at_its_defaults() {
    insta::assert_snapshot!(doctor_from("synthetic/kfd_gfx1151_128g_default.txt"));
}

#[test]
fn a_card_with_an_integrated_gpu() {
    insta::assert_snapshot!(doctor_from("synthetic/kfd_gfx1031_plus_gfx1036.txt"));
}

#[test]
fn a_steam_deck_is_refused() {
    insta::assert_snapshot!(doctor_from("synthetic/kfd_gfx1033_steamdeck.txt"));
}

#[test]
fn a_carve_out_from_rocminfo() {
    insta::assert_snapshot!(doctor_from("rocminfo_gfx1151_strixhalo_96g_carveout.txt"));
}

#[test]
fn two_gpus_on_windows() {
    insta::assert_snapshot!(doctor_from("hipinfo_windows_mixed_synthetic.txt"));
}

#[test]
fn a_memory_report() {
    insta::assert_snapshot!(doctor_from("mem_gfx1151_unsloth_free_gt_total.txt"));
}

#[test]
fn the_json_of_a_machine() {
    let output = surefoot()
        .args(["doctor", "--json", "--from"])
        .arg(fixture("synthetic/kfd_gfx1201_plus_gfx1036.txt"))
        .output()
        .expect("it runs");
    insta::assert_snapshot!(show(&output));
}

#[test]
fn the_json_has_the_promised_shape() {
    let output = surefoot()
        .args(["doctor", "--json", "--from"])
        .arg(fixture("synthetic/kfd_gfx1151_128g_gtt110.txt"))
        .output()
        .expect("it runs");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let gpu = &json["gpus"][0];
    assert_eq!(gpu["gfx"], "gfx1151");
    assert_eq!(gpu["class"], "apu");
    assert_eq!(gpu["pci"], "0000:c5:00.0");
    assert_eq!(gpu["render_node"], "/dev/dri/renderD128");
    assert_eq!(gpu["device_id"], "0x1586");
    assert_eq!(gpu["usable_bytes"], 118_111_600_640_u64);
    assert_eq!(gpu["memory_rule"], "gtt");
    assert_eq!(
        (json["pick"].as_u64(), json["hide"].as_array().map(Vec::len)),
        (Some(0), Some(0))
    );
    let finding = &json["findings"][0];
    for key in ["id", "severity", "title", "why", "fix", "source"] {
        assert!(!finding[key].is_null(), "{key}: {finding}");
    }
}

#[test]
fn a_fix_script_is_written_and_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("fix.sh");
    let output = surefoot()
        .args(["doctor", "--from"])
        .arg(fixture("synthetic/kfd_gfx1151_128g_default.txt"))
        .arg("--fix-script")
        .arg(&script)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(std::fs::read_to_string(&script).expect("a script"));
    let syntax = std::process::Command::new("sh")
        .arg("-n")
        .arg(&script)
        .status()
        .expect("sh");
    assert!(syntax.success());
}

#[test]
fn a_dump_of_this_machine_is_diagnosed_as_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("machine.txt");
    let written = surefoot()
        .args(["doctor", "--no-python", "--dump"])
        .arg(&dump)
        .env("AMD_SERIALIZE_KERNEL", "3")
        .output()
        .expect("it runs");
    assert_eq!(written.status.code(), Some(0), "{}", show(&written));
    let findings = |output: std::process::Output| {
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["findings"].clone()
    };
    let live = surefoot()
        .args(["doctor", "--no-python", "--json"])
        .env("AMD_SERIALIZE_KERNEL", "3")
        .output()
        .expect("it runs");
    let read = surefoot()
        .args(["doctor", "--json", "--from"])
        .arg(&dump)
        .output()
        .expect("it runs");
    assert_eq!(findings(read), findings(live));
}

#[test]
fn secrets_do_not_get_into_a_dump() {
    let output = surefoot()
        .args(["doctor", "--no-python", "--dump", "-"])
        .env("HF_TOKEN", "hf_secret")
        .env("HIP_VISIBLE_DEVICES", "0")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("HIP_VISIBLE_DEVICES=0") && !text.contains("hf_secret"),
        "{text}"
    );
}

#[test]
fn unrecognised_text_is_bad_usage() {
    let mut child = surefoot()
        .args(["doctor", "--from", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(b"my computer is slow\n")
        .expect("written");
    insta::assert_snapshot!(show(&child.wait_with_output().expect("it ends")));
}

#[test]
fn a_missing_file_is_bad_usage() {
    let output = surefoot()
        .args(["doctor", "--from", "nowhere.txt"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let script = format!(
        "{} doctor --from {} | true",
        env!("CARGO_BIN_EXE_surefoot"),
        fixture("kfd_gfx942_mi308.txt").display()
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn an_error_is_explained() {
    let output = surefoot()
        .arg("explain")
        .arg(fixture("err_invalid_device_function_gfx1103.txt"))
        .output()
        .expect("it runs");
    insta::assert_snapshot!(show(&output));
}

/// Runs `surefoot explain` on a text that comes in through a pipe.
fn explained(text: &[u8], arguments: &[&str]) -> std::process::Output {
    let mut child = surefoot()
        .arg("explain")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(text).expect("written");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn what_would_settle_an_uncertain_answer_is_asked_for() {
    let output = explained(b"RuntimeError: No HIP GPUs are available\n", &["--ask"]);
    insta::assert_snapshot!(show(&output), @r"
    exit code: Some(0)
    ----- stdout -----
    Run these and add their output to the text:
        rocminfo | grep -E 'gfx|Unable|not member'
        ls -ln /dev/kfd /dev/dri; id
        env | grep -E 'VISIBLE_DEVICES|HSA_|HIP_'
    ----- stderr -----
    ");
}

#[test]
fn what_is_no_text_is_refused() {
    let archive: Vec<u8> = (0..4096u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let output = explained(&archive, &[]);
    insta::assert_snapshot!(show(&output), @r"
    exit code: Some(2)
    ----- stdout -----
    ----- stderr -----
    surefoot: cannot read stdin: it is not a text file
    ");
}

#[test]
fn a_log_in_utf16_without_a_mark_is_read() {
    let text = "PS C:\\ai> python main.py\r\nRuntimeError: HIP error: invalid device function\r\n";
    let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let output = explained(&bytes, &[]);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("[invalid-device-function, likely]"),
        "{output:?}"
    );
}

#[test]
fn the_json_of_an_explanation() {
    let output = surefoot()
        .args(["explain", "--json"])
        .arg(fixture("oom_free_underflow.txt"))
        .output()
        .expect("it runs");
    insta::assert_snapshot!(show(&output));
}

#[test]
fn unknown_text_says_what_to_collect() {
    let mut child = surefoot()
        .arg("explain")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(b"ValueError: too many values to unpack\n")
        .expect("written");
    insta::assert_snapshot!(show(&child.wait_with_output().expect("it ends")));
}

/// What is posted names nobody, and says the same to whoever reads it.
#[test]
fn a_report_to_post_is_one_anonymous_text() {
    let folder = std::env::temp_dir().join(format!("surefoot-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (text, report) = (folder.join("text.txt"), folder.join("report.txt"));
    std::fs::write(
        &text,
        "jane@tower:~$ rocminfo\nAgent 2\n  Name: gfx1100\n  Device Type: GPU\n  Uuid: GPU-1111222233334444\nFile \"/home/jane/train.py\"\n",
    )
    .expect("a text");
    let run = |from: &std::path::Path, to: &str| {
        let output = surefoot()
            .args(["doctor", "--from"])
            .arg(from)
            .args(["--report", to])
            .output();
        show(&output.expect("it runs"))
    };
    let shown = run(&text, report.to_str().expect("a path"));
    let posted = std::fs::read_to_string(&report).expect(&shown);
    for secret in ["jane", "tower", "GPU-1111222233334444"] {
        assert!(!posted.contains(secret), "{secret}: {posted}");
    }
    assert!(
        posted.contains("# ") && posted.contains("Name: gfx1100"),
        "{posted}"
    );
    assert!(run(&report, "-").contains("gfx1100"));
    std::fs::remove_dir_all(&folder).expect("removed");
}
