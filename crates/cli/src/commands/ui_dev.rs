//! `surefoot ui --dev`: Vite, which serves the page from its sources while the server runs.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long to wait for Vite to listen.
const TIME: Duration = Duration::from_secs(30);
/// The page's sources in a checkout.
const SOURCES: &str = "crates/ui/web";

/// A running Vite. It also ends with this process, since its stdin is closed then.
pub(crate) struct Vite {
    child: Child,
    pub(crate) port: u16,
}

impl Vite {
    /// Starts Vite for the sources at or above the current folder.
    ///
    /// # Errors
    /// If the sources or their packages are missing; the message says what to type.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let sources = sources(folder)?;
        require_node("node")?;
        let program = sources.join("node_modules/vite/bin/vite.js");
        if !program.is_file() {
            bail!(
                "`--dev` needs the packages of the page: `npm ci --ignore-scripts` in `{}`",
                sources.display()
            );
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let child = Command::new("node")
            .arg(program)
            .arg("--clearScreen=false")
            .current_dir(&sources)
            .env("SUREFOOT_UI_DEV_PORT", port.to_string())
            .env_remove("CI")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start Vite")?;
        let mut vite = Self { child, port };
        vite.wait()?;
        eprintln!(
            "surefoot: the page comes from `{}`, and changes are shown at once",
            sources.display()
        );
        Ok(vite)
    }

    fn wait(&mut self) -> Result<()> {
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("Vite ended before it was listening ({status})");
            }
            if began.elapsed() > TIME {
                bail!("Vite is not listening after {} seconds", TIME.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Vite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sources of the page, in `folder` or above it.
fn sources(folder: &Path) -> Result<PathBuf> {
    let found = folder
        .ancestors()
        .map(|folder| folder.join(SOURCES))
        .find(|sources| sources.join("vite.config.ts").is_file());
    found.with_context(|| {
        format!(
            "`--dev` serves the page from its sources: start it in a checkout of Surefoot, which contains \
            `{SOURCES}`; there is none above `{}`",
            folder.display()
        )
    })
}

/// Requires node 20 or newer.
fn require_node(program: &str) -> Result<()> {
    let version = Command::new(program).arg("--version").output();
    let version = version.ok().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    let major = version.trim_start_matches('v').split('.').next();
    match major.and_then(|major| major.parse::<u32>().ok()) {
        Some(20..) => Ok(()),
        Some(_) => bail!("`--dev` needs node 20 or newer, but this is {version}"),
        None => bail!(
            "`--dev` needs node 20 or newer and npm, but there is no node: on Debian and Ubuntu \
             `apt install nodejs npm`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_reported_with_what_to_type() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Vite::start(folder.path()).err().expect("no sources");
        assert!(
            error.to_string().contains("a checkout of Surefoot"),
            "{error}"
        );
        let error = require_node("no-such-node").expect_err("no node");
        assert!(
            error.to_string().contains("apt install nodejs npm"),
            "{error}"
        );
        let error = require_node("true").expect_err("no version");
        assert!(error.to_string().contains("node 20"), "{error}");
        let below = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let found = sources(Path::new(below)).expect("the sources of this checkout");
        assert!(found.ends_with(SOURCES));
    }
}
