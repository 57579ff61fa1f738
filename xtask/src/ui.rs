//! `cargo xtask ui`: builds the page of `surefoot ui` into its crate.
//!
//! The bundle is committed, so that nobody needs node to build or install Surefoot. `crates/ui/bundle.json` has
//! the hashes of its sources and its files; a test of the crate compares both with the files,
//! and `cargo xtask tidy` rebuilds the page and compares, if node is installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use xshell::{Shell, cmd};

use crate::{test, workspace};

/// Debian's Chromium.
const BROWSER: &str = "/usr/bin/chromium";

/// Build the page of `surefoot ui` again.
#[derive(clap::Args)]
pub(crate) struct Ui {
    /// Compare a new build with the committed one, and write nothing
    #[arg(long)]
    check: bool,
}

impl Ui {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        if !has_node(&shell) {
            bail!(
                "this needs node 20 or newer and npm; on Debian and Ubuntu `apt install nodejs npm`"
            );
        }
        match self.check {
            true => check(&shell),
            false => build(&shell),
        }
    }
}

/// Compares the page with its sources, or says why it cannot.
pub(crate) fn check_where_node_is(shell: &Shell) -> Result<()> {
    if !has_node(shell) {
        eprintln!("not run: the comparison of the page with its sources, which needs node and npm");
        return Ok(());
    }
    check(shell)
}

/// Tests the page in a browser, on the server built before; says so if node or Chromium is missing.
pub(crate) fn browser_tests(shell: &Shell) -> Result<()> {
    let Some(web) = browser_place(shell)? else {
        eprintln!("not run: the tests of the page, which need node, npm and {BROWSER}");
        return Ok(());
    };
    let program = workspace::target(shell)?.join("debug/surefoot");
    let _web = shell.push_dir(web);
    let tests = || cmd!(shell, "npm test").env("SUREFOOT", &program).run();
    if let Err(error) = tests() {
        if !test::are_failures_run_again() {
            return Err(error.into());
        }
        eprintln!("the page's tests failed; once more");
        tests()?;
    }
    Ok(())
}

/// The folder of the page's sources, prepared for its browser tests; `None` if node or Chromium is missing.
pub(crate) fn browser_place(shell: &Shell) -> Result<Option<PathBuf>> {
    if !has_node(shell) || !Path::new(BROWSER).exists() {
        return Ok(None);
    }
    let folder = crate_folder(shell);
    install(shell, &folder)?;
    Ok(Some(folder.join("web")))
}

fn has_node(shell: &Shell) -> bool {
    let node = cmd!(shell, "node --version").quiet().ignore_stderr().read();
    let major = node.ok().and_then(|version| {
        let major = version.trim_start_matches('v').split('.').next()?;
        major.parse::<u32>().ok()
    });
    let npm = cmd!(shell, "npm --version").quiet().ignore_stderr();
    major.is_some_and(|major| major >= 20) && npm.read().is_ok()
}

fn crate_folder(shell: &Shell) -> PathBuf {
    shell.current_dir().join("crates/ui")
}

fn build(shell: &Shell) -> Result<()> {
    let folder = crate_folder(shell);
    // From the server's routes and types: `openapi.json`, and the types of the page.
    cmd!(
        shell,
        "cargo test --quiet -p surefoot-ui --lib the_description"
    )
    .env("SUREFOOT_WRITE_API", "1")
    .run()?;
    install(shell, &folder)?;
    let web = folder.join("web");
    let _web = shell.push_dir(&web);
    cmd!(shell, "npm run --silent check").run()?;
    cmd!(shell, "npm run --silent build").run()?;
    let manifest = json!({
        "sources": hashes(&web, &sources(&web)?)?,
        "files": hashes(&folder.join("dist"), &files(&folder.join("dist"))?)?,
    });
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    fs::write(folder.join("bundle.json"), text)?;
    Ok(())
}

fn check(shell: &Shell) -> Result<()> {
    let folder = crate_folder(shell);
    install(shell, &folder)?;
    let built = tempfile::tempdir()?;
    let web = shell.push_dir(folder.join("web"));
    cmd!(shell, "npm run --silent check").run()?;
    cmd!(shell, "npm run --silent build")
        .env("SUREFOOT_UI_OUT", built.path())
        .run()?;
    drop(web);
    let dist = folder.join("dist");
    let wanted = hashes(built.path(), &files(built.path())?)?;
    let found = hashes(&dist, &files(&dist)?)?;
    if wanted != found {
        bail!(
            "crates/ui/dist differs from a build of crates/ui/web: run `cargo xtask ui` and commit"
        );
    }
    Ok(())
}

/// Installs the packages of `package-lock.json`, unless they are there.
fn install(shell: &Shell, folder: &Path) -> Result<()> {
    let web = folder.join("web");
    let lock =
        fs::read(web.join("package-lock.json")).context("crates/ui/web/package-lock.json")?;
    let mark = web.join("node_modules/.surefoot-lock");
    if fs::read(&mark).is_ok_and(|installed| installed == lock) {
        return Ok(());
    }
    let _web = shell.push_dir(&web);
    cmd!(
        shell,
        "npm ci --ignore-scripts --no-audit --no-fund --loglevel=error"
    )
    .run()?;
    fs::write(mark, lock)?;
    Ok(())
}

/// The source files of the page.
fn sources(web: &Path) -> Result<Vec<PathBuf>> {
    let mut sources = files(&web.join("src"))?;
    for path in &mut sources {
        *path = Path::new("src").join(&path);
    }
    for name in [
        "index.html",
        "package.json",
        "package-lock.json",
        "tsconfig.json",
        "vite.config.ts",
    ] {
        sources.push(name.into());
    }
    Ok(sources)
}

/// All files below a folder, as paths relative to it.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(folder)?.to_owned()),
            }
        }
    }
    Ok(found)
}

/// SHA-256 of each file, by its path relative to `folder`.
fn hashes(folder: &Path, files: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    let hash = |path: &PathBuf| {
        let digest = Sha256::digest(fs::read(folder.join(path))?);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((path.to_string_lossy().into_owned(), digest))
    };
    files.iter().map(hash).collect()
}
