//! The integrity of checkpoints: every file has a checksum, and so does the list of checksums.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::{FORMAT, STATE, State};
use crate::Error;

/// Separates the state from the checksum of its text, the last lines of `state.json`.
const CHECKSUM_KEY: &str = ",\n  \"checksum\": ";
const END: &str = "\n}\n";

/// The text of `state.json`, which ends with a checksum of everything before it.
pub(super) fn with_checksum(state: &State) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(state)
        .map_err(|error| Error::Internal(format!("checkpoint state: {error}")))?;
    let body = text.strip_suffix("\n}").unwrap_or(&text);
    Ok(format!(
        "{body}{CHECKSUM_KEY}{}{END}",
        crc32c::crc32c(body.as_bytes())
    ))
}

/// Reads the state of the checkpoint in `folder`, and verifies the checksum of every file.
pub(super) fn read(folder: &Path) -> Result<State, Error> {
    let state = read_state(folder)?;
    let found = checksums(folder)?;
    for (name, expected) in &state.checksums {
        let reason = match found.get(name) {
            None => "it is damaged: the file is missing",
            Some(found) if found != expected => "it is damaged: its checksum differs",
            Some(_) => continue,
        };
        return Err(Error::checkpoint(&folder.join(name), reason));
    }
    let mut names = found.keys().filter(|name| *name != STATE);
    match names.find(|name| !state.checksums.contains_key(*name)) {
        Some(name) => Err(Error::checkpoint(
            &folder.join(name),
            "it is not in the checkpoint's list of files: move it elsewhere",
        )),
        None => Ok(state),
    }
}

/// Reads the state of the checkpoint in `folder`, whatever its other files are like.
pub(super) fn read_state(folder: &Path) -> Result<State, Error> {
    let path = folder.join(STATE);
    let damaged = |what: &str| Error::checkpoint(&path, format!("it is damaged: {what}"));
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::checkpoint(folder, "it has no `state.json`"));
        }
        Err(error) => return Err(Error::io("read", &path, error)),
    };
    let text = str::from_utf8(&text).map_err(|_| damaged("it is not UTF-8"))?;
    expect_format(folder, text)?;
    let (body, checksum) = text
        .strip_suffix(END)
        .and_then(|text| text.rsplit_once(CHECKSUM_KEY))
        .ok_or_else(|| damaged("the checksum at its end is missing"))?;
    if checksum.parse() != Ok(crc32c::crc32c(body.as_bytes())) {
        return Err(damaged("its checksum differs"));
    }
    serde_json::from_str(text).map_err(|error| damaged(&error.to_string()))
}

/// Distinguishes a checkpoint of another version from a damaged one.
fn expect_format(folder: &Path, text: &str) -> Result<(), Error> {
    let state: Option<serde_json::Value> = serde_json::from_str(text).ok();
    match state.and_then(|state| state["format"].as_u64()) {
        Some(format) if format != u64::from(FORMAT) => Err(Error::checkpoint(
            folder,
            format!("its format is {format}, but this program reads {FORMAT}"),
        )),
        _ => Ok(()),
    }
}

/// CRC-32C of each file in `folder` and its subfolders, by relative path.
pub(super) fn checksums(folder: &Path) -> Result<BTreeMap<String, u32>, Error> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let io = |error| Error::io("read", &next, error);
        for entry in fs::read_dir(&next).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap_or(&path);
            found.insert(name.display().to_string(), checksum(&path)?);
        }
    }
    Ok(found)
}

/// CRC-32C of a file.
fn checksum(path: &Path) -> Result<u32, Error> {
    let io = |error| Error::io("read", path, error);
    let mut file = File::open(path).map_err(io)?;
    let mut buffer = vec![0; 1 << 20];
    let mut checksum = 0;
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(checksum),
            count => checksum = crc32c::crc32c_append(checksum, &buffer[..count]),
        }
    }
}
