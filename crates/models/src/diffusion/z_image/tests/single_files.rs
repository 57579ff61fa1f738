//! The single files that ComfyUI loads, and the LoRAs for them.

use tch::{Device, Kind, Tensor};

use super::REFERENCE;
use crate::diffusion::files::PartFile;
use crate::diffusion::lora::{LoraFile, LoraForm};
use crate::diffusion::parts::decoder;
use crate::diffusion::reference::SingleFiles;
use crate::diffusion::z_image::transformer::TransformerConfig;
use crate::diffusion::z_image::{ARCH, names};
use crate::formats::{TensorSource, write_tensors};
use crate::language::DecoderConfig;
use crate::pretrained::{Export, GgufType, HfFolder, Pretrained, SpecialTokens};

#[test]
fn single_files_have_the_same_weights() {
    let files = single_files();
    let unknown: [&[&str]; 2] = [&["model.diffusion_model.norm_final.weight"], &[]];
    files.have_the_same_weights(&REFERENCE, unknown);
}

/// The published transformer has a tensor without use.
fn single_files() -> SingleFiles {
    SingleFiles::new(&REFERENCE, &["norm_final.weight"])
}

#[test]
fn shapes_say_what_the_configs_say() {
    let files = single_files();
    let single = PartFile::open(&names::TRANSFORMER, &files.path("transformer")).unwrap();
    let config = REFERENCE.golden("model/transformer/config.json");
    let config = TransformerConfig::read(&config).unwrap();
    let expected = TransformerConfig {
        axes_lens: [1536, 512, 512],
        ..config
    };
    let found = TransformerConfig::of_shapes_with(&single, [4, 4, 4]).unwrap();
    assert_eq!(found, expected);
    // The axes of the published models are wider.
    let error = TransformerConfig::of_shapes(&single)
        .unwrap_err()
        .to_string();
    assert!(error.contains("not made of heads of 128"), "{error}");
    let text = PartFile::open(&decoder::NAMES, &files.path("text_encoder")).unwrap();
    let found = DecoderConfig::of_shapes(&text).unwrap();
    let expected =
        DecoderConfig::read(&REFERENCE.golden("model/text_encoder/config.json")).unwrap();
    let expected = DecoderConfig {
        max_position_embeddings: 40_960,
        tie_word_embeddings: true,
        ..expected
    };
    assert_eq!(found, expected);
    let error = DecoderConfig::of_shapes(&single).unwrap_err().to_string();
    assert!(error.contains("do not tell what language model"), "{error}");
}

/// A language model in GGUF goes by llama.cpp's names, and is read by those of its family.
#[test]
fn a_text_encoder_in_gguf_has_the_same_weights() {
    let golden = crate::golden::golden("models/qwen3");
    let folder = HfFolder::open(&golden).unwrap();
    let model = Pretrained {
        config: folder.config().clone(),
        special_tokens: SpecialTokens::default(),
        tensors: Box::new(folder),
        ..Pretrained::open(&crate::golden::golden("models/llama-grouped.gguf")).unwrap()
    };
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("text.gguf");
    let export = Export {
        model: &model,
        tokenizer: &model.tokenizer,
        tensors: model.tensors.as_ref(),
        config: &model.config,
        name: "text".into(),
        stored: GgufType::F32,
    };
    export.write(&path, &|_, _| ()).unwrap();
    assert!(!crate::diffusion::is_at(&path));
    let [ours, theirs] =
        [&path, &golden].map(|path| PartFile::open(&decoder::NAMES, path).unwrap());
    assert_eq!(ours.names(), theirs.names());
    for name in ours.names() {
        let [ours, theirs] = [&ours, &theirs].map(|file| file.read(&name, Kind::Float).unwrap());
        assert_eq!(ours, theirs, "{name}");
    }
    let [ours, theirs] = [&ours, &theirs].map(|file| DecoderConfig::of_shapes(file).unwrap());
    assert_eq!(ours, theirs);
}

/// Its heads are too narrow for a published model; everything else was asked for before.
#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    single_files().ask_for_the_other_parts(&REFERENCE, Some("not made of heads of 128"));
}

/// One LoRA of ComfyUI's stacked layers is the same as three.
#[test]
fn a_lora_of_stacked_layers_is_one_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let (down, up) = (
        Tensor::randn([2, 24], options),
        Tensor::randn([72, 2], options),
    );
    for (name, [a, b]) in [
        (
            "diffusion_model.layers.1.attention.qkv",
            ["lora_A", "lora_B"],
        ),
        ("lora_unet_layers_1_attention_qkv", ["lora_down", "lora_up"]),
    ] {
        let tensors = [
            (format!("{name}.{a}.weight"), &down),
            (format!("{name}.{b}.weight"), &up),
            (format!("{name}.alpha"), &Tensor::from(1.0f32)),
        ];
        write_tensors(&path, &tensors).unwrap();
        let file = LoraFile::read(&path, &ARCH, None).unwrap();
        let names: Vec<_> = file.modules.keys().map(String::as_str).collect();
        let parts = ["to_k", "to_q", "to_v"].map(|part| format!("layers.1.attention.{part}"));
        assert_eq!(names, parts);
        for (number, part) in [(1, &parts[0]), (0, &parts[1]), (2, &parts[2])] {
            let module = &file.modules[part];
            assert_eq!((module.alpha, module.factors().unwrap()[0]), (1.0, &down));
            assert_eq!(
                *module.factors().unwrap()[1],
                up.narrow(0, 24 * number, 24),
                "{part}"
            );
        }
        // As readers of kohya's form would drop three, it is not written.
        let target = folder.path().join("y.safetensors");
        let error = file
            .write(&target, LoraForm::Kohya)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`attention.qkv` is one layer"), "{error}");
    }
    let out = "lora_unet_layers_0_attention_out";
    let tensors = [
        (format!("{out}.lora_down.weight"), &down),
        (format!("{out}.lora_up.weight"), &up.narrow(0, 0, 24)),
    ];
    write_tensors(&path, &tensors).unwrap();
    let file = LoraFile::read(&path, &ARCH, None).unwrap();
    assert!(file.modules.contains_key("layers.0.attention.to_out.0"));
}
