//! Writes the weights of a part anew: named, shaped and stacked as its file has them, with other values.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Kind, Tensor};

use super::{BESIDE, PartFile, Place, QUANTIZATION, SCALES};
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
        let is_gone = |name: &String| {
            let mut ends = SCALES.iter().chain(&BESIDE);
            let layer = ends.find_map(|end| name.strip_suffix(end));
            let of_part = |layer| parts.contains_key(format!("{layer}.weight").as_str());
            name == "scaled_fp8" || layer.is_some_and(of_part)
        };
        let all = self.tensors.names().into_iter();
        let tensors = all.filter(|name| !is_gone(name)).map(|stored| {
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
            // They describe the old weights.
            metadata.retain(|key, _| key != QUANTIZATION && key != "modelspec.hash_sha256");
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
