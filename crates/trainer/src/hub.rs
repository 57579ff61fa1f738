//! Models and data sets by their names on the Hugging Face hub, in the cache of Python's `huggingface_hub`.
//!
//! ```text
//! org/name@revision ──listing──▶ commit, files ──select──▶ safetensors, configs, tokenizer, templates
//!                                                   │ each: HEAD ──▶ etag and size
//!                                                   ▼
//!                     snapshots/COMMIT/… ◀──link── blobs/ETAG ◀──verify── GET, resumed where it was interrupted
//! ```
//!
//! Of a data set, the files of one split are fetched; `data_files` decides which those are.
//!
//! Requests are made with the HTTP client that this workspace uses anyway: the crate `hf-hub` (1.0) would add
//! a second one with an asynchronous runtime and a client for xet, does not resume an interrupted download, and
//! compares no checksums.

mod cache;
mod card;
mod client;
mod data_files;
mod data_set;
mod name;
mod select;
mod settings;
mod space;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use platform::Bytes;

use crate::Error;
use crate::data::models_folder;

use cache::Repository;
use client::{Client, FileInfo, Refusal};
use data_files::Selection;
use data_set::DataSet;
use name::{HubName, Kind};
pub use select::ModelKind;
pub use settings::Settings;

/// How often a file whose size or checksum is wrong is fetched again.
const CHANGES: u32 = 3;
/// How often a transfer without progress is retried.
const TRIES: u32 = 6;

/// Finds the model called `name`: an existing path, the name of a model in Surefoot's cache, or
/// `org/name[@revision]` on the hub, which is fetched unless it is in the hub's cache. Progress is passed to
/// `report`.
///
/// A name that could be a path is never looked up on the hub: one that begins with `.`, `~` or `/`, has more than
/// one slash, or lies in an existing folder.
pub fn locate_model(
    name: &Path,
    kind: ModelKind,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let on_hub = name
        .to_str()
        .and_then(|name| HubName::parse(name, Kind::Model));
    if let Some(on_hub) = on_hub.filter(|_| !name.exists()) {
        let settings = Settings::of_the_environment();
        return fetch(&on_hub, Wanted::Model(kind), &settings, report);
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
            "{error}. It was not looked up on the hub, where names are `org/name`, without a local folder \
            `org`"
        ))),
        located => Ok(located?),
    }
}

/// Like [`locate_model`], for a name on the hub, with these settings.
pub fn fetch_named(
    name: &str,
    kind: ModelKind,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    fetch(
        &parse(name, Kind::Model)?,
        Wanted::Model(kind),
        settings,
        report,
    )
}

/// The models in the hub's cache that lack no file, by their names, with the folders of their main branch.
pub fn complete_models(settings: &Settings) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(&settings.cache)
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let folder = entry.file_name().into_string().ok()?;
            let name = folder.strip_prefix("models--")?.replace("--", "/");
            let parsed = HubName::parse(&name, Kind::Model)?;
            let repository = Repository::new(&settings.cache, &parsed);
            let snapshot = repository.snapshot(&repository.commit_of(&parsed)?);
            cache::lacks(&snapshot)
                .is_none()
                .then_some((name, snapshot))
        })
        .collect();
    found.sort();
    found
}

/// Whether `path` is the name of a data set on the hub rather than a path.
pub fn is_data_set(path: &Path) -> bool {
    !path.exists()
        && path
            .to_str()
            .and_then(|name| HubName::parse(name, Kind::DataSet))
            .is_some()
}

/// The folder with the files of a split of the data set `name` on the hub, `org/name[@revision]`, which are
/// fetched unless they are in the cache. `subset` is one of the data set's subsets, by default its default one;
/// `split` may name several splits joined by `+`.
pub fn fetch_data_set(
    name: &str,
    subset: Option<&str>,
    split: &str,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let data_set = DataSet {
        selection: Selection { subset, split },
    };
    fetch(
        &parse(name, Kind::DataSet)?,
        Wanted::Data(data_set),
        settings,
        report,
    )
}

fn parse(name: &str, kind: Kind) -> Result<HubName, Error> {
    let parsed = HubName::parse(name, kind);
    parsed.ok_or_else(|| Error::Data(format!("`{name}` is not a name on the hub")))
}

/// What to fetch from a repository.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Model(ModelKind),
    Data(DataSet<'a>),
}

impl Wanted<'_> {
    /// Whether it is a part of a model, of which the rest may be there or not.
    fn is_tokenizer(self) -> bool {
        matches!(self, Self::Model(ModelKind::Tokenizer))
    }

    /// The folder to use, if everything is in the cache; otherwise what is missing.
    fn find(
        self,
        name: &HubName,
        settings: &Settings,
        repository: &Repository,
        commit: &str,
    ) -> Result<PathBuf, String> {
        let snapshot = repository.snapshot(commit);
        match self {
            Self::Model(kind) => match lacks(kind, &snapshot) {
                None => Ok(snapshot),
                Some(file) => Err(format!("no `{file}`")),
            },
            Self::Data(data) => {
                let folder = data.folder(&settings.splits, name, commit);
                if data_set::is_whole(&folder) {
                    return Ok(folder);
                }
                if !settings.offline {
                    return Err("not looked up".to_owned());
                }
                let files = data.choose_in(name, &snapshot)?;
                let linked = data_set::link(&folder, &snapshot, &files);
                linked.map(|()| folder).map_err(|error| error.to_string())
            }
        }
    }
}

/// A file that a model of this kind needs and `snapshot` does not have.
fn lacks(kind: ModelKind, snapshot: &Path) -> Option<String> {
    match kind {
        ModelKind::Tokenizer => {
            let lacks = select::lacks_tokenizer(|name| snapshot.join(name).is_file());
            lacks.map(str::to_owned)
        }
        ModelKind::Text | ModelKind::Video | ModelKind::Any => cache::lacks(snapshot),
    }
}

fn fetch(
    name: &HubName,
    wanted: Wanted<'_>,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let repository = Repository::new(&settings.cache, name);
    let commit = repository.commit_of(name);
    let cached = commit.map(|commit| wanted.find(name, settings, &repository, &commit));
    if settings.offline {
        return match cached {
            Some(Ok(path)) => Ok(path),
            lacks => Err(Error::Data(absent_offline(
                name,
                settings,
                lacks.and_then(Result::err),
            ))),
        };
    }
    let whole = cached.and_then(Result::ok);
    // A commit never changes; and a tokenizer that did would be another one in a run that goes on.
    let is_final = name.is_pinned() || wanted.is_tokenizer();
    if let Some(path) = whole.as_ref().filter(|_| is_final) {
        return Ok(path.clone());
    }
    report(&format!("asking {} for {name}", settings.endpoint));
    match Download::new(name, settings, &repository).run(wanted, report) {
        Ok(path) => Ok(path),
        Err(Stop::Local(error)) => Err(error),
        Err(Stop::Hub(Refusal::Answered(reason))) => Err(Error::Data(reason)),
        Err(Stop::Hub(Refusal::Unreachable(reason))) => match whole {
            Some(path) => {
                tracing::warn!(
                    "{reason}: using `{name}` from the cache, `{}`",
                    path.display()
                );
                Ok(path)
            }
            None => Err(Error::Hub(format!(
                "`{name}` cannot be fetched: {reason}. What was downloaded so far stays in `{}`, and the next \
                try resumes there; `HF_ENDPOINT` sets a mirror",
                settings.cache.display()
            ))),
        },
    }
}

fn absent_offline(name: &HubName, settings: &Settings, lacks: Option<String>) -> String {
    let lacks = match lacks {
        Some(lacks) => format!(
            "is incomplete in the cache `{}` ({lacks})",
            settings.cache.display()
        ),
        None => format!("is not in the cache `{}`", settings.cache.display()),
    };
    let revision = match name.revision.as_str() {
        "main" => String::new(),
        revision => format!(" --revision {revision}"),
    };
    let repository = match name.kind {
        Kind::Model => name.repository.clone(),
        Kind::DataSet => {
            return format!(
                "`{name}` {lacks}, and `HF_HUB_OFFLINE` forbids fetching it: start a run without that variable \
                where there is a network (`--dry-run` is enough), or set `data.path` to files"
            );
        }
    };
    format!(
        "`{name}` {lacks}, and `HF_HUB_OFFLINE` forbids fetching it: fetch it where there is a network, \
        by a run without that variable or by `hf download {repository}{revision}`, and copy the folder `{}` into \
        that cache",
        name.folder()
    )
}

/// Why a download ended.
enum Stop {
    Hub(Refusal),
    /// A local error.
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

/// The download of a model or data set.
struct Download<'a> {
    name: &'a HubName,
    settings: &'a Settings,
    repository: &'a Repository,
    client: Client<'a>,
    /// Bytes downloaded, and bytes of all files.
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

    fn run(&mut self, wanted: Wanted<'_>, report: &mut dyn FnMut(&str)) -> Result<PathBuf, Stop> {
        let listing = self.client.listing(self.name)?;
        let commit = listing.commit;
        let snapshot = self.repository.snapshot(&commit);
        let files = match wanted {
            Wanted::Model(kind) => select::wanted(&listing.files, kind),
            Wanted::Data(data) => {
                let card = self.card(&commit, &listing.files, report)?;
                data.choose(self.name, &listing.files, card.as_deref())
            }
        };
        let refused = |reason| Refusal::Answered(format!("`{}` {reason}", self.name));
        let files = files.map_err(refused)?;
        self.files(&commit, &files, report)?;
        let path = match wanted {
            Wanted::Model(kind) => {
                if let Some(file) = lacks(kind, &snapshot) {
                    let reason = format!(
                        "`{}` is incomplete on the hub: it has no `{file}`",
                        self.name
                    );
                    return Err(Refusal::Answered(reason).into());
                }
                snapshot
            }
            Wanted::Data(data) => {
                let folder = data.folder(&self.settings.splits, self.name, &commit);
                data_set::link(&folder, &snapshot, &files)?;
                folder
            }
        };
        // The whole model may be there as an earlier commit.
        if !wanted.is_tokenizer() || self.repository.commit_of(self.name).is_none() {
            self.repository.remember(self.name, &commit)?;
        }
        Ok(path)
    }

    /// The data set's card, if it has one.
    fn card(
        &mut self,
        commit: &str,
        files: &[String],
        report: &mut dyn FnMut(&str),
    ) -> Result<Option<String>, Stop> {
        if !files.iter().any(|file| file == data_set::CARD) {
            return Ok(None);
        }
        self.files(commit, &[data_set::CARD.to_owned()], report)?;
        let path = self.repository.snapshot(commit).join(data_set::CARD);
        let bytes = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Downloads those of a commit's files that are not in the cache.
    fn files(
        &mut self,
        commit: &str,
        files: &[String],
        report: &mut dyn FnMut(&str),
    ) -> Result<(), Stop> {
        let snapshot = self.repository.snapshot(commit);
        let mut missing = Vec::new();
        for file in files {
            if snapshot.join(file).is_file() {
                continue;
            }
            let info = self.client.info(self.name, commit, file)?;
            self.all += info.size.unwrap_or(0);
            missing.push((file, info));
        }
        self.require_space(missing.iter().map(|(_, info)| info))?;
        for (file, info) in missing {
            self.file(commit, file, info, report)?;
        }
        Ok(())
    }

    /// Fails before the download if the disk of the cache has too little free space.
    fn require_space<'i>(&self, missing: impl Iterator<Item = &'i FileInfo>) -> Result<(), Stop> {
        let mut contents = BTreeMap::new();
        for info in missing {
            let there = self.repository.partial(&info.etag).metadata();
            let there = there.map_or(0, |partial| partial.len());
            if !self.repository.blob(&info.etag).is_file() {
                let left = info.size.unwrap_or(0).saturating_sub(there);
                contents.insert(&info.etag, left);
            }
        }
        let wanted: u64 = contents.values().sum();
        let cache = &self.settings.cache;
        match space::free(cache) {
            Some(free) if free < wanted => Err(Stop::Local(Error::Data(format!(
                "`{}` needs {} more in the cache `{}`, but its disk has only {} free: free some space, or set \
                `HF_HUB_CACHE` to a folder on another disk",
                self.name,
                Bytes(wanted),
                cache.display(),
                Bytes(free)
            )))),
            _ => Ok(()),
        }
    }

    /// The error for a failed write of a partial file.
    fn unwritten(&self, partial: &Path, error: std::io::Error) -> Error {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        if !matches!(error.kind(), StorageFull | QuotaExceeded) {
            return Error::io("write", partial, error);
        }
        Error::Data(format!(
            "the disk of the cache `{}` is full, and `{}` is incomplete: free some space, and the next try resumes \
            there; `HF_HUB_CACHE` sets a folder on another disk",
            self.settings.cache.display(),
            self.name
        ))
    }

    /// Downloads one file of a commit.
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
            // Another process may have fetched it meanwhile.
            if blob.is_file() {
                self.done += info.size.unwrap_or(0);
            } else {
                let partial = self.repository.partial(&info.etag);
                let before = self.done;
                let fits = self.transfer(file, &info, &partial, report)?
                    && cache::is_what_it_says(&partial, &info.etag)?;
                if !fits {
                    // Changed, or damaged in transfer: start again, with its current metadata.
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
            "the hub sends `{file}` of `{}` with a size or checksum that differs from what it announces, \
            {CHANGES} times in a row",
            self.name
        ))
        .into())
    }

    /// Downloads the rest of a file, after the bytes that are already there; returns whether the size is
    /// right.
    fn transfer(
        &mut self,
        file: &str,
        info: &FileInfo,
        partial: &Path,
        report: &mut dyn FnMut(&str),
    ) -> Result<bool, Stop> {
        let mut options = File::options();
        let mut target = options
            .create(true)
            .append(true)
            .open(partial)
            .map_err(|error| self.unwritten(partial, error))?;
        let length = target.metadata();
        let mut length = length
            .map_err(|error| Error::io("read", partial, error))?
            .len();
        let (begun, mut tries, mut furthest) = (self.done, 0, length);
        let mut buffer = vec![0; 1 << 18];
        loop {
            if info.size.is_some_and(|size| length >= size) {
                return Ok(info.size == Some(length));
            }
            let (start, mut reader) = self.client.bytes(self.name, file, info, length)?;
            if start != length {
                let emptied = target.set_len(0);
                emptied.map_err(|error| self.unwritten(partial, error))?;
                length = 0;
            }
            let cut = loop {
                self.done = begun + length;
                report(&self.progress(file));
                match reader.read(&mut buffer) {
                    Ok(0) => break None,
                    Ok(count) => {
                        let written = target.write_all(&buffer[..count]);
                        written.map_err(|error| self.unwritten(partial, error))?;
                        length += count as u64;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => break Some(error.to_string()),
                }
            };
            self.done = begun + length;
            let missing = info.size.is_some_and(|size| length < size);
            if cut.is_none() && !missing {
                let kept = target.sync_all();
                kept.map_err(|error| self.unwritten(partial, error))?;
                return Ok(info.size.is_none_or(|size| size == length));
            }
            // A server that always starts at the beginning makes no progress.
            tries = if length > furthest { 0 } else { tries + 1 };
            furthest = furthest.max(length);
            if tries >= TRIES {
                let reason = cut.unwrap_or_else(|| "the transfer ended too early".into());
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
