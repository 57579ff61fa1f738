//! The wheel: the program, the library and the Python packages, for glibc 2.28.
//!
//! Cargo makes the two, and PyPA's `wheel pack` the wheel. maturin would compile everything a second
//! time with flags of its own, for one tag and one list of files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xshell::{Shell, cmd};

use super::{
    Built, TARGET, commit_time, empty, folder, licences, release, require_linux_on_x86_64,
};
use crate::setup;
use crate::workspace;

/// The oldest glibc that it runs on, as in the tag of PyTorch's own wheels.
const GLIBC: &str = "2.28";
const TAG: &str = "manylinux_2_28_x86_64";
/// How cargo builds what people install; see `Cargo.toml`.
const PROFILE: &str = "dist";
/// What of `python/` goes into the wheel.
const PACKAGES: [&str; 3] = ["surefoot", "surefoot_activate", "surefoot_placement"];
const LIBRARY: &str = "libhip_alloc.so";
const METADATA: &str = include_str!("METADATA");

/// Builds the wheel, and checks its tag against every file in it.
pub(super) fn build() -> Result<Built> {
    require_linux_on_x86_64()?;
    let python = setup::dist_python()?;
    let shell = linking_shell(&python)?;
    let folder = folder()?;
    let target = workspace::target(&shell)?;
    let options = ["--locked", "--profile", PROFILE, "--target"];
    let platform = format!("{TARGET}.{GLIBC}");
    cmd!(
        shell,
        "cargo-zigbuild rustc --package hip-alloc --lib {options...} {platform}"
    )
    .run()?;
    // lld wants to know of every symbol that a program's libraries need, and those of g++ here
    // need newer ones than 2.28 has; where it runs, both are of one age.
    cmd!(
        shell,
        "cargo-zigbuild rustc --package surefoot --bin surefoot --no-default-features {options...} {platform}
         -- -Clink-arg=-Wl,--allow-shlib-undefined"
    )
    .run()?;
    let built = target.join(TARGET).join(PROFILE);
    let licences = folder.join("THIRD-PARTY-LICENSES.md");
    fs::write(&licences, licences::text(&shell, TARGET)?)?;
    let sbom = folder.join("surefoot.cdx.json");
    fs::write(&sbom, licences::sbom(&shell, TARGET)?)?;
    let built = Built {
        wheel: folder.join(format!("surefoot-{}-py3-none-{TAG}.whl", release())),
        program: built.join("surefoot"),
        library: built.join(LIBRARY),
        licences,
        sbom,
    };
    let stage = stage(&folder, &built)?;
    cmd!(shell, "{python} -m wheel pack {stage} --dest-dir {folder}")
        .env("SOURCE_DATE_EPOCH", commit_time()?)
        .quiet()
        .ignore_stdout()
        .run()?;
    check_tag(&shell, &built.wheel)?;
    Ok(built)
}

/// A shell in which cargo, for this target, compiles C++ with g++ and links with zig to the
/// libstdc++ and libgcc of g++. Where zig would take its own libunwind in place of the latter, an
/// exception would be raised by one unwinder and continued by another.
fn linking_shell(python: &Path) -> Result<Shell> {
    let shell = workspace::shell()?;
    let programs = python.parent().context("a Python without a folder")?;
    let path = shell.var("PATH").unwrap_or_default();
    shell.set_var("PATH", format!("{}:{path}", programs.display()));
    let variable = TARGET.replace('-', "_");
    shell.set_var(format!("CXX_{variable}"), "g++");
    // Empty: the compiler's own is named below, since zig takes `-lstdc++` to mean its libc++.
    shell.set_var(format!("CXXSTDLIB_{variable}"), "");
    let mut flags = Vec::new();
    for name in ["libstdc++.so.6", "libgcc_s.so.1"] {
        let said = cmd!(shell, "g++ -print-file-name={name}").quiet().read()?;
        let file = fs::canonicalize(&said)
            .with_context(|| format!("g++ has no {name}: is it installed whole?"))?;
        flags.push(format!("-Clink-arg={}", file.display()));
    }
    // Cargo reads one of the three, and these come first.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        if shell.var(name).is_ok_and(|value| !value.is_empty()) {
            bail!("{name} is set: `cargo xtask dist` has flags of its own; unset it");
        }
    }
    let name = format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase());
    shell.set_var(name, flags.join(" "));
    shell.set_var("CARGO_INCREMENTAL", "0");
    Ok(shell)
}

/// The files of the wheel, as they lie in it.
fn stage(folder: &Path, built: &Built) -> Result<PathBuf> {
    let root = workspace::root();
    let stage = empty(folder.join("stage"))?;
    for package in PACKAGES {
        copy_package(&root.join("python").join(package), &stage.join(package))?;
    }
    fs::copy(
        &built.library,
        stage.join("surefoot_activate").join(LIBRARY),
    )?;
    let name = format!("surefoot-{}", release());
    let scripts = stage.join(format!("{name}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    fs::copy(&built.program, scripts.join("surefoot"))?;
    fs::set_permissions(scripts.join("surefoot"), fs::Permissions::from_mode(0o755))?;

    let information = stage.join(format!("{name}.dist-info"));
    fs::create_dir_all(information.join("licenses"))?;
    fs::create_dir_all(information.join("sboms"))?;
    let readme = fs::read_to_string(root.join("python/README.md"))?;
    let metadata = METADATA.replace("{release}", release()) + &readme;
    fs::write(information.join("METADATA"), metadata)?;
    let generator = format!("Wheel-Version: 1.0\nGenerator: surefoot {}\n", release());
    let tag = format!("Root-Is-Purelib: false\nTag: py3-none-{TAG}\n");
    fs::write(information.join("WHEEL"), generator + &tag)?;
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| root.join(name));
    for file in licences.iter().chain([&built.licences]) {
        fs::copy(
            file,
            information.join("licenses").join(super::name_of(file)?),
        )?;
    }
    fs::copy(&built.sbom, information.join("sboms/surefoot.cdx.json"))?;
    Ok(stage)
}

fn copy_package(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        let is_source = path
            .extension()
            .is_some_and(|end| ["py", "pyi", "typed"].iter().any(|known| end == *known));
        if is_source {
            fs::copy(&path, to.join(super::name_of(&path)?))?;
        }
    }
    Ok(())
}

/// Asks auditwheel, which reads the versions of all symbols in all files of the wheel, for the
/// oldest platform that has them.
fn check_tag(shell: &Shell, wheel: &Path) -> Result<()> {
    let said = cmd!(shell, "auditwheel show --json {wheel}")
        .quiet()
        .read()?;
    let said: Value = serde_json::from_str(&said).context("cannot read what auditwheel says")?;
    let tag = said["overall_tag"].as_str().unwrap_or_default();
    match platform_version(tag) {
        Some(version) if version <= (2, 28) => Ok(()),
        _ => bail!("{} is no {TAG}: auditwheel says\n{said:#}", wheel.display()),
    }
}

/// `(2, 28)` of `manylinux_2_28_x86_64`.
fn platform_version(tag: &str) -> Option<(u32, u32)> {
    let mut numbers = tag.strip_prefix("manylinux_")?.split('_');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_glibc_of_a_tag_is_read() {
        assert_eq!(platform_version(TAG), Some((2, 28)));
        assert!(platform_version("manylinux_2_5_x86_64") < Some((2, 28)));
        assert_eq!(platform_version("linux_x86_64"), None);
    }
}
