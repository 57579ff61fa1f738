//! What `surefoot probe` has found out, kept in a cache folder for `env`, `run` and `doctor`.
//!
//! A result holds for one GPU architecture, one build of torch and one driver, and for nothing else:
//! they are the name of its file. A line is a check and `ok` or `failed`.

use platform::Machine;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What a result holds for.
#[derive(Debug, Clone, Copy)]
pub struct Tested<'a> {
    /// The GPU's architecture, as `gfx1201`.
    pub architecture: &'a str,
    /// The version of torch.
    pub torch: &'a str,
    /// What the GPU's driver came with, of [`driver`].
    pub driver: &'a str,
}

/// The version of the GPU's driver: of AMD's own module or of Windows' driver, else of the kernel that it is part of.
#[must_use]
pub fn driver(machine: &Machine) -> String {
    let of_windows = || {
        let mut adapters = machine.windows.iter().flat_map(|known| &known.adapters);
        adapters.find(|adapter| adapter.is_amd())?.driver.clone()
    };
    let of_kernel = || Some(machine.kernel.as_ref()?.release.clone());
    let own = machine.amdgpu_dkms.clone();
    own.or_else(of_windows)
        .or_else(of_kernel)
        .unwrap_or_default()
}

/// Keeps verdicts; those of earlier probes of other checks stay.
pub fn write<'a>(
    cache: &Path,
    tested: Tested<'_>,
    verdicts: impl Iterator<Item = (&'a str, bool)>,
) -> io::Result<()> {
    let text = with(&read(cache, tested), verdicts);
    let path = path(cache, tested);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

/// Lines with the verdicts of a newer probe.
#[must_use]
pub fn with<'a>(known: &str, verdicts: impl Iterator<Item = (&'a str, bool)>) -> String {
    let mut known = parse(known);
    known.extend(verdicts.map(|(check, is_ok)| (check.to_owned(), is_ok)));
    known
        .iter()
        .map(|(check, is_ok)| format!("{check} {}\n", if *is_ok { "ok" } else { "failed" }))
        .collect()
}

/// The cached lines; empty if there are none.
#[must_use]
pub fn read(cache: &Path, tested: Tested<'_>) -> String {
    fs::read_to_string(path(cache, tested)).unwrap_or_default()
}

/// Reads what [`write()`] wrote.
#[must_use]
pub fn parse(text: &str) -> BTreeMap<String, bool> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(check, verdict)| (check.to_owned(), verdict == "ok"))
        .collect()
}

fn path(cache: &Path, tested: Tested<'_>) -> PathBuf {
    let Tested {
        architecture,
        torch,
        driver,
    } = tested;
    let safe: String = format!("{architecture}-{torch}-{driver}")
        .chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '+' => c,
            _ => '_',
        })
        .collect();
    cache.join("probe").join(safe)
}
