//! The simulated device, for programs that use the libtorch of a CUDA wheel.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use crate::{train, workspace};

/// Builds of workspace programs, and the environment that makes them use the simulator.
pub(super) struct Simulator {
    /// The folder of the programs and libraries.
    pub(super) built: PathBuf,
    /// `LD_LIBRARY_PATH`: first the names under which libtorch looks for a driver, then libtorch and its
    /// dependencies.
    pub(super) libraries: OsString,
    /// `LD_PRELOAD`.
    pub(super) preload: OsString,
}

impl Simulator {
    /// Builds the simulator and `others` (options of `cargo build`) against the libtorch of `python`.
    pub(super) fn build(shell: &Shell, python: &Path, others: &[&str]) -> Result<Self> {
        let (cargo, profile) = (workspace::cargo(), train::profile());
        cmd!(
            shell,
            "{cargo} build --profile {profile} --quiet --package device-sim {others...}"
        )
        .run()?;
        let built = workspace::target(shell)?.join(train::folder(&profile));
        let simulator = built.join("libdevice_sim.so");
        let links = built.join("device-sim-links");
        fs::create_dir_all(&links)?;
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let link = links.join(name);
            if !link.is_symlink() {
                symlink(&simulator, &link)
                    .with_context(|| format!("cannot make `{}`", link.display()))?;
            }
        }
        let script = "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])";
        let packages = PathBuf::from(cmd!(shell, "{python} -c {script}").read()?);
        let torch = packages.join("torch/lib");
        let mut folders = vec![links, torch.clone()];
        for package in fs::read_dir(packages.join("nvidia"))? {
            folders.push(package?.path().join("lib"));
        }
        let path = shell.var_os("LD_LIBRARY_PATH").unwrap_or_default();
        folders.extend(env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()));
        let mut preload = OsString::from(&simulator);
        preload.push(":");
        preload.push(torch.join("libtorch_cuda.so"));
        Ok(Self {
            built,
            libraries: env::join_paths(&folders)?,
            preload,
        })
    }
}
