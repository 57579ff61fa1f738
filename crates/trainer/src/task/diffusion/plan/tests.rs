//! What published models need, planned without their weights: from their dimensions, and files of which only names and
//! shapes are written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use models::diffusion::{Framing, PartPaths, open};
use models::formats::write_tensors;
use models::model::{Initial, WeightSource};
use serde_json::{Map, Value, json};
use torch_ext::fake::FakeMode;

use super::*;
use crate::golden::golden;
use crate::media::Clip;
use crate::task::diffusion::clip_loader::ClipSource;

/// A published model: the tiny one of the tests whose folder it is like, and the config of a run on it.
struct Published {
    tiny: &'static str,
    config: &'static str,
    /// Keys of its configs that differ, by file.
    keys: fn() -> Value,
    /// Of a picture of 1024 × 1024 pixels.
    latents: [i64; 3],
    /// Conditions of a text, without a batch dimension.
    text: &'static [(&'static str, &'static [i64])],
}

const Z_IMAGE: Published = Published {
    tiny: "z_image",
    config: "z-image",
    keys: || {
        json!({
            "transformer": {
                "dim": 3840, "n_layers": 30, "n_refiner_layers": 2, "n_heads": 30, "n_kv_heads": 30, "in_channels": 16,
                "cap_feat_dim": 2560, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512],
            },
            "vae": {"latent_channels": 16},
            "text_encoder": {"hidden_size": 2560},
        })
    },
    latents: [16, 128, 128],
    text: &[("text", &[128, 2560])],
};

const KLEIN_4B: Published = Published {
    tiny: "flux2",
    config: "flux2-klein",
    keys: || klein(5, 20, 24, 2560),
    latents: [128, 64, 64],
    text: &[("text", &[512, 7680])],
};

const KLEIN_9B: Published = Published {
    keys: || klein(8, 24, 32, 4096),
    text: &[("text", &[512, 12288])],
    ..KLEIN_4B
};

const QWEN_IMAGE: Published = Published {
    tiny: "qwen_image",
    config: "qwen-image",
    keys: || {
        json!({
            "transformer": {
                "num_layers": 60, "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 3584,
                "axes_dims_rope": [16, 56, 56],
            },
            "text_encoder": {"text_config": {"hidden_size": 3584}},
        })
    },
    latents: [16, 128, 128],
    text: &[("text", &[128, 3584])],
};

const FLUX_1: Published = Published {
    tiny: "flux1",
    config: "flux1",
    keys: || {
        json!({
            "transformer": {
                "num_layers": 19, "num_single_layers": 38, "num_attention_heads": 24, "attention_head_dim": 128,
                "joint_attention_dim": 4096, "pooled_projection_dim": 768, "in_channels": 64, "axes_dims_rope": [16, 56, 56],
            },
            "vae": {"latent_channels": 16},
            "text_encoder": {"hidden_size": 768, "num_attention_heads": 12},
            "text_encoder_2": {"d_model": 4096},
        })
    },
    latents: [16, 128, 128],
    text: &[("text", &[512, 4096]), ("pooled", &[768])],
};

const SDXL: Published = Published {
    tiny: "sdxl",
    config: "sdxl",
    keys: || {
        json!({
            "unet": {
                "block_out_channels": [320, 640, 1280], "transformer_layers_per_block": [1, 2, 10],
                "attention_head_dim": [5, 10, 20], "cross_attention_dim": 2048, "addition_time_embed_dim": 256,
                "projection_class_embeddings_input_dim": 2816, "norm_num_groups": 32,
                "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
                "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            },
            "text_encoder": {"hidden_size": 768, "num_attention_heads": 12},
            "text_encoder_2": {"hidden_size": 1280, "num_attention_heads": 20, "projection_dim": 1280},
        })
    },
    latents: [4, 128, 128],
    text: &[("text", &[77, 2048]), ("pooled", &[1280])],
};

const ANIMA: Published = Published {
    tiny: "anima",
    config: "anima",
    keys: || {
        json!({
            "transformer": {
                "num_layers": 28, "num_attention_heads": 16, "attention_head_dim": 128, "text_embed_dim": 1024,
                "mlp_ratio": 4.0, "adaln_lora_dim": 256, "max_size": [128, 240, 240],
            },
            "text_conditioner": {
                "source_dim": 1024, "target_dim": 1024, "model_dim": 1024, "num_layers": 6, "num_attention_heads": 16,
                "mlp_ratio": 4.0, "target_vocab_size": 32128,
            },
            "text_encoder": {"hidden_size": 1024},
        })
    },
    latents: [16, 128, 128],
    text: &[("text", &[128, 1024]), ("t5_tokens", &[128])],
};

fn klein(double: i64, single: i64, heads: i64, text: i64) -> Value {
    json!({
        "transformer": {
            "num_layers": double, "num_single_layers": single, "num_attention_heads": heads, "attention_head_dim": 128,
            "joint_attention_dim": 3 * text, "in_channels": 128, "axes_dims_rope": [32, 32, 32, 32],
        },
        "vae": {"latent_channels": 32},
        "text_encoder": {"hidden_size": text},
    })
}

/// Names and shapes that a model asks for.
struct Asked(Vec<(String, Vec<i64>)>);

impl WeightSource for Asked {
    fn tensor(&mut self, name: &str, shape: &[i64], _: Initial) -> Result<Tensor, models::Error> {
        self.0.push((name.to_owned(), shape.to_owned()));
        Ok(Tensor::f_empty(shape, (Kind::BFloat16, Device::Cpu))?)
    }
}

/// A folder with such a model and an encoded picture.
struct Place {
    folder: tempfile::TempDir,
    model: Arc<dyn Diffusion>,
    clip: Clip,
    config: &'static str,
}

impl Place {
    fn new(published: &Published) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let from = golden(&format!("{}/model", published.tiny));
        copy_configs(&from, &path, &(published.keys)());
        let model = open(&path, &PartPaths::default()).unwrap();
        let mut asked = Asked(Vec::new());
        {
            let fake = FakeMode::begin(Device::Cpu).unwrap();
            let mut parameters = Parameters::default();
            let base = Base::Frozen(Kind::BFloat16);
            let mut builder = Builder::new(&mut asked, &mut parameters, Kind::BFloat16, base);
            drop(
                model
                    .denoiser(Which::High, Device::Cpu, &mut builder)
                    .unwrap(),
            );
            drop(fake);
        }
        let weights = model.part(Part::Denoiser(Which::High)).unwrap();
        let stem = model.names(Part::Denoiser(Which::High)).stem;
        write_shapes(&weights.join(format!("{stem}.safetensors")), &asked.0);
        // Where it has a file of its own, its weights are in that of the transformer already.
        let conditioner = path.join("text_conditioner");
        if conditioner.is_dir() {
            let file = conditioner.join("diffusion_pytorch_model.safetensors");
            write_shapes(&file, &[("none".to_owned(), vec![1])]);
        }
        let clip = picture(folder.path(), published, &*model);
        Self {
            folder,
            model: model.into(),
            clip,
            config: published.config,
        }
    }

    /// The plan of a run with the model's own config.
    fn plan(&self, settings: &[&str], memory: Memory) -> Result<MemoryPlan, Error> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let model = format!(
            "model.name_or_path={}",
            self.folder.path().join("model").display()
        );
        // What the config says of memory is up to `settings`.
        let own = [&model, "model.offload=null", "model.quantization=null"];
        let all: Vec<String> = own
            .iter()
            .chain(settings)
            .map(|text| (*text).to_owned())
            .collect();
        let config = Config::load(&root.join(format!("{}.yaml", self.config)), &all).unwrap();
        let machine = (Kind::BFloat16, Device::Cpu);
        let source = ClipSource::new(std::slice::from_ref(&self.clip), &self.model);
        let largest = |rows: u32| source.largest(rows);
        let none = (false, None);
        let planned = PlannedExperts::new(&config, &self.model, &largest, machine, &[None], none)?;
        planned.plan(memory, config.train.batch())
    }

    /// Bytes of the device that a plan takes, its blocks and how many of them are streamed.
    fn fits(&self, settings: &[&str], memory: Memory) -> (Bytes, usize, usize) {
        let plan = self.plan(settings, memory).unwrap();
        let (peak, device) = (plan.plan.device_peak(), memory.on_device());
        assert!(peak <= device, "{settings:?}: {peak} of {device}");
        println!(
            "{} {settings:?}: {peak} of {device}; {}",
            self.config,
            plan.describe()
        );
        (peak, plan.blocks, plan.streamed.len())
    }
}

/// Copies the configs in a folder, with other values for some of their keys.
fn copy_configs(from: &Path, to: &Path, keys: &Value) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            copy_configs(&path, &to.join(&name), &keys[&name]);
        } else if name == "config.json" {
            let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            merge(&mut config, keys);
            fs::write(to.join(name), config.to_string()).unwrap();
        } else if !name.ends_with(".safetensors") {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

fn merge(config: &mut Value, keys: &Value) {
    for (key, value) in keys.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => merge(&mut config[key], value),
            _ => config[key] = value.clone(),
        }
    }
}

/// A file of bf16 weights of which only names and shapes are written: the rest is a hole that takes no room.
fn write_shapes(path: &Path, tensors: &[(String, Vec<i64>)]) {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<i64>() as u64;
        let tensor = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), tensor);
    }
    let text = Value::Object(header).to_string();
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_len(8 + text.len() as u64 + end).unwrap();
}

/// An encoded picture and its text.
fn picture(folder: &Path, published: &Published, model: &dyn Diffusion) -> Clip {
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let write = |name: &str, tensors: Vec<(String, Tensor)>| -> PathBuf {
        let path = folder.join(name);
        let named: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        write_tensors(&path, &named).unwrap();
        path
    };
    let [channels, rows, columns] = published.latents;
    let mut latents = vec![("latents".to_owned(), zeros(&[channels, 1, rows, columns]))];
    let framing = model
        .framing_conditions(Framing::whole((1024, 1024)))
        .unwrap();
    latents.extend(
        framing
            .iter()
            .map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())),
    );
    let text = published
        .text
        .iter()
        .map(|(name, shape)| ((*name).to_owned(), zeros(shape)));
    Clip {
        name: "picture".into(),
        key: "picture".into(),
        latents: write("latents.safetensors", latents),
        text: write("text.safetensors", text.collect()),
        shape: (1024, 1024, 1),
        tokens: 4096,
        repeats: 1,
        orders: Vec::new(),
        is_regular: false,
        empty: None,
        controls: Vec::new(),
    }
}

/// A card, of which a GiB is taken by the runtime and what is on the screen, in a machine with 32 GiB.
fn card(gib: u64) -> Memory {
    Memory::Discrete {
        device: Bytes::gib(gib - 1),
        host: Bytes::gib(32),
    }
}

const AUTO: &str = "model.offload=auto";
const ALL: &str = "model.offload=all";
const INT8: &str = "model.quantization=int8";
const NF4: &str = "model.quantization=nf4";

#[test]
fn z_image_fits_into_8_gb() {
    let place = Place::new(&Z_IMAGE);
    let (_, blocks, streamed) = place.fits(&[NF4], card(8));
    assert_eq!((blocks, streamed), (34, 0));
    let (_, _, streamed) = place.fits(&[INT8, AUTO], card(8));
    assert!((1..34).contains(&streamed), "{streamed}");
    let refused = place.plan(&[], card(8)).unwrap_err().to_string();
    assert!(refused.contains("`model.quantization: nf4`"), "{refused}");
    // What older configs call `low_vram`.
    let (least, _, streamed) = place.fits(&[INT8, ALL], card(8));
    assert_eq!(streamed, blocks);
    assert!(least < place.fits(&[INT8, AUTO], card(8)).0);
}

#[test]
fn qwen_image_fits_into_24_gb() {
    let place = Place::new(&QWEN_IMAGE);
    let (_, blocks, streamed) = place.fits(&[NF4], card(24));
    assert_eq!((blocks, streamed), (60, 0));
    let (_, _, streamed) = place.fits(&[INT8, AUTO], card(24));
    assert!(streamed < 20, "{streamed}");
    place.plan(&[], card(24)).unwrap_err();
}

/// And what they take in other precisions, and of the least: the table of the handbook, which `--nocapture` prints.
#[test]
fn all_models_fit_into_64_gb_as_they_are() {
    let large = Bytes::gib(1024);
    let memory = Memory::Discrete {
        device: large,
        host: large,
    };
    for published in [Z_IMAGE, KLEIN_4B, KLEIN_9B, QWEN_IMAGE, FLUX_1, SDXL, ANIMA] {
        let place = Place::new(&published);
        let settings = [&[][..], &[INT8], &[NF4], &[INT8, ALL]];
        let peaks = settings.map(|settings| place.fits(settings, memory).0);
        assert!(
            peaks[0] <= Bytes::gib(48),
            "{}: {}",
            published.config,
            peaks[0]
        );
        assert!(
            peaks[..3].is_sorted_by(|one, other| one > other),
            "{peaks:?}"
        );
        assert!(peaks[3] < peaks[1], "{peaks:?}");
    }
}
