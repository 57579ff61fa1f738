//! Packages of Debian and Ubuntu, of which nothing is installed: downloaded by apt, which needs no
//! privileges for that and checks them against the signed lists of the distribution, and unpacked.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Whether this machine has apt.
pub(super) fn has_apt() -> bool {
    answers(Command::new("apt-get").arg("--version"))
}

/// Downloads packages, each a name or `NAME=VERSION`, into `folder`.
pub(super) fn download(
    packages: impl IntoIterator<Item = impl AsRef<OsStr>>,
    folder: &Path,
) -> Result<()> {
    output(
        Command::new("apt-get")
            .args(["--quiet", "download"])
            .args(packages)
            .current_dir(folder),
    )?;
    Ok(())
}

/// Unpacks all packages of the folder `downloads` into `target`.
pub(super) fn extract(downloads: &Path, target: &Path) -> Result<()> {
    for package in downloads.read_dir()? {
        let package = package?.path();
        output(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(package)
                .arg(target),
        )?;
    }
    Ok(())
}

/// Whether the command starts and succeeds.
pub(super) fn answers(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// What the command prints; an error with what it complains about when it fails.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start `{program}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{program}` failed: {}",
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
