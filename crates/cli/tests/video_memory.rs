//! What a LoRA on a video model was expected to take, beside what hip-alloc counted that it took.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

/// Width of the stream, width within feed-forward layers, blocks.
const WIDTH: u64 = 128;
const INNER: u64 = 640;
const LAYERS: u64 = 3;
const TEXT: u64 = 24;

/// The library, which this crate does not depend on: cargo builds it.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--package", "hip-alloc"])
        .args(["--message-format", "json"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let messages = String::from_utf8(output.stdout).unwrap();
    let file = messages
        .split('"')
        .find(|text| text.ends_with("/libhip_alloc.so"));
    PathBuf::from(file.expect("hip-alloc is a cdylib"))
});

fn golden(name: &str) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden");
    kept.join("wan").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A transformer of zeros, whose names are those of diffusers: memory is all that is asked of it.
fn transformer(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let sizes = json!({
        "_class_name": "WanTransformer3DModel", "num_attention_heads": 2, "attention_head_dim": WIDTH / 2,
        "ffn_dim": INNER, "num_layers": LAYERS, "text_dim": TEXT, "freq_dim": 12, "in_channels": 4,
        "out_channels": 4,
    });
    fs::write(folder.join("config.json"), sizes.to_string()).unwrap();
    let mut shapes: Vec<(String, Vec<u64>)> = Vec::new();
    let mut linear = |name: String, inputs: u64, outputs: u64| {
        shapes.push((format!("{name}.weight"), vec![outputs, inputs]));
        shapes.push((format!("{name}.bias"), vec![outputs]));
    };
    let embedder = |part: &str| format!("condition_embedder.{part}");
    linear(embedder("time_embedder.linear_1"), 12, WIDTH);
    linear(embedder("time_embedder.linear_2"), WIDTH, WIDTH);
    linear(embedder("time_proj"), WIDTH, 6 * WIDTH);
    linear(embedder("text_embedder.linear_1"), TEXT, WIDTH);
    linear(embedder("text_embedder.linear_2"), WIDTH, WIDTH);
    linear("proj_out".into(), WIDTH, 16);
    for block in 0..LAYERS {
        for part in ["to_q", "to_k", "to_v", "to_out.0"] {
            linear(format!("blocks.{block}.attn1.{part}"), WIDTH, WIDTH);
            linear(format!("blocks.{block}.attn2.{part}"), WIDTH, WIDTH);
        }
        linear(format!("blocks.{block}.ffn.net.0.proj"), WIDTH, INNER);
        linear(format!("blocks.{block}.ffn.net.2"), INNER, WIDTH);
    }
    for block in 0..LAYERS {
        let name = |part: &str| format!("blocks.{block}.{part}");
        for attention in ["attn1", "attn2"] {
            for norm in ["norm_q", "norm_k"] {
                shapes.push((name(&format!("{attention}.{norm}.weight")), vec![WIDTH]));
            }
        }
        shapes.push((name("norm2.weight"), vec![WIDTH]));
        shapes.push((name("norm2.bias"), vec![WIDTH]));
        shapes.push((name("scale_shift_table"), vec![1, 6, WIDTH]));
    }
    shapes.push(("scale_shift_table".into(), vec![1, 2, WIDTH]));
    shapes.push(("patch_embedding.weight".into(), vec![WIDTH, 4, 1, 2, 2]));
    shapes.push(("patch_embedding.bias".into(), vec![WIDTH]));
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in shapes {
        let start = end;
        end += 4 * shape.iter().product::<u64>();
        header.insert(
            name,
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + end as usize, 0);
    fs::write(folder.join("diffusion_pytorch_model.safetensors"), bytes).unwrap();
}

/// A grey picture.
fn bmp(path: &Path, width: u32, height: u32) {
    let size = width * height * 3;
    let mut bytes = b"BM".to_vec();
    for number in [54 + size, 0, 54, 40, width, height] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    bytes.resize(54 + size as usize, 90);
    fs::write(path, bytes).unwrap();
}

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    transformer(&root.join("model/transformer"));
    copy(&golden("autoencoder-2.1"), &root.join("model/vae"));
    copy(&golden("text-encoder"), &root.join("model/text_encoder"));
    copy(&golden("text"), &root.join("model/tokenizer"));
    let index = r#"{"_class_name": "WanPipeline"}"#;
    fs::write(root.join("model/model_index.json"), index).unwrap();
    fs::create_dir_all(root.join("clips/walk")).unwrap();
    for frame in 0..9 {
        bmp(&root.join(format!("clips/walk/{frame}.bmp")), 192, 128);
    }
    // Not so long that the small tokenizer of the tests has too few numbers for it.
    fs::write(root.join("clips/walk.txt"), "a").unwrap();
    let config = "\
device: cpu
threads: 1
output_dir: runs
model: {name_or_path: model}
adapter: {r: 4}
data: {path: clips, resolution: [192, 128], num_frames: 9, cache_dir: cache}
train: {max_steps: 2, per_device_train_batch_size: 1, logging_steps: 1, save_steps: 0}
";
    fs::write(root.join("config.yaml"), config).unwrap();
    place
}

/// A run's expectation by what it took.
fn ratio(root: &Path, name: &str, keys: &[&str]) -> f64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
    command
        .args(["train", "config.yaml", "--set"])
        .arg(format!("name={name}"));
    for key in keys {
        command.args(["--set", key]);
    }
    let output = command
        .current_dir(root)
        .env_remove("RUST_LOG")
        .env("HIP_ALLOC", "1")
        .env("HIP_ALLOC_LIB", &*LIBRARY)
        .env("SUREFOOT_CACHE", root.join("cache"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary = fs::read(root.join("runs").join(name).join("summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    1.0 + summary["memory_estimate_error"]["relative"]
        .as_f64()
        .unwrap()
}

#[test]
fn what_is_expected_is_within_a_tenth_of_what_is_taken() {
    let place = place();
    let (fp32, bf16) = ("train.bf16=false", "train.bf16=true");
    let checkpoint = "train.gradient_checkpointing=true";
    let runs: [(&str, &[&str]); 8] = [
        ("fp32", &[fp32]),
        ("bf16", &[bf16]),
        ("fp32-checkpoint", &[fp32, checkpoint]),
        ("bf16-checkpoint", &[bf16, checkpoint]),
        (
            "rows",
            &[
                fp32,
                "train.per_device_train_batch_size=2",
                "data.num_repeats=2",
            ],
        ),
        (
            "short",
            &[fp32, "data.num_frames=1", "data.resolution=[96, 64]"],
        ),
        ("streamed", &[fp32, "model.blocks_to_swap=2"]),
        (
            "part",
            &[bf16, "adapter.target_modules=[attn1.to_q, attn1.to_v]"],
        ),
    ];
    let ratios = runs.map(|(name, keys)| (name, ratio(place.path(), name, keys)));
    println!("{ratios:.3?}");
    for (name, ratio) in ratios {
        assert!((0.9..=1.1).contains(&ratio), "{name}: {ratio}");
    }
}
