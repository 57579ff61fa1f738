//! A cache on a disk that is full: a real one of half a megabyte, in a name space of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use surefoot_trainer::hub::{ModelKind, fetch_named};

use super::server::{COMMIT, Hub};
use super::{FILES, WEIGHTS, is_download};

const DISK: &str = "SUREFOOT_TEST_DISK";
/// Room for the model, and for the folders of a cache.
const ROOM: &str = "size=512k";

/// Runs a test of this file where a small disk is; whether that can be had here.
fn on_a_small_disk(test: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o {ROOM} none \"${DISK}\"");
    let namespace = ["--map-root-user", "--mount", "sh", "-c"];
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(namespace).arg(script).env(DISK, folder.path());
        command
    };
    let can = unshare(&mount).output();
    if !can.is_ok_and(|output| output.status.success()) {
        eprintln!("not run: {test}, since no disk can be mounted here, not even in a name space");
        return false;
    }
    let test = format!("hub::full_disk::{test}");
    let run = "exec \"$0\" --ignored --exact --nocapture \"$1\"";
    let output = unshare(&format!("{mount} && {run}"))
        .arg(std::env::current_exe().unwrap())
        .arg(&test)
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    true
}

#[test]
fn a_full_disk_is_told_and_the_download_goes_on_when_there_is_room() {
    on_a_small_disk("on_a_disk_that_becomes_full");
}

#[test]
fn what_has_no_room_is_not_begun() {
    on_a_small_disk("on_a_disk_that_is_too_small");
}

/// Fills the disk up to `left` bytes.
fn fill(disk: &Path, left: u64) {
    let output = Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(disk)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let free: u64 = text.lines().last().unwrap().trim().parse().unwrap();
    fs::write(disk.join("filler"), vec![1; (free - left) as usize]).unwrap();
}

#[test]
#[ignore = "started by another test, where a small disk is"]
fn on_a_disk_that_becomes_full() {
    let disk = std::env::var_os(DISK).unwrap();
    let disk = Path::new(&disk);
    let hub = Hub::working(&FILES);
    let settings = super::settings(&hub.address, disk);
    // Somebody else takes the room while the weights come.
    let mut filled = false;
    let told = fetch_named("org/tiny", ModelKind::Text, &settings, &mut |text| {
        if text.ends_with("model.safetensors") && !filled {
            fill(disk, 100_000);
            filled = true;
        }
    });
    let told = told.unwrap_err().to_string();
    assert!(
        told.contains("is full") && told.contains("the next try resumes"),
        "{told}"
    );
    let snapshot = settings.cache.join("models--org--tiny/snapshots");
    assert!(!snapshot.join(COMMIT).join("model.safetensors").exists());

    // Of what is left to come, not all has room.
    let told = fetch_named("org/tiny", ModelKind::Text, &settings, &mut |_| ());
    let told = told.unwrap_err().to_string();
    assert!(told.contains("needs ") && told.contains(" free"), "{told}");

    fs::remove_file(disk.join("filler")).unwrap();
    let path = fetch_named("org/tiny", ModelKind::Text, &settings, &mut |_| ()).unwrap();
    assert!(fs::read(path.join("model.safetensors")).unwrap() == WEIGHTS);
    for (name, bytes) in FILES.iter().filter(|(name, _)| name.ends_with(".json")) {
        assert!(fs::read(path.join(name)).unwrap() == *bytes, "{name}");
    }
    let seen = hub.seen();
    let last = seen.iter().rfind(|request| is_download(request)).unwrap();
    assert!(last.headers.contains_key("range"), "from where it was");
}

#[test]
#[ignore = "started by another test, where a small disk is"]
fn on_a_disk_that_is_too_small() {
    let disk = std::env::var_os(DISK).unwrap();
    let disk = Path::new(&disk);
    fill(disk, 200_000);
    let hub = Hub::working(&FILES);
    let settings = super::settings(&hub.address, disk);
    let told = fetch_named("org/tiny", ModelKind::Text, &settings, &mut |_| ());
    let told = told.unwrap_err().to_string();
    assert!(
        told.contains("needs 29") && told.contains("HF_HUB_CACHE"),
        "{told}"
    );
    assert!(!hub.seen().iter().any(is_download), "nothing was begun");
}
