//! The single files that ComfyUI loads, and the LoRAs for them.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::REFERENCE;
use crate::Error;
use crate::diffusion::anima::ARCH;
use crate::diffusion::anima::transformer::{ConditionerConfig, TransformerConfig};
use crate::diffusion::lora::{LoraFile, LoraForm};
use crate::diffusion::reference::{SingleFiles, loaded};
use crate::diffusion::{self, DenoiserOptions, Diffusion, Expert, Part, PartPaths};
use crate::formats::{SafetensorsFile, TensorSource, write_tensors};
use crate::model::Pass;

fn write(path: &Path, tensors: &[(String, Tensor)]) {
    let list: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    write_tensors(path, &list).unwrap();
}

/// Tensors without use in the published file.
const UNUSED: [&str; 2] = ["accum_iteration", "pos_embedder.seq"];

fn parts(files: &SingleFiles) -> PartPaths {
    PartPaths {
        vae: Some(files.path("vae")),
        text_encoder: Some(files.path("text_encoder")),
        tokenizer: Some(REFERENCE.golden("model")),
        ..PartPaths::default()
    }
}

fn open(files: &SingleFiles) -> Result<Box<dyn Diffusion>, Error> {
    diffusion::open(&files.path("transformer"), &parts(files))
}

/// Conditioner and transformer are one file.
#[test]
fn single_files_have_the_same_weights_and_make_the_same() {
    let (folder, case) = (REFERENCE.model(), REFERENCE.case("wide"));
    for prefix in ["net.", "model.diffusion_model.", ""] {
        let files = SingleFiles::with_prefix(&REFERENCE, prefix, &UNUSED);
        let unknown = UNUSED.map(|name| format!("{prefix}{name}"));
        files.have_the_same_weights(&REFERENCE, [&unknown.each_ref().map(String::as_str), &[]]);
        let single = open(&files).unwrap();
        let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
        let [ours, theirs] = [&single, &folder].map(|model| {
            let denoiser = loaded(&**model, Vec::new(), options);
            case.predicted(&*denoiser, Pass::Evaluate)
        });
        assert_eq!(ours, theirs, "{prefix}");
        assert_eq!(single.defaults().unwrap(), folder.defaults().unwrap());
    }
}

#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    let files = SingleFiles::new(&REFERENCE, &UNUSED);
    files.ask_for_the_other_parts(&REFERENCE, None);
}

#[test]
fn shapes_say_what_the_configs_say() {
    let files = SingleFiles::new(&REFERENCE, &UNUSED);
    let file = open(&files).unwrap().weights(Part::Denoiser(Expert::High));
    let file = file.unwrap();
    let config = |part: &str| REFERENCE.golden(&format!("model/{part}/config.json"));
    let expected = TransformerConfig {
        max_size: [128, 240, 240],
        ..TransformerConfig::read(&config("transformer")).unwrap()
    };
    assert_eq!(TransformerConfig::of_shapes(&file).unwrap(), expected);
    assert_eq!(expected.most(), 128);
    let expected = ConditionerConfig::read(&config("text_conditioner")).unwrap();
    assert_eq!(ConditionerConfig::of_shapes(&file).unwrap(), expected);
}

/// What is no file of this model is refused by what it lacks.
#[test]
fn other_files_are_refused() {
    let files = SingleFiles::with_prefix(&REFERENCE, "net.", &[]);
    let path = files.path("transformer");
    let told = |parts: &PartPaths| diffusion::open(&path, parts).unwrap_err().to_string();
    let error = told(&PartPaths {
        tokenizer: path.parent().map(Path::to_owned),
        ..parts(&files)
    });
    assert!(error.contains("no folder `t5_tokenizer`"), "{error}");
    let tensors = SafetensorsFile::open(&path).unwrap();
    let all = tensors.names().into_iter().map(|name| {
        let tensor = tensors.read(&name, Kind::Float).unwrap();
        (name, tensor)
    });
    let all: Vec<_> = all.collect();
    let rewritten = |change: &dyn Fn(&str, &Tensor) -> Option<Tensor>| {
        let changed = all.iter().filter_map(|(name, tensor)| {
            let tensor = change(name, tensor)?;
            Some((name.clone(), tensor))
        });
        write(&path, &changed.collect::<Vec<_>>());
        told(&parts(&files))
    };
    let error =
        rewritten(&|name, tensor| (!name.contains("llm_adapter")).then(|| tensor.shallow_clone()));
    assert!(error.contains("it is Cosmos-Predict2"), "{error}");
    // A model of videos takes a mask of given frames, too.
    let error = rewritten(&|name, tensor| {
        Some(match name.ends_with("x_embedder.proj.1.weight") {
            true => tensor.constant_pad_nd([0, 4]),
            false => tensor.shallow_clone(),
        })
    });
    assert!(
        error.contains("takes 18 channels for latents of 16"),
        "{error}"
    );
    let error = rewritten(&|name, tensor| {
        let is_output = name.ends_with("final_layer.linear.weight");
        (!is_output).then(|| tensor.shallow_clone())
    });
    assert!(error.contains("there is no `proj_out.weight`"), "{error}");
}

/// Every form of table 8.1 is read; one is written.
#[test]
fn loras_are_read_in_all_forms_and_written_in_the_one_that_all_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let down = Tensor::randn([2, 36], options);
    let up = Tensor::randn([36, 2], options);
    let of = [
        "transformer_blocks.1.attn1.to_out.0",
        "text_conditioner.blocks.0.self_attn.o_proj",
    ];
    let forms = [
        (
            [
                "diffusion_model.blocks.1.self_attn.output_proj",
                "diffusion_model.llm_adapter.blocks.0.self_attn.o_proj",
            ],
            ["lora_A", "lora_B"],
        ),
        (
            [
                "lora_unet_blocks_1_self_attn_output_proj",
                "lora_unet_llm_adapter_blocks_0_self_attn_o_proj",
            ],
            ["lora_down", "lora_up"],
        ),
        (
            [
                "transformer.transformer_blocks.1.attn1.to_out.0",
                "text_conditioner.blocks.0.self_attn.o_proj",
            ],
            ["lora_A", "lora_B"],
        ),
        (
            [
                "base_model.model.transformer_blocks.1.attn1.to_out.0",
                "base_model.model.text_conditioner.blocks.0.self_attn.o_proj",
            ],
            ["lora_A", "lora_B"],
        ),
    ];
    for (names, [a, b]) in forms {
        let tensors = names.iter().flat_map(|name| {
            [
                (format!("{name}.{a}.weight"), down.shallow_clone()),
                (format!("{name}.{b}.weight"), up.shallow_clone()),
                (format!("{name}.alpha"), Tensor::from(1.0f32)),
            ]
        });
        write(&path, &tensors.collect::<Vec<_>>());
        let file = LoraFile::read(&path, &ARCH, None).unwrap();
        assert_eq!(
            file.modules.keys().map(String::as_str).collect::<Vec<_>>(),
            {
                let mut sorted = of;
                sorted.sort_unstable();
                sorted
            }
        );
        for module in file.modules.values() {
            assert_eq!(
                (
                    module.alpha,
                    module.factors().unwrap()[0],
                    module.factors().unwrap()[1]
                ),
                (1.0, &down, &up)
            );
        }
        let target = folder.path().join("y.safetensors");
        for (form, names) in [
            (LoraForm::Comfy, &forms[0].0),
            (LoraForm::Diffusers, &forms[2].0),
        ] {
            file.write(&target, form).unwrap();
            let written = SafetensorsFile::open(&target).unwrap();
            let mut all: Vec<_> = names
                .iter()
                .flat_map(|name| ["lora_A", "lora_B"].map(|part| format!("{name}.{part}.weight")))
                .collect();
            all.sort_unstable();
            // Alpha is in the second matrix.
            assert_eq!(written.names(), all);
            let read = written.read(&all[1], Kind::Float).unwrap();
            assert_eq!(read, &up * 0.5);
        }
        let error = file.write(&target, LoraForm::Kohya).unwrap_err();
        assert!(
            error.to_string().contains("diffusers ignores it"),
            "{error}"
        );
        assert_eq!(
            LoraFile::read_any(&path, None).unwrap().arch.name,
            ARCH.name
        );
    }
}
