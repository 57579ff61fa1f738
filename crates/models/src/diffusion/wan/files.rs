//! Where the parts of a Wan model are: diffusers folders, and single files with other names.
//!
//! A single file is presented with diffusers' names. 8-bit floating-point weights with a scale, as in
//! ComfyUI's `fp8_scaled` files, are dequantised when they are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use crate::Error;
use crate::formats::{SafetensorsFile, Shards, TensorSource};

/// A part of the model; tensor names in files depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The [`Transformer`](super::transformer::Transformer).
    Transformer,
    /// The [`Autoencoder`](super::autoencoder::Autoencoder).
    Autoencoder,
    /// The [`TextEncoder`](crate::diffusion::parts::t5::TextEncoder).
    TextEncoder,
}

/// The weights of a part under diffusers' names, whatever their names in the file.
pub struct PartFile {
    tensors: Box<dyn TensorSource>,
    /// Name in diffusers → name in the file.
    names: BTreeMap<String, String>,
    /// Tensors that belong to no part of the model.
    unknown: Vec<String>,
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
/// Suffixes of tensors beside such weights that do not matter once they are dequantised.
const BESIDE: [&str; 3] = [".scale_input", ".input_scale", ".comfy_quant"];

impl PartFile {
    /// Opens a diffusers folder (a model's `transformer`, `vae` or `text_encoder`) or a single safetensors
    /// file.
    pub fn open(part: Part, path: &Path) -> Result<Self, Error> {
        let tensors: Box<dyn TensorSource> = if path.is_dir() {
            let stem = match part {
                Part::TextEncoder => "model",
                Part::Transformer | Part::Autoencoder => "diffusion_pytorch_model",
            };
            Box::new(Shards::open(path, stem)?)
        } else {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if let Some(extension @ ("pth" | "pt" | "bin" | "ckpt")) = extension {
                return Err(Error::file(path, pickled(extension)));
            }
            Box::new(SafetensorsFile::open(path)?)
        };
        Self::of(part, tensors)
    }

    /// The weights of a part in `tensors`.
    ///
    /// # Errors
    /// If two tensors are the same weight, or a quantisation is not supported.
    pub fn of(part: Part, tensors: Box<dyn TensorSource>) -> Result<Self, Error> {
        let all = tensors.names();
        let residual = all
            .iter()
            .any(|name| name.contains("samples.0.downsamples."))
            || all.iter().any(|name| name.contains("samples.0.upsamples."));
        let mut names = BTreeMap::new();
        let mut unknown = Vec::new();
        for name in all {
            if name == "scaled_fp8" || name == "spiece_model" || is_beside(&name) {
                check_quantization(tensors.as_ref(), &name)?;
                continue;
            }
            let renamed = match part {
                Part::Transformer => transformer_name(&name),
                Part::Autoencoder => autoencoder_name(&name, residual),
                Part::TextEncoder => text_encoder_name(&name),
            };
            let Some(renamed) = renamed else {
                unknown.push(name);
                continue;
            };
            if let Some(other) = names.insert(renamed, name.clone()) {
                // Older versions of transformers saved it twice.
                let twins = ["shared.weight", "encoder.embed_tokens.weight"];
                if !(twins.contains(&other.as_str()) && twins.contains(&name.as_str())) {
                    let reason = format!("`{other}` and `{name}` are the same weight");
                    return Err(Error::file(tensors.path(), reason));
                }
            }
        }
        Ok(Self {
            tensors,
            names,
            unknown,
        })
    }

    /// Names in the file that are no known weight.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
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
        self.tensors.shape(self.names.get(name)?)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        let missing = || Error::file(self.path(), format!("there is no tensor for `{name}`"));
        let stored = self.names.get(name).ok_or_else(missing)?;
        let Some(scale) = self.scale(stored) else {
            return self.tensors.read(stored, kind);
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
        Ok(weight.f_mul(&scale)?.f_to_kind(kind)?)
    }
}

fn pickled(extension: &str) -> String {
    format!(
        "a .{extension} file may run code when it is opened, and is not read here; convert it once \
         where you trust it: python3 -c \"import torch, safetensors.torch as s; \
         s.save_file({{k: v.contiguous() for k, v in torch.load('IN.{extension}', weights_only=True)\
         .items()}}, 'OUT.safetensors')\""
    )
}

fn is_beside(name: &str) -> bool {
    SCALES
        .iter()
        .chain(&BESIDE)
        .any(|suffix| name.ends_with(suffix))
}

/// Fails if `name` describes a quantisation with more than a scale.
fn check_quantization(tensors: &dyn TensorSource, name: &str) -> Result<(), Error> {
    if !name.ends_with(".comfy_quant") {
        return Ok(());
    }
    let bytes = tensors.read(name, Kind::Uint8)?;
    let bytes = Vec::<u8>::try_from(&bytes)?;
    let value: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
    let format = value
        .as_ref()
        .and_then(|value| value.get("format")?.as_str());
    match format {
        Some("float8_e4m3fn" | "float8_e5m2") => Ok(()),
        other => {
            let other = other.unwrap_or("not readable");
            let reason = format!(
                "the format of `{name}` is {other}: only ComfyUI's `float8_e4m3fn` and \
                 `float8_e5m2` are supported"
            );
            Err(Error::file(tensors.path(), reason))
        }
    }
}

/// diffusers' name of a transformer weight, whose name may be the original one.
pub(super) fn transformer_name(name: &str) -> Option<String> {
    let name = ["model.diffusion_model.", "diffusion_model."]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let (module, role) = name.rsplit_once('.').unwrap_or(("", name));
    let module = match (module, role) {
        ("head", "modulation") | ("", "scale_shift_table") => {
            return Some("scale_shift_table".into());
        }
        ("patch_embedding" | "proj_out", _) => module.to_owned(),
        ("head.head", _) => "proj_out".into(),
        ("time_embedding.0", _) => "condition_embedder.time_embedder.linear_1".into(),
        ("time_embedding.2", _) => "condition_embedder.time_embedder.linear_2".into(),
        ("time_projection.1", _) => "condition_embedder.time_proj".into(),
        ("text_embedding.0", _) => "condition_embedder.text_embedder.linear_1".into(),
        ("text_embedding.2", _) => "condition_embedder.text_embedder.linear_2".into(),
        _ if module.starts_with("condition_embedder.") => module.to_owned(),
        _ => {
            let (number, part) = module.strip_prefix("blocks.")?.split_once('.').unzip();
            let number = number.or_else(|| module.strip_prefix("blocks."))?;
            let part = match (part, role) {
                (None, "modulation" | "scale_shift_table") => {
                    return Some(format!("blocks.{number}.scale_shift_table"));
                }
                (None, _) => return None,
                (Some("norm3"), _) => "norm2".to_owned(),
                (Some("ffn.0"), _) => "ffn.net.0.proj".to_owned(),
                (Some("ffn.2"), _) => "ffn.net.2".to_owned(),
                (Some(part), _) => {
                    let part = part
                        .replace("self_attn.", "attn1.")
                        .replace("cross_attn.", "attn2.");
                    let (attention, layer) = part.split_once('.').unwrap_or((&part, ""));
                    match layer {
                        "q" => format!("{attention}.to_q"),
                        "k" => format!("{attention}.to_k"),
                        "v" => format!("{attention}.to_v"),
                        "o" => format!("{attention}.to_out.0"),
                        // The image embedder, which identifies the model.
                        "k_img" => format!("{attention}.add_k_proj"),
                        "v_img" => format!("{attention}.add_v_proj"),
                        _ => part,
                    }
                }
            };
            format!("blocks.{number}.{part}")
        }
    };
    Some(format!("{module}.{role}"))
}

/// diffusers' name of an autoencoder weight, whose name may be the original one.
fn autoencoder_name(name: &str, residual: bool) -> Option<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let (half, rest) = parts.split_first()?;
    match *half {
        "conv1" => return Some(format!("quant_conv.{}", rest.join("."))),
        "conv2" => return Some(format!("post_quant_conv.{}", rest.join("."))),
        // The linear autoencoder's names are the same everywhere.
        "quant_conv" | "post_quant_conv" | "first" | "later" => return Some(name.to_owned()),
        "encoder" | "decoder" => {}
        _ => return None,
    }
    let inner = |parts: &[&str]| -> String {
        match parts {
            ["residual", "0", role @ ..] => format!("norm1.{}", role.join(".")),
            ["residual", "2", role @ ..] => format!("conv1.{}", role.join(".")),
            ["residual", "3", role @ ..] => format!("norm2.{}", role.join(".")),
            ["residual", "6", role @ ..] => format!("conv2.{}", role.join(".")),
            ["shortcut", role @ ..] => format!("conv_shortcut.{}", role.join(".")),
            other => other.join("."),
        }
    };
    // The last part of a stage resamples.
    let resamples = |parts: &[&str]| matches!(parts.first(), Some(&("resample" | "time_conv")));
    Some(match rest {
        ["conv1", role @ ..] => format!("{half}.conv_in.{}", role.join(".")),
        ["head", "0", role @ ..] => format!("{half}.norm_out.{}", role.join(".")),
        ["head", "2", role @ ..] => format!("{half}.conv_out.{}", role.join(".")),
        ["middle", "0", tail @ ..] => format!("{half}.mid_block.resnets.0.{}", inner(tail)),
        ["middle", "1", tail @ ..] => format!("{half}.mid_block.attentions.0.{}", inner(tail)),
        ["middle", "2", tail @ ..] => format!("{half}.mid_block.resnets.1.{}", inner(tail)),
        ["downsamples", stage, "downsamples", number, tail @ ..] if residual => {
            let inside = inner(tail);
            match resamples(tail) {
                true => format!("{half}.down_blocks.{stage}.downsampler.{inside}"),
                false => format!("{half}.down_blocks.{stage}.resnets.{number}.{inside}"),
            }
        }
        ["upsamples", stage, "upsamples", number, tail @ ..] if residual => {
            let inside = inner(tail);
            match resamples(tail) {
                true => format!("{half}.up_blocks.{stage}.upsampler.{inside}"),
                false => format!("{half}.up_blocks.{stage}.resnets.{number}.{inside}"),
            }
        }
        ["downsamples", number, tail @ ..] => {
            format!("{half}.down_blocks.{number}.{}", inner(tail))
        }
        // Each stage has three residual blocks and an upsampler.
        ["upsamples", number, tail @ ..] => {
            let number: i64 = number.parse().ok()?;
            let (stage, number) = (number / 4, number % 4);
            let inside = inner(tail);
            match number {
                3 => format!("{half}.up_blocks.{stage}.upsamplers.0.{inside}"),
                number => format!("{half}.up_blocks.{stage}.resnets.{number}.{inside}"),
            }
        }
        [
            "conv_in" | "norm_out" | "conv_out" | "mid_block" | "down_blocks" | "up_blocks",
            ..,
        ] => name.to_owned(),
        _ => return None,
    })
}

/// transformers' name of a text encoder weight, whose name may be the original one.
fn text_encoder_name(name: &str) -> Option<String> {
    let module = name.strip_suffix(".weight")?;
    let module = match module {
        "shared" | "encoder.embed_tokens" | "token_embedding" => "shared".to_owned(),
        "norm" => "encoder.final_layer_norm".to_owned(),
        _ if module.starts_with("encoder.") => module.to_owned(),
        _ => {
            let (number, part) = module.strip_prefix("blocks.")?.split_once('.')?;
            let part = match part {
                "norm1" => "0.layer_norm".to_owned(),
                "norm2" => "1.layer_norm".to_owned(),
                "ffn.gate.0" => "1.DenseReluDense.wi_0".to_owned(),
                "ffn.fc1" => "1.DenseReluDense.wi_1".to_owned(),
                "ffn.fc2" => "1.DenseReluDense.wo".to_owned(),
                "pos_embedding.embedding" => "0.SelfAttention.relative_attention_bias".to_owned(),
                _ => format!("0.SelfAttention.{}", part.strip_prefix("attn.")?),
            };
            format!("encoder.block.{number}.layer.{part}")
        }
    };
    Some(format!("{module}.weight"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::write_tensors;
    use crate::golden::golden;

    /// `{original name: diffusers' name}`
    fn pairs(folder: &str) -> BTreeMap<String, String> {
        let path = golden(&format!("wan/{folder}/original.json"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn original_names_are_those_of_diffusers() {
        for (folder, part) in [
            ("transformer-t2v", Part::Transformer),
            ("autoencoder-2.1", Part::Autoencoder),
            ("autoencoder-2.2", Part::Autoencoder),
            ("text-encoder", Part::TextEncoder),
        ] {
            let pairs = pairs(folder);
            assert!(pairs.len() > 20);
            let residual = folder.ends_with("2.2");
            for (original, name) in &pairs {
                let renamed = |given: &str| match part {
                    Part::Transformer => transformer_name(given),
                    Part::Autoencoder => autoencoder_name(given, residual),
                    Part::TextEncoder => text_encoder_name(given),
                };
                assert_eq!(renamed(original).as_ref(), Some(name), "{original}");
                // diffusers' names stay the same.
                assert_eq!(renamed(name).as_ref(), Some(name));
            }
            // ComfyUI's prefix in some files.
            if part == Part::Transformer {
                let prefixed = "model.diffusion_model.blocks.0.ffn.2.bias";
                let name = transformer_name(prefixed).unwrap();
                assert_eq!(name, "blocks.0.ffn.net.2.bias");
            }
        }
    }

    fn written(tensors: &[(&str, Tensor)]) -> Result<PartFile, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let list: Vec<_> = tensors.iter().map(|(n, t)| ((*n).to_owned(), t)).collect();
        write_tensors(&path, &list).unwrap();
        PartFile::open(Part::Transformer, &path)
    }

    #[test]
    fn scaled_eight_bit_weights_are_multiplied() {
        let numbers = Tensor::from_slice(&[1.0f32, -2.0, 0.5, 3.0]).view([2, 2]);
        let eight = numbers.to_kind(Kind::Float8e4m3fn);
        let name = "blocks.0.self_attn.q";
        for (suffix, scale, expected) in [
            (".scale_weight", Tensor::from(0.25f32), &numbers * 0.25),
            (
                ".weight_scale",
                Tensor::from_slice(&[0.5f32, 2.0]),
                &numbers * Tensor::from_slice(&[0.5f32, 2.0]).view([2, 1]),
            ),
        ] {
            let file = written(&[
                (&format!("{name}.weight"), eight.shallow_clone()),
                (&format!("{name}{suffix}"), scale),
                ("scaled_fp8", eight.reshape([-1]).narrow(0, 0, 0)),
            ])
            .unwrap();
            assert_eq!(file.names(), ["blocks.0.attn1.to_q.weight"]);
            let read = file.read("blocks.0.attn1.to_q.weight", Kind::Float);
            assert_eq!(read.unwrap(), expected, "{suffix}");
        }
        // Without a scale, they are the values themselves.
        let file = written(&[(&format!("{name}.weight"), eight)]).unwrap();
        let read = file.read("blocks.0.attn1.to_q.weight", Kind::Float);
        assert_eq!(read.unwrap(), numbers);
    }

    #[test]
    fn other_quantisations_and_strange_tensors_are_named() {
        let note = Tensor::from_slice(br#"{"format": "nvfp4"}"#);
        let error = written(&[("blocks.0.ffn.0.comfy_quant", note)]).unwrap_err();
        assert!(error.to_string().contains("is nvfp4"), "{error}");
        let file = written(&[("vace_blocks.0.weight", Tensor::from(1.0f32))]).unwrap();
        assert_eq!(file.unknown(), ["vace_blocks.0.weight"]);
        let one = Tensor::from(1.0f32);
        let twice = [
            ("head.head.weight", one.shallow_clone()),
            ("proj_out.weight", one),
        ];
        let error = written(&twice).unwrap_err().to_string();
        assert!(error.contains("are the same weight"), "{error}");
    }

    #[test]
    fn a_pickle_is_refused_with_the_way_to_convert_it() {
        let error = PartFile::open(Part::Autoencoder, Path::new("Wan2.1_VAE.pth")).unwrap_err();
        assert!(error.to_string().contains("torch.load('IN.pth'"), "{error}");
    }
}
