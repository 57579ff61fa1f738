//! Extracts selected files from wheels (zip) and source packages (tar.gz).

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use zip::ZipArchive;

use super::progress::Progress;

/// Unpacks the members of `wheel` for which `place` returns a path, relative to `folder`.
///
/// The zip format has a checksum per member, so a damaged member is an error.
pub(crate) fn unzip(
    wheel: &Path,
    folder: &Path,
    place: impl Fn(&str) -> Option<PathBuf>,
) -> Result<()> {
    let context = || format!("cannot unpack `{}`", wheel.display());
    let file = BufReader::new(File::open(wheel).with_context(context)?);
    let mut archive = ZipArchive::new(file).with_context(context)?;
    let mut members = Vec::new();
    let mut total = 0;
    for index in 0..archive.len() {
        let member = archive.by_index(index).with_context(context)?;
        // `enclosed_name` is `None` for a name that would leave the folder.
        let inside = member.enclosed_name().is_some() && !member.is_dir();
        if let Some(path) = place(member.name()).filter(|_| inside) {
            members.push((index, path));
            total += member.size();
        }
    }
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let mut progress = Progress::start(format!("unpacking {name}"), total);
    let mut done = 0;
    for (index, path) in members {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).with_context(context)?;
        let mut member = archive.by_index(index).with_context(context)?;
        let mut output = File::create(&path).with_context(context)?;
        done += io::copy(&mut member, &mut output).with_context(context)?;
        progress.set(done);
    }
    Ok(())
}

/// Unpacks a whole source package into `folder`.
pub(crate) fn untar(package: &Path, folder: &Path) -> Result<()> {
    let output = Command::new("tar")
        .arg("-xzf")
        .arg(package)
        .arg("-C")
        .arg(folder)
        .output()
        .context("cannot run `tar`")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("cannot unpack `{}`: {}", package.display(), words.trim());
    }
    Ok(())
}
