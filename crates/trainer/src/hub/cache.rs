//! The cache that is shared with Python's `huggingface_hub` and others: contents by their etags, and for each
//! commit a folder of links to them.
//!
//! ```text
//! models--org--name/blobs/ETAG        contents
//!                  /refs/main         the commit that the branch pointed to
//!                  /snapshots/COMMIT/config.json ──▶ ../../blobs/ETAG
//! .locks/models--org--name/ETAG.lock  held during a download
//! ```

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use models::diffusion::INDEXES;
use serde_json::Value;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::name::{HubName, is_commit};
use crate::Error;

/// The folder of one model in a cache.
pub(super) struct Repository {
    path: PathBuf,
    locks: PathBuf,
}

impl Repository {
    pub(super) fn new(cache: &Path, name: &HubName) -> Self {
        Self {
            path: cache.join(name.folder()),
            locks: cache.join(".locks").join(name.folder()),
        }
    }

    /// The folder of a commit's files, complete or not.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commit that a revision pointed to when it was last looked up.
    pub(super) fn commit_of(&self, name: &HubName) -> Option<String> {
        if name.is_pinned() {
            return Some(name.revision.clone());
        }
        let text = fs::read_to_string(self.path.join("refs").join(&name.revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Records that commit.
    pub(super) fn remember(&self, name: &HubName, commit: &str) -> Result<(), Error> {
        if name.is_pinned() {
            return Ok(());
        }
        let path = self.path.join("refs").join(&name.revision);
        let folder = path.parent().unwrap_or(&self.path);
        make(folder)?;
        // Other processes must read the old file or the new one, never a part.
        whole(&path, |file| file.write_all(commit.as_bytes()))
            .map_err(|error| Error::io("write", &path, error))
    }

    /// The path of the content with this etag.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.path.join("blobs").join(etag)
    }

    /// The path of its partial download.
    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.path
            .join("blobs")
            .join(format!("{etag}.surefoot.incomplete"))
    }

    /// Waits until no other process fetches this content; the lock is held until the result is dropped.
    pub(super) fn lock(&self, etag: &str) -> Result<File, Error> {
        make(&self.locks)?;
        make(&self.path.join("blobs"))?;
        let path = self.locks.join(format!("{etag}.lock"));
        let io = |error| Error::io("lock", &path, error);
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let file = options.open(&path).map_err(io)?;
        file.lock().map_err(io)?;
        Ok(file)
    }

    /// Links a content to the name of a file of a commit.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), Error> {
        let path = self.snapshot(commit).join(file);
        make(path.parent().unwrap_or(&self.path))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let linked = symlink(format!("{up}blobs/{etag}").as_ref(), &path);
        match linked {
            // Another process was first; or it is a link to a content that was removed.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !path.exists() => {
                fs::remove_file(&path)
                    .and_then(|()| symlink(format!("{up}blobs/{etag}").as_ref(), &path))
                    .map_err(|error| Error::io("link", &path, error))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded
                ) =>
            {
                Err(Error::io("link", &path, error))
            }
            // Without symbolic links, copy the file completely, since an existing file is not checked again.
            Err(_) => whole(&path, |file| {
                std::io::copy(&mut File::open(self.blob(etag))?, file).map(drop)
            })
            .map_err(|error| Error::io("write", &path, error)),
            Ok(()) => Ok(()),
        }
    }
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Writes a file under a temporary name, and renames it when it is complete.
fn whole(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    write(new.as_file_mut())?;
    readable_by_all(new.path())?;
    new.persist(path).map(drop).map_err(|error| error.error)
}

/// Makes a temporary file, which is private to its owner, readable like other files.
#[cfg(unix)]
fn readable_by_all(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable_by_all(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))
}

/// Whether a file matches its etag: the SHA-256 of its bytes, or git's SHA-1 of a blob. Other etags cannot be
/// checked.
pub(super) fn is_what_it_says(path: &Path, etag: &str) -> Result<bool, Error> {
    let io = |error| Error::io("read", path, error);
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let is_hexadecimal = etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = match etag.len() {
        64 if is_hexadecimal => hexadecimal(
            &digest(Sha256::new(), &mut file, |hash, bytes| {
                hash.update(bytes);
            })
            .map_err(io)?
            .finalize(),
        ),
        40 if is_hexadecimal => {
            let begun = {
                use sha1::Digest as _;
                Sha1::new_with_prefix(format!("blob {length}\0"))
            };
            let hash = digest(begun, &mut file, |hash, bytes| {
                sha1::Digest::update(hash, bytes);
            });
            hexadecimal(&sha1::Digest::finalize(hash.map_err(io)?))
        }
        _ => return Ok(true),
    };
    Ok(found == etag.to_ascii_lowercase())
}

fn digest<H>(mut hash: H, file: &mut File, update: impl Fn(&mut H, &[u8])) -> std::io::Result<H> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash),
            count => update(&mut hash, &buffer[..count]),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a folder of files lacks to be a model; `None` if it is complete.
pub(super) fn lacks(snapshot: &Path) -> Option<String> {
    let is_there = |name: &str| snapshot.join(name).is_file();
    let mut folders = Vec::new();
    if let Some(index) = INDEXES.iter().find(|name| is_there(name)) {
        let parts = read(&snapshot.join(index));
        let Some(Value::Object(parts)) = parts else {
            return Some((*index).to_owned());
        };
        // `"vae": ["diffusers", "AutoencoderKLWan"]`; for a part that the model does not have, the items are null.
        let parts = parts.iter();
        let parts = parts.filter(|(_, of)| of.get(1).is_some_and(Value::is_string));
        for (part, _) in parts {
            if !snapshot.join(part).is_dir() {
                return Some(format!("{part}/"));
            }
            folders.push(part.clone());
        }
        folders.retain(|part| WEIGHTY.contains(&part.as_str()));
    } else {
        let needed = ["config.json", "tokenizer.json"];
        if let Some(name) = needed.into_iter().find(|name| !is_there(name)) {
            return Some(name.to_owned());
        }
        folders.push(String::new());
    }
    folders
        .iter()
        .find_map(|folder| lacks_weights(&snapshot.join(folder), folder))
}

/// Parts of a video model that have weights.
const WEIGHTY: [&str; 7] = [
    "transformer",
    "transformer_2",
    "unet",
    "text_conditioner",
    "vae",
    "text_encoder",
    "text_encoder_2",
];

fn lacks_weights(path: &Path, folder: &str) -> Option<String> {
    let named = |file: &str| match folder {
        "" => file.to_owned(),
        folder => format!("{folder}/{file}"),
    };
    let mut weights = 0;
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors.index.json") {
            let index = read(&entry.path()).unwrap_or_default();
            let shards = index["weight_map"].as_object().into_iter().flatten();
            let mut shards = shards.filter_map(|(_, shard)| shard.as_str());
            if let Some(shard) = shards.find(|shard| !path.join(shard).is_file()) {
                return Some(named(shard));
            }
        }
        // A dangling link does not count.
        weights += usize::from(name.ends_with(".safetensors") && entry.path().is_file());
    }
    (weights == 0).then(|| named("*.safetensors"))
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_compared_with_their_etags() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        fs::write(&path, "hello\n").unwrap();
        for (etag, fits) in [
            // `sha256sum`, and `git hash-object`.
            (
                "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
                true,
            ),
            ("ce013625030ba8dba906f756967f9e9ca394464a", true),
            (
                "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be04",
                false,
            ),
            ("ce013625030ba8dba906f756967f9e9ca394464b", false),
            ("some-other-etag", true),
        ] {
            assert_eq!(is_what_it_says(&path, etag).unwrap(), fits, "{etag}");
        }
    }

    #[test]
    fn a_folder_with_missing_weights_is_not_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let lacks = || lacks(folder.path());
        assert_eq!(lacks().unwrap(), "config.json");
        write("config.json", "{}");
        write("tokenizer.json", "{}");
        assert_eq!(lacks().unwrap(), "*.safetensors");
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        write("model.safetensors.index.json", index);
        write("model-1.safetensors", "");
        assert_eq!(lacks().unwrap(), "model-2.safetensors");
        write("model-2.safetensors", "");
        assert_eq!(lacks(), None);
        let parts = r#"{"_class_name": "WanPipeline", "vae": ["diffusers", "X"],
                        "transformer": ["diffusers", "X"], "transformer_2": [null, null]}"#;
        write("model_index.json", parts);
        write("vae/diffusion_pytorch_model.safetensors", "");
        assert_eq!(lacks().unwrap(), "transformer/");
        write("transformer/config.json", "{}");
        assert_eq!(lacks().unwrap(), "transformer/*.safetensors");
    }
}
