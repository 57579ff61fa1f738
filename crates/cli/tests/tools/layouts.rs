//! The layouts in which PyTorch and ROCm come: what `doctor` lists, and what the trainer is started with.

use crate::common::{show, surefoot};
use std::path::{Path, PathBuf};

const SITE: &str = "lib/python3.12/site-packages";

/// A virtual environment with a PyTorch for HIP of this version, and these files.
fn environment(folder: &Path, torch: &str, files: &[&str]) -> PathBuf {
    let prefix = folder.join("env");
    let write = |path: &str, text: &str| {
        let path = prefix.join(path.replace("site/", &format!("{SITE}/")));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("pyvenv.cfg", "");
    write(
        "site/torch/version.py",
        &format!("__version__ = '{torch}'\nhip = '7.1'\ncuda = None\n"),
    );
    write("site/torch/lib/libtorch_hip.so", "");
    for file in files {
        write(file, "");
    }
    prefix
}

/// What `doctor --json` lists for it.
fn listed(prefix: &Path) -> serde_json::Value {
    let output = surefoot()
        .args(["--json", "doctor"])
        .env("VIRTUAL_ENV", prefix)
        .env("SUREFOOT_CACHE", prefix.join("cache"))
        .output()
        .expect("it runs");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", show(&output)));
    report["trainer_libraries"].clone()
}

#[test]
fn doctor_lists_the_packages_of_therock() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = environment(
        folder.path(),
        "2.13.0+rocm7.1",
        &[
            "site/_rocm_sdk_core/lib/libamdhip64.so.7",
            "site/_rocm_sdk_libraries_gfx1151/lib/librocblas.so.5",
        ],
    );
    let listed = listed(&prefix);
    let site = prefix.join(SITE);
    assert_eq!(listed["torch"], "2.13.0+rocm7.1");
    assert_eq!(listed["used"], true);
    assert_eq!(listed["rocm"]["layout"], "sdk_packages");
    assert_eq!(
        listed["rocm"]["folders"],
        serde_json::json!([
            site.join("_rocm_sdk_core/lib"),
            site.join("_rocm_sdk_libraries_gfx1151/lib")
        ])
    );
}

#[test]
fn doctor_asks_the_program_rocm_sdk_where_there_are_no_packages() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = environment(
        folder.path(),
        "2.13.0+rocm7.1",
        &["sdk/lib/libamdhip64.so.7"],
    );
    let program = prefix.join("bin/rocm-sdk");
    std::fs::create_dir_all(prefix.join("bin")).expect("a folder");
    let script = format!(
        "#!/bin/sh\n[ \"$*\" = 'path --root' ] && echo '{}/sdk'\n",
        prefix.display()
    );
    std::fs::write(&program, script).expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let listed = listed(&prefix);
    assert_eq!(listed["rocm"]["layout"], "sdk_program");
    assert_eq!(
        listed["rocm"]["folders"],
        serde_json::json!([prefix.join("sdk/lib")])
    );
}

#[test]
fn another_release_is_listed_and_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = environment(
        folder.path(),
        "2.12.0+rocm7.0",
        &["site/torch/lib/libamdhip64.so"],
    );
    let listed = listed(&prefix);
    assert_eq!(listed["used"], false);
    let note = listed["note"].as_str().expect("a note");
    assert!(note.contains("built for PyTorch 2.13.0"), "{note}");
}

#[test]
fn an_environment_without_a_pytorch_for_hip_is_not_mentioned() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = environment(folder.path(), "2.13.0", &[]);
    std::fs::remove_file(prefix.join(SITE).join("torch/lib/libtorch_hip.so"))
        .expect("it was there");
    assert_eq!(listed(&prefix), serde_json::Value::Null);
}

/// A program in the trainer's place that tells what it was given.
#[test]
fn the_trainer_is_started_with_the_folders_and_the_library() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = environment(
        folder.path(),
        "2.13.0+rocm7.1",
        &["site/_rocm_sdk_core/lib/libamdhip64.so.7"],
    );
    let programs = folder.path().join("bin");
    std::fs::create_dir_all(&programs).expect("a folder");
    std::fs::copy(env!("CARGO_BIN_EXE_surefoot"), programs.join("surefoot")).expect("a copy");
    let trainer = programs.join("surefoot-trainer");
    std::fs::write(
        &trainer,
        "#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\necho \"$SUREFOOT_DEVICE_LIBRARY\"\n",
    )
    .expect("a file");
    std::fs::set_permissions(&trainer, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = std::process::Command::new(programs.join("surefoot"))
        .args(["train", "x.yaml"])
        .env_clear()
        .env("VIRTUAL_ENV", &prefix)
        .env("LD_LIBRARY_PATH", "/mine")
        .output()
        .expect("it runs");
    let (torch, core) = (
        prefix.join(SITE).join("torch/lib"),
        prefix.join(SITE).join("_rocm_sdk_core/lib"),
    );
    let expected = format!(
        "{}:{}:/mine\n{}\n",
        torch.display(),
        core.display(),
        torch.join("libtorch_hip.so").display()
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "{}",
        show(&output)
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ROCm of the rocm-sdk packages"), "{said}");
}
