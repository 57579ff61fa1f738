//! Checkpoints with all parts in one file, and the LoRAs for them.

use std::path::PathBuf;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::REFERENCE;
use crate::diffusion::files::PartFile;
use crate::diffusion::lora::{LoraFile, LoraForm, LoraModule};
use crate::diffusion::parts::schedule::{Scheduler, Spacing};
use crate::diffusion::reference::{difference, encoded, loaded, stored, the_same_in_gguf, write};
use crate::diffusion::sdxl::{ARCH, Sdxl};
use crate::diffusion::{
    self, Denoiser, DenoiserOptions, Diffusion, Expert, Objective, Part, PartPaths, Prediction,
    TEXT,
};
use crate::formats::{TensorSource, write_tensors};
use crate::model::Pass;

/// The parts with their names in `original.json`.
const PARTS: [(&str, Part); 4] = [
    ("unet", Part::Denoiser(Expert::High)),
    ("vae", Part::Autoencoder),
    ("text_encoder", Part::TextEncoder(0)),
    ("text_encoder_2", Part::TextEncoder(1)),
];

/// A checkpoint made of the folder's parts.
struct Checkpoint(tempfile::TempDir);

impl Checkpoint {
    /// With those of its parts, and tensors of these names as marks.
    fn new(parts: &[(&str, Part)], marks: &[&str]) -> Self {
        let model = REFERENCE.model();
        let names: Value = REFERENCE.json("original.json");
        let mut tensors = Vec::new();
        for (name, part) in parts {
            let weights = model.weights(*part).unwrap();
            // transformers writes no prefix now.
            let read = |key: &str| {
                let plain = key.strip_prefix("text_model.").unwrap_or(key);
                weights.read(plain, Kind::Float).unwrap()
            };
            for (name, tensor) in stored(&names[name], read) {
                let tensor = match name.ends_with("model.text_projection") {
                    true => tensor.tr().contiguous(),
                    false => tensor,
                };
                tensors.push((name.clone(), tensor));
            }
        }
        let options = (Kind::Float, Device::Cpu);
        for mark in marks {
            tensors.push(((*mark).to_owned(), Tensor::ones([1], options)));
        }
        // What no part needs.
        tensors.push((
            "conditioner.embedders.1.model.logit_scale".to_owned(),
            Tensor::ones([1], options),
        ));
        let made = Self(tempfile::tempdir().unwrap());
        let list: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        write_tensors(&made.path(), &list).unwrap();
        made
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("x.safetensors")
    }

    /// Opened with the parts that no checkpoint has, or that cannot be so small.
    fn open(&self) -> Result<Box<dyn Diffusion>, crate::Error> {
        let parts = PartPaths {
            vae: Some(REFERENCE.golden("model/vae")),
            tokenizer: Some(REFERENCE.golden("model/tokenizer_2")),
            ..PartPaths::default()
        };
        diffusion::open(&self.path(), &parts)
    }
}

fn with_loras(model: &dyn Diffusion, loras: Vec<(LoraFile, f64)>) -> Box<dyn Denoiser> {
    let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
    loaded(model, loras, options)
}

#[test]
fn a_checkpoint_has_the_same_weights() {
    let checkpoint = Checkpoint::new(&PARTS, &[]);
    assert!(diffusion::is_at(&checkpoint.path()));
    let model = REFERENCE.model();
    for (_, part) in PARTS {
        the_same_in_gguf(&model.names(part), &checkpoint.path());
        let folder = model.weights(part).unwrap();
        let single = PartFile::open(&model.names(part), &checkpoint.path()).unwrap();
        let plain = |name: String| name.replace("text_projection.weight", "text_projection");
        let names: Vec<_> = folder.names().into_iter().map(plain).collect();
        assert_eq!(single.names(), names);
        for name in folder.names() {
            let read = |file: &PartFile, name: &str| file.read(name, Kind::Float).unwrap();
            let theirs = read(&folder, &name);
            let ours = match name.as_str() {
                "text_projection.weight" => read(&single, "text_projection").tr(),
                name => read(&single, name),
            };
            assert_eq!(ours, theirs, "{name}");
        }
    }
}

/// What shapes do not tell is as published: heads of 64, groups of 32.
#[test]
fn a_checkpoint_computes_what_a_folder_does() {
    let file = Checkpoint::new(&PARTS, &[]);
    let checkpoint = file.open().unwrap();
    let folder = tempfile::tempdir().unwrap();
    REFERENCE.configs(folder.path());
    for (file, changes) in [
        (
            "unet/config.json",
            json!({"attention_head_dim": [1, 1, 1], "norm_num_groups": 32}),
        ),
        (
            "text_encoder/config.json",
            json!({"num_attention_heads": 1}),
        ),
        (
            "text_encoder_2/config.json",
            json!({"num_attention_heads": 1}),
        ),
    ] {
        let mut config = REFERENCE.original(file);
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        write(folder.path(), file, &config);
    }
    for part in ["unet", "text_encoder", "text_encoder_2"] {
        let stem = if part == "unet" {
            "diffusion_pytorch_model"
        } else {
            "model"
        };
        let name = format!("{part}/{stem}.safetensors");
        std::fs::copy(
            REFERENCE.golden(&format!("model/{name}")),
            folder.path().join(name),
        )
        .unwrap();
    }
    let parts = PartPaths {
        tokenizer: Some(REFERENCE.golden("model/tokenizer_2")),
        ..PartPaths::default()
    };
    let folder_model = Sdxl::open(folder.path(), &parts).unwrap();
    assert_eq!(checkpoint.geometry(), folder_model.geometry());
    let case = REFERENCE.case("even");
    let made = [&folder_model as &dyn Diffusion, &*checkpoint].map(|model| {
        (
            case.predicted(&*with_loras(model, Vec::new()), Pass::Evaluate),
            encoded(model, "a grey cat!"),
        )
    });
    let [(theirs, text), (ours, own)] = made;
    assert_eq!(ours, theirs);
    assert!(case.apart(&*with_loras(&folder_model, Vec::new())) > 1e-3);
    for name in [TEXT, "pooled"] {
        let apart = difference(own.get(name).unwrap(), text.get(name).unwrap());
        assert!(apart <= 1e-5, "{name}: {apart}");
    }
}

#[test]
fn marks_say_what_is_predicted() {
    let epsilon = Objective::scaled_linear(0.00085, 0.012, Prediction::Epsilon);
    let v = Objective::scaled_linear(0.00085, 0.012, Prediction::V);
    let noise = v.clone().ending_in_noise();
    for (marks, objective, spacing) in [
        (&[][..], epsilon, Spacing::Leading(1)),
        (&["v_pred"], v, Spacing::Leading(1)),
        (&["v_pred", "ztsnr"], noise, Spacing::Trailing),
    ] {
        let checkpoint = Checkpoint::new(&PARTS, marks);
        let model = checkpoint.open().unwrap();
        assert_eq!(model.objective(), objective, "{marks:?}");
        let scheduler = model.defaults().unwrap().scheduler;
        assert_eq!(scheduler, Scheduler::Discrete(spacing), "{marks:?}");
    }
    let wrong = Checkpoint::new(&PARTS, &["ztsnr"]).open().unwrap_err();
    assert!(
        wrong
            .to_string()
            .contains("a tensor `ztsnr` but no `v_pred`"),
        "{wrong}"
    );
}

#[test]
fn what_a_checkpoint_lacks_is_named() {
    let whole = Checkpoint::new(&PARTS, &[]);
    let given = |parts: PartPaths| {
        diffusion::open(&whole.path(), &parts)
            .unwrap_err()
            .to_string()
    };
    let other = || Some(PathBuf::from("other"));
    let tokenizer = || Some(REFERENCE.golden("model/tokenizer"));
    for (parts, told) in [
        (PartPaths::default(), "name CLIP's, too (`tokenizer`"),
        (
            PartPaths {
                text_encoder: other(),
                ..PartPaths::default()
            },
            "remove `text_encoder`",
        ),
        (
            PartPaths {
                transformer: other(),
                ..PartPaths::default()
            },
            "remove `transformer`",
        ),
        (
            PartPaths {
                tokenizer: tokenizer(),
                ..PartPaths::default()
            },
            // That of the small model has groups of four.
            "not a KL autoencoder: `norm_num_groups`",
        ),
    ] {
        let error = given(parts);
        assert!(error.contains(told), "{error}");
    }
    let alone = Checkpoint::new(&PARTS[..1], &[]);
    let error = alone.open().unwrap_err().to_string();
    assert!(error.contains("has no text encoders"), "{error}");
    let pickle = whole.0.path().join("x.ckpt");
    std::fs::write(&pickle, "").unwrap();
    let error = diffusion::open(&pickle, &PartPaths::default()).unwrap_err();
    assert!(error.to_string().contains("may run code"), "{error}");
}

/// A LoRA of one layer in the middle and of one outside the blocks, in each form and back.
#[test]
fn loras_keep_their_layers_in_every_form() {
    let options = (Kind::Float, Device::Cpu);
    let matrix = |size: [i64; 2]| Tensor::randn(size, options);
    let layers = [
        "mid_block.attentions.0.transformer_blocks.1.attn2.to_k",
        "up_blocks.1.attentions.2.proj_in",
    ];
    let mut file = LoraFile::new(&ARCH);
    for (layer, inputs) in layers.into_iter().zip([80, 32]) {
        let module = LoraModule::lora(matrix([2, inputs]), matrix([64, 2]), 1.0);
        file.modules.insert(layer.to_owned(), module);
    }
    let folder = tempfile::tempdir().unwrap();
    for (form, [first, second]) in [
        (
            LoraForm::Kohya,
            [
                "lora_unet_middle_block_1_transformer_blocks_1_attn2_to_k.",
                "lora_unet_output_blocks_5_1_proj_in.",
            ],
        ),
        (
            LoraForm::Comfy,
            [
                "diffusion_model.middle_block.1.transformer_blocks.1.attn2.to_k.",
                "diffusion_model.output_blocks.5.1.proj_in.",
            ],
        ),
        (
            LoraForm::Diffusers,
            [
                "unet.mid_block.attentions.0.transformer_blocks.1.attn2.to_k.",
                "unet.up_blocks.1.attentions.2.proj_in.",
            ],
        ),
    ] {
        let path = folder.path().join(format!("{form:?}.safetensors"));
        file.write(&path, form).unwrap();
        let written = crate::formats::SafetensorsFile::open(&path).unwrap();
        for name in written.names() {
            assert!(
                name.starts_with(first) || name.starts_with(second),
                "{name}"
            );
        }
        let read = LoraFile::read(&path, &ARCH, None).unwrap();
        let any = LoraFile::read_any(&path, None).unwrap();
        assert_eq!(any.arch.name, "sdxl");
        assert!(read.modules.keys().eq(file.modules.keys()));
        for (name, module) in &read.modules {
            let change = |module: &LoraModule| module.change.matrix().unwrap() * module.scale();
            let apart = difference(&change(module), &change(&file.modules[name]));
            assert!(apart < 1e-5, "{form:?}, {name}: {apart}");
        }
    }
}

/// kohya's files may have the names of diffusers, convolutions, and the text encoders.
#[test]
fn loras_of_other_programs_are_read_or_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let read = |module: &str, down: &[i64], up: &[i64]| {
        let tensors = [
            (
                format!("{module}.lora_down.weight"),
                &Tensor::ones(down, options),
            ),
            (
                format!("{module}.lora_up.weight"),
                &Tensor::ones(up, options),
            ),
        ];
        write_tensors(&path, &tensors).unwrap();
        LoraFile::read(&path, &ARCH, None).map_err(|error| error.to_string())
    };
    for (module, name) in [
        (
            "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_ff_net_0_proj",
            "down_blocks.1.attentions.0.transformer_blocks.0.ff.net.0.proj",
        ),
        (
            "lora_unet_input_blocks_3_0_op",
            "down_blocks.0.downsamplers.0.conv",
        ),
        (
            "lora_te2_text_model_encoder_layers_11_mlp_fc2",
            "text_encoder_2.encoder.layers.11.mlp.fc2",
        ),
        (
            "lora_unet_output_blocks_2_2_conv",
            "up_blocks.0.upsamplers.0.conv",
        ),
        (
            "lora_unet_input_blocks_4_0_in_layers_2",
            "down_blocks.1.resnets.0.conv1",
        ),
    ] {
        let file = read(module, &[2, 32, 3, 3], &[32, 2, 1, 1]).unwrap();
        assert_eq!(file.modules.keys().collect::<Vec<_>>(), [name]);
    }
    for (module, told) in [
        (
            "lora_te1_text_model_encoder_layers_0_self_attn_x_proj",
            "belongs to a text encoder",
        ),
        (
            "lora_unet_input_blocks_9_1_proj_in",
            "does not belong to a known layer",
        ),
    ] {
        let error = read(module, &[2, 32], &[32, 2]).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

/// A convolution's LoRA is merged like that of a matrix.
#[test]
fn a_lora_of_a_convolution_changes_what_is_predicted() {
    let options = (Kind::Float, Device::Cpu);
    let mut file = LoraFile::new(&ARCH);
    let module = LoraModule::lora(
        Tensor::randn([2, 32, 3, 3], options),
        Tensor::randn([32, 2, 1, 1], options),
        2.0,
    );
    file.modules
        .insert("down_blocks.0.resnets.0.conv2".to_owned(), module);
    let model = REFERENCE.model();
    let merged = |strength: f64| {
        let mut lora = LoraFile::new(&ARCH);
        for (name, module) in &file.modules {
            let module = module.shallow_clone();
            lora.modules.insert(name.clone(), module);
        }
        with_loras(&*model, vec![(lora, strength)])
    };
    let case = REFERENCE.case("even");
    assert!(case.apart(&*merged(0.0)) <= 1e-4);
    assert!(case.apart(&*merged(1.0)) > 1e-3);
}

/// The layers that are adapted by default are all linear layers of the blocks.
#[test]
fn every_linear_layer_of_a_block_is_a_target() {
    for list in ARCH.lists {
        let names: Vec<_> = list.linear.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ARCH.lora.targets, "{}", list.name);
    }
    let file = REFERENCE
        .model()
        .weights(Part::Denoiser(Expert::High))
        .unwrap();
    assert_eq!(ARCH.blocks(&file).iter().sum::<usize>(), 17);
}
