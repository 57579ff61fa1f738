//! Held against diffusers, transformers and PEFT: a tiny random model.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::ARCH;
use crate::diffusion::files::PartFile;
use crate::diffusion::flux1::transformer::{ApproximatorSizes, TransformerConfig};
use crate::diffusion::lora::{LoraFile, LoraForm};
use crate::diffusion::parts::schedule::Schedule;
use crate::diffusion::reference::{FROZEN, Reference, SingleFiles, difference, placer, write};
use crate::diffusion::{Objective, Part, PartPaths, TEXT, TEXT_TOKENS, load_text_encoder};
use crate::model::Pass;

const REFERENCE: Reference = Reference::of(&ARCH);

/// One token of padding has a state, in which it sees the text, but no other token sees it.
#[test]
fn prompts_are_cut_and_encoded_as_by_the_pipeline() {
    let model = REFERENCE.model();
    let tokenizer = model.tokenizer().unwrap();
    let load = |stream| load_text_encoder(&*model, 0, Kind::Float, stream, &mut placer()).unwrap();
    let encoder = load(false);
    let encoded = |tokens: &[u32]| {
        let rows = encoder.encode(tokens).unwrap();
        rows.get(TEXT).unwrap().shallow_clone()
    };
    let prompts = REFERENCE.json::<Vec<Value>>("prompts.json");
    for (number, prompt) in prompts.iter().enumerate() {
        let text = prompt["text"].as_str().unwrap();
        let theirs: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        assert_eq!(
            tokenizer.tokens(text).unwrap(),
            std::slice::from_ref(&theirs),
            "{text:?}"
        );
        let length = prompt["length"].as_u64().unwrap() as usize;
        assert_eq!(theirs.len(), 512.min(length + 1), "{text:?}");
        assert_eq!(tokenizer.length(text).unwrap(), (length, 512), "{text:?}");
        let rows = encoded(&theirs);
        let apart = difference(&rows, &REFERENCE.expected(&format!("text.{number}")));
        assert!(apart <= 1e-4, "{text:?}: {apart}");
        if length < 512 {
            let (alone, count) = (encoded(&theirs[..length]), length as i64);
            let apart = difference(&rows.narrow(0, 0, count), &alone);
            assert!(apart <= 1e-5, "{text:?}, without padding: {apart}");
        }
    }
    assert!(prompts.last().unwrap()["length"].as_u64() > Some(512));
    let tokens = tokenizer.tokens("a grey cat").unwrap().remove(0);
    let streamed = load(true).encode(&tokens).unwrap();
    assert_eq!(*streamed.get(TEXT).unwrap(), encoded(&tokens));
}

#[test]
fn pictures_and_latents_are_those_of_diffusers() {
    REFERENCE.pictures_and_latents_are_those_of_diffusers(&[("vae", "model/vae")]);
}

#[test]
fn velocities_are_those_of_diffusers() {
    REFERENCE.velocities_are_those_of_diffusers(&["small", "wide", "high"], |batch| {
        REFERENCE.first_alone(batch)
    });
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("wide");
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    let blocks: [&[usize]; 2] = [&[0, 1, 2, 3], &[1, 2]];
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("small", &blocks);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("small");
}

#[test]
fn what_is_computed_again_is_not_kept() {
    REFERENCE.what_is_computed_again_is_not_kept("small");
}

#[test]
fn samples_are_those_of_the_pipeline() {
    REFERENCE.samples_are_those_of_the_pipeline();
}

#[test]
fn noise_levels_are_those_of_the_pipeline() {
    REFERENCE.noise_levels_are_those_of_the_pipeline();
    let model = REFERENCE.model();
    assert!(model.guidance().is_none() && !model.is_distilled());
    // The levels of a folder whose scheduler spaces them otherwise.
    let folder = tempfile::tempdir().unwrap();
    REFERENCE.configs(folder.path());
    let name = "scheduler/scheduler_config.json";
    let mut scheduler = REFERENCE.original(name);
    scheduler["use_beta_sigmas"] = json!(true);
    write(folder.path(), name, &scheduler);
    let model = crate::diffusion::open(folder.path(), &PartPaths::default()).unwrap();
    let defaults = model.defaults().unwrap();
    for (steps, theirs) in REFERENCE.json::<BTreeMap<String, Vec<f32>>>("beta.json") {
        let steps = steps.parse().unwrap();
        let ours = Schedule::new(defaults.scheduler, &Objective::FLOW, steps, defaults.shift);
        let ours = ours.unwrap().sigmas;
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!(
                (ours - theirs).abs() < 1e-6,
                "{steps} steps: {ours} and {theirs}"
            );
        }
    }
}

#[test]
fn a_lora_of_diffusers_does_what_it_does_there() {
    let ranks = REFERENCE.a_lora_of_diffusers_does_what_it_does_there();
    assert_eq!(ranks.len(), 34);
}

#[test]
fn single_files_have_the_same_weights() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.have_the_same_weights(&REFERENCE, [&[], &[]]);
    // Heads are narrower than those of the published model; everything else was asked for before.
    files.ask_for_the_other_parts(&REFERENCE, Some("where heads are of 128"));
    let files = SingleFiles::new(&REFERENCE, &["nerf_blocks.0.norm.scale"]);
    files.ask_for_the_other_parts(&REFERENCE, Some("one of Chroma Radiance"));
}

/// Heads apart, which say how wide axes are.
#[test]
fn shapes_say_what_the_config_says() {
    let folder = REFERENCE.golden("model/transformer");
    let config = TransformerConfig::read_chroma(&folder.join("config.json")).unwrap();
    let sizes = ApproximatorSizes {
        channels: 16,
        hidden: 20,
        layers: 3,
    };
    assert_eq!(config.approximator, Some(sizes));
    let shapes: Vec<(String, Tensor)> = [
        ("img_in.weight", &[256, 64][..]),
        ("txt_in.weight", &[256, 48]),
        ("distilled_guidance_layer.in_proj.weight", &[20, 16]),
        (
            "distilled_guidance_layer.layers.1.in_layer.weight",
            &[20, 20],
        ),
        (
            "distilled_guidance_layer.layers.0.in_layer.weight",
            &[20, 20],
        ),
        ("final_layer.linear.weight", &[64, 256]),
        ("double_blocks.0.img_attn.norm.query_norm.scale", &[128]),
        ("double_blocks.6.img_attn.norm.query_norm.scale", &[128]),
        ("single_blocks.2.norm.query_norm.scale", &[128]),
    ]
    .map(|(name, shape)| {
        (
            name.into(),
            Tensor::zeros(shape, (Kind::Uint8, Device::Cpu)),
        )
    })
    .into();
    let list: Vec<_> = shapes
        .iter()
        .map(|(name, zeros)| (name.clone(), zeros))
        .collect();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x.safetensors");
    crate::formats::write_tensors(&path, &list).unwrap();
    let file = PartFile::open(&ARCH.denoiser, &path).unwrap();
    assert_eq!(
        TransformerConfig::chroma_of_shapes(&file).unwrap(),
        TransformerConfig {
            in_channels: 64,
            num_layers: 7,
            num_single_layers: 3,
            attention_head_dim: 128,
            num_attention_heads: 2,
            joint_attention_dim: 48,
            approximator: Some(ApproximatorSizes { layers: 2, ..sizes }),
            axes_dims_rope: [16, 56, 56],
            ..config
        }
    );
}

/// Every dialect is read as it was written, and the header says for which of two models of the same layers it is.
#[test]
fn a_lora_is_rewritten_in_every_dialect() {
    let folder = tempfile::tempdir().unwrap();
    let lora = LoraFile::read(&REFERENCE.golden("lora.safetensors"), &ARCH, None).unwrap();
    for form in [LoraForm::Diffusers, LoraForm::Comfy, LoraForm::Kohya] {
        let path = folder.path().join(format!("{form:?}.safetensors"));
        lora.write(&path, form).unwrap();
        let read = LoraFile::read_any(&path, None).unwrap();
        assert_eq!(read.arch.name, "chroma");
        assert!(read.modules.keys().eq(lora.modules.keys()), "{form:?}");
    }
    // The layers that modulate blocks of the other model are none of this one; its network's are.
    let pair = |outputs: i64, inputs: i64| {
        [[4, inputs], [outputs, 4]].map(|size| Tensor::ones(size, (Kind::Float, Device::Cpu)))
    };
    let path = folder.path().join("x.safetensors");
    let read = |layer: &str, [down, up]: [Tensor; 2]| {
        let names = ["lora_down", "lora_up"].map(|end| format!("lora_unet_{layer}.{end}.weight"));
        let [of_down, of_up] = names;
        crate::formats::write_tensors(&path, &[(of_down, &down), (of_up, &up)]).unwrap();
        LoraFile::read(&path, &ARCH, None).map(|lora| lora.modules.into_keys().next().unwrap())
    };
    assert_eq!(
        read("distilled_guidance_layer_layers_1_in_layer", pair(20, 20)).unwrap(),
        "distilled_guidance_layer.layers.1.linear_1"
    );
    let error = read("single_blocks_0_modulation_lin", pair(96, 32)).unwrap_err();
    assert!(
        error.to_string().contains("known layer of Chroma"),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    let case = REFERENCE.case("small");
    let mut other = case.conditions.shallow_clone();
    other.insert(TEXT_TOKENS, Tensor::from_slice(&[7.0f32, 8.0]));
    let made = model.predict(&case.latents, &case.times, &other, Pass::Evaluate);
    let error = made.unwrap_err().to_string();
    assert!(
        error.contains("with [7, 8] tokens for 2 pictures"),
        "{error}"
    );
    let class = |name: &str| json!(["diffusers", name]);
    REFERENCE.parts_of_other_models_are_refused(&[
        (
            "model_index.json",
            "transformer",
            class("FluxTransformer2DModel"),
            "supported is ChromaTransformer2DModel",
        ),
        (
            "transformer/config.json",
            "joint_attention_dim",
            json!(32),
            "takes one of 32",
        ),
        (
            "transformer/config.json",
            "in_channels",
            json!(64),
            "takes 16",
        ),
    ]);
    let parts = PartPaths {
        text_encoder_2: Some(REFERENCE.golden("model/text_encoder")),
        ..PartPaths::default()
    };
    let opened = crate::diffusion::open(&REFERENCE.golden("model"), &parts);
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("given as second text encoder"), "{error}");
}

/// All blocks depend on the network, so that it keeps its numbers.
#[test]
fn the_network_is_not_quantised() {
    let model = REFERENCE.model();
    assert!(!model.is_quantized("distilled_guidance_layer.layers.0.linear_1.weight"));
    assert!(model.is_quantized("single_transformer_blocks.0.proj_mlp.weight"));
    let names = model.names(Part::TextEncoder(0));
    assert!((names.rename)("decoder.final_layer_norm.weight", &[]).is_none());
}
