//! The wheel: the program, the library and the Python packages, for glibc 2.28.
//!
//! Cargo makes the two, and PyPA's `wheel pack` the wheel. maturin would compile everything a second
//! time with flags of its own, for one tag and one list of files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use super::licences::Shipped;
use super::pack::{About, Wheel, check_tag, write_licences};
use super::{Built, TARGET, require_linux_on_x86_64};
use crate::setup;
use crate::workspace;

/// The oldest glibc that it runs on, as in the tag of PyTorch's own wheels.
const GLIBC: &str = "2.28";
const TAG: &str = "manylinux_2_28_x86_64";
/// How cargo builds what people install; see `Cargo.toml`.
pub(super) const PROFILE: &str = "dist";
/// What of `python/` goes into the wheel.
const PACKAGES: [&str; 3] = ["surefoot", "surefoot_activate", "surefoot_placement"];
const LIBRARY: &str = "libhip_alloc.so";
const METADATA: &str = include_str!("METADATA");
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
    // lld wants to know of every symbol that a program's libraries need, and those of g++ here
    // need newer ones than 2.28 has; where it runs, both are of one age.
    cmd!(
        shell,
        "cargo-zigbuild rustc --package surefoot --bin surefoot --no-default-features {options...} {platform}
         -- -Clink-arg=-Wl,--allow-shlib-undefined"
    )
    .run()?;
    let (licences, sbom) = write_licences(&shell, &SHIPPED)?;
    let wheel = Wheel::begin("surefoot", TAG)?;
    let root = workspace::root();
    for package in PACKAGES {
        copy_package(
            &root.join("python").join(package),
            &wheel.folder().join(package),
        )?;
    }
    let (program, library) = (built.join("surefoot"), built.join(LIBRARY));
    fs::copy(
        &library,
        wheel.folder().join("surefoot_activate").join(LIBRARY),
    )?;
    wheel.add_program(&program)?;
    let about = About {
        metadata: METADATA.to_owned(),
        description: fs::read_to_string(root.join("python/README.md"))?,
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
/// libstdc++ and libgcc of g++. Where zig would take its own libunwind in place of the latter, an
/// exception would be raised by one unwinder and continued by another.
pub(super) fn linking_shell(python: &Path) -> Result<Shell> {
    let shell = tools_shell(python)?;
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
    Ok(shell)
}

/// A shell that finds what is installed beside `python`, in which cargo builds for others.
pub(super) fn tools_shell(python: &Path) -> Result<Shell> {
    let shell = workspace::shell()?;
    let programs = python.parent().context("a Python without a folder")?;
    let path = shell.var("PATH").unwrap_or_default();
    shell.set_var("PATH", format!("{}:{path}", programs.display()));
    shell.set_var("CARGO_INCREMENTAL", "0");
    Ok(shell)
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
