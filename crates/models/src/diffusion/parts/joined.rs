//! The weights of several parts as those of one.

use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use crate::Error;
use crate::diffusion::files::PartFile;
use crate::formats::TensorSource;

/// Files, with what precedes their names. A name that two have is that of the last.
pub(crate) struct Joined(Vec<(&'static str, PartFile)>);

impl Joined {
    /// The weights of `files`.
    pub(crate) fn new(files: Vec<(&'static str, PartFile)>) -> Self {
        Self(files)
    }

    /// The file with that weight, and its name there.
    fn place<'a>(&self, name: &'a str) -> Option<(&PartFile, &'a str)> {
        self.0.iter().rev().find_map(|(prefix, file)| {
            let own = name.strip_prefix(prefix)?;
            file.shape(own).map(|_| (file, own))
        })
    }
}

impl TensorSource for Joined {
    fn path(&self) -> &Path {
        self.0
            .first()
            .map_or(Path::new(""), |(_, file)| file.path())
    }

    fn weight_files(&self) -> Vec<PathBuf> {
        let files = self.0.iter();
        files.flat_map(|(_, file)| file.weight_files()).collect()
    }

    fn names(&self) -> Vec<String> {
        let files = self.0.iter().flat_map(|(prefix, file)| {
            let names = file.names().into_iter();
            names.map(move |name| format!("{prefix}{name}"))
        });
        let mut names: Vec<String> = files.collect();
        names.sort();
        names.dedup();
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let (file, own) = self.place(name)?;
        file.shape(own)
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        let (file, own) = self.place(name)?;
        file.kind(own)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        match self.place(name) {
            Some((file, own)) => file.read(own, kind),
            None => Err(Error::file(
                self.path(),
                format!("there is no tensor for `{name}`"),
            )),
        }
    }
}
