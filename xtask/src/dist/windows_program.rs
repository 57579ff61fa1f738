//! The program for Windows, in a zip with its licences.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xshell::cmd;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::licences::Shipped;
use super::pack::write_licences;
use super::wheel::PROFILE;
use super::{name_of, release};
use crate::windows;
use crate::workspace;

const SHIPPED: Shipped = Shipped {
    name: "surefoot-windows",
    files: "`surefoot.exe`",
    target: windows::TARGET,
    options: &["--package", "surefoot", "--no-default-features"],
};

/// The licence of the mingw-w64 code that is linked into every program, as installed by Debian.
const MINGW: &str = "/usr/share/doc/mingw-w64-x86-64-dev/copyright";

/// Builds the archive; prints a message and returns `None` if that is not possible.
pub(super) fn build(folder: &Path) -> Result<Option<PathBuf>> {
    let shell = workspace::shell()?;
    if let Some(missing) = windows::missing_to_build(&shell) {
        eprintln!("skipped: the program for Windows: {missing}");
        return Ok(None);
    }
    shell.set_var("CARGO_INCREMENTAL", "0");
    let program = windows::build(&shell, PROFILE)?;
    let said = cmd!(
        shell,
        "x86_64-w64-mingw32-objdump --private-headers {program}"
    );
    check(&said.quiet().read()?)?;
    let (licences, sbom) = write_licences(&shell, &SHIPPED)?;
    let root = workspace::root();
    let mut files = vec![program, licences, sbom];
    files.extend(
        ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"].map(|name| root.join(name)),
    );
    let name = format!("surefoot-{}-x86_64-windows", release());
    let archive = folder.join(format!("{name}.zip"));
    let mut zip = ZipWriter::new(File::create(&archive)?);
    // A fixed time, so that the same tree gives the same bytes.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    for file in &files {
        let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        zip.start_file(format!("{name}/{}", name_of(file)?), options)?;
        zip.write_all(&text)?;
    }
    let terms = fs::read(MINGW)
        .with_context(|| format!("cannot read the licence of mingw-w64 in {MINGW}"))?;
    zip.start_file(format!("{name}/MINGW-W64-LICENSES.txt"), options)?;
    zip.write_all(&terms)?;
    zip.finish()?;
    Ok(Some(archive))
}

/// Refuses a program that needs DLLs of mingw-w64, which are not part of Windows.
fn check(headers: &str) -> Result<()> {
    let names = headers.lines().filter_map(|line| {
        let (_, name) = line.split_once("DLL Name:")?;
        Some(name.trim().to_ascii_lowercase())
    });
    let names: Vec<String> = names.collect();
    ensure!(!names.is_empty(), "objdump lists no DLLs");
    let foreign: Vec<&String> = names
        .iter()
        .filter(|name| name.starts_with("lib"))
        .collect();
    ensure!(
        foreign.is_empty(),
        "`surefoot.exe` needs {foreign:?}, which are not part of Windows"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_asks_for_libraries_of_the_compiler_is_refused() {
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
