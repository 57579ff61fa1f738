//! The wheel: the program, the library and the Python packages, for glibc 2.28.
//!
//! Cargo builds the program and the library, and PyPA's `wheel pack` packs the wheel. maturin would compile everything again
//! with its own flags, and would only add a tag and a list of files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use super::licences::Shipped;
use super::pack::{About, Wheel, check_tag, write_licences};
use super::{Built, TARGET, require_linux_on_x86_64};
use crate::setup;
use crate::workspace;

/// The oldest supported glibc, as in the tag of PyTorch's own wheels.
const GLIBC: &str = "2.28";
const TAG: &str = "manylinux_2_28_x86_64";
/// The cargo profile for distributions; see `Cargo.toml`.
pub(super) const PROFILE: &str = "dist";
/// The packages of `python/` that go into the wheel.
const PACKAGES: [&str; 3] = ["surefoot", "surefoot_activate", "surefoot_placement"];
const LIBRARY: &str = "libhip_alloc.so";
pub(super) const METADATA: &str = include_str!("METADATA");
const SHIPPED: Shipped = Shipped {
    name: "surefoot",
    files: "`surefoot` and `libhip_alloc.so`",
    target: TARGET,
    options: &[
        "--package",
        "surefoot",
        "--package",
        "hip-alloc",
        "--no-default-features",
    ],
};

/// Builds the wheel, and checks its tag against every file in it.
pub(super) fn build() -> Result<Built> {
    require_linux_on_x86_64()?;
    let python = setup::dist_python()?;
    let shell = linking_shell(&python)?;
    let built = workspace::target(&shell)?.join(TARGET).join(PROFILE);
    let options = ["--locked", "--profile", PROFILE, "--target"];
    let platform = format!("{TARGET}.{GLIBC}");
    cmd!(
        shell,
        "cargo-zigbuild rustc --package hip-alloc --lib {options...} {platform}"
    )
    .run()?;
    // By default lld requires all symbols that the linked libraries need, and this machine's libstdc++ needs newer ones
    // than glibc 2.28 has; on the user's machine, libstdc++ and glibc match.
    cmd!(
        shell,
        "cargo-zigbuild rustc --package surefoot --bin surefoot --no-default-features {options...} {platform}
         -- -Clink-arg=-Wl,--allow-shlib-undefined"
    )
    .run()?;
    let (licences, sbom) = write_licences(&shell, &SHIPPED)?;
    let wheel = Wheel::begin("surefoot", TAG)?;
    copy_packages(wheel.files())?;
    let (program, library) = (built.join("surefoot"), built.join(LIBRARY));
    fs::copy(
        &library,
        wheel.files().join("surefoot_activate").join(LIBRARY),
    )?;
    wheel.add_program(&program)?;
    let about = About {
        metadata: METADATA.to_owned(),
        description: description()?,
        licences,
        sbom,
    };
    let wheel = wheel.pack(&shell, &python, &about)?;
    check_tag(&shell, &wheel, "overall_tag", TAG)?;
    Ok(Built {
        wheel,
        program,
        library,
        licences: about.licences,
        sbom: about.sbom,
    })
}

/// A shell in which cargo, for this target, compiles C++ with g++ and links with zig to the
/// libstdc++ and libgcc of g++. With zig's own libunwind instead of libgcc, an exception would be thrown with one
/// unwinder and caught with another.
pub(super) fn linking_shell(python: &Path) -> Result<Shell> {
    let shell = tools_shell(python)?;
    let variable = TARGET.replace('-', "_");
    shell.set_var(format!("CXX_{variable}"), "g++");
    // Empty: g++'s library is added below, since zig replaces `-lstdc++` with its own libc++.
    shell.set_var(format!("CXXSTDLIB_{variable}"), "");
    let mut flags = Vec::new();
    for name in ["libstdc++.so.6", "libgcc_s.so.1"] {
        let said = cmd!(shell, "g++ -print-file-name={name}").quiet().read()?;
        let file = fs::canonicalize(&said)
            .with_context(|| format!("g++ has no {name}: is the installation complete?"))?;
        flags.push(format!("-Clink-arg={}", file.display()));
    }
    // Cargo uses only one of the three, and these take precedence.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        if shell.var(name).is_ok_and(|value| !value.is_empty()) {
            bail!("{name} is set, but `cargo xtask dist` sets its own flags: unset it");
        }
    }
    let name = format!("CARGO_TARGET_{}_RUSTFLAGS", variable.to_uppercase());
    shell.set_var(name, flags.join(" "));
    Ok(shell)
}

/// A shell with the programs of the environment of `python` in PATH, in which cargo builds distributions.
pub(super) fn tools_shell(python: &Path) -> Result<Shell> {
    let shell = workspace::shell()?;
    let programs = python
        .parent()
        .context("the path of Python has no parent folder")?;
    let path = shell.var("PATH").unwrap_or_default();
    shell.set_var("PATH", format!("{}:{path}", programs.display()));
    shell.set_var("CARGO_INCREMENTAL", "0");
    Ok(shell)
}

/// Copies the packages of the wheel into a folder.
pub(super) fn copy_packages(folder: &Path) -> Result<()> {
    let python = workspace::root().join("python");
    for package in PACKAGES {
        copy_package(&python.join(package), &folder.join(package))?;
    }
    Ok(())
}

/// What a package index shows of it.
pub(super) fn description() -> Result<String> {
    Ok(fs::read_to_string(
        workspace::root().join("python/README.md"),
    )?)
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
