//! A diffusion model that is in no crate: pictures from a text, by predicting noise.
//! A square of 4 × 4 pixels is a token. In the first of two lists of blocks, tokens see the text.

use std::path::{Path, PathBuf};

use models::diffusion::files::{PartFile, PartNames};
use models::diffusion::lora::LoraForm;
use models::diffusion::parts::codec::MediaCodec;
use models::diffusion::parts::schedule::Scheduler;
use models::diffusion::parts::tiles::Tiling;
use models::diffusion::{
    Arch, BlockNames, Conditions, Defaults, Denoiser, Diffusion, Expert, Geometry, LoraFiles,
    Objective, Part, PartPaths, Prediction, TEXT, TextEncoder, Tokenizer,
};
use models::formats::TensorSource;
use models::model::layers::Linear;
use models::model::{BlockList, Blocks, Builder, Initial, Layer, Pass};
use models::tensor::BaseMap;
use models::{Error, tensor};
use tch::{Device, Kind, Tensor};

const WIDTH: i64 = 16;
const TEXT_WIDTH: i64 = 8;
const PIXELS: i64 = 4;
const BLOCKS: usize = 2;
const NORMAL: Initial = Initial::Normal(0.2);

pub(crate) static ARCH: Arch = Arch {
    name: "toy",
    title: "Toy",
    pipelines: &["ToyPipeline"],
    example: "nobody/toy",
    folders: &["transformer", "vae", "text_encoder"],
    training_shift: 1.0,
    denoiser: PartNames::DIFFUSERS,
    is_denoiser: |file: &PartFile| file.shape("x_embedder.weight").is_some(),
    open: |path: &Path, _: &PartPaths| Ok(Box::new(Toy(path.to_owned()))),
    lists: &[
        BlockNames {
            name: "joint_blocks",
            original: "joint_blocks",
            linear: &[("to_text", "to_text"), ("up", "up"), ("down", "down")],
            others: &[],
        },
        BlockNames {
            name: "single_blocks",
            original: "single_blocks",
            linear: &[("up", "up"), ("down", "down")],
            others: &[],
        },
    ],
    others: &[],
    lora: LoraFiles {
        targets: &["to_text", "up", "down"],
        network: "networks.lora_toy",
        architecture: "toy/lora",
        kohya: true,
        text: &[],
        complete: LoraForm::Comfy,
        partial: LoraForm::Comfy,
    },
    caches: None,
    companions: models::diffusion::Companions::NONE,
};

/// The model in a folder.
#[derive(Debug)]
struct Toy(PathBuf);

impl Diffusion for Toy {
    fn arch(&self) -> &'static Arch {
        &ARCH
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            channels: 3,
            pixels: PIXELS,
            patch: 1,
            frames: None,
            fps: 1,
        }
    }

    fn defaults(&self) -> Result<Defaults, Error> {
        Ok(Defaults {
            size: (32, 32),
            frames: 1,
            scheduler: Scheduler::Ddim,
            shift: 1.0,
        })
    }

    fn objective(&self) -> Objective {
        Objective::scaled_linear(0.00085, 0.012, Prediction::Epsilon)
    }

    fn part(&self, part: Part) -> Option<PathBuf> {
        let folder = match part {
            Part::Denoiser(Expert::High) => "transformer",
            Part::Autoencoder => "vae",
            Part::TextEncoder(0) => "text_encoder",
            _ => return None,
        };
        Some(self.0.join(folder))
    }

    fn denoiser(
        &self,
        _: Expert,
        device: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn Denoiser>, Error> {
        let mut linear = |name: &str, shape| builder.linear(name, shape, true, NORMAL);
        let input = linear("x_embedder", (3, WIDTH))?;
        let time = linear("t_embedder", (2, WIDTH))?;
        let output = linear("proj_out", (WIDTH, 3))?;
        let mut list = |name: &'static str, with_text| {
            Blocks::new((name, BLOCKS), device, builder, |index, builder| {
                Block::new(&format!("{name}.{index}"), with_text, builder)
            })
        };
        Ok(Box::new(ToyDenoiser {
            input,
            time,
            output,
            joint: list("joint_blocks", true)?,
            single: list("single_blocks", false)?,
        }))
    }

    fn autoencoder(&self, _: Device, builder: &mut Builder) -> Result<Box<dyn MediaCodec>, Error> {
        let scale = builder.vector("scale", 3, Initial::Ones)?;
        Ok(Box::new(Codec(scale)))
    }

    fn tokenizer(&self) -> Result<Box<dyn Tokenizer>, Error> {
        Ok(Box::new(Bytes))
    }

    fn text_encoder(
        &self,
        _: usize,
        _: Device,
        builder: &mut Builder,
    ) -> Result<Box<dyn TextEncoder>, Error> {
        let rows = builder.matrix("rows.weight", &[256, TEXT_WIDTH], NORMAL, false)?;
        Ok(Box::new(Rows(rows)))
    }

    /// Texts of different lengths become one row.
    fn collate(&self, rows: &[Conditions]) -> Result<Conditions, Error> {
        let mean = |row: &Conditions| -> Result<Conditions, Error> {
            let mean = row
                .get(TEXT)?
                .f_mean_dim([0].as_slice(), true, Kind::Float)?;
            Ok(Conditions::of(TEXT, mean))
        };
        let rows: Vec<_> = rows.iter().map(mean).collect::<Result<_, _>>()?;
        Conditions::stacked(&rows)
    }
}

#[derive(Debug)]
struct ToyDenoiser {
    input: Linear,
    time: Linear,
    output: Linear,
    joint: Blocks<Block>,
    single: Blocks<Block>,
}

impl Denoiser for ToyDenoiser {
    fn predict(
        &self,
        noisy: &Tensor,
        times: &Tensor,
        conditions: &Conditions,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let dropout = pass != Pass::Evaluate;
        let (batch, channels, _, height, width) = noisy.size5()?;
        let tokens = noisy.f_flatten(2, 4)?.f_transpose(1, 2)?;
        let angles = times.f_view([-1, 1])?.f_mul_scalar(0.003)?;
        let angles = Tensor::f_cat(&[angles.f_cos()?, angles.f_sin()?], 1)?;
        let time = self.time.forward(&angles, dropout)?.f_unsqueeze(1)?;
        let stream = self.input.forward(&tokens, dropout)?.f_add(&time)?;
        let text = conditions.get(TEXT)?.shallow_clone();
        let stream = self.joint.forward(stream, &[text], &(), pass)?;
        let stream = self.single.forward(stream, &[], &(), pass)?;
        let noise = self.output.forward(&stream, dropout)?.f_transpose(1, 2)?;
        let noise = noise.f_reshape([batch, channels, 1, height, width])?;
        tensor::to_kind(&noise, Kind::Float)
    }

    fn lists(&self) -> Vec<&dyn BlockList> {
        vec![&self.joint, &self.single]
    }

    fn description(&self) -> String {
        format!("2 × {BLOCKS} layers of width {WIDTH}")
    }
}

#[derive(Debug)]
struct Block {
    to_text: Option<Linear>,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(name: &str, with_text: bool, builder: &mut Builder) -> Result<Self, Error> {
        let mut linear =
            |part: &str, shape| builder.linear(&format!("{name}.{part}"), shape, true, NORMAL);
        Ok(Self {
            to_text: match with_text {
                true => Some(linear("to_text", (TEXT_WIDTH, WIDTH))?),
                false => None,
            },
            up: linear("up", (WIDTH, 2 * WIDTH))?,
            down: linear("down", (2 * WIDTH, WIDTH))?,
        })
    }
}

impl Layer for Block {
    type Shared = ();

    fn share((): &()) {}

    fn forward(&self, inputs: &[Tensor], (): &(), dropout: bool) -> Result<Tensor, Error> {
        let mut stream = inputs[0].shallow_clone();
        if let Some(to_text) = &self.to_text {
            stream = stream.f_add(&to_text.forward(&inputs[1], dropout)?)?;
        }
        let inner = self.up.forward(&stream, dropout)?.f_gelu("none")?;
        Ok(stream.f_add(&self.down.forward(&inner, dropout)?)?)
    }

    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            to_text: match &self.to_text {
                Some(linear) => Some(linear.with_base(map)?),
                None => None,
            },
            up: self.up.with_base(map)?,
            down: self.down.with_base(map)?,
        })
    }
}

/// The mean of each square of pixels.
#[derive(Debug)]
struct Codec(Tensor);

impl MediaCodec for Codec {
    fn encode_frame(&self, frame: &Tensor, _: Option<Tiling>) -> Result<Tensor, Error> {
        let side = [PIXELS; 2];
        let mean = frame.f_avg_pool2d(side, side, [0, 0], false, true, None::<i64>)?;
        Ok(mean.f_mul(&self.0.f_view([3, 1, 1])?)?.f_squeeze_dim(0)?)
    }

    fn decode_frame(&self, latents: &Tensor, _: Option<Tiling>) -> Result<Tensor, Error> {
        let means = latents.f_div(&self.0.f_view([3, 1, 1])?)?.f_unsqueeze(0)?;
        let (_, _, height, width) = means.size4()?;
        let size = [PIXELS * height, PIXELS * width];
        Ok(means
            .f_upsample_nearest2d(size, None, None)?
            .f_clamp(-1.0, 1.0)?)
    }
}

/// A token for each byte.
#[derive(Debug)]
struct Bytes;

impl Tokenizer for Bytes {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        let bytes = text.bytes().map(u32::from).chain([0]);
        Ok(vec![bytes.take(64).collect()])
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        Ok((text.len() + 1, 64))
    }
}

/// A row for each token.
#[derive(Debug)]
struct Rows(Tensor);

impl TextEncoder for Rows {
    fn encode(&self, tokens: &[u32]) -> Result<Conditions, Error> {
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let tokens = Tensor::f_from_slice(&tokens)?.f_to_device(self.0.device())?;
        let rows = self.0.f_index_select(0, &tokens)?;
        Ok(Conditions::of(TEXT, tensor::to_kind(&rows, Kind::Float)?))
    }
}
