//! The single files of people with ComfyUI, made of the tiny models' folders.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tch::{Device, Kind, Tensor};

use super::super::files::{PartFile, PartNames};
use super::super::{Expert, Part, PartPaths};
use super::{Reference, difference};
use crate::formats::gguf::{Array, Format, GgufTensor, GgufWriter, Value};
use crate::formats::{LazyTensor, SafetensorsFile, TensorSource, write_tensors};

/// The parts that have other names in single files.
const PARTS: [(Part, &str); 2] = [
    (Part::Denoiser(Expert::High), "transformer"),
    (Part::Autoencoder, "vae"),
];

/// The tensors of a single file, each made of those that `names` lists, which `read` reads.
pub(in crate::diffusion) fn stored(
    names: &Json,
    read: impl Fn(&str) -> Tensor,
) -> impl Iterator<Item = (&String, Tensor)> {
    names.as_object().unwrap().iter().map(move |(name, keys)| {
        let keys = keys.as_array().unwrap().iter();
        let all: Vec<_> = keys.map(|key| read(key.as_str().unwrap())).collect();
        let tensor = match all.as_slice() {
            [one] => one.shallow_clone(),
            all => Tensor::cat(all, 0),
        };
        match name.contains(".attn_1.") && tensor.dim() == 2 {
            true => (name, tensor.unsqueeze(-1).unsqueeze(-1)),
            // A table as one vector.
            false if name.ends_with(".mod.lin") => (name, tensor.view([-1])),
            false => (name, tensor),
        }
    })
}

/// The safetensors file at `path` written again as GGUF has the same weights of a part, as whose kind of denoiser it is known
/// if it was before. Matrices are in Q8_0; convolutions of pictures are cut into rows of whole blocks, and their
/// shapes noted.
pub(in crate::diffusion) fn the_same_in_gguf(part: &PartNames, path: &Path) {
    let (file, place) = (
        SafetensorsFile::open(path).unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let mut metadata = vec![(
        "general.architecture".to_owned(),
        Value::String("image".into()),
    )];
    let tensors = file.names().into_iter().map(|name| {
        let mut tensor = file.read(&name, Kind::Float).unwrap();
        let shape = tensor.size();
        if (3..5).contains(&shape.len()) && tensor.numel() % 32 == 0 {
            let key = format!("comfy.gguf.orig_shape.{name}");
            metadata.push((key, Value::Array(Array::Signed(shape.clone()))));
            tensor = tensor.reshape([-1, 32]);
        }
        let is_whole = tensor.dim() == 2 && tensor.size()[1] % 32 == 0;
        let format = if is_whole { Format::Q8_0 } else { Format::F32 };
        let tensor = LazyTensor::ready(&tensor);
        GgufTensor {
            name,
            format,
            tensor,
        }
    });
    let tensors: Vec<_> = tensors.collect();
    let gguf = place.path().join("x.gguf");
    GgufWriter::new(&metadata, tensors)
        .unwrap()
        .write(&gguf)
        .unwrap();
    let known = |path: &Path| super::super::of_file(path).map(|arch| arch.name);
    assert_eq!(known(&gguf), known(path));
    let [ours, theirs] = [&gguf, path].map(|path| PartFile::open(part, path).unwrap());
    assert_eq!(ours.names(), theirs.names());
    assert!(!ours.names().is_empty());
    for name in ours.names() {
        assert_eq!(ours.shape(&name), theirs.shape(&name), "{name}");
        let [read, expected] = [&ours, &theirs].map(|file| file.read(&name, Kind::Float).unwrap());
        // Half a step of 127 for the largest of a block, whose scale is rounded to half precision.
        let largest = f64::try_from(expected.abs().max()).unwrap();
        let apart = difference(&read, &expected);
        assert!(apart <= 0.0045 * largest, "{name}: {apart} of {largest}");
        let half = ours.read(&name, Kind::BFloat16).unwrap();
        assert_eq!(half, read.to_kind(Kind::BFloat16), "{name}");
    }
}

/// Both files have the same tensors.
pub(in crate::diffusion) fn is_the_same_file(one: &Path, other: &Path) {
    let [one, other] = [one, other].map(|path| SafetensorsFile::open(path).unwrap());
    assert_eq!(one.names(), other.names());
    for name in one.names() {
        assert_eq!(one.shape(&name), other.shape(&name), "{name}");
        let read = |file: &SafetensorsFile| file.read_stored(&name).unwrap();
        assert_eq!(read(&one), read(&other), "{name}");
    }
}

/// The single files of people with ComfyUI, made of the folder's parts by the names in `original.json`.
pub(in crate::diffusion) struct SingleFiles(tempfile::TempDir);

impl SingleFiles {
    /// The transformer also has the tensors `unused`.
    pub(in crate::diffusion) fn new(reference: &Reference, unused: &[&str]) -> Self {
        Self::with_prefix(reference, "model.diffusion_model.", unused)
    }

    /// The same with another beginning of all names in the transformer.
    pub(in crate::diffusion) fn with_prefix(
        reference: &Reference,
        prefix: &str,
        unused: &[&str],
    ) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let names: Json = reference.json("original.json");
        for ((part, name), prefix) in PARTS.into_iter().zip([prefix, ""]) {
            let weights = reference.model().weights(part).unwrap();
            let folder = reference.golden("model").join(name);
            let with_unused = PartFile::open(&PartNames::DIFFUSERS, &folder).unwrap();
            let read = |key: &str| {
                let file = match weights.shape(key) {
                    Some(_) => &weights,
                    None => &with_unused,
                };
                file.read(key, Kind::Float).unwrap()
            };
            let tensors = stored(&names[name], read).map(|(name, mut tensor)| {
                if reference.arch.denoiser.swapped.contains(&name.as_str()) {
                    let halves = tensor.chunk(2, 0);
                    tensor = Tensor::cat(&[&halves[1], &halves[0]], 0);
                }
                (format!("{prefix}{name}"), tensor)
            });
            let mut tensors: Vec<(String, Tensor)> = tensors.collect();
            for unused in unused.iter().filter(|_| name == "transformer") {
                let ones = Tensor::ones([24], (Kind::Float, Device::Cpu));
                tensors.push((format!("{prefix}{unused}"), ones));
            }
            let list: Vec<_> = tensors
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor))
                .collect();
            write_tensors(&files.path(name), &list).unwrap();
        }
        let text = reference.golden("model/text_encoder/model.safetensors");
        std::fs::copy(text, files.path("text_encoder")).unwrap();
        files
    }

    pub(in crate::diffusion) fn path(&self, part: &str) -> PathBuf {
        self.0.path().join(format!("{part}.safetensors"))
    }

    /// The files have the weights of the folder, and these unknown tensors; and written anew with those weights they are
    /// what they were.
    pub(in crate::diffusion) fn have_the_same_weights(
        &self,
        reference: &Reference,
        unknown: [&[&str]; 2],
    ) {
        let model = reference.model();
        for ((part, name), unknown) in PARTS.into_iter().zip(unknown) {
            let folder = model.weights(part).unwrap();
            let single = PartFile::open(&model.names(part), &self.path(name)).unwrap();
            assert_eq!(single.names(), folder.names());
            for name in folder.names() {
                assert_eq!(single.shape(&name), folder.shape(&name), "{name}");
                let read = |file: &PartFile| file.read(&name, Kind::Float).unwrap();
                assert_eq!(read(&single), read(&folder), "{name}");
            }
            assert_eq!(single.unknown(), unknown);
            the_same_in_gguf(&model.names(part), &self.path(name));
            let again = self.path("again");
            single.rewrite(&folder, &again, None).unwrap();
            is_the_same_file(&again, &self.path(name));
        }
    }

    /// A single file beside folders for the other parts, and what is said if one is missing; `told` if none is.
    pub(in crate::diffusion) fn ask_for_the_other_parts(
        &self,
        reference: &Reference,
        told: Option<&str>,
    ) {
        let path = self.path("transformer");
        assert!(super::super::is_at(&path));
        let two = reference.arch.has_two_encoders();
        let tokenizers = if two { "model" } else { "model/tokenizer" };
        let parts = |vae: bool, text: bool, tokenizer: bool| PartPaths {
            vae: vae.then(|| reference.golden("model/vae")),
            text_encoder: text.then(|| reference.golden("model/text_encoder")),
            text_encoder_2: two.then(|| reference.golden("model/text_encoder_2")),
            tokenizer: tokenizer.then(|| reference.golden(tokenizers)),
            ..PartPaths::default()
        };
        for (given, told) in [
            (
                parts(false, true, true),
                Some("name its autoencoder (`vae`"),
            ),
            (
                parts(true, false, true),
                Some("name its text encoder (`text_encoder`"),
            ),
            (
                parts(true, true, false),
                Some("name its tokenizer (`tokenizer`"),
            ),
            (parts(true, true, true), told),
        ] {
            let found = super::super::open(&path, &given);
            match told {
                Some(told) => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains(told), "{error}");
                }
                None => assert_eq!(found.unwrap().arch().name, reference.arch.name),
            }
        }
    }
}
