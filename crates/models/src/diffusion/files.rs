//! The weights of a part of a model: a diffusers folder, or a single file with other names.
//!
//! A single file, safetensors or GGUF, is presented with diffusers' names. 8-bit weights with a scale, as in ComfyUI's
//! `fp8_scaled` and `int8_convrot` files, and those of GGUF are dequantised when they are read.

mod rewrite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Kind, Tensor};

use super::BlockNames;
use crate::Error;
use crate::formats::{Gguf, SafetensorsFile, Shards, TensorSource};
use crate::pretrained::GgufModel;

/// How the weights of a part are found and named.
#[derive(Debug, Clone, Copy)]
pub struct PartNames {
    /// Name of the weights' file in a folder, without its ending.
    pub stem: &'static str,
    /// The name in diffusers (or transformers) of a tensor whose name in the file may be another one; `None` if it is
    /// no weight of this part. Its second argument is all names in the file.
    pub rename: fn(&str, &[String]) -> Option<String>,
    /// Matrices that a file may have as one, stacked by rows: how its name ends once it is renamed, and how theirs do. One
    /// that is named several times has as many times the rows.
    pub stacked: &'static [(&'static str, &'static [&'static str])],
    /// How the names of matrices end that a file may have as convolutions of one pixel.
    pub matrices: &'static [&'static str],
    /// How the names of matrices end that a file may have as one vector, and how many rows they have.
    pub tables: &'static [(&'static str, i64)],
    /// How the names of matrices end, in a file, whose two halves of rows diffusers has in the other order.
    pub swapped: &'static [&'static str],
}

impl PartNames {
    /// For files that are named as diffusers names them.
    pub const DIFFUSERS: Self = Self {
        stem: "diffusion_pytorch_model",
        rename: |name, _| Some(name.to_owned()),
        stacked: &[],
        matrices: &[],
        tables: &[],
        swapped: &[],
    };

    /// For files that are named as transformers names them.
    pub const TRANSFORMERS: Self = Self {
        stem: "model",
        ..Self::DIFFUSERS
    };

    /// The matrices that `name` stands for, and the share of the rows of each. Their biases are stacked as they are.
    pub(crate) fn unstacked(&self, name: &str) -> Option<Vec<(String, i64)>> {
        let direct = self.stacked.iter().find_map(|(whole, parts)| {
            let base = name.strip_suffix(whole)?;
            let parts = parts.chunk_by(|one, other| one == other);
            let named =
                |same: &[&str]| Some((format!("{base}{}", same.first()?), same.len() as i64));
            parts.map(named).collect()
        });
        direct.or_else(|| {
            let module = name.strip_suffix(".bias")?;
            let parts = self.unstacked(&format!("{module}.weight"))?.into_iter();
            let named = |(part, share): (String, i64)| {
                Some((format!("{}.bias", part.strip_suffix(".weight")?), share))
            };
            parts.map(named).collect()
        })
    }
}

/// The name of a denoiser's weight without what files may have before it.
pub(super) fn bare(name: &str) -> &str {
    let prefixes = ["model.diffusion_model.", "diffusion_model."];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    rest.unwrap_or(name)
}

/// diffusers' name of a denoiser's weight, whose name may be the original one: of a block in `lists`, or of one of the
/// `others`, which both have names in diffusers and in the original files.
pub(super) fn renamed<'a>(
    name: &str,
    lists: &[&BlockNames],
    others: impl IntoIterator<Item = &'a (&'a str, &'a str)>,
) -> Option<String> {
    // Norms have a scale in place of a weight.
    let (module, ending) = bare(name).rsplit_once('.')?;
    let ending = if ending == "scale" { "weight" } else { ending };
    for list in lists {
        for prefix in [list.name, list.original] {
            let rest = module.strip_prefix(prefix);
            let Some(rest) = rest.and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            let (number, part) = rest.split_once('.')?;
            // A part of a stacked layer has its original name, too.
            let mut parts = list.others.iter().chain(list.linear);
            let (part, _) = parts.find(|(own, original)| *own == part || *original == part)?;
            return Some(format!("{}.{number}.{part}.{ending}", list.name));
        }
    }
    let mut others = others.into_iter();
    let (module, _) = others.find(|(own, original)| *own == module || *original == module)?;
    Some(format!("{module}.{ending}"))
}

/// Where a weight is in a file.
#[derive(Debug, Clone, PartialEq)]
struct Place {
    /// Its name there.
    stored: String,
    /// The share of the rows before it, its own, and that of all.
    rows: [i64; 3],
    /// Whether it is a matrix whatever its shape in the file.
    is_matrix: bool,
    /// How many rows it has if it is a vector in the file.
    table: Option<i64>,
    /// Whether its two halves of rows are in the other order there.
    is_swapped: bool,
}

impl Place {
    /// The shape of a weight that is stored as `shape`.
    fn shape(&self, mut shape: Vec<i64>) -> Vec<i64> {
        if let Some(rows) = shape.first_mut() {
            *rows = *rows / self.rows[2] * self.rows[1];
        }
        if self.is_matrix && shape.len() == 4 && shape[2..] == [1, 1] {
            shape.truncate(2);
        }
        match (self.table, shape.as_slice()) {
            (Some(rows), [all]) if all % rows == 0 => vec![rows, all / rows],
            _ => shape,
        }
    }

    /// A weight that is part of `stored`.
    fn part(&self, stored: Tensor) -> Result<Tensor, Error> {
        let shape = self.shape(stored.size());
        let [before, own, all] = self.rows;
        let rows = match all {
            1 => stored,
            _ => stored
                .f_narrow(0, shape[0] / own * before, shape[0])?
                .f_contiguous()?,
        };
        let rows = match self.is_swapped {
            true => rows.f_roll([shape[0] / 2], [0])?,
            false => rows,
        };
        Ok(rows.f_reshape(shape)?)
    }
}

/// The weights of a part under diffusers' names, whatever their names in the file.
pub struct PartFile {
    tensors: Box<dyn TensorSource>,
    /// By name in diffusers.
    names: BTreeMap<String, Place>,
    /// Tensors that belong to no part of the model.
    unknown: Vec<String>,
    /// By layer in the file: how large the groups of inputs are with whose rotation it was quantised.
    rotations: BTreeMap<String, i64>,
}

impl std::fmt::Debug for PartFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartFile")
            .field("path", &self.tensors.path())
            .field("tensors", &self.names.len())
            .finish_non_exhaustive()
    }
}

/// Suffixes of the scale of an 8-bit weight: ComfyUI has used two.
const SCALES: [&str; 2] = [".scale_weight", ".weight_scale"];
/// Where ComfyUI's newer files say in their header how each layer is quantised, if not in a tensor beside each.
const QUANTIZATION: &str = "_quantization_metadata";
/// The tensor that says that there are such weights: ComfyUI's older files have one for each part.
const MARK: &str = "scaled_fp8";
/// Suffixes of tensors beside such weights that do not matter once they are dequantised.
const BESIDE: [&str; 3] = [".scale_input", ".input_scale", ".comfy_quant"];

impl PartFile {
    /// Opens a diffusers folder (a model's `transformer`, `vae` or `text_encoder`) or a single safetensors or GGUF
    /// file.
    ///
    /// # Errors
    /// If there is no such file, it is damaged, or its format is not supported.
    pub fn open(part: &PartNames, path: &Path) -> Result<Self, Error> {
        let mut rotations = BTreeMap::new();
        let tensors: Box<dyn TensorSource> = if path.is_dir() {
            Box::new(Shards::open(path, part.stem)?)
        } else {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if let Some(extension @ ("pth" | "pt" | "bin" | "ckpt")) = extension {
                return Err(Error::file(path, pickled(extension)));
            }
            if extension == Some("gguf") {
                return Self::of(part, of_gguf(path)?);
            }
            let file = SafetensorsFile::open(path)?;
            if let Some(text) = file.metadata().get(QUANTIZATION) {
                rotations = noted_in_header(path, text)?;
            }
            Box::new(file)
        };
        Self::with_rotations(part, tensors, rotations)
    }

    /// The weights of a part in `tensors`.
    ///
    /// # Errors
    /// If two tensors are the same weight, or a quantisation is not supported.
    pub fn of(part: &PartNames, tensors: Box<dyn TensorSource>) -> Result<Self, Error> {
        Self::with_rotations(part, tensors, BTreeMap::new())
    }

    /// The same for a file whose header says that these layers are rotated.
    fn with_rotations(
        part: &PartNames,
        tensors: Box<dyn TensorSource>,
        mut rotations: BTreeMap<String, i64>,
    ) -> Result<Self, Error> {
        let all = tensors.names();
        let mut names = BTreeMap::new();
        let mut unknown = Vec::new();
        for name in &all {
            let name = name.clone();
            if is_mark(&name) || name == "spiece_model" || is_beside(&name) {
                if let Some(layer) = name.strip_suffix(".comfy_quant") {
                    let bytes = Vec::<u8>::try_from(&tensors.read(&name, Kind::Uint8)?)?;
                    let note = serde_json::from_slice(&bytes).unwrap_or_default();
                    let size = rotated_by(tensors.path(), &name, &note)?;
                    rotations.extend(size.map(|size| (layer.to_owned(), size)));
                }
                continue;
            }
            let Some(renamed) = (part.rename)(&name, &all) else {
                unknown.push(name);
                continue;
            };
            let parts = part.unstacked(&renamed);
            let parts = parts.unwrap_or_else(|| vec![(renamed, 1)]);
            let all = parts.iter().map(|(_, share)| share).sum();
            let mut before = 0;
            for (renamed, share) in parts {
                let place = Place {
                    stored: name.clone(),
                    rows: [before, share, all],
                    is_matrix: part.matrices.iter().any(|end| renamed.ends_with(end)),
                    table: part
                        .tables
                        .iter()
                        .find_map(|(end, rows)| renamed.ends_with(end).then_some(*rows)),
                    is_swapped: part.swapped.iter().any(|end| name.ends_with(end)),
                };
                before += share;
                let Some(Place { stored: other, .. }) = names.insert(renamed, place) else {
                    continue;
                };
                // Older versions of transformers saved it twice.
                let twins = ["shared.weight", "encoder.embed_tokens.weight"];
                if !(twins.contains(&other.as_str()) && twins.contains(&name.as_str())) {
                    let reason = format!("`{other}` and `{name}` are the same weight");
                    return Err(Error::file(tensors.path(), reason));
                }
            }
        }
        let is_there = |layer: &String| all.contains(&format!("{layer}.weight"));
        if let Some(layer) = rotations.keys().find(|layer| !is_there(layer)) {
            let reason = format!("it has no `{layer}.weight`, and says how that is quantised");
            return Err(Error::file(tensors.path(), reason));
        }
        Ok(Self {
            tensors,
            names,
            unknown,
            rotations,
        })
    }

    /// Names in the file that are no known weight.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// The weight `name` in the file without the rotation with which it was quantised.
    fn turned_back(&self, name: &str, weight: Tensor) -> Result<Tensor, Error> {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let Some(size) = self.rotations.get(layer).copied() else {
            return Ok(weight);
        };
        let (rows, columns) = weight.size2()?;
        if columns % size != 0 {
            let reason = format!("`{name}` has {columns} columns, which are not groups of {size}");
            return Err(Error::file(self.path(), reason));
        }
        let groups = weight.f_view([rows, columns / size, size])?;
        Ok(groups.f_matmul(&rotation(size)?)?.f_view([rows, columns])?)
    }

    /// The scale tensor of the weight `name` in the file.
    fn scale(&self, name: &str) -> Option<String> {
        let base = name.strip_suffix(".weight")?;
        let mut scales = SCALES.iter().map(|suffix| format!("{base}{suffix}"));
        scales.find(|scale| self.tensors.shape(scale).is_some())
    }
}

impl TensorSource for PartFile {
    fn path(&self) -> &Path {
        self.tensors.path()
    }

    fn weight_files(&self) -> Vec<PathBuf> {
        self.tensors.weight_files()
    }

    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let place = self.names.get(name)?;
        Some(place.shape(self.tensors.shape(&place.stored)?))
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        self.tensors.kind(&self.names.get(name)?.stored)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        let missing = || Error::file(self.path(), format!("there is no tensor for `{name}`"));
        let place = self.names.get(name).ok_or_else(missing)?;
        let stored = &place.stored;
        let Some(scale) = self.scale(stored) else {
            return place.part(self.tensors.read(stored, kind)?);
        };
        let scale = self.tensors.read(&scale, Kind::Float)?;
        let weight = self.tensors.read(stored, Kind::Float)?;
        // A scale for the matrix, or one for each row.
        let rows = weight.size().first().copied().unwrap_or(1);
        let scale = match scale.numel() as i64 {
            1 => scale.f_reshape([])?,
            count if count == rows => scale.f_reshape([rows, 1])?,
            count => {
                let reason = format!("`{stored}` has {rows} rows but {count} scales");
                return Err(Error::file(self.path(), reason));
            }
        };
        let weight = self.turned_back(stored, weight.f_mul(&scale)?)?;
        place.part(weight.f_to_kind(kind)?)
    }
}

/// The tensors of a GGUF file: those of a language model under Hugging Face's names, all others under those in the file.
fn of_gguf(path: &Path) -> Result<Box<dyn TensorSource>, Error> {
    let file = Gguf::open(path)?;
    Ok(match is_language_model(&file) {
        true => Box::new(GgufModel::open(path)?),
        false => Box::new(file),
    })
}

/// Whether a GGUF file is a language model: llama.cpp calls blocks of a decoder so.
pub(super) fn is_language_model(file: &Gguf) -> bool {
    let mut names = file.header().tensors.keys();
    names.any(|name| name.starts_with("blk."))
}

fn pickled(extension: &str) -> String {
    format!(
        "a .{extension} file may run code when it is opened, and is not read here; convert it once \
         where you trust it: python3 -c \"import torch, safetensors.torch as s; \
         s.save_file({{k: v.contiguous() for k, v in torch.load('IN.{extension}', weights_only=True)\
         .items()}}, 'OUT.safetensors')\""
    )
}

fn is_mark(name: &str) -> bool {
    let prefix = name.strip_suffix(MARK);
    prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
}

fn is_beside(name: &str) -> bool {
    SCALES
        .iter()
        .chain(&BESIDE)
        .any(|suffix| name.ends_with(suffix))
}

/// ComfyUI's quantisations that are supported: a scale, and for the last perhaps a rotation.
const FORMATS: [&str; 3] = ["float8_e4m3fn", "float8_e5m2", "int8_tensorwise"];

/// The layers of a file whose groups of inputs are rotated, as its header says in `text`, with the size of the groups.
///
/// # Errors
/// If a quantisation is not supported.
fn noted_in_header(path: &Path, text: &str) -> Result<BTreeMap<String, i64>, Error> {
    let header: Value = serde_json::from_str(text).unwrap_or_default();
    let Some(layers) = header["layers"].as_object() else {
        let reason =
            format!("`{QUANTIZATION}` in its header has no `layers`: take the file in bf16");
        return Err(Error::file(path, reason));
    };
    let mut rotations = BTreeMap::new();
    for (layer, note) in layers {
        let size = rotated_by(path, &format!("{layer} in {QUANTIZATION}"), note)?;
        rotations.extend(size.map(|size| (layer.clone(), size)));
    }
    Ok(rotations)
}

/// If `keys`, which the file has as `name`, describe a quantisation in which groups of inputs are rotated, the size of the
/// groups.
///
/// # Errors
/// If it is not supported.
fn rotated_by(path: &Path, name: &str, keys: &Value) -> Result<Option<i64>, Error> {
    let format = keys["format"].as_str().unwrap_or("not readable");
    if !FORMATS.contains(&format) {
        let reason = format!(
            "the format of `{name}` is {format}: only ComfyUI's {} are supported; take the file in bf16",
            FORMATS.map(|format| format!("`{format}`")).join(", ")
        );
        return Err(Error::file(path, reason));
    }
    if keys["convrot"] != true {
        return Ok(None);
    }
    let size = keys["convrot_groupsize"].as_i64().unwrap_or(256);
    let is_power_of_4 =
        size >= 4 && size.count_ones() == 1 && size.trailing_zeros().is_multiple_of(2);
    match is_power_of_4 {
        true => Ok(Some(size)),
        false => {
            let reason =
                format!("`convrot_groupsize` of `{name}` is {size}, which is no power of 4");
            Err(Error::file(path, reason))
        }
    }
}

/// The matrix by which groups of `size` inputs are rotated: a power of a regular Hadamard matrix, which is its own
/// inverse.
fn rotation(size: i64) -> Result<Tensor, Error> {
    let four: [f32; 16] = [
        1., 1., 1., -1., 1., 1., -1., 1., 1., -1., 1., 1., -1., 1., 1., 1.,
    ];
    let four = Tensor::f_from_slice(&four)?.f_view([4, 4])?;
    let mut rotation = four.shallow_clone();
    while rotation.size()[0] < size {
        rotation = rotation.f_kron(&four)?;
    }
    Ok(rotation.f_div_scalar((size as f64).sqrt())?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::formats::{LazyTensor, write_safetensors_with, write_tensors};

    /// As read if the header says how layers are quantised.
    fn noted(weight: &Tensor, scale: &Tensor, header: &str) -> Result<Tensor, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let tensors = [
            ("a.weight".to_owned(), LazyTensor::ready(weight)),
            ("a.weight_scale".to_owned(), LazyTensor::ready(scale)),
        ];
        let metadata = BTreeMap::from([(QUANTIZATION.to_owned(), header.to_owned())]);
        write_safetensors_with(&path, tensors, &metadata).unwrap();
        PartFile::open(&PartNames::DIFFUSERS, &path)?.read("a.weight", Kind::Float)
    }

    fn written(weight: &Tensor, scale: &Tensor, note: &str) -> Result<Tensor, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let note = Tensor::from_slice(note.as_bytes());
        let tensors = [
            ("a.weight".to_owned(), weight),
            ("a.weight_scale".to_owned(), scale),
            ("a.comfy_quant".to_owned(), &note),
        ];
        write_tensors(&path, &tensors).unwrap();
        PartFile::open(&PartNames::DIFFUSERS, &path)?.read("a.weight", Kind::Float)
    }

    #[test]
    fn rotated_eight_bit_weights_are_turned_back() {
        let weight = Tensor::randn([6, 32], (Kind::Float, Device::Cpu));
        for size in [4, 16] {
            // The element of a power of the matrix is the product of one for each digit to the base of 4.
            let element = |row: i64, column: i64| {
                let digits = [1, 4].into_iter().filter(|place| *place < size);
                let signs = digits.map(|place| match row / place % 4 + column / place % 4 {
                    3 => -1.0,
                    _ => 1.0,
                });
                signs.product::<f32>() / (size as f32).sqrt()
            };
            let all = (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
            let all: Vec<f32> = all.map(|(row, column)| element(row, column)).collect();
            let rotation = Tensor::from_slice(&all).view([size, size]);
            let rotated = weight.view([6, 32 / size, size]).matmul(&rotation.tr());
            let rotated = rotated.view([6, 32]);
            let scale = rotated.abs().amax([1].as_slice(), true) / 127.0;
            let eight = (&rotated / &scale).round().to_kind(Kind::Int8);
            let note = format!(
                r#"{{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": {size}}}"#
            );
            let read = written(&eight, &scale, &note).unwrap();
            let header = format!(r#"{{"layers": {{"a": {note}}}}}"#);
            assert_eq!(noted(&eight, &scale, &header).unwrap(), read);
            let apart = f64::try_from((&read - &weight).abs().max()).unwrap();
            assert!(apart > 0.0 && apart < 0.1, "{size}: {apart}");
            // Without the rotation it is another matrix.
            let plain = written(&eight, &scale, r#"{"format": "int8_tensorwise"}"#).unwrap();
            assert_eq!(plain, eight.to_kind(Kind::Float) * &scale);
        }
        let (eight, scale) = (weight.to_kind(Kind::Int8), Tensor::from(1.0f32));
        for (note, told) in [
            (
                r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 8}"#,
                "no power of 4",
            ),
            (
                r#"{"format": "int8_tensorwise", "convrot": true}"#,
                "not groups of 256",
            ),
            (
                r#"{"format": "mxfp8"}"#,
                "is mxfp8: only ComfyUI's `float8_e4m3fn`",
            ),
            ("{", "is not readable"),
        ] {
            let error = written(&eight, &scale, note).unwrap_err().to_string();
            assert!(error.contains(told), "{note}: {error}");
        }
        let rotated = r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16}"#;
        for (header, told) in [
            ("{}".to_owned(), "has no `layers`"),
            (
                r#"{"layers": {"a": {"format": "nvfp4"}}}"#.to_owned(),
                "the format of `a in _quantization_metadata` is nvfp4",
            ),
            (
                format!(r#"{{"layers": {{"b": {rotated}}}}}"#),
                "has no `b.weight`",
            ),
        ] {
            let error = noted(&eight, &scale, &header).unwrap_err().to_string();
            assert!(error.contains(told), "{header}: {error}");
        }
    }
}
