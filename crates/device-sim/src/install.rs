//! Finds the shared library, and creates the environment for programs that use it.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// File names under which programs look for the simulator's parts.
const LINKS: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// The path of the shared library, which is in `target/<profile>/deps` like the tests of the same
/// build.
pub fn library_path() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(2);
    folders
        .flat_map(|folder| {
            [
                folder.join("libdevice_sim.so"),
                folder.join("deps/libdevice_sim.so"),
            ]
        })
        .find(|file| file.exists())
}

/// The environment for a program that uses the simulated device: the library is
/// preloaded, and the library path has a folder (created in `folder`) with links
/// to it under the names of the driver.
pub fn environment(library: &Path, folder: &Path) -> io::Result<Vec<(&'static str, OsString)>> {
    std::fs::create_dir_all(folder)?;
    for name in LINKS {
        let link = folder.join(name);
        if std::fs::read_link(&link).ok().as_deref() != Some(library) {
            let _ = std::fs::remove_file(&link);
            symlink(library, &link)?;
        }
    }
    Ok(vec![
        ("LD_PRELOAD", before("LD_PRELOAD", library)),
        ("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder)),
    ])
}

fn before(variable: &str, first: &Path) -> OsString {
    let mut value = first.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}
