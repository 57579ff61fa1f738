//! Generating videos, for `surefoot generate`.

use std::path::{Path, PathBuf};

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::config::Quantization;
use trainer::media_sampling::{self, DenoiserOptions, Diffusion, Lora, Request, Scheduler};

use super::model_options::failure;

/// Options for videos only.
#[derive(clap::Args)]
#[command(next_help_heading = "Videos")]
pub(crate) struct VideoOptions {
    /// What the video should not show [default: nothing]
    #[arg(long, value_name = "TEXT")]
    negative_prompt: Option<String>,

    /// Width in pixels [default: 832; 1280 for TI2V-5B]
    #[arg(long, value_name = "N")]
    width: Option<i64>,

    /// Height in pixels [default: 480; 704 for TI2V-5B]
    #[arg(long, value_name = "N")]
    height: Option<i64>,

    /// Number of frames, 4 n + 1; 1 is a picture [default: 81; 121 for TI2V-5B]
    #[arg(long, value_name = "N")]
    num_frames: Option<i64>,

    /// Frames per second of the file [default: 16; 24 for TI2V-5B]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=240))]
    fps: Option<u32>,

    /// Inference steps [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    num_inference_steps: Option<u32>,

    /// Guidance scale; at 1 or below the negative prompt is not evaluated [default: 5, or the model's]
    #[arg(long, value_name = "G", value_parser = finite, allow_negative_numbers = true)]
    guidance_scale: Option<f64>,

    /// The same for the low-noise expert [default: as --guidance-scale]
    #[arg(long, value_name = "G", value_parser = finite, allow_negative_numbers = true)]
    guidance_scale_2: Option<f64>,

    /// How far steps are shifted towards noise [default: the model's]
    #[arg(long, value_name = "S", value_parser = positive)]
    flow_shift: Option<f64>,

    /// The solver: `unipc` or `euler`; `ddim` for models of noise [default: the model's]
    #[arg(long, value_name = "NAME", value_parser = scheduler)]
    scheduler: Option<Scheduler>,

    /// The noise level below which the low-noise expert is used, from 0 to 1, or `none` for the first expert alone
    /// [default: the model's]
    #[arg(long, value_name = "R|none", value_parser = boundary)]
    boundary_ratio: Option<Boundary>,

    /// The first frame of the video
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,

    /// A control picture, for models that change pictures; may be repeated
    #[arg(long, value_name = "FILE")]
    control_image: Vec<PathBuf>,

    /// The area at which control pictures are encoded, as the side of a square [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(32..=4096))]
    control_resolution: Option<u32>,

    /// A LoRA for the high-noise or only expert; may be repeated
    #[arg(long, value_name = "FILE[:STRENGTH]")]
    lora: Vec<Lora>,

    /// A LoRA for the low-noise expert; may be repeated
    #[arg(long = "lora-2", value_name = "FILE[:STRENGTH]")]
    lora_2: Vec<Lora>,

    /// Quantise the matrices of transformers: `int8` or `nf4`
    #[arg(long, value_name = "NAME", value_parser = quantization)]
    quantization: Option<Quantization>,

    /// Keep this many blocks of a transformer in host memory, and stream them when they are used
    #[arg(long, value_name = "N")]
    blocks_to_swap: Option<u32>,

    /// Stream all blocks of a transformer from host memory
    #[arg(long, conflicts_with = "blocks_to_swap")]
    low_vram: bool,

    /// The initial noise, in place of the seed's: tensor `latents`, [1, C, T, H, W]
    #[arg(long, value_name = "IN.safetensors")]
    latents: Option<PathBuf>,

    /// Write the latents before decoding: tensor `latents`
    #[arg(long, value_name = "OUT.safetensors")]
    save_latents: Option<PathBuf>,

    /// The video: .mp4 (by ffmpeg), animated .webp, .png for one frame, or a new folder of pictures
    #[arg(long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
struct Boundary(Option<f64>);

fn boundary(text: &str) -> Result<Boundary, String> {
    match text.parse() {
        _ if text == "none" => Ok(Boundary(None)),
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Boundary(Some(ratio))),
        _ => Err("must be a number from 0 to 1, or `none`".into()),
    }
}

fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| "must be a number".into())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = finite(text).ok().filter(|number| *number > 0.0);
    number.ok_or_else(|| "must be greater than 0".into())
}

fn scheduler(text: &str) -> Result<Scheduler, String> {
    match text {
        "unipc" => Ok(Scheduler::UniPc),
        "euler" => Ok(Scheduler::Euler),
        "ddim" => Ok(Scheduler::Ddim),
        _ => Err("must be `unipc`, `euler` or `ddim`".into()),
    }
}

fn quantization(text: &str) -> Result<Quantization, String> {
    match text {
        "int8" => Ok(Quantization::Int8),
        "nf4" => Ok(Quantization::Nf4),
        _ => Err(
            "must be `int8` or `nf4`; files in scaled fp8 are read without it, with `--transformer`"
                .into(),
        ),
    }
}

impl VideoOptions {
    /// The first option that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--negative-prompt", self.negative_prompt.is_some()),
            ("--width", self.width.is_some()),
            ("--height", self.height.is_some()),
            ("--num-frames", self.num_frames.is_some()),
            ("--fps", self.fps.is_some()),
            ("--num-inference-steps", self.num_inference_steps.is_some()),
            ("--guidance-scale", self.guidance_scale.is_some()),
            ("--guidance-scale-2", self.guidance_scale_2.is_some()),
            ("--flow-shift", self.flow_shift.is_some()),
            ("--scheduler", self.scheduler.is_some()),
            ("--boundary-ratio", self.boundary_ratio.is_some()),
            ("--image", self.image.is_some()),
            ("--control-image", !self.control_image.is_empty()),
            ("--control-resolution", self.control_resolution.is_some()),
            ("--lora", !self.lora.is_empty()),
            ("--lora-2", !self.lora_2.is_empty()),
            ("--quantization", self.quantization.is_some()),
            ("--blocks-to-swap", self.blocks_to_swap.is_some()),
            ("--low-vram", self.low_vram),
            ("--latents", self.latents.is_some()),
            ("--save-latents", self.save_latents.is_some()),
            ("--output", self.output.is_some()),
        ];
        all.into_iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| name)
    }

    /// Generates a video; steps are reported on stderr.
    pub(crate) fn run(
        &self,
        model: &dyn Diffusion,
        prompt: &str,
        seed: u64,
        (options, checkpoint): (DenoiserOptions, Option<&Path>),
        json: bool,
    ) -> Result<Outcome, Failure> {
        let request = Request {
            prompt: prompt.to_owned(),
            negative_prompt: self.negative_prompt.clone(),
            width: self.width,
            height: self.height,
            num_frames: self.num_frames,
            fps: self.fps,
            num_inference_steps: self.num_inference_steps.unwrap_or(50) as usize,
            guidance_scale: self.guidance_scale,
            guidance_scale_2: self.guidance_scale_2,
            flow_shift: self.flow_shift,
            scheduler: self.scheduler,
            boundary_ratio: self.boundary_ratio.map(|boundary| boundary.0),
            seed,
            image: self.image.clone(),
            controls: self.control_image.clone(),
            control_area: self.control_resolution.map(|side| side * side),
            loras: self.lora.clone(),
            loras_2: self.lora_2.clone(),
            checkpoint: checkpoint.map(Path::to_owned),
            latents: self.latents.clone(),
            save_latents: self.save_latents.clone(),
            output: self.output.clone(),
        };
        let options = DenoiserOptions {
            quantization: self.quantization.map(Into::into),
            streamed: match (self.low_vram, self.blocks_to_swap) {
                (true, _) => usize::MAX,
                (false, blocks) => blocks.unwrap_or(0) as usize,
            },
            ..options
        };
        let mut told = |step, of| {
            if !json {
                eprintln!("step {step} of {of}");
            }
        };
        let made =
            media_sampling::generate(model, &request, options, &mut told).map_err(failure)?;
        if json {
            output::print(&format!("{}\n", serde_json::to_value(&made)?))?;
            return Ok(Outcome::Fine);
        }
        for path in [&made.latents, &made.output].into_iter().flatten() {
            output::print(&format!("{}\n", path.display()))?;
        }
        Ok(Outcome::Fine)
    }
}
