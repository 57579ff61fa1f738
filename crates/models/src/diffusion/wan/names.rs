//! What the weights of Wan's parts are called: in diffusers' folders, which is what the code uses, and in the
//! original files.

use crate::diffusion::BlockNames;
use crate::diffusion::files::PartNames;
use crate::diffusion::parts::t5;

/// The transformer.
pub(crate) const TRANSFORMER: PartNames = PartNames {
    rename: transformer_name,
    ..PartNames::DIFFUSERS
};

/// The text encoder.
pub(crate) const TEXT_ENCODER: PartNames = PartNames {
    rename: text_encoder_name,
    ..PartNames::TRANSFORMERS
};

/// The transformer's blocks.
pub(super) const BLOCKS: BlockNames = BlockNames {
    name: "blocks",
    original: "blocks",
    linear: &[
        ("attn1.to_q", "self_attn.q"),
        ("attn1.to_k", "self_attn.k"),
        ("attn1.to_v", "self_attn.v"),
        ("attn1.to_out.0", "self_attn.o"),
        ("attn2.to_q", "cross_attn.q"),
        ("attn2.to_k", "cross_attn.k"),
        ("attn2.to_v", "cross_attn.v"),
        ("attn2.to_out.0", "cross_attn.o"),
        ("ffn.net.0.proj", "ffn.0"),
        ("ffn.net.2", "ffn.2"),
    ],
    others: &[
        ("norm2", "norm3"),
        ("attn1.norm_q", "self_attn.norm_q"),
        ("attn1.norm_k", "self_attn.norm_k"),
        ("attn2.norm_q", "cross_attn.norm_q"),
        ("attn2.norm_k", "cross_attn.norm_k"),
        ("attn2.add_k_proj", "cross_attn.k_img"),
        ("attn2.add_v_proj", "cross_attn.v_img"),
    ],
};

/// Parts outside the blocks that can be changed.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("patch_embedding", "patch_embedding"),
    (
        "condition_embedder.time_embedder.linear_1",
        "time_embedding.0",
    ),
    (
        "condition_embedder.time_embedder.linear_2",
        "time_embedding.2",
    ),
    ("condition_embedder.time_proj", "time_projection.1"),
    (
        "condition_embedder.text_embedder.linear_1",
        "text_embedding.0",
    ),
    (
        "condition_embedder.text_embedder.linear_2",
        "text_embedding.2",
    ),
    ("proj_out", "head.head"),
];
/// diffusers' name of a transformer weight, whose name may be the original one.
pub(super) fn transformer_name(name: &str, _: &[String]) -> Option<String> {
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

/// transformers' name of a text encoder weight, whose name may be the original one.
pub(super) fn text_encoder_name(name: &str, _: &[String]) -> Option<String> {
    let name = t5::of_llama_cpp(name);
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
    use std::collections::BTreeMap;
    use std::path::Path;

    use tch::{Kind, Tensor};

    use super::*;
    use crate::Error;
    use crate::diffusion::files::PartFile;
    use crate::diffusion::parts::causal_kl;
    use crate::diffusion::reference::the_same_in_gguf;
    use crate::formats::{TensorSource, write_tensors};
    use crate::golden::golden;

    /// `{original name: diffusers' name}`
    fn pairs(folder: &str) -> BTreeMap<String, String> {
        let path = golden(&format!("wan/{folder}/original.json"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn original_names_are_those_of_diffusers() {
        for (folder, part) in [
            ("transformer-t2v", TRANSFORMER),
            ("autoencoder-2.1", causal_kl::NAMES),
            ("autoencoder-2.2", causal_kl::NAMES),
            ("text-encoder", TEXT_ENCODER),
        ] {
            let pairs = pairs(folder);
            assert!(pairs.len() > 20);
            let all: Vec<String> = pairs.keys().cloned().collect();
            for (original, name) in &pairs {
                let renamed = |given: &str| (part.rename)(given, &all);
                assert_eq!(renamed(original).as_ref(), Some(name), "{original}");
                // diffusers' names stay the same.
                assert_eq!(renamed(name).as_ref(), Some(name));
            }
            // ComfyUI's prefix in some files.
            if folder.starts_with("transformer") {
                let prefixed = "model.diffusion_model.blocks.0.ffn.2.bias";
                let name = transformer_name(prefixed, &[]).unwrap();
                assert_eq!(name, "blocks.0.ffn.net.2.bias");
            }
        }
    }

    #[test]
    fn a_transformer_in_gguf_has_the_same_weights() {
        let file = golden("wan/transformer-t2v/diffusion_pytorch_model.safetensors");
        the_same_in_gguf(&TRANSFORMER, &file);
    }

    fn written(tensors: &[(&str, Tensor)]) -> Result<PartFile, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let list: Vec<_> = tensors.iter().map(|(n, t)| ((*n).to_owned(), t)).collect();
        write_tensors(&path, &list).unwrap();
        PartFile::open(&TRANSFORMER, &path)
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
        let error = PartFile::open(&causal_kl::NAMES, Path::new("Wan2.1_VAE.pth")).unwrap_err();
        assert!(error.to_string().contains("torch.load('IN.pth'"), "{error}");
    }
}
