//! `cargo xtask package-check`: tests whether the crates work for somebody who has only the packages.
//!
//! ```text
//! cargo package ──▶ a local registry ──▶ an empty folder for each crate: the dependencies and
//!                                        the program of its README, built and run
//! ```
//!
//! The folders are outside of the workspace, so nothing of its `.cargo/config.toml` reaches
//! them, and neither HIP nor (but for the crates that use it) libtorch is in the environment.
//! Third-party crates come from cargo's own registry, through the user's cache.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use xshell::{Shell, cmd};

use crate::setup::{self, Libtorch};
use crate::workspace;

/// The crates whose programs need libtorch.
const ON_LIBTORCH: [&str; 4] = [
    "torch-ext",
    "surefoot-placement",
    "surefoot-models",
    "surefoot-trainer",
];

/// Package every crate that can be published, and build the example of each README from that.
#[derive(clap::Args)]
pub(crate) struct PackageCheck {
    /// These packages only
    packages: Vec<String>,
    /// Leave out what needs libtorch, whose bindings take minutes to compile
    #[arg(long)]
    without_libtorch: bool,
}

impl PackageCheck {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = match self.without_libtorch {
            true => None,
            false => Some(setup::ensure()?),
        };
        check(libtorch.as_ref(), &self.packages)
    }
}

/// Packages everything and checks the packages in `only`, or all if it is empty. Those that need libtorch are
/// only checked if there is one.
pub(crate) fn check(libtorch: Option<&Libtorch>, only: &[String]) -> Result<()> {
    let shell = workspace::shell()?;
    let packages = publishable(&shell)?;
    let registry = Registry::make(&shell, &packages)?;
    for package in &packages {
        if !only.is_empty() && !only.contains(&package.name) {
            continue;
        }
        match (ON_LIBTORCH.contains(&package.name.as_str()), libtorch) {
            (true, None) => eprintln!("packages  {}: not checked", package.name),
            (true, libtorch) => registry.run_readme(package, libtorch)?,
            (false, _) if package.is_program => registry.install(package)?,
            (false, _) => registry.run_readme(package, None)?,
        }
    }
    let without_libtorch = "surefoot-trainer".to_owned();
    if only.is_empty() || only.contains(&without_libtorch) {
        registry.check_for_documentation(&without_libtorch)?;
    }
    Ok(())
}

/// A member of the workspace that can be published.
struct Package {
    name: String,
    folder: PathBuf,
    /// It is meant to be installed, not depended on.
    is_program: bool,
}

fn publishable(shell: &Shell) -> Result<Vec<Package>> {
    let cargo = workspace::cargo();
    let metadata = cmd!(shell, "{cargo} metadata --format-version=1 --no-deps").quiet();
    let metadata: Value = serde_json::from_str(&metadata.read()?)?;
    let members = metadata["packages"].as_array().context("no packages")?;
    let published = members.iter().filter(|member| member["publish"].is_null());
    published
        .map(|member| {
            let text = |key: &str| member[key].as_str().context("cargo metadata has changed");
            let manifest = Path::new(text("manifest_path")?);
            Ok(Package {
                name: text("name")?.to_owned(),
                folder: manifest.parent().unwrap_or(manifest).to_owned(),
                is_program: !member["default_run"].is_null(),
            })
        })
        .collect()
}

/// A registry that has only our packages, and folders from which nothing else of ours can be found.
struct Registry {
    /// Removed on drop.
    temporary: TempDir,
    /// Target folder of the checked programs; third-party crates stay for the next run.
    target: PathBuf,
    /// URL of the index. Depends on the contents of the packages, so that builds of earlier ones are not
    /// reused.
    index: String,
    ours: Vec<String>,
}

impl Registry {
    fn make(shell: &Shell, packages: &[Package]) -> Result<Self> {
        let temporary = TempDir::new()?;
        let cargo = workspace::cargo();
        let names = packages
            .iter()
            .flat_map(|package| ["--package", &package.name]);
        let folder = temporary.path();
        // Package for a registry other than crates.io, so that the index names the origin of each dependency.
        // The host does not exist and is never contacted.
        cmd!(
            shell,
            "{cargo} package --quiet {names...} --no-verify --allow-dirty --exclude-lockfile
             --target-dir {folder} --index sparse+https://surefoot.invalid/"
        )
        .run()?;
        let ours: Vec<String> = packages
            .iter()
            .map(|package| package.name.clone())
            .collect();
        // cargo puts the packages of one invocation in a local registry.
        let local = folder.join("package/tmp-registry");
        name_as_ours(&local.join("index"), &ours)?;
        let mut digest = Sha256::new();
        for package in packages {
            let pattern = format!("{}-", package.name);
            for file in fs::read_dir(&local)? {
                let file = file?;
                if file.file_name().to_string_lossy().starts_with(&pattern) {
                    digest.update(fs::read(file.path())?);
                }
            }
        }
        let digest: String = digest.finalize()[..6]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let registry = Registry {
            target: workspace::target(shell)?.join("package-check"),
            index: format!("sparse+https://surefoot.invalid/{digest}/"),
            temporary,
            ours,
        };
        registry.make_cargo_home()?;
        Ok(registry)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// Makes a `CARGO_HOME` that shares the user's cache of crates.io and has nothing of ours.
    fn make_cargo_home(&self) -> Result<()> {
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home
            .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")))
            .context("neither CARGO_HOME nor HOME is set")?;
        let own = self.path("cargo");
        for part in ["cache", "index", "src"] {
            let part = Path::new("registry").join(part);
            fs::create_dir_all(own.join(&part))?;
            for entry in fs::read_dir(home.join(&part)).into_iter().flatten() {
                let entry = entry?;
                if entry.file_name().to_string_lossy().contains("crates.io") {
                    symlink(entry.path(), own.join(&part).join(entry.file_name()))?;
                }
            }
        }
        // The user's settings (a mirror, a proxy) and our registry. `cargo install` reads no other file.
        let mut config = fs::read_to_string(home.join("config.toml")).unwrap_or_default();
        let (index, local) = (&self.index, self.path("package/tmp-registry"));
        config.push_str(&format!(
            "\n[registries.surefoot]\nindex = \"{index}\"\n\
             [source.surefoot]\nregistry = \"{index}\"\nreplace-with = \"packaged\"\n\
             [source.packaged]\nlocal-registry = \"{}\"\n",
            local.display()
        ));
        fs::write(own.join("config.toml"), config)?;
        Ok(())
    }

    /// An empty folder.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.path("programs").join(name);
        fs::create_dir_all(folder.join("src"))?;
        Ok(folder)
    }

    /// A shell in `folder`, without HIP, and with `libtorch` if given.
    fn shell(&self, folder: &Path, libtorch: Option<&Libtorch>) -> Result<Shell> {
        let shell = match libtorch {
            Some(libtorch) => setup::shell(libtorch)?,
            None => workspace::shell()?,
        };
        shell.change_dir(folder);
        shell.set_var("CARGO_HOME", self.path("cargo"));
        shell.set_var("CARGO_TARGET_DIR", &self.target);
        shell.set_var("CARGO_PROFILE_DEV_DEBUG", "0");
        Ok(shell)
    }

    /// Runs `cargo` with these arguments in `folder`.
    fn cargo(&self, folder: &Path, libtorch: Option<&Libtorch>, arguments: &[&str]) -> Result<()> {
        let shell = self.shell(folder, libtorch)?;
        let cargo = workspace::cargo();
        let mut command = cmd!(shell, "{cargo} {arguments...}");
        for name in ["HIP_PATH", "ROCM_PATH", "CUDA_HOME", "RUSTFLAGS"] {
            command = command.env_remove(name);
        }
        match libtorch {
            // Set what every user of tch sets.
            Some(libtorch) => {
                command = command.env("LD_LIBRARY_PATH", libtorch.root.join("lib"));
            }
            None => {
                for name in ["LIBTORCH", "LIBTORCH_USE_PYTORCH", "LD_LIBRARY_PATH"] {
                    command = command.env_remove(name);
                }
            }
        }
        command.run()?;
        Ok(())
    }

    /// Builds and runs the example of a README with the dependencies that the README names.
    fn run_readme(&self, package: &Package, libtorch: Option<&Libtorch>) -> Result<()> {
        let name = &package.name;
        eprintln!("packages  {name}: the program of its README");
        let readme = fs::read_to_string(package.folder.join("README.md"))
            .with_context(|| format!("{name} has no README.md"))?;
        let program = block(&readme, "rust").with_context(|| format!("{name}: no program"))?;
        let dependencies =
            block(&readme, "toml").with_context(|| format!("{name}: no dependencies"))?;
        let folder = self.folder(name)?;
        fs::write(folder.join("Cargo.toml"), self.manifest(name, dependencies))?;
        fs::write(folder.join("src/main.rs"), program)?;
        self.cargo(&folder, libtorch, &["run", "--quiet"])
            .with_context(|| format!("the program of {name}'s README does not work"))
    }

    /// The manifest of a program with `dependencies`; ours come from our registry.
    fn manifest(&self, name: &str, dependencies: &str) -> String {
        let mut manifest = format!(
            "[package]\nname = \"uses-{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n"
        );
        for line in dependencies.lines() {
            let line = match line.split_once(" = ") {
                Some((key, version)) if self.ours.iter().any(|ours| ours == key) => {
                    let table = version.trim_matches(['{', '}', ' ']);
                    let table = match version.starts_with('{') {
                        true => table.to_owned(),
                        false => format!("version = {version}"),
                    };
                    format!("{key} = {{ {table}, registry = \"surefoot\" }}")
                }
                _ => line.to_owned(),
            };
            manifest.push_str(&line);
            manifest.push('\n');
        }
        manifest
    }

    /// Installs a program without its optional features, and starts it.
    fn install(&self, package: &Package) -> Result<()> {
        let name = package.name.as_str();
        eprintln!("packages  {name}: cargo install");
        let folder = self.folder(name)?;
        let root = self.path("installed");
        let root = root.to_str().context("a folder that is not UTF-8")?;
        let mut arguments = vec!["install", "--quiet", "--debug", "--no-default-features"];
        arguments.extend(["--registry", "surefoot", "--root", root, name]);
        // Here cargo reads the packaged manifest, which does not name our registry, so patch it.
        let patches = self.ours.iter().map(|ours| {
            format!("[patch.crates-io.{ours}]\nversion = \"*\"\nregistry = \"surefoot\"\n")
        });
        fs::write(folder.join("patches.toml"), patches.collect::<String>())?;
        arguments.extend(["--config", "patches.toml"]);
        self.cargo(&folder, None, &arguments)?;
        let program = Path::new(root).join("bin").join(name);
        let shell = self.shell(&folder, None)?;
        cmd!(shell, "{program} --version").quiet().run()?;
        Ok(())
    }

    /// Builds the documentation as docs.rs does, with `doc-only` and no libtorch. Most of the time is
    /// compiling.
    fn check_for_documentation(&self, name: &str) -> Result<()> {
        eprintln!("packages  {name}: documentation without libtorch");
        let folder = self.folder("documentation")?;
        let dependencies =
            format!("[dependencies]\n{name} = {{ version = \"*\", features = [\"doc-only\"] }}");
        fs::write(
            folder.join("Cargo.toml"),
            self.manifest("docs", &dependencies),
        )?;
        fs::write(folder.join("src/lib.rs"), "")?;
        self.cargo(&folder, None, &["check", "--quiet"])
    }
}

/// Rewrites the index so that our packages' dependencies on each other come from the same registry.
fn name_as_ours(index: &Path, ours: &[String]) -> Result<()> {
    for entry in fs::read_dir(index)? {
        let path = entry?.path();
        if path.is_dir() {
            name_as_ours(&path, ours)?;
            continue;
        }
        let mut versions = String::new();
        for line in fs::read_to_string(&path)?.lines() {
            let mut version: Value = serde_json::from_str(line)?;
            let dependencies = version["deps"].as_array_mut();
            for dependency in dependencies.into_iter().flatten() {
                // A renamed dependency has its real name in `package`.
                let name = dependency["package"].as_str();
                let name = name.or(dependency["name"].as_str()).unwrap_or_default();
                if ours.iter().any(|ours| ours == name) {
                    dependency["registry"] = Value::Null;
                }
            }
            versions.push_str(&format!("{version}\n"));
        }
        fs::write(&path, versions)?;
    }
    Ok(())
}

/// The first code block in `language` of a Markdown text.
fn block<'a>(markdown: &'a str, language: &str) -> Option<&'a str> {
    let start = format!("```{language}\n");
    let (_, rest) = markdown.split_once(&start)?;
    let (block, _) = rest.split_once("```")?;
    Some(block)
}
