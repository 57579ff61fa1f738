//! `cargo xtask gpu-check`: the part of the evidence that needs a real GPU.
//!
//! The check itself is `python/gpu_check.py`, since it must also run on machines without Rust: it is put into a folder
//! with everything it needs except PyTorch, which `--bundle` names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

use crate::{setup, train, windows, workspace};

/// The files of the check, under `python/`.
const PARTS: [&str; 4] = [
    "gpu_check.py",
    "gpu_check_parts.py",
    "gpu_check_trainer.py",
    "sitecustomize.py",
];

/// The packages of the check, under `python/`.
const PACKAGES: [&str; 2] = ["surefoot_activate", "surefoot_placement"];

/// The training loop in plain PyTorch, under `bench/train/`.
const REFERENCE: [&str; 3] = ["reference.py", "model.py", "data.py"];

const README: &str = "\
Checks Surefoot's allocator and trainer on this machine's GPU, beside PyTorch's own.

    python gpu_check.py --out report.json

needs Linux on the processor that this was made on, with a C library at least as new,
and a PyTorch (2.8 or newer, for ROCm or CUDA; for the trainer 2.10); nothing else. It ends
within eight minutes. The report says what the machine is, which checks passed, how long a step
took and what each allocator held; please send it with any problem you report.

Exit status: 0 all checks passed, 1 one failed, 2 there is nothing to check with,
3 none failed and some say nothing (a simulated device, losses that are all zero).
";

/// Check the allocator and the trainer on this machine's GPU, or bundle that check for another machine.
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
        if let Some(folder) = self.bundle {
            let folder = std::path::absolute(folder)?;
            bundle(&shell, &folder)?;
            eprintln!("bundle    {}", folder.display());
            eprintln!("run there `python gpu_check.py --out report.json`");
            return Ok(());
        }
        let folder = workspace::target(&shell)?.join("gpu-check");
        shell.remove_path(&folder)?;
        bundle(&shell, &folder)?;
        let out = match self.out {
            Some(out) => std::path::absolute(out)?,
            None => workspace::root().join("docs/evidence/gpu-check.json"),
        };
        let (python, steps) = (self.python, self.steps.to_string());
        let check = folder.join("gpu_check.py");
        let check = cmd!(shell, "{python} {check} --out {out} --steps {steps}");
        let outcome = check.quiet().run();
        outcome.context("the GPU check did not pass; its messages are above")
    }
}

/// Builds the allocator and the trainer, and puts them with the check into `folder`.
fn bundle(shell: &Shell, folder: &Path) -> Result<()> {
    let occupied = folder
        .read_dir()
        .is_ok_and(|mut inside| inside.next().is_some());
    ensure!(!occupied, "{} is not empty", folder.display());
    let cargo = workspace::cargo();
    cmd!(shell, "{cargo} build --release --package hip-alloc").run()?;
    let library = workspace::target(shell)?.join("release/libhip_alloc.so");
    let trainer = windows::build_trainer(shell, &train::profile(), &["--bin", "surefoot"])?;
    let launcher = trainer
        .ancestors()
        .nth(2)
        .unwrap_or(&trainer)
        .join("surefoot");
    let root = workspace::root();
    let python = root.join("python");
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
    for program in [library, trainer, launcher] {
        shell.copy_file(program, folder)?;
    }
    let trained = folder.join("trainer");
    shell.create_dir(&trained)?;
    for file in REFERENCE {
        shell.copy_file(root.join("bench/train").join(file), &trained)?;
    }
    let python = setup::reference_python()?;
    let model = root.join("bench/diffusion/model.py");
    cmd!(
        shell,
        "{python} {model} {trained}/wan wan --layers 2 --heads 2 --width 160 --height 96 --frames 9"
    )
    .run()?;
    shell.write_file(folder.join("README.txt"), README)?;
    Ok(())
}
