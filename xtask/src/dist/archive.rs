//! The archive and the Debian package: the same files in two formats.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xshell::cmd;

use super::{Built, commit_time, empty, release};
use crate::workspace;

/// The path at which each shell looks for completions, relative to a prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/surefoot"),
    ("zsh", "share/zsh/vendor-completions/_surefoot"),
    ("fish", "share/fish/vendor_completions.d/surefoot.fish"),
];

/// Lays out the files below a prefix: `bin`, `lib/surefoot`, `share`. `suffix` names the variant of
/// `program`.
pub(super) fn tree(built: &Built, program: &Path, suffix: &str, folder: &Path) -> Result<PathBuf> {
    let shell = workspace::shell()?;
    let name = format!("surefoot-{}-x86_64-linux{suffix}", release());
    let tree = empty(folder.join(name))?;
    put(program, &tree.join("bin/surefoot"), 0o755)?;
    put(
        &built.library,
        &tree.join("lib/surefoot/libhip_alloc.so"),
        0o644,
    )?;
    for (name, path) in COMPLETIONS {
        let script = cmd!(shell, "{program} completions {name}").quiet().read()?;
        let path = tree.join(path);
        make_parent(&path)?;
        fs::write(&path, script + "\n")?;
    }
    let pages = tree.join("share/man/man1");
    cmd!(shell, "{program} man-pages {pages}").quiet().run()?;
    let documents = tree.join("share/doc/surefoot");
    let root = workspace::root();
    for name in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
        put(&root.join(name), &documents.join(name), 0o644)?;
    }
    put(
        &built.licences,
        &documents.join("THIRD-PARTY-LICENSES.md"),
        0o644,
    )?;
    put(&built.sbom, &documents.join("surefoot.cdx.json"), 0o644)?;
    Ok(tree)
}

/// Packs the tree reproducibly: the same tree of the same commit gives the same bytes.
pub(super) fn tar(tree: &Path, folder: &Path) -> Result<PathBuf> {
    let shell = workspace::shell()?;
    let name = super::name_of(tree)?;
    let (archive, time) = (folder.join(format!("{name}.tar.gz")), commit_time()?);
    cmd!(
        shell,
        "tar --create --use-compress-program 'gzip -9n' --file {archive} --directory {folder}
         --sort=name --owner=0 --group=0 --numeric-owner --mtime=@{time} {name}"
    )
    .run()?;
    Ok(archive)
}

/// Builds a Debian package of the tree; without `dpkg-deb`, prints a message and returns `None`.
pub(super) fn deb(tree: &Path, folder: &Path) -> Result<Option<PathBuf>> {
    let shell = workspace::shell()?;
    let asked = cmd!(shell, "dpkg-deb --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr();
    if asked.run().is_err() {
        eprintln!("skipped: the Debian package, which needs dpkg-deb");
        return Ok(None);
    }
    let root = empty(folder.join("deb"))?;
    let usr = root.join("usr");
    cmd!(shell, "cp --archive {tree} {usr}").run()?;
    let pages = fs::read_dir(usr.join("share/man/man1"))?;
    for page in pages {
        let page = page?.path();
        cmd!(shell, "gzip -9n {page}").run()?;
    }
    // Debian's name for the licence file.
    let documents = usr.join("share/doc/surefoot");
    let copyright = ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-LICENSES.md"]
        .map(|name| fs::read_to_string(documents.join(name)))
        .into_iter()
        .collect::<std::io::Result<Vec<_>>>()?;
    fs::write(documents.join("copyright"), copyright.join("\n\n"))?;
    let control = root.join("DEBIAN/control");
    make_parent(&control)?;
    fs::write(&control, control_text())?;
    let package = folder.join(format!("surefoot_{}_amd64.deb", release()));
    cmd!(
        shell,
        "dpkg-deb --root-owner-group --build {root} {package}"
    )
    .env("SOURCE_DATE_EPOCH", commit_time()?)
    .ignore_stdout()
    .run()?;
    fs::remove_dir_all(&root)?;
    Ok(Some(package))
}

/// The control file. The maintainer is whoever builds the package.
fn control_text() -> String {
    format!(
        "Package: surefoot\n\
         Version: {}\n\
         Architecture: amd64\n\
         Maintainer: The developers of Surefoot <surefoot@localhost>\n\
         Section: science\n\
         Priority: optional\n\
         Depends: libc6 (>= 2.28), libgcc-s1 | libgcc1, libstdc++6\n\
         Suggests: python3\n\
         Homepage: https://github.com/surefoot/surefoot\n\
         Description: doctor, launcher and memory allocator for PyTorch on AMD GPUs\n \
         Says what would stop training on an AMD consumer GPU and how to fix it, starts\n \
         PyTorch programs with the environment that the machine needs, and gives them an\n \
         allocator that holds what is live and nothing else.\n",
        release()
    )
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))
}
