//! The cache folder. An entry is either complete or absent.
//!
//! An entry is prepared in a staging folder beside its final place and moved there by one rename. Its
//! manifest lists all of its files with their sizes, and the digests of its sources. A process
//! killed at any moment leaves a staging folder, which the next setup removes, and never an incomplete entry.
//! A damaged entry (a deleted file, a full disk) no longer matches its manifest and is created again.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Hidden, so that programs that read the files of an entry ignore it.
const MANIFEST: &str = ".surefoot-manifest.json";
/// Its name in entries of older versions.
const VISIBLE_MANIFEST: &str = "surefoot-manifest.json";
const LOCK: &str = ".lock";
const STAGING: &str = ".staging-";

/// The cache folder of this user.
pub(crate) struct Cache {
    root: PathBuf,
}

/// Held while an entry is created. The kernel releases it when the process ends for any reason.
pub(crate) struct Lock {
    _file: File,
}

/// The sources and contents of an entry.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Manifest {
    /// SHA-256 digest of each download, by file name.
    sources: BTreeMap<String, String>,
    /// Size of each file in bytes, by its path within the entry.
    files: BTreeMap<String, u64>,
}

impl Cache {
    /// Opens the cache folder; creates it if it does not exist.
    pub(crate) fn open() -> Result<Cache> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let root = if let Some(folder) = variable("SUREFOOT_CACHE") {
            PathBuf::from(folder)
        } else if let Some(folder) = variable("XDG_CACHE_HOME") {
            Path::new(&folder).join("surefoot")
        } else if let Some(home) = variable("HOME") {
            Path::new(&home).join(".cache/surefoot")
        } else {
            bail!("cannot locate the cache folder: set SUREFOOT_CACHE or HOME")
        };
        Cache::at(root)
    }

    fn at(root: PathBuf) -> Result<Cache> {
        fs::create_dir_all(&root)
            .with_context(|| format!("cannot create the cache folder `{}`", root.display()))?;
        // Canonical, because build scripts that run elsewhere get the path of libtorch.
        let root = fs::canonicalize(&root)
            .with_context(|| format!("cannot open the cache folder `{}`", root.display()))?;
        Ok(Cache { root })
    }

    /// A path in the cache folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The folder of the entry `name`, if it is complete and was made from `sources`.
    pub(crate) fn whole(&self, name: &str, sources: &BTreeMap<String, String>) -> Option<PathBuf> {
        let entry = self.path(name);
        // Fails if there is none, which is normal for entries of this version.
        let _ = fs::rename(entry.join(VISIBLE_MANIFEST), entry.join(MANIFEST));
        let manifest = fs::read(entry.join(MANIFEST)).ok()?;
        let manifest: Manifest = serde_json::from_slice(&manifest).ok()?;
        let same_size = |(path, bytes): (&String, &u64)| {
            fs::metadata(entry.join(path)).is_ok_and(|file| file.len() == *bytes)
        };
        let whole = manifest.sources == *sources && manifest.files.iter().all(same_size);
        whole.then_some(entry)
    }

    /// Waits until no other setup uses this cache, then removes the leftovers of a killed one.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let path = self.path(LOCK);
        let context = || format!("cannot lock the cache with `{}`", path.display());
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(context)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another setup in `{}`", self.root.display());
                file.lock().with_context(context)?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(context),
        }
        self.clear_staging()?;
        Ok(Lock { _file: file })
    }

    /// Creates the entry `name`: `fill` writes its files into an empty folder, which is then
    /// renamed to the entry atomically.
    pub(crate) fn make(
        &self,
        _lock: &Lock,
        name: &str,
        sources: BTreeMap<String, String>,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let entry = self.path(name);
        let parent = entry.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create the folder `{}`", parent.display()))?;
        let staging = self.staging()?;
        let folder = staging.path();
        fill(folder)?;
        let mut files = BTreeMap::new();
        list_files(folder, folder, &mut files)
            .with_context(|| format!("cannot list `{}`", folder.display()))?;
        let manifest = serde_json::to_vec(&Manifest { sources, files })?;
        fs::write(folder.join(MANIFEST), manifest)
            .with_context(|| format!("cannot write into `{}`", folder.display()))?;
        // The files must reach the disk before the rename. Without `sync -f`, the sizes in the manifest still
        // reveal a power loss.
        let _ = Command::new("sync").arg("-f").arg(folder).output();
        self.put_in_place(&staging.keep(), &entry)
            .with_context(|| format!("cannot move `{}` to its final place", entry.display()))?;
        Ok(entry)
    }

    /// A new, empty folder on the same file system as the cache. It is removed on drop or, after a kill, by
    /// the next [`Cache::lock`].
    pub(crate) fn staging(&self) -> Result<TempDir> {
        tempfile::Builder::new()
            .prefix(STAGING)
            .tempdir_in(&self.root)
            .with_context(|| format!("cannot write into the cache `{}`", self.root.display()))
    }

    fn put_in_place(&self, staging: &Path, entry: &Path) -> io::Result<()> {
        if entry.exists() {
            // A rename cannot replace a folder that is not empty.
            let old = self.path(&format!("{STAGING}old-{}", std::process::id()));
            fs::rename(entry, &old)?;
            fs::rename(staging, entry)?;
            return fs::remove_dir_all(&old);
        }
        fs::rename(staging, entry)
    }

    fn clear_staging(&self) -> Result<()> {
        let entries = fs::read_dir(&self.root)
            .with_context(|| format!("cannot read the cache `{}`", self.root.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(STAGING) {
                fs::remove_dir_all(&path)
                    .with_context(|| format!("cannot remove `{}`", path.display()))?;
            }
        }
        Ok(())
    }
}

fn list_files(root: &Path, folder: &Path, files: &mut BTreeMap<String, u64>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            list_files(root, &path, files)?;
        } else {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            files.insert(name, entry.metadata()?.len());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(digest: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("wheel".to_owned(), digest.to_owned())])
    }

    fn write_library(folder: &Path) -> Result<()> {
        fs::create_dir(folder.join("lib"))?;
        fs::write(folder.join("lib/libc10.so"), "code")?;
        Ok(())
    }

    fn cache_with_entry() -> (TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned()).unwrap();
        let lock = cache.lock().unwrap();
        cache
            .make(&lock, "entry", sources("1"), write_library)
            .unwrap();
        (folder, cache)
    }

    #[test]
    fn an_entry_that_was_made_is_whole() {
        let (_folder, cache) = cache_with_entry();
        assert_eq!(
            cache.whole("entry", &sources("1")),
            Some(cache.path("entry"))
        );
    }

    #[test]
    fn an_entry_shows_its_own_files_alone_also_when_an_older_version_made_it() {
        let (_folder, cache) = cache_with_entry();
        let manifest = cache.path("entry").join(MANIFEST);
        fs::rename(&manifest, cache.path("entry").join(VISIBLE_MANIFEST)).unwrap();
        assert!(cache.whole("entry", &sources("1")).is_some());
        let entries = fs::read_dir(cache.path("entry")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let visible: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        assert_eq!(visible, ["lib"]);
    }

    #[test]
    fn an_entry_that_lost_a_file_is_not_whole() {
        let (_folder, cache) = cache_with_entry();
        fs::remove_file(cache.path("entry/lib/libc10.so")).unwrap();
        assert_eq!(cache.whole("entry", &sources("1")), None);
    }

    #[test]
    fn an_entry_with_a_cut_file_is_not_whole() {
        let (_folder, cache) = cache_with_entry();
        fs::write(cache.path("entry/lib/libc10.so"), "co").unwrap();
        assert_eq!(cache.whole("entry", &sources("1")), None);
    }

    #[test]
    fn an_entry_made_from_another_download_is_not_whole() {
        let (_folder, cache) = cache_with_entry();
        assert_eq!(cache.whole("entry", &sources("2")), None);
    }

    fn names_in(folder: &TempDir) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_failed_make_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned()).unwrap();
        let lock = cache.lock().unwrap();
        let outcome = cache.make(&lock, "entry", sources("1"), |staging| {
            write_library(staging)?;
            bail!("the disk is full")
        });
        assert!(outcome.is_err());
        assert_eq!(names_in(&folder), [LOCK]);
    }

    #[test]
    fn the_staging_of_a_killed_setup_goes_with_the_next_lock() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().to_owned()).unwrap();
        let killed = cache.staging().unwrap().keep();
        write_library(&killed).unwrap();
        let _lock = cache.lock().unwrap();
        assert_eq!(names_in(&folder), [LOCK]);
    }

    #[test]
    fn making_an_entry_again_replaces_the_old_one() {
        let (_folder, cache) = cache_with_entry();
        let lock = cache.lock().unwrap();
        let fill = |staging: &Path| Ok(fs::write(staging.join("new"), "1")?);
        cache.make(&lock, "entry", sources("2"), fill).unwrap();
        assert!(cache.whole("entry", &sources("2")).is_some());
        assert!(!cache.path("entry/lib").exists());
    }

    #[test]
    fn the_lock_keeps_a_second_setup_out() {
        let (_folder, cache) = cache_with_entry();
        let held = cache.lock().unwrap();
        let file = File::open(cache.path(LOCK)).unwrap();
        assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        assert!(file.try_lock().is_ok());
    }
}
