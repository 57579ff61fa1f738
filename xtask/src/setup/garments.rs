//! A first run on pictures: Fashion-MNIST (MIT licence, © Zalando SE), and the parts of a small model to train on it.
//!
//! The pictures come from Debian's package of the data set. Those with [`LEFT_OUT`] are a set of their own, for a LoRA that
//! teaches a model what it has never seen. Of the model, a small one of the kind `PIPELINE`, there are all parts but the weights
//! of the transformer:
//!
//! ```text
//! transformer     its config alone: `model.from_config` draws the weights
//! vae             an autoencoder without anything to learn: its latents are the pixels' grey
//! text_encoder    the tiny random one of the tests, which tells texts apart without knowing what they mean
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, json};
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::debian;
use crate::workspace;

/// What configs that need it have in them.
pub(super) const NAME: &str = "garments";
/// Increase the number whenever the contents change; the trainer looks for the data under this name.
const DATA: &str = "data/garments-1";
/// Its name in configs.
const MODEL: &str = "models/garments-base";
const PACKAGE: &str = "dataset-fashion-mnist";
/// Path of the files in the package.
const PLACE: &str = "usr/share/datasets/fashion-mnist";
/// Variable with the path of a folder with the files, for machines without apt.
const VARIABLE: &str = "SUREFOOT_FASHION_MNIST";
/// Pictures and labels to train on, and held-out ones.
const FILES: [(&str, &str); 4] = [
    (
        "train-images-idx3-ubyte",
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    ),
    (
        "train-labels-idx1-ubyte",
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    ),
    (
        "t10k-images-idx3-ubyte",
        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    ),
    (
        "t10k-labels-idx1-ubyte",
        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    ),
];
/// Words for the labels 0 to 9.
const WORDS: [&str; 10] = [
    "t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
];
/// The label that the model does not learn.
const LEFT_OUT: usize = 1;
/// Pictures of each garment.
const EACH: usize = 200;
/// Pixels on a side.
const SIDE: usize = 28;

/// Returns the folder of the data, with `garments.jsonl` and `trousers.jsonl`, and that of the model; creates them if they are
/// missing or damaged.
pub(super) fn ensure(cache: &Cache) -> Result<(PathBuf, PathBuf)> {
    let sources = FILES.map(|(name, digest)| (name.to_owned(), digest.to_owned()));
    let sources = BTreeMap::from(sources);
    let there = || Some((cache.whole(DATA, &sources)?, cache.whole(MODEL, &sources)?));
    if let Some(both) = there() {
        return Ok(both);
    }
    let lock = cache.lock()?;
    if let Some(both) = there() {
        return Ok(both);
    }
    let (downloads, unpacked) = (cache.staging()?, cache.staging()?);
    let folder = match std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None if debian::has_apt() => {
            debian::download([PACKAGE], downloads.path())
                .with_context(|| format!("cannot download Debian's package {PACKAGE}"))?;
            debian::extract(downloads.path(), unpacked.path())?;
            unpacked.path().join(PLACE)
        }
        None => bail!(
            "the pictures are those of Debian's package {PACKAGE}, and this machine has no apt-get to get it with. Set \
             {VARIABLE} to a folder with the four `.gz` files of Fashion-MNIST"
        ),
    };
    let data = cache.make(&lock, DATA, sources.clone(), |to| {
        for (name, digest) in FILES {
            fs::write(to.join(name), uncompressed(&folder, name, digest)?)?;
        }
        let read = |name: &str| fs::read(to.join(name));
        write_pictures(to, &read(FILES[0].0)?, &read(FILES[1].0)?)
    })?;
    let model = cache.make(&lock, MODEL, sources, write_model)?;
    Ok((data, model))
}

/// The content of `name.gz`, which has this digest.
fn uncompressed(folder: &Path, name: &str, digest: &str) -> Result<Vec<u8>> {
    let path = folder.join(format!("{name}.gz"));
    let bytes = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let found: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    ensure!(
        found == digest,
        "`{}` is not the file of Fashion-MNIST: its digest is {found}, not {digest}",
        path.display()
    );
    let output = Command::new("gzip").arg("-dc").arg(&path).output();
    let output = output.context("cannot run `gzip`")?;
    ensure!(
        output.status.success(),
        "`gzip` failed on `{}`",
        path.display()
    );
    Ok(output.stdout)
}

/// Writes the first pictures of each garment, and a file for each set that has their names and captions.
fn write_pictures(folder: &Path, images: &[u8], labels: &[u8]) -> Result<()> {
    let (head, pixels) = images.split_at_checked(16).context("no header of images")?;
    let (_, labels) = labels.split_at_checked(8).context("no header of labels")?;
    let sizes = [0, 0, 0, SIDE as u8, 0, 0, 0, SIDE as u8];
    ensure!(
        head[8..] == sizes && pixels.len() == labels.len() * SIDE * SIDE,
        "not pictures of {SIDE} × {SIDE} pixels with as many labels"
    );
    fs::create_dir(folder.join("pictures"))?;
    let mut counts = [0; WORDS.len()];
    let mut lists = [String::new(), String::new()];
    for (picture, label) in pixels.chunks_exact(SIDE * SIDE).zip(labels) {
        let label = usize::from(*label);
        let word = WORDS.get(label).context("an unknown label")?;
        if counts[label] == EACH {
            continue;
        }
        let name = format!("pictures/{word}-{:04}.bmp", counts[label]);
        counts[label] += 1;
        fs::write(folder.join(&name), bitmap(picture))?;
        let line = json!({"file_name": name, "caption": word});
        lists[usize::from(label == LEFT_OUT)] += &format!("{line}\n");
    }
    ensure!(
        counts == [EACH; WORDS.len()],
        "too few pictures: {counts:?}"
    );
    fs::write(folder.join("garments.jsonl"), &lists[0])?;
    fs::write(folder.join("trousers.jsonl"), &lists[1])?;
    Ok(())
}

/// A bitmap file of 24 bits per pixel, whose lowest row is the first.
fn bitmap(greys: &[u8]) -> Vec<u8> {
    let (head, size) = (54, 3 * greys.len());
    let mut file = b"BM".to_vec();
    let side = SIDE as u32;
    let words = [
        head + size as u32,
        0,
        head,
        40,
        side,
        side,
        1 | 24 << 16,
        0,
        size as u32,
        0,
        0,
        0,
        0,
    ];
    file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    // Rows fill four bytes as they are.
    file.extend(
        greys
            .chunks_exact(SIDE)
            .rev()
            .flatten()
            .flat_map(|grey| [*grey; 3]),
    );
    file
}

/// Writes the model's folder.
fn write_model(folder: &Path) -> Result<()> {
    let tiny = workspace::root().join("tests/reference/golden/z_image/model");
    for part in ["text_encoder", "tokenizer"] {
        fs::create_dir(folder.join(part))?;
        for entry in fs::read_dir(tiny.join(part))? {
            let from = entry?.path();
            let name = from.file_name().context("a file without a name")?;
            fs::copy(&from, folder.join(part).join(name))?;
        }
    }
    for file in ["model_index.json", "scheduler/scheduler_config.json"] {
        let to = folder.join(file);
        fs::create_dir_all(to.parent().unwrap_or(folder))?;
        fs::copy(tiny.join(file), to)?;
    }
    let transformer = json!({
        "_class_name": "ZImageTransformer2DModel", "all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 1,
        "dim": 96, "n_layers": 4, "n_refiner_layers": 1, "n_heads": 3, "n_kv_heads": 3, "norm_eps": 1e-5, "qk_norm": true,
        "cap_feat_dim": 24, "rope_theta": 256.0, "t_scale": 1000.0, "axes_dims": [8, 12, 12], "axes_lens": [600, 32, 32],
    });
    write_config(folder, "transformer", &transformer)?;
    // Mean and deviation of the pixels, so that latents have those of noise.
    let vae = json!({
        "_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "latent_channels": 1,
        "block_out_channels": [CHANNELS], "down_block_types": ["DownEncoderBlock2D"],
        "up_block_types": ["UpDecoderBlock2D"], "layers_per_block": 1, "norm_num_groups": 1, "act_fn": "silu",
        "mid_block_add_attention": false, "use_quant_conv": false, "use_post_quant_conv": false,
        "scaling_factor": 1.42, "shift_factor": -0.43, "sample_size": SIDE,
    });
    write_config(folder, "vae", &vae)?;
    let weights = safetensors(&autoencoder());
    fs::write(
        folder.join("vae/diffusion_pytorch_model.safetensors"),
        weights,
    )?;
    Ok(())
}

fn write_config(folder: &Path, part: &str, config: &serde_json::Value) -> Result<()> {
    fs::create_dir(folder.join(part))?;
    fs::write(
        folder.join(part).join("config.json"),
        format!("{config:#}\n"),
    )?;
    Ok(())
}

/// Channels of the autoencoder: the grey, less the grey, and two constants.
const CHANNELS: usize = 4;
/// The constants, beside which the grey counts for nothing in a norm of all channels: it divides by them alone.
const LARGE: f32 = 1000.0;
/// Added before the activation, which leaves numbers of this size as they are.
const OFFSET: f32 = 16.0;

/// The weights of an autoencoder without residuals, whose latents are the mean of the colours.
fn autoencoder() -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize], numbers: Vec<f32>| {
        tensors.push((name, shape.to_vec(), numbers));
    };
    // A convolution of 3 × 3 pixels that sees the middle one alone; `matrix` is `[outputs][inputs]`.
    let mut conv = |name: &str, matrix: &[Vec<f32>], bias: &[f32]| {
        let middle = |weight: f32| (0..9).map(move |at| if at == 4 { weight } else { 0.0 });
        let numbers = matrix.iter().flatten().copied().flat_map(middle).collect();
        add(
            format!("{name}.weight"),
            &[matrix.len(), matrix[0].len(), 3, 3],
            numbers,
        );
        add(format!("{name}.bias"), &[bias.len()], bias.to_vec());
    };
    let none = vec![vec![0.0; CHANNELS]; CHANNELS];
    for (half, inputs, outputs, stage) in [
        ("encoder", 3, 2, "down_blocks"),
        ("decoder", 1, 3, "up_blocks"),
    ] {
        let mean = 1.0 / inputs as f32;
        let spread = [mean, -mean, 0.0, 0.0].map(|weight| vec![weight; inputs]);
        conv(
            &format!("{half}.conv_in"),
            &spread,
            &[0.0, 0.0, LARGE, -LARGE],
        );
        let stages = (0..if half == "encoder" { 1 } else { 2 })
            .map(|block| format!("{stage}.0.resnets.{block}"));
        let middle = (0..2).map(|block| format!("mid_block.resnets.{block}"));
        for block in stages.chain(middle) {
            for part in ["conv1", "conv2"] {
                conv(&format!("{half}.{block}.{part}"), &none, &[0.0; CHANNELS]);
            }
        }
        // A latent has a mean and the logarithm of a variance, which is not used.
        let taken: Vec<_> = (0..outputs)
            .map(|output| f32::from(half == "decoder" || output == 0))
            .collect();
        let matrix: Vec<_> = taken
            .iter()
            .map(|taken| vec![*taken, 0.0, 0.0, 0.0])
            .collect();
        let bias: Vec<_> = taken.iter().map(|taken| -OFFSET * taken).collect();
        conv(&format!("{half}.conv_out"), &matrix, &bias);
    }
    let convolutions = tensors
        .iter()
        .filter_map(|(name, ..)| name.strip_suffix(".conv1.bias"));
    let mut norms: Vec<_> = convolutions
        .flat_map(|block| [1, 2].map(|number| format!("{block}.norm{number}")))
        .collect();
    norms.extend(["encoder.conv_norm_out", "decoder.conv_norm_out"].map(String::from));
    for norm in norms {
        // The deviation of all channels is that of the constants.
        tensors.push((
            format!("{norm}.weight"),
            vec![CHANNELS],
            vec![LARGE / 2.0_f32.sqrt(); CHANNELS],
        ));
        tensors.push((
            format!("{norm}.bias"),
            vec![CHANNELS],
            vec![OFFSET; CHANNELS],
        ));
    }
    tensors
}

/// The bytes of a safetensors file.
fn safetensors(tensors: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), tensor);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(data);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_model_does_not_learn_is_a_set_of_its_own() {
        let count = EACH * WORDS.len() + 3;
        let mut images = vec![0; 8];
        images.extend([0, 0, 0, 28, 0, 0, 0, 28]);
        images.extend((0..count).flat_map(|number| [number as u8; SIDE * SIDE]));
        let mut labels = vec![0; 8];
        labels.extend((0..count).map(|number| (number % WORDS.len()) as u8));
        let folder = tempfile::tempdir().unwrap();
        write_pictures(folder.path(), &images, &labels).unwrap();
        let lines = |name: &str| -> Vec<String> {
            let text = fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(str::to_owned).collect()
        };
        let (known, new) = (lines("garments.jsonl"), lines("trousers.jsonl"));
        assert_eq!((known.len(), new.len()), (9 * EACH, EACH));
        assert!(
            new.iter()
                .all(|line| line.contains("\"caption\":\"trousers\""))
        );
        assert!(known.iter().all(|line| !line.contains("trousers")));
        // The first row is the last one of the file.
        let picture: Vec<u8> = (0..SIDE * SIDE).map(|at| (at / SIDE) as u8).collect();
        let file = bitmap(&picture);
        assert_eq!(
            (file.len(), file[54], file[file.len() - 1]),
            (54 + 3 * SIDE * SIDE, 27, 0)
        );
        let error = write_pictures(folder.path(), &images[..1000], &labels).unwrap_err();
        assert!(error.to_string().contains("not pictures of"), "{error}");
    }

    #[test]
    fn every_tensor_of_the_autoencoder_is_in_its_file_once() {
        let tensors = autoencoder();
        let file = safetensors(&tensors);
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header: Map<_, _> = serde_json::from_slice(&file[8..8 + length]).unwrap();
        assert_eq!(header.len(), tensors.len());
        let numbers: usize = tensors.iter().map(|(.., numbers)| numbers.len()).sum();
        assert_eq!(file.len(), 8 + length + 4 * numbers);
        for (name, shape, numbers) in &tensors {
            assert_eq!(shape.iter().product::<usize>(), numbers.len(), "{name}");
        }
    }
}
