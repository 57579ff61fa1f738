//! Downloads and unpacks packages of Debian and Ubuntu without installing them. apt needs no privileges for
//! that, and checks the packages against the signed lists of the distribution.

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

/// Unpacks all packages in the folder `downloads` into `target`.
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

/// Whether the command can be started and succeeds.
pub(super) fn answers(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Returns the output of the command; if it fails, the error contains its stderr.
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
