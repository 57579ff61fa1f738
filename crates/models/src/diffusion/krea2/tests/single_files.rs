//! The single files of the maker and of ComfyUI, and the LoRAs for them.

use tch::{Device, Kind, Tensor};

use super::REFERENCE;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::krea2::ARCH;
use crate::diffusion::krea2::model::text_of_shapes;
use crate::diffusion::krea2::transformer::TransformerConfig;
use crate::diffusion::lora::{LoraFile, LoraForm};
use crate::diffusion::parts::decoder;
use crate::diffusion::reference::{SingleFiles, difference};
use crate::diffusion::{Part, PartPaths};
use crate::formats::{TensorSource, write_tensors};

#[test]
fn single_files_have_the_same_weights() {
    for prefix in ["model.diffusion_model.", ""] {
        let files = SingleFiles::with_prefix(&REFERENCE, prefix, &[]);
        files.have_the_same_weights(&REFERENCE, [&[], &[]]);
    }
}

/// Heads are narrower than those of the published model; everything else was asked for before.
#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.ask_for_the_other_parts(&REFERENCE, Some("the width of a head, 8"));
}

/// They have a tensor that this model does not have, or a text encoder that is named like another.
#[test]
fn models_that_look_alike_are_refused() {
    for unknown in ["blocks.0.attn.wkv.weight", "reference_in.weight"] {
        let files = SingleFiles::new(&REFERENCE, &[unknown]);
        let told = format!("{unknown}`, which is no part of one");
        files.ask_for_the_other_parts(&REFERENCE, Some(&told));
    }
    let files = SingleFiles::new(&REFERENCE, &[]);
    let text = files.path("qwen_3_4b_fp8_mixed");
    std::fs::copy(files.path("text_encoder"), &text).unwrap();
    let parts = PartPaths {
        vae: Some(REFERENCE.golden("model/vae")),
        text_encoder: Some(text),
        tokenizer: Some(REFERENCE.golden("model/tokenizer")),
        ..PartPaths::default()
    };
    let error = (ARCH.open)(&files.path("transformer"), &parts).unwrap_err();
    assert!(
        error.to_string().contains("is named like Qwen3-4B"),
        "{error}"
    );
}

fn written(path: &std::path::Path, shapes: &[(&str, &[i64])]) {
    let tensors = shapes.iter().map(|(name, shape)| {
        let tensor = Tensor::zeros(*shape, (Kind::Uint8, Device::Cpu));
        ((*name).to_owned(), tensor)
    });
    let tensors: Vec<_> = tensors.collect();
    let list: Vec<_> = tensors.iter().map(|(n, t)| (n.clone(), t)).collect();
    write_tensors(path, &list).unwrap();
}

/// What the maker's files have, with heads of the published widths.
const SHAPES: [(&str, &[i64]); 14] = [
    ("first.weight", &[256, 64]),
    ("tmlp.0.weight", &[256, 32]),
    ("txtmlp.1.weight", &[256, 48]),
    ("txtfusion.projector.weight", &[1, 3]),
    ("txtfusion.layerwise_blocks.0.attn.qknorm.qnorm.scale", &[8]),
    ("txtfusion.layerwise_blocks.0.attn.wq.weight", &[48, 48]),
    ("txtfusion.layerwise_blocks.0.attn.wk.weight", &[24, 48]),
    ("txtfusion.layerwise_blocks.0.mlp.gate.weight", &[40, 48]),
    ("txtfusion.refiner_blocks.1.mlp.gate.weight", &[40, 48]),
    ("blocks.0.attn.qknorm.qnorm.scale", &[128]),
    ("blocks.0.attn.wq.weight", &[256, 256]),
    ("blocks.0.attn.wk.weight", &[128, 256]),
    ("blocks.6.mlp.gate.weight", &[512, 256]),
    ("blocks.0.mlp.gate.weight", &[512, 256]),
];

/// A file says by its name whether it is distilled.
#[test]
fn shapes_and_names_say_what_the_published_configs_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("krea2_turbo_int8_convrot.safetensors");
    written(&path, &SHAPES);
    let file = PartFile::open(&ARCH.denoiser, &path).unwrap();
    let config = TransformerConfig::of_shapes(&file).unwrap();
    let own = &config.dimensions;
    assert_eq!(
        (own.num_layers, config.width(), config.channels()),
        (7, 256, 16)
    );
    assert_eq!((own.num_attention_heads, own.num_key_value_heads), (2, 1));
    assert_eq!(
        (own.text_num_attention_heads, own.text_num_key_value_heads),
        (6, 3)
    );
    assert_eq!(
        (own.num_layerwise_text_blocks, own.num_refiner_text_blocks),
        (1, 2)
    );
    assert_eq!((own.timestep_embed_dim, config.text_width()), (32, 3 * 48));
    let mut uneven = SHAPES;
    uneven[10].1 = &[200, 256];
    let other = folder.path().join("other.safetensors");
    written(&other, &uneven);
    let error = TransformerConfig::of_shapes(&PartFile::open(&ARCH.denoiser, &other).unwrap());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("200 rows, which are not heads of 128"),
        "{error}"
    );

    let mut twelve = SHAPES;
    twelve[3].1 = &[1, 12];
    let text = folder.path().join("text.safetensors");
    let layers: Vec<String> = (0..36)
        .map(|layer| format!("model.layers.{layer}.input_layernorm.weight"))
        .collect();
    let mut shapes: Vec<(&str, &[i64])> = vec![
        ("model.embed_tokens.weight", &[300, 48]),
        ("model.layers.0.self_attn.q_norm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[32, 48]),
        ("model.layers.0.self_attn.k_proj.weight", &[16, 48]),
        ("model.layers.0.mlp.gate_proj.weight", &[64, 48]),
        ("visual.blocks.0.attn.qkv.weight", &[8, 8]),
    ];
    shapes.extend(layers.iter().map(|name| (name.as_str(), &[48][..])));
    written(&text, &shapes);
    let file = PartFile::open(&decoder::NAMES, &text).unwrap();
    let read = text_of_shapes(&file).unwrap();
    assert_eq!((read.num_hidden_layers, read.rope.theta), (36, 5e6));
    assert!(!read.qkv_bias && read.num_key_value_heads == 2);
    let parts = PartPaths {
        vae: Some(REFERENCE.golden("model/vae")),
        text_encoder: Some(text),
        tokenizer: Some(REFERENCE.golden("model/tokenizer")),
        ..PartPaths::default()
    };
    for (name, is_distilled) in [("raw", false), ("Turbo", true)] {
        let path = folder.path().join(format!("{name}.safetensors"));
        written(&path, &twelve);
        let model = (ARCH.open)(&path, &parts).unwrap();
        assert_eq!(model.is_distilled(), is_distilled, "{name}");
        let shifts = [256, 6400].map(|tokens| model.shift(tokens, 8).unwrap());
        let few: f64 = if is_distilled { 1.15 } else { 0.5 };
        assert!((shifts[0] - few.exp()).abs() < 1e-12, "{shifts:?}");
        assert!((shifts[1] - 1.15f64.exp()).abs() < 1e-12, "{shifts:?}");
    }
}

/// 8-bit weights under the maker's names are those of diffusers, turned back if they were rotated.
#[test]
fn eight_bit_weights_are_read_under_the_makers_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("krea2_turbo_int8_convrot.safetensors");
    let weight = Tensor::randn([6, 8], (Kind::Float, Device::Cpu));
    let signs: [f32; 16] = [
        1., 1., 1., -1., 1., 1., -1., 1., 1., -1., 1., 1., -1., 1., 1., 1.,
    ];
    let rotation = Tensor::from_slice(&signs).view([4, 4]) / 2.0;
    let rotated = weight.view([6, 2, 4]).matmul(&rotation).view([6, 8]);
    let scale = rotated.abs().amax([1].as_slice(), true) / 127.0;
    let eight = (&rotated / &scale).round().to_kind(Kind::Int8);
    let note = r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 4}"#;
    let note = Tensor::from_slice(note.as_bytes());
    let float = weight.to_kind(Kind::Float8e4m3fn);
    let half = Tensor::from(0.5f32);
    let (rotated, plain) = ("blocks.0.attn.gate", "txtfusion.refiner_blocks.0.mlp.down");
    let tensors = [
        (format!("{rotated}.weight"), &eight),
        (format!("{rotated}.weight_scale"), &scale),
        (format!("{rotated}.comfy_quant"), &note),
        (format!("{plain}.weight"), &float),
        (format!("{plain}.scale_weight"), &half),
    ];
    write_tensors(&path, &tensors).unwrap();
    let file = PartFile::open(&ARCH.denoiser, &path).unwrap();
    let read = |name: &str| file.read(&format!("{name}.weight"), Kind::Float).unwrap();
    let apart = difference(&read("transformer_blocks.0.attn.to_gate"), &weight);
    assert!(apart > 0.0 && apart < 0.05, "{apart}");
    let plain = read("text_fusion.refiner_blocks.0.ff.down");
    assert_eq!(plain, float.to_kind(Kind::Float) * 0.5);
    assert!(file.unknown().is_empty());
}

/// The other parts are found by the names under which they are published.
#[test]
fn companions_are_found_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(format!("{name}.safetensors"));
    let files = SingleFiles::new(&REFERENCE, &[]);
    for (part, name) in [
        ("transformer", "diffusion_models/krea2_turbo_fp8_scaled"),
        ("text_encoder", "text_encoders/qwen3vl_4b_fp8_scaled"),
        ("text_encoder", "text_encoders/qwen_3_4b"),
        ("vae", "vae/qwen_image_vae"),
        ("vae", "vae/ae"),
    ] {
        std::fs::create_dir_all(file(name).parent().unwrap()).unwrap();
        std::fs::copy(files.path(part), file(name)).unwrap();
    }
    let transformer = file("diffusion_models/krea2_turbo_fp8_scaled");
    let parts = ARCH.with_companions(&transformer, &PartPaths::default(), &|_| true);
    let text = file("text_encoders/qwen3vl_4b_fp8_scaled");
    assert_eq!(
        (parts.text_encoder, parts.vae),
        (Some(text), Some(file("vae/qwen_image_vae")))
    );
}

/// As transformers names them today, as files have them, and the body alone.
#[test]
fn names_of_the_text_encoder_are_those_of_its_files() {
    let weights = REFERENCE.model().weights(Part::TextEncoder(0)).unwrap();
    assert!(weights.shape("model.layers.2.mlp.up_proj.weight").is_some());
    let PartNames { rename, .. } = decoder::NAMES;
    for prefix in ["model.language_model.", "language_model.", "model.", ""] {
        let name = rename(&format!("{prefix}norm.weight"), &[]);
        assert_eq!(name.as_deref(), Some("model.norm.weight"), "{prefix}");
    }
    let of_pictures = |name: &String| rename(name, &[]).is_none();
    assert!(!weights.unknown().is_empty() && weights.unknown().iter().all(of_pictures));
}

/// Each dialect comes back as it was written; kohya's, which diffusers drops without a word, is read only.
#[test]
fn loras_are_rewritten_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let lora = LoraFile::read(&REFERENCE.golden("lora.safetensors"), &ARCH, None).unwrap();
    let same = |other: &LoraFile| {
        assert!(lora.modules.keys().eq(other.modules.keys()));
        for (name, module) in &lora.modules {
            let product = |module: &crate::diffusion::lora::LoraModule| {
                let [down, up] = module.factors().unwrap();
                up.matmul(down) * module.scale()
            };
            let apart = difference(&product(module), &product(&other.modules[name]));
            assert!(apart < 1e-6, "{name}: {apart}");
        }
    };
    for form in [LoraForm::Comfy, LoraForm::Diffusers] {
        let path = folder.path().join(format!("{form:?}.safetensors"));
        lora.write(&path, form).unwrap();
        same(&LoraFile::read(&path, &ARCH, None).unwrap());
    }
    lora.write_peft(&folder.path().join("peft")).unwrap();
    same(&LoraFile::read(&folder.path().join("peft"), &ARCH, None).unwrap());
    let kohya = folder.path().join("kohya.safetensors");
    let error = lora.write(&kohya, LoraForm::Kohya).unwrap_err().to_string();
    assert!(error.contains("choose `comfy`"), "{error}");
    let mut tensors = Vec::new();
    for (name, module) in &lora.modules {
        let name = name
            .replace("transformer_blocks", "blocks")
            .replace("text_fusion", "txtfusion")
            .replace("attn.to_out.0", "attn.wo")
            .replace("attn.to_gate", "attn.gate")
            .replace("attn.to_", "attn.w")
            .replace("ff.", "mlp.")
            .replace('.', "_");
        let name = |part: &str| format!("lora_unet_{name}.{part}");
        let [down, up] = module.factors().unwrap();
        tensors.push((name("lora_down.weight"), down.shallow_clone()));
        tensors.push((name("lora_up.weight"), up.shallow_clone()));
        tensors.push((name("alpha"), Tensor::from(module.alpha as f32)));
    }
    let list: Vec<_> = tensors.iter().map(|(n, t)| (n.clone(), t)).collect();
    write_tensors(&kohya, &list).unwrap();
    let read = LoraFile::read_any(&kohya, None).unwrap();
    assert_eq!(read.arch.name, ARCH.name);
    same(&read);
}
