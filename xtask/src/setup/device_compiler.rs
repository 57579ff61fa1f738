//! The compiler of kernels for AMD GPUs: clang and lld inside of the package `ziglang`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::archive::unzip;
use super::cache::Cache;
use super::fetch::{clean, fetch, require_space};
use super::pins::{ZIG, sources};

/// What the program takes when it is unpacked.
const BYTES: u64 = 200 << 20;

/// The program, which is called with `clang` or `ld.lld` and their options.
pub(crate) fn ensure(cache: &Cache) -> Result<PathBuf> {
    let name = format!("zig-{}", ZIG.version);
    let sources = sources([&ZIG]);
    if let Some(entry) = cache.whole(&name, &sources) {
        return Ok(entry.join("zig"));
    }
    let lock = cache.lock()?;
    let wheel = fetch(cache, &lock, &ZIG)?;
    let scratch = cache.staging()?;
    require_space(scratch.path(), BYTES)?;
    let entry = cache.make(&lock, &name, sources, |folder| {
        unzip(&wheel, folder, program)?;
        let program = folder.join("zig");
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755))
            .with_context(|| format!("cannot make `{}` executable", program.display()))
    })?;
    clean(cache, &lock, &[&ZIG]);
    Ok(entry.join("zig"))
}

/// The program alone, without the libraries of the language Zig.
fn program(name: &str) -> Option<PathBuf> {
    (name == "ziglang/zig").then(|| PathBuf::from("zig"))
}
