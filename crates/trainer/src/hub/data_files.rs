//! Which files of a data set belong to a split of a subset, by the rules of Python's `datasets`: according to the card,
//! else by the names of shards, of folders and of files.

use std::collections::BTreeMap;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

use super::card::Subset;
use crate::config::DataFormat;
use crate::data::{NOT_DATA, SPLIT_WORDS, format_of_name};

/// Patterns of files in folders that are named after a split.
const FOLDERS: [&str; 4] = [
    "**/WORD/**",
    "**/WORD[-._ 0-9]*/**",
    "**/*[-._ 0-9]WORD/**",
    "**/*[-._ 0-9]WORD[-._ 0-9]*/**",
];
/// Patterns of files that are named after a split.
const FILES: [&str; 2] = ["**/WORD[-._ 0-9]*", "**/*[-._ 0-9]WORD[-._ 0-9]*"];
/// How many names a message lists.
const LISTED: usize = 5;

/// The requested part of a data set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selection<'a> {
    /// The subset; the default one if unset.
    pub(super) subset: Option<&'a str>,
    /// A split, or several joined by `+`.
    pub(super) split: &'a str,
}

impl<'a> Selection<'a> {
    fn splits(self) -> impl Iterator<Item = &'a str> {
        self.split.split('+').map(str::trim)
    }
}

/// The files of a split, in reading order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) files: Vec<String>,
    /// Files of the split that cannot be read.
    pub(super) left_out: Vec<String>,
}

type Splits = Vec<(String, Vec<String>)>;

/// Selects from `files`; `subsets` are those of the card, and with `converted` these are the Parquet files that the
/// hub itself makes.
///
/// # Errors
/// What is missing, as a phrase to follow the data set's name.
pub(super) fn choose(
    files: &[String],
    subsets: &[Subset],
    converted: bool,
    selection: Selection<'_>,
) -> Result<Chosen, String> {
    let files: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|file| super::select::is_safe(file) && !NOT_DATA.contains(&base(file)))
        .collect();
    let splits = match subsets.is_empty() {
        true if converted => of_converted(&files, selection)?,
        true => {
            if let Some(other) = selection.subset.filter(|name| *name != "default") {
                return Err(format!("has no subsets, but `data.subset` names `{other}`"));
            }
            by_names(&files, "")?
        }
        false => of_card(&files, named(subsets, selection.subset)?, selection)?,
    };
    let mut found = Vec::new();
    for name in selection.splits() {
        let split = splits.iter().find(|(known, _)| known == name);
        let Some((_, files)) = split else {
            let known: Vec<&str> = splits.iter().map(|(name, _)| &**name).collect();
            return Err(match (known.is_empty(), name.contains('[')) {
                (true, _) => no_data(&files),
                (_, true) => format!(
                    "can be read by whole splits only, and `{name}` is a part of one: it has {}",
                    known.join(", ")
                ),
                _ => format!("has no split `{name}`: it has {}", known.join(", ")),
            });
        };
        found.extend(files.iter().cloned());
    }
    let most = most_common(&found).ok_or_else(|| no_data(&found))?;
    let (files, left_out) = found.into_iter().partition(|file| kind(file) == Some(most));
    Ok(Chosen { files, left_out })
}

/// The most frequent kind of the readable files; in a tie, that of the first file.
fn most_common(files: &[String]) -> Option<Kind> {
    let mut counts: Vec<(Kind, usize)> = Vec::new();
    for kind in files.iter().filter_map(|file| kind(file)) {
        match counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => counts.push((kind, 1)),
        }
    }
    counts.reverse();
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(kind, _)| kind)
}

/// The files of a split must be of one kind, which are read alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Json,
    Csv,
    Parquet,
}

/// The kind by the name; `None` for a file that cannot be read.
fn kind(file: &str) -> Option<Kind> {
    Some(match format_of_name(Path::new(base(file)))? {
        DataFormat::Text => Kind::Text,
        DataFormat::Jsonl | DataFormat::Json => Kind::Json,
        DataFormat::Csv => Kind::Csv,
        DataFormat::Parquet => Kind::Parquet,
    })
}

fn base(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

fn no_data<S: AsRef<str>>(files: &[S]) -> String {
    let readable = "Parquet, JSON, CSV and text can be read";
    let hint = "its branch `@refs/convert/parquet` may have a conversion by the hub";
    match files {
        [] => format!("has no data files ({readable})"),
        files => {
            let mut names: Vec<&str> = files
                .iter()
                .take(LISTED)
                .map(|file| base(file.as_ref()))
                .collect();
            if files.len() > LISTED {
                names.push("…");
            }
            format!(
                "has no readable data ({readable}; code is never run): {}; {hint}",
                names.join(", ")
            )
        }
    }
}

/// The subset of this name, or the default one.
fn named<'a>(subsets: &'a [Subset], name: Option<&str>) -> Result<&'a Subset, String> {
    let list = || {
        let names: Vec<&str> = subsets.iter().map(|subset| &*subset.name).collect();
        names.join(", ")
    };
    let subset = match name {
        Some(name) => {
            let found = subsets.iter().find(|subset| subset.name == name);
            found.ok_or_else(|| {
                format!(
                    "has no subset `{name}`: set `data.subset` to one of {}",
                    list()
                )
            })?
        }
        None => {
            let only = subsets.first().filter(|_| subsets.len() == 1);
            let default = || subsets.iter().find(|subset| subset.is_default);
            only.or_else(default).ok_or_else(|| {
                format!(
                    "has several subsets: set `data.subset` to one of {}",
                    list()
                )
            })?
        }
    };
    match subset.options.is_empty() {
        true => Ok(subset),
        false => Err(format!(
            "has options for reading the files of its subset `{}` that are not supported here ({}): \
            download and convert it first (`hf download`, then `data.path` with the files)",
            subset.name,
            subset.options.join(", ")
        )),
    }
}

/// The splits of a subset according to the card.
fn of_card(files: &[&str], subset: &Subset, selection: Selection<'_>) -> Result<Splits, String> {
    let folder = match subset.folder.as_str() {
        "" => String::new(),
        folder => format!("{folder}/"),
    };
    let Some(splits) = &subset.splits else {
        return by_names(files, &folder);
    };
    let mut found = Splits::new();
    for (split, patterns) in splits {
        let mut of_split: Vec<String> = Vec::new();
        for pattern in patterns {
            if pattern.contains("://") {
                return Err(format!(
                    "refers to files elsewhere, which are not fetched: {pattern}"
                ));
            }
            let pattern = format!("{folder}{}", pattern.trim_start_matches("./"));
            let matcher = Pattern::new(&pattern)?;
            let matching = files.iter().filter(|file| matcher.is_match(file));
            if !add(&mut of_split, matching) && selection.splits().any(|wanted| wanted == split) {
                return Err(format!("has no file `{pattern}`, which its card names"));
            }
        }
        found.push((split.clone(), of_split));
    }
    Ok(found)
}

/// The splits of the files below `folder`, which is empty or ends with a slash, by their names.
fn by_names(files: &[&str], folder: &str) -> Result<Splits, String> {
    let files: Vec<&str> = files
        .iter()
        .filter_map(|file| file.strip_prefix(folder))
        .collect();
    let whole = |splits: Vec<(String, Vec<String>)>| -> Splits {
        let with_folder = |file: String| format!("{folder}{file}");
        splits
            .into_iter()
            .map(|(split, files)| (split, files.into_iter().map(with_folder).collect()))
            .collect()
    };
    let shard = Regex::new(r"^data/([^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*$");
    let shard = shard.map_err(|error| error.to_string())?;
    let mut shards: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in &files {
        if let Some(split) = shard.captures(file).and_then(|found| found.get(1)) {
            shards
                .entry(split.as_str().to_owned())
                .or_default()
                .push(file);
        }
    }
    if !shards.is_empty() {
        let splits = shards.into_iter();
        return Ok(whole(
            splits
                .map(|(split, files)| (split, sorted(files.iter())))
                .collect(),
        ));
    }
    for forms in [&FOLDERS[..], &FILES[..]] {
        let mut splits = Vec::new();
        for (split, words) in SPLIT_WORDS {
            let mut of_split = Vec::new();
            for word in words {
                for form in forms {
                    let pattern = Pattern::new(&form.replace("WORD", word))?;
                    add(
                        &mut of_split,
                        files.iter().filter(|file| pattern.is_match(file)),
                    );
                }
            }
            if !of_split.is_empty() {
                splits.push((split.to_owned(), of_split));
            }
        }
        if !splits.is_empty() {
            return Ok(whole(splits));
        }
    }
    let all = Pattern::new("**")?;
    let all = sorted(files.iter().filter(|file| all.is_match(file)));
    Ok(match all.is_empty() {
        true => Splits::new(),
        false => whole(vec![("train".to_owned(), all)]),
    })
}

/// Adds files sorted by name, without duplicates; returns whether there were any.
fn add<'a>(to: &mut Vec<String>, files: impl Iterator<Item = &'a &'a str>) -> bool {
    let files = sorted(files);
    let any = !files.is_empty();
    for file in files {
        if !to.contains(&file) {
            to.push(file);
        }
    }
    any
}

fn sorted<'a>(files: impl Iterator<Item = &'a &'a str>) -> Vec<String> {
    let mut files: Vec<String> = files.map(|&file| file.to_owned()).collect();
    files.sort();
    files
}

/// The splits of the hub's conversion: `SUBSET/SPLIT/0000.parquet`.
fn of_converted(files: &[&str], selection: Selection<'_>) -> Result<Splits, String> {
    let mut subsets: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for file in files {
        let parts: Vec<&str> = file.split('/').collect();
        if let [subset, split, _] = parts[..] {
            let splits = subsets.entry(subset).or_default();
            splits.entry(split).or_default().push((*file).to_owned());
        }
    }
    let names: Vec<&str> = subsets.keys().copied().collect();
    let name = match (selection.subset, &names[..]) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, names) if names.contains(&"default") => "default",
        (None, []) => return Ok(Splits::new()),
        (None, names) => {
            return Err(format!(
                "has several subsets: set `data.subset` to one of {}",
                names.join(", ")
            ));
        }
    };
    let splits = subsets.remove(name).ok_or_else(|| {
        format!(
            "has no subset `{name}`: set `data.subset` to one of {}",
            names.join(", ")
        )
    })?;
    let splits = splits.into_iter();
    Ok(splits
        .map(|(split, mut files)| {
            files.sort();
            (split.to_owned(), files)
        })
        .collect())
}

/// A pattern with the rules of `datasets`: it matches files in folders that begin with two underscores only if it
/// names such folders.
struct Pattern {
    matcher: GlobMatcher,
    special: usize,
}

impl Pattern {
    fn new(pattern: &str) -> Result<Self, String> {
        let glob = GlobBuilder::new(pattern).literal_separator(true).build();
        let glob =
            glob.map_err(|error| format!("has an invalid pattern for its files: {error}"))?;
        Ok(Self {
            matcher: glob.compile_matcher(),
            special: special_folders(pattern),
        })
    }

    fn is_match(&self, file: &str) -> bool {
        self.matcher.is_match(file) && special_folders(file) == self.special
    }
}

fn special_folders(path: &str) -> usize {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders
        .split('/')
        .filter(|name| name.starts_with("__"))
        .count()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::card;
    use super::*;

    /// What Python's `datasets` makes of a listing; see `tests/reference/splits.py`.
    #[derive(Deserialize)]
    struct Case {
        name: String,
        files: Vec<String>,
        card: Option<String>,
        subset: Option<String>,
        splits: BTreeMap<String, Vec<String>>,
    }

    fn cases() -> Vec<Case> {
        let path = crate::golden::golden("splits.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn splits_are_those_of_python_datasets() {
        let cases = cases();
        assert!(cases.len() >= 29);
        for case in cases {
            let files: Vec<&str> = case.files.iter().map(String::as_str).collect();
            let files: Vec<&str> = files
                .into_iter()
                .filter(|file| {
                    super::super::select::is_safe(file) && !NOT_DATA.contains(&base(file))
                })
                .collect();
            let subsets = card::subsets(case.card.as_deref().unwrap_or_default()).unwrap();
            let splits = match &case.subset {
                Some(name) => of_card(
                    &files,
                    named(&subsets, Some(name)).unwrap(),
                    selection(None, "train"),
                ),
                None => by_names(&files, ""),
            };
            let splits: BTreeMap<_, _> = splits.unwrap().into_iter().collect();
            assert_eq!(splits, case.splits, "{}", case.name);
        }
    }

    fn selection(subset: Option<&'static str>, split: &'static str) -> Selection<'static> {
        Selection { subset, split }
    }

    fn owned(files: &[&str]) -> Vec<String> {
        files.iter().map(|&file| file.to_owned()).collect()
    }

    #[test]
    fn files_of_the_most_common_kind_are_read_and_the_others_reported() {
        let files = owned(&[
            "train/a.jsonl",
            "train/b.json",
            "train/notes.md",
            "train/c.jsonl.gz",
            "test/d.csv",
        ]);
        let chosen = choose(&files, &[], false, selection(None, "train")).unwrap();
        assert_eq!(chosen.files, ["train/a.jsonl", "train/b.json"]);
        assert_eq!(chosen.left_out, ["train/c.jsonl.gz", "train/notes.md"]);
        let both = choose(
            &files,
            &[],
            false,
            selection(Some("default"), "test + train"),
        );
        assert_eq!(both.unwrap().files, ["train/a.jsonl", "train/b.json"]);
    }

    #[test]
    fn the_hub_s_conversion_has_folders_of_subsets_and_splits() {
        let files = owned(&[
            "en/train/0001.parquet",
            "en/train/0000.parquet",
            "de/test/0000.parquet",
        ]);
        let chosen = choose(&files, &[], true, selection(Some("en"), "train")).unwrap();
        assert_eq!(
            chosen.files,
            ["en/train/0000.parquet", "en/train/0001.parquet"]
        );
        for (asked, said) in [
            (
                selection(None, "train"),
                "several subsets: set `data.subset` to one of de, en",
            ),
            (
                selection(Some("fr"), "train"),
                "no subset `fr`: set `data.subset` to one of de, en",
            ),
            (
                selection(Some("de"), "train"),
                "no split `train`: it has test",
            ),
        ] {
            let error = choose(&files, &[], true, asked).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn errors_say_what_is_missing_and_what_there_is() {
        let two = "---\nconfigs:\n- {config_name: a, data_files: a.csv}\n- {config_name: b, data_files: b.csv, sep: ;}\n---\n";
        let elsewhere =
            "---\nconfigs:\n- {config_name: a, data_files: 'https://host/a.csv'}\n---\n";
        let gone = "---\nconfigs:\n- {config_name: a, data_files: x/*.csv}\n---\n";
        for (files, card, asked, said) in [
            (
                &["a.csv"][..],
                "",
                selection(None, "test"),
                "no split `test`: it has train",
            ),
            (
                &["a.csv"],
                "",
                selection(None, "train[:10%]"),
                "whole splits",
            ),
            (
                &["a.csv"],
                "",
                selection(Some("en"), "train"),
                "has no subsets, but `data.subset` names `en`",
            ),
            (
                &["README.md"],
                "",
                selection(None, "train"),
                "no data files",
            ),
            (
                &["set.py", "x.tar"],
                "",
                selection(None, "train"),
                "set.py, x.tar; its branch `@refs/convert/parquet`",
            ),
            (
                &["a.csv", "b.csv"],
                two,
                selection(None, "train"),
                "several subsets: set `data.subset` to one of a, b",
            ),
            (
                &["a.csv", "b.csv"],
                two,
                selection(Some("c"), "train"),
                "no subset `c`",
            ),
            (
                &["a.csv", "b.csv"],
                two,
                selection(Some("b"), "train"),
                "not supported here (sep)",
            ),
            (
                &["a.csv"],
                elsewhere,
                selection(None, "train"),
                "files elsewhere",
            ),
            (
                &["a.csv"],
                gone,
                selection(None, "train"),
                "no file `x/*.csv`, which its card names",
            ),
        ] {
            let subsets = card::subsets(card).unwrap();
            let error = choose(&owned(files), &subsets, false, asked).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
