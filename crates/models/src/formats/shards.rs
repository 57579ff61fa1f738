//! A model's safetensors files in Hugging Face's layout: a single file, or several with an index.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Kind, Tensor};

use super::{SafetensorsFile, TensorSource};
use crate::Error;
use crate::json::Object;

/// The open files of a folder.
#[derive(Debug)]
pub struct Shards {
    folder: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Tensor → index into `files`.
    tensors: BTreeMap<String, usize>,
}

impl Shards {
    /// Opens `{stem}.safetensors` in `folder` or, if there is none, the files that
    /// `{stem}.safetensors.index.json` lists, like transformers.
    ///
    /// # Errors
    /// If a file is missing or damaged, or two have a tensor of the same name.
    pub fn open(folder: &Path, stem: &str) -> Result<Self, Error> {
        let index = folder.join(format!("{stem}.safetensors.index.json"));
        let single = format!("{stem}.safetensors");
        let has_single = folder.join(&single).is_file();
        if has_single && index.is_file() {
            tracing::warn!(
                "`{}` has `{single}` and an index of several files; the former is used",
                folder.display()
            );
        }
        if !has_single
            && !index.is_file()
            && let Some(pickle) = pickle(folder)
        {
            return Err(Error::file(
                &folder.join(&single),
                format!(
                    "is not there, and `{pickle}` runs what it holds when it is read: save the model as \
                     safetensors (`save_pretrained` of transformers does)"
                ),
            ));
        }
        let names = match !has_single && index.is_file() {
            true => listed(&Object::read(&index)?)?,
            false => vec![single],
        };
        let files = names
            .iter()
            .map(|name| SafetensorsFile::open(&folder.join(name)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut tensors = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(other) = tensors.insert(name.clone(), number) {
                    let other = files[other].path().display();
                    return Err(Error::file(
                        file.path(),
                        format!("`{name}` is also in `{other}`"),
                    ));
                }
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            files,
            tensors,
        })
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    fn file_of(&self, name: &str) -> Result<&SafetensorsFile, Error> {
        let number = self.tensors.get(name);
        let missing = || Error::file(&self.folder, format!("there is no tensor `{name}`"));
        number
            .map(|number| &self.files[*number])
            .ok_or_else(missing)
    }
}

impl TensorSource for Shards {
    fn path(&self) -> &Path {
        &self.folder
    }

    fn weight_files(&self) -> Vec<PathBuf> {
        let paths = self.files.iter().map(SafetensorsFile::path);
        paths.map(Path::to_owned).collect()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.files[*self.tensors.get(name)?].shape(name)
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        self.files[*self.tensors.get(name)?].kind(name)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        self.file_of(name)?.read(name, kind)
    }

    fn read_element(&self, name: &str, index: i64, kind: Kind) -> Result<Tensor, Error> {
        self.file_of(name)?.read_element(name, index, kind)
    }
}

/// The name of a weight file in a format that is not supported.
fn pickle(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| name.starts_with("pytorch_model") && name.ends_with(".bin"))
}

/// The files that an index lists, which must be in the same folder.
fn listed(index: &Object) -> Result<Vec<String>, Error> {
    let map = index
        .object("weight_map")?
        .ok_or_else(|| index.error("weight_map", "is missing"))?;
    let mut files = Vec::new();
    for (tensor, file) in map.keys() {
        let Value::String(file) = file else {
            return Err(map.error(tensor, "must name a file"));
        };
        // A downloaded index must not point outside its folder.
        let plain = Path::new(file).file_name() == Some(file.as_ref());
        if !plain || !file.ends_with(".safetensors") {
            return Err(map.error(
                tensor,
                format!("names {file:?}, which is not a safetensors file of this folder"),
            ));
        }
        files.push(file.clone());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::write_tensors;

    #[test]
    fn one_file_counts_before_an_index_and_pickles_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: f64| {
            let tensor = Tensor::from_slice(&[value as f32]);
            write_tensors(&folder.path().join(name), &[("w".to_owned(), &tensor)]).unwrap();
        };
        let read = || {
            Shards::open(folder.path(), "model")
                .map(|shards| shards.read("w", Kind::Float).unwrap())
        };
        std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
        let error = read().unwrap_err().to_string();
        assert!(
            error.contains("`pytorch_model.bin` runs what it holds"),
            "{error}"
        );
        write("model-1.safetensors", 1.0);
        let index = r#"{"weight_map": {"w": "model-1.safetensors"}}"#;
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        assert_eq!(f64::try_from(read().unwrap()).unwrap(), 1.0);
        write("model.safetensors", 2.0);
        assert_eq!(f64::try_from(read().unwrap()).unwrap(), 2.0);
    }
}
