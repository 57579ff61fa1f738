//! `cargo xtask kernels`: the machine code of `crates/kernels`, compiled from its source.
//!
//! The compiler is the clang 22 inside of the package `ziglang`. An older one must not be taken: before LLVM 20 it leaves
//! out waits that RDNA 4 needs, and nothing but a rare wrong number would tell. The same compiler writes
//! the same bytes, which `--check` compares; then it has the machine code of each architecture executed instruction
//! by instruction in the simulated device.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

use crate::setup;
use crate::workspace;

const SOURCE: &str = "crates/kernels/hip/kernels.hip";
const BUNDLE: &str = "crates/kernels/kernels.bundle";
const ARCHITECTURES: [&str; 17] = [
    "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036", "gfx1100",
    "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200",
    "gfx1201",
];
/// What a bundle begins with, and where its parts may lie.
const MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const ALIGNMENT: usize = 4096;
/// Disassemblers that know these architectures, the newest first.
const DISASSEMBLERS: [&str; 4] = [
    "llvm-objdump-22",
    "llvm-objdump-21",
    "llvm-objdump-20",
    "llvm-objdump-19",
];

/// Compile the kernels for AMD GPUs again.
#[derive(clap::Args)]
pub(crate) struct Kernels {
    /// Write nothing: compare the bytes with those of the repository, and execute them without a GPU
    #[arg(long)]
    check: bool,
}

impl Kernels {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        match self.check {
            true => check(&shell, 1),
            false => fs::write(workspace::root().join(BUNDLE), compiled(&shell)?)
                .with_context(|| format!("cannot write `{BUNDLE}`")),
        }
    }
}

/// Compares what the source compiles to with what is in the repository, and executes that; also without each wait, or without each
/// `step`th one.
pub(crate) fn check(shell: &Shell, step: u32) -> Result<()> {
    let ours = shell.read_binary_file(BUNDLE)?;
    ensure!(
        compiled(shell)? == ours,
        "`{SOURCE}` compiles to other bytes than `{BUNDLE}`: run `cargo xtask kernels`"
    );
    let known = |name: &&&str| {
        cmd!(shell, "{name} --version")
            .quiet()
            .ignore_stdout()
            .ignore_stderr()
            .run()
            .is_ok()
    };
    let Some(disassembler) = DISASSEMBLERS.iter().find(known) else {
        eprintln!(
            "not run: the kernels in the simulated device, which need llvm-objdump 19 or newer (Debian: llvm-19)"
        );
        return Ok(());
    };
    let cargo = workspace::cargo();
    // With these packages the dependencies have the features that they have in other builds.
    let packages = [
        "-p",
        "surefoot-kernels",
        "-p",
        "device-sim",
        "--test",
        "all",
    ];
    cmd!(
        shell,
        "{cargo} test {packages...} -- each_ another_ an_address_ scalars_"
    )
    .env("SUREFOOT_OBJDUMP", disassembler)
    .env("SUREFOOT_MUTATED_WAITS", step.to_string())
    .run()?;
    cmd!(shell, "{cargo} test --workspace --lib -- kernels:: fused::")
        .env("SUREFOOT_OBJDUMP", disassembler)
        .run()?;
    Ok(())
}

/// The bundle that the source compiles to.
fn compiled(shell: &Shell) -> Result<Vec<u8>> {
    let compiler = setup::device_compiler()?;
    let folder = tempfile::tempdir()?;
    let objects: Vec<(String, Vec<u8>)> = ARCHITECTURES
        .iter()
        .map(|architecture| {
            eprintln!("compiling {architecture}");
            let object = object(shell, &compiler, folder.path(), architecture)?;
            Ok((format!("hipv4-amdgcn-amd-amdhsa--{architecture}"), object))
        })
        .collect::<Result<_>>()?;
    let host = ("host-x86_64-unknown-linux-gnu-".to_owned(), Vec::new());
    Ok(bundled(&[&[host][..], &objects].concat()))
}

fn object(shell: &Shell, compiler: &Path, folder: &Path, architecture: &str) -> Result<Vec<u8>> {
    let [bitcode, object, linked] =
        ["bc", "o", "co"].map(|kind| folder.join(format!("{architecture}.{kind}")));
    // In two steps, since zig's clang does not find a linker for these targets; without a random part in names, and without
    // registers of 16 bits, of which LLVM 19's listings do not say which half is meant.
    let options = ["-mcode-object-version=5", "-nogpulib", "-O3"];
    let whole_registers = ["-Xclang", "-target-feature", "-Xclang", "-real-true16"];
    let language = [
        "-x",
        "hip",
        "--cuda-device-only",
        "--no-gpu-bundle-output",
        "-nogpuinc",
        "-std=c++17",
    ];
    let strict = [
        "-fuse-cuid=none",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-emit-llvm",
    ];
    cmd!(
        shell,
        "{compiler} clang {language...} --offload-arch={architecture} {options...} {whole_registers...} {strict...} -c {SOURCE} -o {bitcode}"
    )
    .quiet()
    .run()?;
    cmd!(
        shell,
        "{compiler} clang --target=amdgcn-amd-amdhsa -mcpu={architecture} {options...} -c {bitcode} -o {object}"
    )
    .quiet()
    .run()?;
    cmd!(
        shell,
        "{compiler} ld.lld -shared --no-undefined --gc-sections -o {linked} {object}"
    )
    .quiet()
    .run()?;
    Ok(shell.read_binary_file(linked)?)
}

/// Code objects in one file: their number; place, size and name of each; then the objects.
fn bundled(objects: &[(String, Vec<u8>)]) -> Vec<u8> {
    let number = |number: usize| (number as u64).to_le_bytes();
    let head: usize = objects.iter().map(|(name, _)| 24 + name.len()).sum();
    let mut at = (MAGIC.len() + 8 + head).next_multiple_of(ALIGNMENT);
    let mut bundle = [MAGIC, &number(objects.len())].concat();
    for (name, object) in objects {
        for field in [at, object.len(), name.len()] {
            bundle.extend(number(field));
        }
        bundle.extend(name.as_bytes());
        at += object.len().next_multiple_of(ALIGNMENT);
    }
    for (_, object) in objects {
        bundle.resize(bundle.len().next_multiple_of(ALIGNMENT), 0);
        bundle.extend(object);
    }
    bundle.resize(bundle.len().next_multiple_of(ALIGNMENT), 0);
    bundle
}
