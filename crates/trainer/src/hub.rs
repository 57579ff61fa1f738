//! Models by their names on the Hugging Face hub, in the cache that Python's `huggingface_hub` has.
//!
//! ```text
//! org/name@revision ──listing──▶ commit, files ──wanted──▶ safetensors, configs, tokenizer, templates
//!                                                   │ each: HEAD ──▶ name and size of its content
//!                                                   ▼
//!                     snapshots/COMMIT/… ◀──link── blobs/ETAG ◀──checked── GET, from where it was cut
//! ```
//!
//! The requests are made here, by the HTTP client that this workspace has anyway: the crate `hf-hub`
//! (1.0) brings a second one with an asynchronous runtime and a client for xet, does not go on with a
//! download that was cut, and compares no checksum.

mod cache;
mod client;
mod name;
mod select;
mod settings;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use platform::Bytes;

use crate::Error;
use crate::data::models_folder;

use cache::Repository;
use client::{Client, FileInfo, Refusal};
use name::HubName;
pub use select::ModelKind;
pub use settings::Settings;

/// How often a file that is not what it was said to be is fetched again.
const CHANGES: u32 = 3;
/// How often a transfer that brings nothing is begun again.
const TRIES: u32 = 6;

/// Where the model called `name` is: a path that exists, the name of one in Surefoot's cache, or
/// `org/name[@revision]` on the hub, which is fetched unless the hub's cache has it. What takes
/// time is told to `report`.
///
/// A name that could be a path is never looked for on the hub: one that begins with `.`, `~` or `/`,
/// has more than one slash, or lies in a folder that exists.
///
/// # Errors
/// When there is no such model, it is of another `kind`, it cannot be fetched, or it cannot be converted.
pub fn locate_model(
    name: &Path,
    kind: ModelKind,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let on_hub = name.to_str().and_then(HubName::parse);
    if let Some(on_hub) = on_hub.filter(|_| !name.exists()) {
        return fetch(&on_hub, kind, &Settings::of_the_environment(), report);
    }
    let report = RefCell::new(report);
    let located = models::pretrained::locate(name, &models_folder(), &|done, all| {
        let text = format!("converting the model, once: tensor {done} of {all}");
        (*report.borrow_mut())(&text);
    });
    let text = name.to_string_lossy();
    let is_like_a_name = text.matches('/').count() == 1 && !text.starts_with(['/', '.', '~']);
    match located {
        Err(error) if is_like_a_name && !name.exists() => Err(Error::Data(format!(
            "{error}. It is not looked for on the hub, where names are `org/name`, without a folder \
             `org` here"
        ))),
        located => Ok(located?),
    }
}

/// As [`locate_model`], of a name on the hub, with these settings.
///
/// # Errors
/// As [`locate_model`].
pub fn fetch_named(
    name: &str,
    kind: ModelKind,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let parsed = HubName::parse(name);
    let parsed = parsed.ok_or_else(|| Error::Data(format!("`{name}` is no name on the hub")))?;
    fetch(&parsed, kind, settings, report)
}

fn fetch(
    name: &HubName,
    kind: ModelKind,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let repository = Repository::new(&settings.cache, name);
    let cached = repository
        .commit_of(name)
        .map(|commit| repository.snapshot(&commit));
    let whole = cached.clone().filter(|path| cache::lacks(path).is_none());
    if settings.offline {
        return whole.ok_or_else(|| Error::Data(absent_offline(name, settings, cached)));
    }
    // A commit never changes.
    if let Some(path) = whole.as_ref().filter(|_| name.is_pinned()) {
        return Ok(path.clone());
    }
    report(&format!("asking {} for {name}", settings.endpoint));
    match Download::new(name, settings, &repository).run(kind, report) {
        Ok(path) => Ok(path),
        Err(Stop::Local(error)) => Err(error),
        Err(Stop::Hub(Refusal::Answered(reason))) => Err(Error::Data(reason)),
        Err(Stop::Hub(Refusal::Unreachable(reason))) => match whole {
            Some(path) => {
                tracing::warn!(
                    "{reason}: `{name}` is used as it is in the cache, `{}`",
                    path.display()
                );
                Ok(path)
            }
            None => Err(Error::Hub(format!(
                "`{name}` cannot be fetched: {reason}. What has come so far stays in `{}`, and the next \
                 try goes on from there; `HF_ENDPOINT` names a mirror",
                settings.cache.display()
            ))),
        },
    }
}

fn absent_offline(name: &HubName, settings: &Settings, cached: Option<PathBuf>) -> String {
    let lacks = cached.and_then(|path| cache::lacks(&path));
    let lacks = match lacks {
        Some(file) => format!(
            "is not whole in the cache `{}` (no `{file}`)",
            settings.cache.display()
        ),
        None => format!("is not in the cache `{}`", settings.cache.display()),
    };
    let revision = match name.revision.as_str() {
        "main" => String::new(),
        revision => format!(" --revision {revision}"),
    };
    format!(
        "`{name}` {lacks}, and `HF_HUB_OFFLINE` says not to ask for it: fetch it where there is a network, \
         by a run without that variable or by `hf download {}{revision}`, and copy the folder `{}` into \
         that cache",
        name.repository,
        name.folder()
    )
}

/// Why a download ended.
enum Stop {
    Hub(Refusal),
    /// Something on this machine.
    Local(Error),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Hub(refusal)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Local(error)
    }
}

/// A model on its way.
struct Download<'a> {
    name: &'a HubName,
    settings: &'a Settings,
    repository: &'a Repository,
    client: Client<'a>,
    /// Bytes that are there, and of all files.
    done: u64,
    all: u64,
}

impl<'a> Download<'a> {
    fn new(name: &'a HubName, settings: &'a Settings, repository: &'a Repository) -> Self {
        Self {
            name,
            settings,
            repository,
            client: Client::new(settings),
            done: 0,
            all: 0,
        }
    }

    fn run(&mut self, kind: ModelKind, report: &mut dyn FnMut(&str)) -> Result<PathBuf, Stop> {
        let listing = self.client.listing(self.name)?;
        let commit = listing.commit;
        let files = select::wanted(&listing.files, kind);
        let files =
            files.map_err(|reason| Refusal::Answered(format!("`{}` {reason}", self.name)))?;
        let snapshot = self.repository.snapshot(&commit);
        let mut missing = Vec::new();
        for file in files {
            if snapshot.join(&file).is_file() {
                continue;
            }
            let info = self.client.info(self.name, &commit, &file)?;
            self.all += info.size.unwrap_or(0);
            missing.push((file, info));
        }
        for (file, info) in missing {
            self.file(&commit, &file, info, report)?;
        }
        if let Some(file) = cache::lacks(&snapshot) {
            let reason = format!(
                "`{}` is not whole on the hub: it has no `{file}`",
                self.name
            );
            return Err(Refusal::Answered(reason).into());
        }
        self.repository.remember(self.name, &commit)?;
        Ok(snapshot)
    }

    /// Brings one file of a commit.
    fn file(
        &mut self,
        commit: &str,
        file: &str,
        mut info: FileInfo,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), Stop> {
        for _ in 0..CHANGES {
            let blob = self.repository.blob(&info.etag);
            let lock = self.repository.lock(&info.etag)?;
            // Another process may have brought it meanwhile.
            if blob.is_file() {
                self.done += info.size.unwrap_or(0);
            } else {
                let partial = self.repository.partial(&info.etag);
                let before = self.done;
                let fits = self.transfer(file, &info, &partial, report)?
                    && cache::is_what_it_says(&partial, &info.etag)?;
                if !fits {
                    // Changed, or damaged on the way: from the start, and what it is now.
                    let removed = fs::remove_file(&partial);
                    removed.map_err(|error| Error::io("remove", &partial, error))?;
                    self.done = before;
                    drop(lock);
                    info = self.client.info(self.name, commit, file)?;
                    continue;
                }
                fs::rename(&partial, &blob).map_err(|error| Error::io("write", &blob, error))?;
            }
            self.repository.link(commit, file, &info.etag)?;
            return Ok(());
        }
        Err(Refusal::Answered(format!(
            "what the hub sends of `{file}` of `{}` is not what it says: its size or its checksum differs, \
             {CHANGES} times",
            self.name
        ))
        .into())
    }

    /// Brings the bytes of a file, after those that are there; whether there are as many as there
    /// should be.
    fn transfer(
        &mut self,
        file: &str,
        info: &FileInfo,
        partial: &Path,
        report: &mut dyn FnMut(&str),
    ) -> Result<bool, Stop> {
        let io = |error| Error::io("write", partial, error);
        let mut options = File::options();
        let mut target = options
            .create(true)
            .append(true)
            .open(partial)
            .map_err(io)?;
        let mut length = target.metadata().map_err(io)?.len();
        let (begun, mut tries, mut furthest) = (self.done, 0, length);
        let mut buffer = vec![0; 1 << 18];
        loop {
            if info.size.is_some_and(|size| length >= size) {
                return Ok(info.size == Some(length));
            }
            let (start, mut reader) = self.client.bytes(self.name, file, info, length)?;
            if start != length {
                target.set_len(0).map_err(io)?;
                length = 0;
            }
            let cut = loop {
                self.done = begun + length;
                report(&self.progress(file));
                match reader.read(&mut buffer) {
                    Ok(0) => break None,
                    Ok(count) => {
                        target.write_all(&buffer[..count]).map_err(io)?;
                        length += count as u64;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => break Some(error.to_string()),
                }
            };
            self.done = begun + length;
            let missing = info.size.is_some_and(|size| length < size);
            if cut.is_none() && !missing {
                target.sync_all().map_err(io)?;
                return Ok(info.size.is_none_or(|size| size == length));
            }
            // A server that begins anew each time gets no further.
            tries = if length > furthest { 0 } else { tries + 1 };
            furthest = furthest.max(length);
            if tries >= TRIES {
                let reason = cut.unwrap_or_else(|| "it ends too early".into());
                return Err(Refusal::Unreachable(format!("`{file}`: {reason}")).into());
            }
            std::thread::sleep(self.settings.pause);
        }
    }

    fn progress(&self, file: &str) -> String {
        let (name, done, all) = (self.name, Bytes(self.done), Bytes(self.all));
        format!("downloading {name}: {done} of {all}, {file}")
    }
}
