//! `cargo xtask bench video-small`: evaluates the small video model with and without its LoRA.
//!
//! Each garment is requested in each motion, with seeds that were not used in training. The centre of
//! brightness of each frame tells how a garment moves; a nearest-neighbour classifier over the clips that the
//! base was trained on tells which garment it is. Both measures are first checked on real clips.

mod garment;
mod picture;
mod track;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use image::GrayImage;
use serde::Serialize;

use self::garment::Classifier;
use self::track::Track;
use super::measured;
use super::train::cpu_name;
use crate::setup::clips::GARMENTS;
use crate::setup::clips::draw::{self, CANVAS, FRAMES, Motion};
use crate::{setup, train, workspace};

/// What the picture in the README shows: the base alone, and both in turn.
const SHOWN: [(&str, Motion, bool); 4] = [
    ("boot", Motion::Left, false),
    ("shirt", Motion::Down, false),
    ("boot", Motion::Circle, false),
    ("boot", Motion::Circle, true),
];
/// Real clips that the classifier compares with.
const KNOWN: usize = 2400;
/// First seed; previews and the training use others.
const FIRST_SEED: u32 = 1000;

/// What the small video model makes of prompts, with and without its LoRA.
#[derive(clap::Args)]
pub(crate) struct VideoSmallBench {
    /// The base
    #[arg(long, value_name = "DIR", default_value = "runs/video-small/model")]
    model: PathBuf,

    /// The LoRA
    #[arg(
        long,
        value_name = "FILE",
        default_value = "runs/video-small-lora/adapter/video-small-lora.safetensors"
    )]
    lora: PathBuf,

    /// Clips of each garment in each motion
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,

    /// Where the numbers go [default: bench/video-small.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Where a picture of some clips goes [default: none is drawn]
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    evidence_level: &'static str,
    cpu: String,
    steps: u32,
    guidance_scale: f64,
    seeds: Vec<u32>,
    rows: Vec<Row>,
}

/// Clips of one motion from one source.
#[derive(Debug, Serialize)]
struct Row {
    /// `real`, `base` or `base + LoRA`.
    source: &'static str,
    /// The requested motion.
    motion: &'static str,
    clips: usize,
    /// Fraction of clips that move as requested.
    motion_right: f64,
    /// Fraction of clips that show the requested garment, according to the classifier.
    garment_right: f64,
    /// Mean distance in pixels that the centre moves between frames.
    pixels_per_frame: f64,
    /// Mean number of turns of the path, in either direction.
    turns: f64,
}

/// A clip and what was requested.
struct Clip {
    garment: &'static str,
    motion: Motion,
    frames: Vec<GrayImage>,
}

const STEPS: u32 = 20;
const GUIDANCE: f64 = 3.0;

impl VideoSmallBench {
    pub(crate) fn run(self) -> Result<()> {
        for (path, config) in [
            (&self.model, "video-small"),
            (&self.lora, "video-small-lora"),
        ] {
            ensure!(
                path.exists(),
                "`{}` is not there: run `cargo xtask train configs/{config}.yaml` first",
                path.display()
            );
        }
        let libtorch = setup::ensure()?;
        let folder = setup::clips()?;
        let surefoot = train::build(&libtorch)?;
        let moving = real(&folder, "moving", KNOWN)?;
        let circling = real(&folder, "circling", KNOWN / 10)?;
        let classifier = Classifier::of(moving.iter().map(|clip| (clip.garment, &*clip.frames)));
        let mut rows = Vec::new();
        for motion in Motion::STRAIGHT {
            // The classifier has these very clips, so it leaves the one in question out.
            let clips = moving.iter().filter(|clip| clip.motion == motion);
            let left_out = Classifier::leaving_out(&classifier);
            rows.push(row("real", motion, clips, &left_out));
        }
        rows.push(row("real", Motion::Circle, circling.iter(), &classifier));
        let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
        let seeds: Vec<u32> = (FIRST_SEED..FIRST_SEED + self.seeds).collect();
        let mut shown = Vec::new();
        for (source, lora) in [("base", None), ("base + LoRA", Some(&self.lora))] {
            for motion in Motion::STRAIGHT.into_iter().chain([Motion::Circle]) {
                eprintln!("{source}: a garment {}", motion.words());
                let mut clips = Vec::new();
                for (_, garment) in GARMENTS {
                    for seed in &seeds {
                        let frames =
                            self.generate(&surefoot, scratch.path(), garment, motion, *seed, lora)?;
                        clips.push(Clip {
                            garment,
                            motion,
                            frames,
                        });
                    }
                }
                rows.push(row(source, motion, clips.iter(), &classifier));
                for (index, wanted) in SHOWN.iter().enumerate() {
                    let is_it =
                        |clip: &&Clip| (clip.garment, clip.motion, lora.is_some()) == *wanted;
                    if let Some(clip) = clips.iter().find(is_it) {
                        shown.push((index, clip.frames.clone()));
                    }
                }
            }
        }
        let report = Report {
            evidence_level: "CPU, real",
            cpu: cpu_name(),
            steps: STEPS,
            guidance_scale: GUIDANCE,
            seeds,
            rows,
        };
        report.print();
        let target = workspace::target(&workspace::shell()?)?;
        let out = self.out.unwrap_or(target.join("bench/video-small.json"));
        report.write(&out)?;
        if let Some(path) = &self.picture {
            shown.sort_by_key(|(index, _)| *index);
            let rows: Vec<_> = shown.into_iter().map(|(_, frames)| frames).collect();
            picture::draw(&rows)
                .save(path)
                .with_context(|| format!("cannot write `{}`", path.display()))?;
        }
        Ok(())
    }

    /// Generates the frames of a clip.
    fn generate(
        &self,
        surefoot: &Path,
        scratch: &Path,
        garment: &str,
        motion: Motion,
        seed: u32,
        lora: Option<&PathBuf>,
    ) -> Result<Vec<GrayImage>> {
        let place = scratch.join("clip");
        let mut command = Command::new(surefoot);
        command.args(["generate", "--device", "cpu", "--json", "--model"]);
        command.arg(&self.model);
        let prompt = format!("a {garment} {}", motion.words());
        let side = CANVAS.to_string();
        command
            .args(["--prompt", &prompt, "--seed", &seed.to_string()])
            .args(["--width", &side, "--height", &side])
            .args(["--num-frames", &FRAMES.to_string()])
            .args(["--num-inference-steps", &STEPS.to_string()])
            .args(["--guidance-scale", &GUIDANCE.to_string()])
            .arg("--output")
            .arg(&place)
            .stdin(Stdio::null());
        if let Some(lora) = lora {
            command.arg("--lora").arg(lora);
        }
        let output = command
            .output()
            .with_context(|| format!("cannot start `{}`", surefoot.display()))?;
        ensure!(
            output.status.success(),
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let frames = draw::load(&place)?;
        ensure!(frames.len() == FRAMES as usize, "{} frames", frames.len());
        fs::remove_dir_all(&place)?;
        Ok(frames)
    }
}

/// The first `count` clips of a set that setup made; any part of its list has all kinds.
fn real(folder: &Path, name: &str, count: usize) -> Result<Vec<Clip>> {
    let path = folder.join(format!("{name}.jsonl"));
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let mut clips = Vec::new();
    for line in text.lines().take(count) {
        let value: serde_json::Value = serde_json::from_str(line)?;
        let caption = value["caption"].as_str().unwrap_or_default();
        let motions = Motion::STRAIGHT.into_iter().chain([Motion::Circle]);
        let mut kinds = motions.flat_map(|motion| GARMENTS.map(|(_, word)| (word, motion)));
        let kind = kinds.find(|(word, motion)| caption == format!("a {word} {}", motion.words()));
        let (garment, motion) = kind.with_context(|| format!("an unknown caption: {caption}"))?;
        let file = value["file_name"].as_str().unwrap_or_default();
        clips.push(Clip {
            garment,
            motion,
            frames: draw::load(&folder.join(file))?,
        });
    }
    Ok(clips)
}

fn row<'a>(
    source: &'static str,
    motion: Motion,
    clips: impl Iterator<Item = &'a Clip>,
    classifier: &Classifier,
) -> Row {
    let (mut count, mut moves, mut shows, mut pixels, mut turns) = (0, 0, 0, 0.0, 0.0);
    for clip in clips {
        let track = Track::of(&clip.frames);
        count += 1;
        moves += usize::from(track.motion() == Some(motion));
        shows += usize::from(classifier.garment(&clip.frames) == Some(clip.garment));
        pixels += track.pixels_per_frame();
        turns += track.turns().abs();
    }
    let all = f64::from(count.max(1) as u32);
    Row {
        source,
        motion: motion.words(),
        clips: count,
        motion_right: moves as f64 / all,
        garment_right: shows as f64 / all,
        pixels_per_frame: pixels / all,
        turns: turns / all,
    }
}

impl Report {
    fn print(&self) {
        println!(
            "{:<12} {:<18} {:>5} {:>13} {:>14} {:>12} {:>6}",
            "clips of", "asked for", "clips", "moves so", "that garment", "px a frame", "turns"
        );
        for row in &self.rows {
            println!(
                "{:<12} {:<18} {:>5} {:>11.0} % {:>12.0} % {:>12.2} {:>6.2}",
                row.source,
                row.motion,
                row.clips,
                100.0 * row.motion_right,
                100.0 * row.garment_right,
                row.pixels_per_frame,
                row.turns
            );
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        measured::write(self, path)?;
        eprintln!("numbers   {}", path.display());
        Ok(())
    }
}
