//! The single files that ComfyUI loads, and the LoRAs for them.

use tch::{Device, Kind, Tensor};

use super::REFERENCE;
use crate::adapters::Change;
use crate::diffusion::PartPaths;
use crate::diffusion::files::PartFile;
use crate::diffusion::flux1::transformer::TransformerConfig;
use crate::diffusion::flux1::{ARCH, names};
use crate::diffusion::lora::{LoraFile, LoraForm, LoraModule};
use crate::diffusion::parts::clip::{self, ClipConfig};
use crate::diffusion::parts::t5::{Family, TextEncoderConfig};
use crate::diffusion::reference::{SingleFiles, difference};
use crate::formats::gguf::{Format, GgufTensor, GgufWriter};
use crate::formats::{LazyTensor, SafetensorsFile, TensorSource, write_tensors};

#[test]
fn single_files_have_the_same_weights() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.have_the_same_weights(&REFERENCE, [&[], &[]]);
}

/// Heads are narrower than those of the published model; everything else was asked for before.
#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.ask_for_the_other_parts(&REFERENCE, Some("where heads are of 128"));
    let parts = PartPaths {
        vae: Some(REFERENCE.golden("model/vae")),
        text_encoder: Some(REFERENCE.golden("model/text_encoder")),
        tokenizer: Some(REFERENCE.golden("model")),
        ..PartPaths::default()
    };
    let open = |path| (ARCH.open)(path, &parts).unwrap_err().to_string();
    let error = open(&files.path("transformer"));
    assert!(
        error.contains("name its second text encoder (`text_encoder_2`"),
        "{error}"
    );
}

/// They are told by their file's name, or by the numbers of a token.
#[test]
fn models_of_the_family_are_refused() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    let path = files.path("flux1-kontext-dev");
    std::fs::copy(files.path("transformer"), &path).unwrap();
    let parts = PartPaths {
        vae: Some(REFERENCE.golden("model/vae")),
        text_encoder: Some(REFERENCE.golden("model/text_encoder")),
        text_encoder_2: Some(REFERENCE.golden("model/text_encoder_2")),
        tokenizer: Some(REFERENCE.golden("model")),
        ..PartPaths::default()
    };
    let error = (ARCH.open)(&path, &parts).unwrap_err().to_string();
    assert!(error.contains("named like FLUX.1 Kontext"), "{error}");
}

fn written(tensors: &[(&str, &[i64])]) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new()
        .suffix(".safetensors")
        .tempfile()
        .unwrap();
    let made = tensors.iter().map(|(name, shape)| {
        (
            (*name).to_owned(),
            Tensor::zeros(*shape, (Kind::Uint8, Device::Cpu)),
        )
    });
    let made: Vec<_> = made.collect();
    let list: Vec<_> = made
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    write_tensors(file.path(), &list).unwrap();
    file
}

/// Files whose heads have the published widths.
#[test]
fn shapes_say_what_the_published_configs_say() {
    let mut shapes: Vec<(&str, &[i64])> = vec![
        ("img_in.weight", &[256, 64]),
        ("txt_in.weight", &[256, 48]),
        ("vector_in.in_layer.weight", &[256, 40]),
        ("guidance_in.in_layer.weight", &[256, 256]),
        ("final_layer.linear.weight", &[64, 256]),
        ("double_blocks.0.img_attn.norm.query_norm.scale", &[128]),
        ("double_blocks.6.img_attn.norm.query_norm.scale", &[128]),
        ("single_blocks.2.norm.query_norm.scale", &[128]),
    ];
    let of_shapes = |shapes: &[(&str, &[i64])]| {
        let file = written(shapes);
        let file = PartFile::open(&ARCH.denoiser, file.path()).unwrap();
        TransformerConfig::of_shapes(&file)
    };
    let config = of_shapes(&shapes).unwrap();
    let counts = (
        config.num_layers,
        config.num_single_layers,
        config.num_attention_heads,
    );
    assert_eq!(counts, (7, 3, 2));
    assert_eq!(
        (config.joint_attention_dim, config.pooled_projection_dim),
        (48, 40)
    );
    assert!(config.guidance_embeds && config.channels() == 16);
    shapes[3].0 = "other";
    assert!(!of_shapes(&shapes).unwrap().guidance_embeds);
    shapes[0].1 = &[256, 384];
    let error = of_shapes(&shapes).unwrap_err().to_string();
    assert!(error.contains("(Fill, Canny, Depth)"), "{error}");
}

/// As today's library writes them, and as files have them.
#[test]
fn text_encoders_are_those_of_their_files() {
    let config = TextEncoderConfig::read(
        &REFERENCE.golden("model/text_encoder_2/config.json"),
        Family::T5,
    );
    let config = config.unwrap();
    let file = PartFile::open(&names::T5, &REFERENCE.golden("model/text_encoder_2")).unwrap();
    assert_eq!(
        TextEncoderConfig::of_shapes(&file, Family::T5).unwrap(),
        config
    );
    assert!(file.unknown().is_empty());
    let umt5 = crate::golden::golden("wan/text-encoder");
    let umt5 = PartFile::open(&names::T5, &umt5).unwrap();
    let error = TextEncoderConfig::of_shapes(&umt5, Family::T5).unwrap_err();
    assert!(error.to_string().contains("one of UMT5"), "{error}");
    let twice = written(&[
        ("shared.weight", &[8, 4]),
        ("encoder.embed_tokens.weight", &[8, 4]),
        ("decoder.final_layer_norm.weight", &[4]),
    ]);
    let twice = PartFile::open(&names::T5, twice.path()).unwrap();
    assert_eq!(twice.names(), ["shared.weight"]);
    let layer = "text_model.encoder.layers";
    let fc1 = [0, 1].map(|number| format!("{layer}.{number}.mlp.fc1.weight"));
    let clip = written(&[
        ("text_model.embeddings.token_embedding.weight", &[300, 128]),
        (
            "text_model.embeddings.position_embedding.weight",
            &[77, 128],
        ),
        (&fc1[0], &[256, 128]),
        (&fc1[1], &[256, 128]),
        ("text_projection.weight", &[128, 128]),
    ]);
    let clip = PartFile::open(&clip::TRANSFORMERS, clip.path()).unwrap();
    let clip = ClipConfig::of_shapes(&clip).unwrap();
    assert_eq!((clip.hidden_size, clip.num_attention_heads), (128, 2));
}

/// Encoders of T5 in GGUF have names of llama.cpp's.
#[test]
fn a_text_encoder_in_gguf_has_the_same_weights() {
    let folder = REFERENCE.golden("model/text_encoder_2");
    let folder = PartFile::open(&names::T5, &folder).unwrap();
    let theirs = |name: &str| {
        let name = name.replace("encoder.block.", "enc.blk.");
        let name = name.replace("encoder.final_layer_norm", "enc.output_norm");
        let name = name.replace("shared.", "token_embd.");
        [
            (".layer.0.layer_norm.", ".attn_norm."),
            (
                ".layer.0.SelfAttention.relative_attention_bias.",
                ".attn_rel_b.",
            ),
            (".layer.0.SelfAttention.", ".attn_"),
            (".layer.1.layer_norm.", ".ffn_norm."),
            (".layer.1.DenseReluDense.wi_0.", ".ffn_gate."),
            (".layer.1.DenseReluDense.wi_1.", ".ffn_up."),
            (".layer.1.DenseReluDense.wo.", ".ffn_down."),
        ]
        .iter()
        .fold(name, |name, (ours, theirs)| name.replace(ours, theirs))
    };
    let tensors = folder.names().into_iter().map(|name| GgufTensor {
        name: theirs(&name),
        format: Format::F32,
        tensor: LazyTensor::of(&folder, &name, Kind::Float).unwrap(),
    });
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("t5.gguf");
    let writer = GgufWriter::new(&[], tensors.collect()).unwrap();
    writer.write(&path).unwrap();
    assert!(!crate::diffusion::is_at(&path));
    let file = PartFile::open(&names::T5, &path).unwrap();
    assert_eq!(file.names(), folder.names());
    assert!(file.unknown().is_empty() && file.names().len() > 20);
    for name in file.names() {
        let [ours, theirs] = [&file, &folder].map(|file| file.read(&name, Kind::Float).unwrap());
        assert_eq!(ours, theirs, "{name}");
    }
    let config = |file: &PartFile| TextEncoderConfig::of_shapes(file, Family::T5).unwrap();
    assert_eq!(config(&file), config(&folder));
}

fn change(module: &LoraModule) -> Tensor {
    module.change.matrix().unwrap() * module.scale()
}

/// In original names the layers of queries, keys, values and of the feed-forward layer are one, with strengths and ranks of
/// their own; what is written comes back as it was.
#[test]
fn a_lora_is_rewritten_in_every_dialect() {
    let folder = tempfile::tempdir().unwrap();
    let mut lora = LoraFile::read(&REFERENCE.golden("lora.safetensors"), &ARCH, None).unwrap();
    for (form, name, rank) in [
        (
            LoraForm::Diffusers,
            "transformer.single_transformer_blocks.1.proj_mlp.lora_A.weight",
            4,
        ),
        (
            LoraForm::Comfy,
            "diffusion_model.single_blocks.1.linear1.lora_A.weight",
            16,
        ),
        (
            LoraForm::Kohya,
            "lora_unet_single_blocks_1_linear1.lora_down.weight",
            16,
        ),
        (
            LoraForm::Kohya,
            "lora_unet_double_blocks_0_txt_attn_qkv.lora_down.weight",
            12,
        ),
    ] {
        let path = folder.path().join(format!("{form:?}.safetensors"));
        lora.write(&path, form).unwrap();
        let written = SafetensorsFile::open(&path).unwrap();
        assert_eq!(written.shape(name).unwrap(), [rank, 32]);
        let read = LoraFile::read_any(&path, None).unwrap();
        assert_eq!(read.arch.name, "flux1");
        assert!(read.modules.keys().eq(lora.modules.keys()));
        for (name, module) in &lora.modules {
            assert_eq!(
                read.modules[name].change.rank(),
                module.change.rank(),
                "{name}"
            );
            let apart = difference(&change(&read.modules[name]), &change(module));
            assert!(apart < 1e-5, "{name}: {apart}");
        }
    }
    assert_eq!(ARCH.split_layer(), None);
    // Without some, and with another strength and rank.
    let options = (Kind::Float, Device::Cpu);
    let block = "single_transformer_blocks.0";
    let other = LoraModule::lora(
        Tensor::randn([2, 32], options),
        Tensor::randn([128, 2], options),
        3.0,
    );
    lora.modules.insert(format!("{block}.proj_mlp"), other);
    lora.modules.remove(&format!("{block}.attn.to_k")).unwrap();
    let path = folder.path().join("some.safetensors");
    lora.write(&path, LoraForm::Comfy).unwrap();
    let read = LoraFile::read(&path, &ARCH, None).unwrap();
    assert!(read.modules.keys().eq(lora.modules.keys()));
    for (name, module) in &lora.modules {
        let apart = difference(&change(&read.modules[name]), &change(module));
        assert!(apart < 1e-5, "{name}: {apart}");
    }
}

/// Before anything is learned, and where parts learned nothing, each is what it was.
#[test]
fn parts_without_changes_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let options = (Kind::Float, Device::Cpu);
    let of = |rank: i64, up: Tensor| LoraModule {
        change: Change::Lora {
            a: Tensor::randn([rank, 32], options),
            b: up,
        },
        alpha: 6.0,
        magnitude: None,
    };
    let zeros = |rank: i64, outputs: i64| of(rank, Tensor::zeros([outputs, rank], options));
    let block = "single_transformer_blocks.0";
    let (query, up) = (format!("{block}.attn.to_q"), format!("{block}.proj_mlp"));
    let learned = of(6, Tensor::randn([32, 6], options));
    // Of one of two parts, of one alone, and of both nothing was learned.
    for modules in [
        vec![(query.clone(), learned), (up.clone(), zeros(3, 128))],
        vec![(query.clone(), zeros(6, 32))],
        vec![(query, zeros(7, 32)), (up, zeros(7, 128))],
    ] {
        let mut lora = LoraFile::new(&ARCH);
        lora.modules.extend(modules);
        for form in [LoraForm::Comfy, LoraForm::Kohya] {
            let path = folder.path().join("x.safetensors");
            lora.write(&path, form).unwrap();
            let read = LoraFile::read(&path, &ARCH, None).unwrap();
            assert!(read.modules.keys().eq(lora.modules.keys()), "{form:?}");
            for (name, module) in &lora.modules {
                let again = &read.modules[name];
                let [ours, theirs] = [again, module].map(|module| module.factors().unwrap()[0]);
                assert_eq!(ours, theirs, "{name}");
                assert!(difference(&change(again), &change(module)) < 1e-5, "{name}");
            }
            // What is read and written again says nothing that holds no more.
            let diffusers = folder.path().join("y.safetensors");
            read.write(&diffusers, LoraForm::Diffusers).unwrap();
            let metadata = SafetensorsFile::open(&diffusers).unwrap().metadata();
            assert!(!metadata.keys().any(|key| key.starts_with("surefoot")));
        }
    }
}

/// sd-scripts trains the layers as they are in the original files, and those that modulate the blocks, too.
#[test]
fn a_lora_of_other_trainers_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let pair = |outputs: i64, inputs: i64| {
        [
            Tensor::randn([2, inputs], options),
            Tensor::randn([outputs, 2], options),
        ]
    };
    let (all, modulation) = (pair(7 * 32, 32), pair(3 * 32, 32));
    let tensors = [
        (
            "lora_unet_single_blocks_0_linear1.lora_down.weight".to_owned(),
            &all[0],
        ),
        (
            "lora_unet_single_blocks_0_linear1.lora_up.weight".to_owned(),
            &all[1],
        ),
        (
            "lora_unet_single_blocks_0_modulation_lin.lora_down.weight".to_owned(),
            &modulation[0],
        ),
        (
            "lora_unet_single_blocks_0_modulation_lin.lora_up.weight".to_owned(),
            &modulation[1],
        ),
    ];
    write_tensors(&path, &tensors).unwrap();
    let read = LoraFile::read(&path, &ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 5);
    let whole = all[1].matmul(&all[0]);
    for (part, before, rows) in [("attn.to_k", 32, 32), ("proj_mlp", 96, 128)] {
        let module = &read.modules[&format!("single_transformer_blocks.0.{part}")];
        let apart = difference(&change(module), &whole.narrow(0, before, rows));
        assert!(apart < 1e-6, "{part}: {apart}");
    }
    // That of another width is none of this model.
    let odd = pair(9 * 32, 32);
    let name = "diffusion_model.single_blocks.0.linear1.lora";
    let tensors = [
        (format!("{name}_A.weight"), &odd[0]),
        (format!("{name}_B.weight"), &odd[1]),
    ];
    write_tensors(&path, &tensors).unwrap();
    let error = LoraFile::read(&path, &ARCH, None).unwrap_err().to_string();
    assert!(error.contains("not 7 times the width"), "{error}");
    assert_eq!(LoraFile::read_any(&path, None).unwrap().arch.name, "flux2");
    let text = "lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight".to_owned();
    write_tensors(&path, &[(text, &odd[0])]).unwrap();
    let error = LoraFile::read(&path, &ARCH, None).unwrap_err().to_string();
    assert!(error.contains("belongs to a text encoder"), "{error}");
}
