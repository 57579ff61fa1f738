//! `cargo xtask test`: every test that needs no GPU.

use anyhow::Result;
use xshell::{Shell, cmd};

use crate::setup;
use crate::workspace;

/// Set up, build, and run the tests.
#[derive(clap::Args)]
pub(crate) struct Test {
    /// Also run what needs real PyTorch: the Python activation, and live parity of the trainer
    /// (makes the reference environment the first time: 2.5 GB to download)
    #[arg(long)]
    heavy: bool,
}

impl Test {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let shell = setup::shell(&libtorch)?;
        let cargo = workspace::cargo();
        // The shared libraries and the programs: tests load them from the target folder.
        cmd!(shell, "{cargo} build --workspace").run()?;
        if has_nextest(&shell) {
            cmd!(shell, "{cargo} nextest run --workspace").run()?;
            cmd!(shell, "{cargo} test --workspace --doc").run()?;
        } else {
            cmd!(shell, "{cargo} test --workspace").run()?;
        }
        if self.heavy {
            heavy(&shell)?;
        }
        Ok(())
    }
}

fn has_nextest(shell: &Shell) -> bool {
    let cargo = workspace::cargo();
    let version = cmd!(shell, "{cargo} nextest --version");
    version
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok()
}

/// The tests under real PyTorch, with the libraries that were just built.
fn heavy(shell: &Shell) -> Result<()> {
    let python = setup::reference_python()?;
    let built = workspace::target(shell)?.join("debug");
    let _allocator = shell.push_env("HIP_ALLOC_LIB", built.join("libhip_alloc.so"));
    let _simulator = shell.push_env("DEVICE_SIM_LIB", built.join("libdevice_sim.so"));
    cmd!(shell, "{python} -m pytest python/tests").run()?;
    Ok(())
}
