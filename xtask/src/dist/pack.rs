//! Packs a wheel: the metadata that every wheel has besides its own files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xshell::{Shell, cmd};

use super::licences::{self, Shipped};
use super::{commit_time, folder, name_of, release};
use crate::workspace;

/// A wheel that is assembled in its own folder.
pub(super) struct Wheel {
    /// The folder that it will be in.
    folder: PathBuf,
    /// The folder with its files.
    stage: PathBuf,
    /// `surefoot-0.1.0`: the prefix of its metadata folders.
    name: String,
    /// Its platform tag.
    tag: &'static str,
}

/// The metadata of a wheel.
pub(super) struct About {
    /// Its `METADATA` up to the description.
    pub(super) metadata: String,
    /// The description, in Markdown.
    pub(super) description: String,
    /// The licences of all packages that are linked into its files.
    pub(super) licences: PathBuf,
    /// The same packages as a software bill of materials (CycloneDX).
    pub(super) sbom: PathBuf,
}

impl Wheel {
    /// An empty wheel of the distribution `name`.
    pub(super) fn begin(name: &str, tag: &'static str) -> Result<Self> {
        Self::begin_in(folder()?, name, tag)
    }

    /// The same in another folder.
    pub(super) fn begin_in(folder: PathBuf, name: &str, tag: &'static str) -> Result<Self> {
        Ok(Self {
            stage: super::empty(folder.join(format!("stage-{name}")))?,
            folder,
            name: format!("{name}-{}", release()),
            tag,
        })
    }

    /// The folder for its files.
    pub(super) fn files(&self) -> &Path {
        &self.stage
    }

    /// Adds a program that pip installs into the `bin` folder of the environment.
    pub(super) fn add_program(&self, program: &Path) -> Result<()> {
        let to = self.scripts()?.join(name_of(program)?);
        fs::copy(program, &to).with_context(|| format!("cannot copy {}", program.display()))?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?)
    }

    /// The same for a script.
    pub(super) fn add_script(&self, name: &str, text: &str) -> Result<()> {
        let to = self.scripts()?.join(name);
        fs::write(&to, text)?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?)
    }

    /// Adds another text of licences.
    pub(super) fn add_licence(&self, file: &Path) -> Result<()> {
        let folder = super::make(self.information().join("licenses"))?;
        fs::copy(file, folder.join(name_of(file)?))?;
        Ok(())
    }

    fn information(&self) -> PathBuf {
        self.stage.join(format!("{}.dist-info", self.name))
    }

    fn scripts(&self) -> Result<PathBuf> {
        super::make(self.stage.join(format!("{}.data/scripts", self.name)))
    }

    /// Writes the metadata, and packs it with PyPA's `wheel`; returns the file.
    pub(super) fn pack(self, shell: &Shell, python: &Path, about: &About) -> Result<PathBuf> {
        let root = workspace::root();
        let information = self.information();
        let Self {
            folder,
            stage,
            name,
            tag,
        } = self;
        fs::create_dir_all(information.join("licenses"))?;
        fs::create_dir_all(information.join("sboms"))?;
        let metadata = about.metadata.replace("{release}", release()) + &about.description;
        fs::write(information.join("METADATA"), metadata)?;
        let generator = format!("Wheel-Version: 1.0\nGenerator: surefoot {}\n", release());
        let kind = format!("Root-Is-Purelib: false\nTag: py3-none-{tag}\n");
        fs::write(information.join("WHEEL"), generator + &kind)?;
        let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| root.join(name));
        for file in licences.iter().chain([&about.licences]) {
            fs::copy(file, information.join("licenses").join(name_of(file)?))?;
        }
        let sbom = information.join("sboms").join(name_of(&about.sbom)?);
        fs::copy(&about.sbom, sbom)?;
        cmd!(shell, "{python} -m wheel pack {stage} --dest-dir {folder}")
            .env("SOURCE_DATE_EPOCH", commit_time()?)
            .quiet()
            .ignore_stdout()
            .run()?;
        Ok(folder.join(format!("{name}-py3-none-{tag}.whl")))
    }
}

/// Writes the licences of the packages linked into `shipped`, and the bill of materials; returns both files.
pub(super) fn write_licences(shell: &Shell, shipped: &Shipped) -> Result<(PathBuf, PathBuf)> {
    let folder = super::make(folder()?.join(shipped.name))?;
    let licences = folder.join("THIRD-PARTY-LICENSES.md");
    fs::write(&licences, licences::text(shell, shipped)?)?;
    let sbom = folder.join(format!("{}.cdx.json", shipped.name));
    fs::write(&sbom, licences::sbom(shell, shipped)?)?;
    Ok((licences, sbom))
}

/// Checks the platform tag with auditwheel, which finds the oldest platform that provides the versioned symbols of
/// all files in the wheel; `key` selects the field of its output.
pub(super) fn check_tag(shell: &Shell, wheel: &Path, key: &str, tag: &str) -> Result<()> {
    let said = cmd!(shell, "auditwheel show --json {wheel}")
        .quiet()
        .read()?;
    let said: Value =
        serde_json::from_str(&said).context("cannot parse the output of auditwheel")?;
    let found = platform_version(said[key].as_str().unwrap_or_default());
    match found {
        Some(version) if Some(version) <= platform_version(tag) => Ok(()),
        _ => bail!(
            "{} is not compatible with {tag}; output of auditwheel:\n{said:#}",
            wheel.display()
        ),
    }
}

/// `(2, 28)` of `manylinux_2_28_x86_64`.
fn platform_version(tag: &str) -> Option<(u32, u32)> {
    let mut numbers = tag.strip_prefix("manylinux_")?.split('_');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_glibc_of_a_tag_is_read() {
        assert_eq!(platform_version("manylinux_2_28_x86_64"), Some((2, 28)));
        assert!(platform_version("manylinux_2_5_x86_64") < Some((2, 28)));
        assert_eq!(platform_version("linux_x86_64"), None);
    }
}
