//! The program for Windows, the trainer and the allocator: in a wheel, and in a zip.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::licences::Shipped;
use super::pack::{About, Wheel, write_licences};
use super::wheel::{METADATA, PROFILE, copy_packages, description};
use super::{name_of, release};
use crate::setup;
use crate::windows::{self, Built};
use crate::workspace;

const SHIPPED: Shipped = Shipped {
    name: "surefoot-windows",
    files: "`surefoot.exe`, `surefoot_trainer.dll` and `hip_alloc.dll`",
    target: windows::TARGET,
    options: &[
        "--package",
        "surefoot",
        "--package",
        "hip-alloc",
        "--features",
        "surefoot/hosted",
    ],
};

const TAG: &str = "win_amd64";

/// The line of the metadata about the licences of all packages.
const OTHERS: &str = "License-File: THIRD-PARTY-LICENSES.md";

/// The file with the licence of the mingw-w64 code that is linked into every program.
const TERMS: &str = "MINGW-W64-LICENSES.txt";

/// The same, as installed by Debian.
const MINGW: &str = "/usr/share/doc/mingw-w64-x86-64-dev/copyright";

/// Builds both in the profile of distributions; prints a message and returns nothing if that is not possible.
pub(super) fn build_if_possible(folder: &Path) -> Result<Vec<PathBuf>> {
    let shell = workspace::shell()?;
    if let Some(missing) = windows::missing_to_build(&shell) {
        eprintln!("skipped: the packages for Windows: {missing}");
        return Ok(Vec::new());
    }
    shell.set_var("CARGO_INCREMENTAL", "0");
    let built = windows::build_all(&shell, PROFILE)?;
    pack(&shell, folder, &built)
}

/// Packs the wheel and the zip.
pub(super) fn pack(shell: &Shell, folder: &Path, built: &Built) -> Result<Vec<PathBuf>> {
    for file in [&built.program, &built.trainer, &built.allocator] {
        let said = cmd!(shell, "x86_64-w64-mingw32-objdump --private-headers {file}");
        check(name_of(file)?, &said.quiet().read()?)?;
    }
    let (licences, sbom) = write_licences(shell, &SHIPPED)?;
    let about = About {
        metadata: METADATA
            .replace("POSIX :: Linux", "Microsoft :: Windows")
            .replace(OTHERS, &format!("{OTHERS}\nLicense-File: {TERMS}")),
        description: description()?,
        licences,
        sbom,
    };
    let mingw = about.licences.with_file_name(TERMS);
    fs::copy(MINGW, &mingw)
        .with_context(|| format!("cannot read the licence of mingw-w64 in {MINGW}"))?;
    Ok(vec![
        wheel(shell, folder, built, &about, &mingw)?,
        zip(folder, built, &about, &mingw)?,
    ])
}

/// The libraries are in the package that loads the allocator, where the program and Python find them.
fn wheel(
    shell: &Shell,
    folder: &Path,
    built: &Built,
    about: &About,
    mingw: &Path,
) -> Result<PathBuf> {
    let wheel = Wheel::begin_in(folder.to_owned(), "surefoot", TAG)?;
    copy_packages(wheel.files())?;
    for library in [&built.trainer, &built.allocator] {
        let place = wheel.files().join("surefoot_activate");
        fs::copy(library, place.join(name_of(library)?))
            .with_context(|| format!("cannot copy {}", library.display()))?;
    }
    wheel.add_program(&built.program)?;
    wheel.add_licence(mingw)?;
    wheel.pack(shell, &setup::dist_python()?, about)
}

/// The libraries are beside the program, which has the Python packages within.
fn zip(folder: &Path, built: &Built, about: &About, mingw: &Path) -> Result<PathBuf> {
    let root = workspace::root();
    let documents =
        ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"].map(|name| root.join(name));
    let own = [&built.program, &built.trainer, &built.allocator];
    let licences = [&about.licences, &about.sbom];
    let name = format!("surefoot-{}-x86_64-windows", release());
    let archive = folder.join(format!("{name}.zip"));
    let mut zip = ZipWriter::new(File::create(&archive)?);
    // A fixed time, so that the same tree gives the same bytes.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    let files = own.into_iter().chain(licences).map(PathBuf::as_path);
    for file in files
        .chain(documents.iter().map(PathBuf::as_path))
        .chain([mingw])
    {
        let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        zip.start_file(format!("{name}/{}", name_of(file)?), options)?;
        zip.write_all(&text)?;
    }
    zip.finish()?;
    Ok(archive)
}

/// Refuses a file that needs DLLs of mingw-w64, which are not part of Windows.
fn check(file: &str, headers: &str) -> Result<()> {
    let names = headers.lines().filter_map(|line| {
        let (_, name) = line.split_once("DLL Name:")?;
        Some(name.trim().to_ascii_lowercase())
    });
    let names: Vec<String> = names.collect();
    ensure!(!names.is_empty(), "objdump lists no DLLs of `{file}`");
    let foreign: Vec<&String> = names
        .iter()
        .filter(|name| name.starts_with("lib"))
        .collect();
    ensure!(
        foreign.is_empty(),
        "`{file}` needs {foreign:?}, which are not part of Windows"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_asks_for_libraries_of_the_compiler_is_refused() {
        let check = |headers| check("surefoot.exe", headers);
        assert!(check("\tDLL Name: KERNEL32.dll\n\tDLL Name: ntdll.dll\n").is_ok());
        let error = check("\tDLL Name: KERNEL32.dll\n\tDLL Name: libgcc_s_seh-1.dll\n");
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("libgcc_s_seh-1.dll")
        );
        assert!(check("").is_err());
    }
}
