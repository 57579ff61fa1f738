//! Clips for a first video run: moving garments of Fashion-MNIST.
//!
//! Each clip shows one garment, 16 pixels wide, on a black square of 32 pixels, in 13 frames at ten per
//! second. In `moving` it moves 12 pixels left, right, up or down; in `circling` it moves in one circle from
//! the top, which no clip of `moving` does. The pictures come from Debian's package of the data set;
//! everything else depends on one seed, so that the clips are the same everywhere.

pub(crate) mod draw;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::debian;
use draw::{Motion, Random};

/// The names of the two sets in configs.
pub(crate) const NAMES: [&str; 2] = ["moving_garments", "circling_garments"];

/// Increase the number whenever the clips change; the trainer looks for them under this name.
const ENTRY: &str = "data/moving-garments-2";
const PACKAGE: &str = "dataset-fashion-mnist";
/// Path of the files in the package.
const PLACE: &str = "usr/share/datasets/fashion-mnist";
/// Variable with the path of a folder with the two files, for machines without apt.
const VARIABLE: &str = "SUREFOOT_FASHION_MNIST";
const IMAGES: (&str, &str) = (
    "train-images-idx3-ubyte.gz",
    "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
);
const LABELS: (&str, &str) = (
    "train-labels-idx1-ubyte.gz",
    "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
);

/// The garments used, whose shapes differ even at few pixels: the label in the data set and the word in
/// captions.
pub(crate) const GARMENTS: [(u8, &str); 6] = [
    (0, "shirt"),
    (1, "trouser"),
    (3, "dress"),
    (7, "sneaker"),
    (8, "bag"),
    (9, "boot"),
];
/// Clips of each garment in each motion.
const MOVING: usize = 250;
const CIRCLING: usize = 100;

/// Returns the folder with `moving.jsonl`, `circling.jsonl` and their clips; creates it if it is missing or
/// damaged.
pub(super) fn ensure(cache: &Cache) -> Result<PathBuf> {
    let files = [IMAGES, LABELS];
    let sources: BTreeMap<String, String> = files
        .map(|(name, digest)| (name.to_owned(), digest.to_owned()))
        .into();
    if let Some(folder) = cache.whole(ENTRY, &sources) {
        return Ok(folder);
    }
    let lock = cache.lock()?;
    if let Some(folder) = cache.whole(ENTRY, &sources) {
        return Ok(folder);
    }
    eprintln!("creating clips of moving garments");
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
            "the clips are made from Debian's package {PACKAGE}, and this machine has no apt-get to get it \
             with. Set {VARIABLE} to a folder with {} and {} of Fashion-MNIST, or train on clips of your own: \
             `--set data.dataset=null --set data.path=FOLDER`",
            IMAGES.0,
            LABELS.0
        ),
    };
    let images = unpacked_file(&folder, IMAGES)?;
    let labels = unpacked_file(&folder, LABELS)?;
    let pictures = Pictures::parse(&images, &labels)?;
    cache.make(&lock, ENTRY, sources, |folder| {
        // No picture is used twice.
        let mut garments = pictures.garments();
        write(folder, "moving", &mut garments, &Motion::STRAIGHT, MOVING)?;
        write(
            folder,
            "circling",
            &mut garments,
            &[Motion::Circle],
            CIRCLING,
        )
    })
}

/// The uncompressed bytes of a file, checked against its digest.
fn unpacked_file(folder: &Path, (name, digest): (&str, &str)) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let bytes = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let found = Sha256::digest(&bytes);
    let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(
        found == digest,
        "`{}` is not the Fashion-MNIST file: its digest is {found}, not {digest}",
        path.display()
    );
    let output = Command::new("gzip").arg("-dc").arg(&path).output();
    let output = output.context("cannot run `gzip`")?;
    ensure!(
        output.status.success(),
        "`gzip` failed on `{}`: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

/// Greyscale pictures of 28 × 28 pixels, with labels.
struct Pictures<'a> {
    pixels: &'a [u8],
    labels: &'a [u8],
}

const SIDE: usize = 28;

impl<'a> Pictures<'a> {
    /// Parses the two files of the data set (IDX format, described on LeCun's MNIST page).
    fn parse(images: &'a [u8], labels: &'a [u8]) -> Result<Self> {
        let (head, pixels) = images.split_at_checked(16).context("no header of images")?;
        let (label_head, labels) = labels.split_at_checked(8).context("no header of labels")?;
        let expected = [0, 0, 8, 3];
        let sizes = &head[8..] == [0, 0, 0, 28, 0, 0, 0, 28].as_slice();
        ensure!(
            head[..4] == expected && sizes && label_head[..4] == [0, 0, 8, 1],
            "not files in MNIST's format with pictures of {SIDE} × {SIDE}"
        );
        ensure!(
            pixels.len() == labels.len() * SIDE * SIDE,
            "{} labels for {} bytes of pictures",
            labels.len(),
            pixels.len()
        );
        Ok(Self { pixels, labels })
    }

    /// The pictures of each of [`GARMENTS`], in order.
    fn garments(&self) -> Vec<Garment<'a>> {
        let pictures = self.pixels.chunks_exact(SIDE * SIDE).zip(self.labels);
        let of = |(label, word): (u8, &'static str)| Garment {
            word,
            pictures: pictures
                .clone()
                .filter(|(_, found)| **found == label)
                .map(|(picture, _)| picture)
                .collect(),
        };
        GARMENTS.map(of).into()
    }
}

/// A garment and its unused pictures.
struct Garment<'a> {
    word: &'static str,
    pictures: VecDeque<&'a [u8]>,
}

/// Writes the clips of a set, and the file that lists them with their captions.
fn write(
    folder: &Path,
    name: &str,
    garments: &mut [Garment<'_>],
    motions: &[Motion],
    each: usize,
) -> Result<()> {
    let clips = folder.join(name);
    fs::create_dir(&clips)?;
    let mut lines = String::new();
    let mut number = 0;
    // In this order, every part of the list contains all kinds.
    for _ in 0..each {
        for motion in motions {
            for Garment { word, pictures } in &mut *garments {
                let picture = pictures.pop_front();
                let picture = picture.context("the data set has too few pictures")?;
                let mut random = Random::new(&format!("{name} {number}"));
                let file = format!("{number:05}.gif");
                draw::save(
                    &clips.join(&file),
                    &draw::frames(picture, SIDE, *motion, &mut random),
                )?;
                let caption = format!("a {word} {}", motion.words());
                let line = serde_json::json!({
                    "file_name": format!("{name}/{file}"),
                    "caption": caption,
                });
                lines += &format!("{line}\n");
                number += 1;
            }
        }
    }
    let path = folder.join(format!("{name}.jsonl"));
    fs::write(&path, lines).with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data set whose pictures all show a bright square at the top left.
    fn data_set(count: u32) -> (Vec<u8>, Vec<u8>) {
        let mut images = vec![0, 0, 8, 3];
        images.extend(count.to_be_bytes());
        images.extend([0, 0, 0, 28, 0, 0, 0, 28]);
        let mut labels = vec![0, 0, 8, 1];
        labels.extend(count.to_be_bytes());
        for index in 0..count {
            labels.push(GARMENTS[index as usize % GARMENTS.len()].0);
            let mut picture = [0; SIDE * SIDE];
            for row in 0..14 {
                picture[row * SIDE..row * SIDE + 14].fill(200);
            }
            images.extend(picture);
        }
        (images, labels)
    }

    #[test]
    fn every_clip_has_a_caption_that_says_where_it_goes() {
        let (images, labels) = data_set(6 * 8);
        let mut garments = Pictures::parse(&images, &labels).unwrap().garments();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "moving", &mut garments, &Motion::STRAIGHT, 2).unwrap();
        let text = fs::read_to_string(folder.path().join("moving.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 6 * 4 * 2);
        for line in &lines {
            let path = folder.path().join(line["file_name"].as_str().unwrap());
            let caption = line["caption"].as_str().unwrap();
            let frames = draw::load(&path).unwrap();
            assert_eq!(frames.len(), 13);
            let (from, to) = (draw::centre(&frames[0]), draw::centre(&frames[12]));
            let (from, to) = (from.unwrap(), to.unwrap());
            let (dx, dy) = (to.0 - from.0, to.1 - from.1);
            let expected = match caption.rsplit(' ').next().unwrap() {
                "left" => (-12.0, 0.0),
                "right" => (12.0, 0.0),
                "up" => (0.0, -12.0),
                "down" => (0.0, 12.0),
                other => panic!("{other}"),
            };
            let apart = (dx - expected.0).abs() + (dy - expected.1).abs();
            assert!(apart < 0.01, "{caption}: {dx}, {dy}");
        }
        // All pictures were used.
        let error = write(folder.path(), "more", &mut garments, &[Motion::Circle], 1);
        assert!(error.unwrap_err().to_string().contains("too few"));
    }

    #[test]
    fn other_files_are_no_data_set() {
        let (images, labels) = data_set(6);
        let refused = |images: &[u8], labels: &[u8]| Pictures::parse(images, labels).is_err();
        assert!(refused(&images[..10], &labels));
        assert!(refused(&images, &labels[..12]));
        assert!(refused(&labels, &images));
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(IMAGES.0), "else").unwrap();
        let error = unpacked_file(folder.path(), IMAGES)
            .unwrap_err()
            .to_string();
        assert!(error.contains("is not the Fashion-MNIST file"), "{error}");
    }
}
