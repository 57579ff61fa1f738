//! Writes the weights of a part anew: named, shaped and stacked as its file has them, with other values.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tch::{Kind, Tensor};

use super::{BESIDE, MARK, PartFile, Place, QUANTIZATION, SCALES, is_mark};
use crate::Error;
use crate::formats::{LazyTensor, SafetensorsFile, TensorSource, write_safetensors_with};

impl PartFile {
    /// Writes the file `to`, which has all that this one has, or the files of this folder; the weights of the part are those
    /// of `weights`, if it has them, under diffusers' names. They are stored as `kind`, or in the types that they have here:
    /// 8-bit ones, whose scales are gone then, in bfloat16.
    ///
    /// # Errors
    /// If a weight has another shape, or a file cannot be read or written.
    pub fn rewrite(
        &self,
        weights: &dyn TensorSource,
        to: &Path,
        kind: Option<Kind>,
    ) -> Result<(), Error> {
        let mut parts: BTreeMap<&str, Vec<(&str, &Place)>> = BTreeMap::new();
        for (name, place) in &self.names {
            parts.entry(&place.stored).or_default().push((name, place));
        }
        for of_one in parts.values_mut() {
            of_one.sort_by_key(|(_, place)| place.rows[0]);
        }
        let of_part = |layer: &str| parts.contains_key(format!("{layer}.weight").as_str());
        let is_gone = |name: &String| {
            let mut ends = SCALES.iter().chain(&BESIDE);
            let layer = ends.find_map(|end| name.strip_suffix(end));
            layer.is_some_and(of_part)
        };
        let mut left = self.tensors.names();
        left.retain(|name| !is_gone(name));
        // A mark says that the tensors whose names begin as its own have scales.
        let (marks, mut left): (Vec<_>, Vec<_>) = left.into_iter().partition(|name| is_mark(name));
        let is_true = |mark: &String| {
            let prefix = mark.strip_suffix(MARK).unwrap_or_default();
            let mut scaled = left.iter().filter(|name| name.starts_with(prefix));
            scaled.any(|name| SCALES.iter().any(|end| name.ends_with(end)))
        };
        let marks: Vec<_> = marks.into_iter().filter(is_true).collect();
        left.extend(marks);
        let tensors = left.into_iter().map(|stored| {
            let shape = self.tensors.shape(&stored).unwrap_or_default();
            let as_stored = self.tensors.kind(&stored).unwrap_or(Kind::Float);
            let Some(of_one) = parts.get(stored.as_str()).cloned() else {
                let name = stored.clone();
                let read = move || self.tensors.read(&name, as_stored);
                return (stored, LazyTensor::made(&shape, as_stored, read));
            };
            let kind = kind.unwrap_or(match as_stored.elt_size_in_bytes() {
                1 => Kind::BFloat16,
                _ => as_stored,
            });
            let size = shape.clone();
            let make = move || Ok(self.stored(&of_one, weights, &size)?.f_to_kind(kind)?);
            (stored, LazyTensor::made(&shape, kind, make))
        });
        let mut metadata = BTreeMap::new();
        if self.path().is_file() {
            metadata.extend(SafetensorsFile::open(self.path())?.metadata());
            // It describes the old weights.
            metadata.remove("modelspec.hash_sha256");
            if let Some(text) = metadata.remove(QUANTIZATION) {
                let mut notes: Value = serde_json::from_str(&text).unwrap_or_default();
                let layers = notes["layers"].as_object_mut();
                let is_left = layers.is_some_and(|layers| {
                    layers.retain(|layer, _| !of_part(layer));
                    !layers.is_empty()
                });
                if is_left {
                    metadata.insert(QUANTIZATION.into(), notes.to_string());
                }
            }
        }
        metadata.insert("format".into(), "pt".into());
        write_safetensors_with(to, tensors.collect::<Vec<_>>(), &metadata)?;
        Ok(())
    }

    /// The tensor of the file, of this shape, that has these parts of `weights`.
    fn stored(
        &self,
        parts: &[(&str, &Place)],
        weights: &dyn TensorSource,
        shape: &[i64],
    ) -> Result<Tensor, Error> {
        let parts = parts.iter().map(|(name, place)| -> Result<Tensor, Error> {
            let expected = self.shape(name);
            let part = match weights.shape(name) {
                None => self.read(name, Kind::Float)?,
                found if found == expected => weights.read(name, Kind::Float)?,
                found => {
                    return Err(Error::Internal(format!(
                        "`{name}` of the shape {found:?} for one of {expected:?}"
                    )));
                }
            };
            let rows = part.size().first().copied().unwrap_or(0);
            Ok(match place.is_swapped {
                true => part.f_roll([rows / 2], [0])?,
                false => part,
            })
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        match &parts[..] {
            [whole] => Ok(whole.f_reshape(shape)?),
            _ => Ok(Tensor::f_cat(&parts, 0)?.f_reshape(shape)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::super::PartNames;
    use super::*;

    /// Of a file with several parts, what describes the others stays.
    #[test]
    fn notes_of_other_parts_are_kept() {
        let part = PartNames {
            rename: |name, _| name.strip_prefix("own.").map(str::to_owned),
            ..PartNames::DIFFUSERS
        };
        let folder = tempfile::tempdir().unwrap();
        let [path, to] = ["x", "y"].map(|name| folder.path().join(format!("{name}.safetensors")));
        let weight = Tensor::ones([2, 4], (Kind::Int8, Device::Cpu));
        let scale = Tensor::from(0.5f32);
        let tensors = ["own", "other"].into_iter().flat_map(|part| {
            [
                ("a.weight", &weight),
                ("a.weight_scale", &scale),
                (MARK, &scale),
            ]
            .map(|(name, tensor)| (format!("{part}.{name}"), LazyTensor::ready(tensor)))
        });
        let note = r#"{"format": "int8_tensorwise"}"#;
        let notes =
            format!(r#"{{"layers": {{"own.a": {note}, "other.a": {note}}}, "version": 1}}"#);
        let metadata = BTreeMap::from([(QUANTIZATION.to_owned(), notes)]);
        write_safetensors_with(&path, tensors.collect::<Vec<_>>(), &metadata).unwrap();
        let file = PartFile::open(&part, &path).unwrap();
        file.rewrite(&file, &to, None).unwrap();
        let written = SafetensorsFile::open(&to).unwrap();
        let mut names = written.names();
        names.sort();
        let left = [
            "other.a.weight",
            "other.a.weight_scale",
            "other.scaled_fp8",
            "own.a.weight",
        ];
        assert_eq!(names, left);
        assert_eq!(written.kind("own.a.weight"), Some(Kind::BFloat16));
        let notes: Value = serde_json::from_str(&written.metadata()[QUANTIZATION]).unwrap();
        let kept =
            serde_json::json!({"layers": {"other.a": {"format": "int8_tensorwise"}}, "version": 1});
        assert_eq!(notes, kept);
        // And a file that has nothing else needs no notes.
        let again = PartFile::open(&PartNames::DIFFUSERS, &to).unwrap();
        again.rewrite(&again, &path, None).unwrap();
        let written = SafetensorsFile::open(&path).unwrap();
        assert_eq!(written.names().len(), 2);
        assert!(!written.metadata().contains_key(QUANTIZATION));
    }
}
