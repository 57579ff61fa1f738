//! `cargo xtask gpu-check`: the part of the evidence that needs a real GPU.
//!
//! The check itself is `python/gpu_check.py`, since it must also run on machines without Rust: `--bundle`
//! copies it into a folder with everything it needs except PyTorch.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

use crate::workspace;

/// The files of the check, under `python/`.
const PARTS: [&str; 3] = ["gpu_check.py", "gpu_check_parts.py", "sitecustomize.py"];

/// The packages of the check, under `python/`.
const PACKAGES: [&str; 2] = ["surefoot_activate", "surefoot_placement"];

const README: &str = "\
Checks Surefoot's allocator on this machine's GPU, beside PyTorch's own.

    python gpu_check.py --out report.json

needs Linux on the processor that this was made on, with a C library at least as new,
and a PyTorch (2.8 or newer, for ROCm or CUDA); nothing else. It ends within ten
minutes. The report says what the machine is, which checks passed, how long a step
took and what each allocator held; please send it with any problem you report.

Exit status: 0 all checks passed, 1 one failed, 2 there is nothing to check with,
3 none failed and some say nothing (a simulated device, losses that are all zero).
";

/// Check the allocator on this machine's GPU, or bundle that check for another machine.
///
/// The report goes to docs/evidence. Exit status: failure if a check failed, or if there is no
/// GPU that PyTorch can use.
#[derive(clap::Args)]
pub(crate) struct GpuCheck {
    /// Only make a folder that runs the check on a machine without Rust
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// A Python with PyTorch for this machine's GPU
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: OsString,
    /// Where to write the report [default: docs/evidence/gpu-check.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Training steps per loop
    #[arg(long, default_value_t = 20)]
    steps: u32,
}

impl GpuCheck {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        let library = build(&shell)?;
        if let Some(folder) = self.bundle {
            return bundle(&shell, &library, &std::path::absolute(folder)?);
        }
        let out = match self.out {
            Some(out) => std::path::absolute(out)?,
            None => workspace::root().join("docs/evidence/gpu-check.json"),
        };
        let (python, steps) = (self.python, self.steps.to_string());
        let check = cmd!(
            shell,
            "{python} python/gpu_check.py --out {out} --steps {steps}"
        );
        let outcome = check.env("HIP_ALLOC_LIB", &library).quiet().run();
        outcome.context("the GPU check did not pass; its messages are above")
    }
}

/// Builds the allocator; returns the path of the library.
fn build(shell: &Shell) -> Result<PathBuf> {
    let cargo = workspace::cargo();
    cmd!(shell, "{cargo} build --release --package hip-alloc").run()?;
    let library = workspace::target(shell)?.join("release/libhip_alloc.so");
    ensure!(library.is_file(), "no {} was built", library.display());
    Ok(library)
}

fn bundle(shell: &Shell, library: &Path, folder: &Path) -> Result<()> {
    let occupied = folder
        .read_dir()
        .is_ok_and(|mut inside| inside.next().is_some());
    ensure!(!occupied, "{} is not empty", folder.display());
    let python = workspace::root().join("python");
    shell.create_dir(folder)?;
    for part in PARTS {
        shell.copy_file(python.join(part), folder)?;
    }
    for package in PACKAGES {
        let copy = folder.join(package);
        shell.create_dir(&copy)?;
        for file in shell.read_dir(python.join(package))? {
            if file.extension().is_some_and(|extension| extension == "py") {
                shell.copy_file(file, &copy)?;
            }
        }
    }
    shell.copy_file(library, folder)?;
    shell.write_file(folder.join("README.txt"), README)?;
    eprintln!("bundle    {}", folder.display());
    eprintln!("run there `python gpu_check.py --out report.json`");
    Ok(())
}
