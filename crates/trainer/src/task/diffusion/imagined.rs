//! A clip that does not exist: of the config's size and with a long text, to measure what a model needs before there are data.

use std::path::Path;
use std::sync::Arc;

use models::Parameters;
use models::diffusion::files::PartFile;
use models::diffusion::{
    Conditions, Controls, Diffusion, Expert as Which, FirstFrame, Framing, Part,
};
use models::formats::TensorSource;
use models::model::{Base, Builder, MetaWeights};
use placement::Bytes;
use placement::plan::{Memory, PlanError};
use tch::{Device, Kind, Tensor};
use torch_ext::fake::FakeMode;

use super::clip_loader::Encoded;
use super::opened;
use super::plan::PlannedExperts;
use super::previews::loaded_for_each_round;
use crate::Error;
use crate::config::{Config, FrameExtraction};
use crate::media;
use crate::observer::Observer;

/// Sentences of a caption. It has about 250 tokens: more than most.
const SENTENCE: &str = "a photo of a cat that sits on a bench in a park and looks at a dog. ";
const SENTENCES: usize = 14;

/// A model with such a clip.
pub(crate) struct Imagined {
    model: Arc<dyn Diffusion>,
    /// Whose transformer draws previews, if it is another or loaded anew.
    other: Option<Arc<dyn Diffusion>>,
    trained: Vec<Option<Which>>,
    /// The size of its latents, `[channels, frames, height, width]`.
    latents: [i64; 4],
    conditions: Conditions,
}

impl Imagined {
    /// Of the model in `path`.
    ///
    /// # Errors
    /// If a file is missing, damaged or not supported, or the config does not fit the model.
    pub(crate) fn open(
        config: &Config,
        path: &Path,
        device: Device,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let (model, parts) = opened(config, path, observer)?;
        let geometry = model.geometry();
        let (width, height) = media::largest_size(config, &*model)?;
        let size = (i64::from(width), i64::from(height));
        let data = &config.data;
        let frames = match (geometry.frames, data.frame_extraction, &data.num_frames) {
            (None, ..) => 1,
            (_, Some(FrameExtraction::Full), _) => data.max_frames.unwrap_or(129),
            (_, _, Some(numbers)) => numbers.list().iter().copied().max().unwrap_or(1),
            (_, _, None) => 1,
        };
        let frames = geometry.whole_frames(frames.into());
        let [_, channels, of_latents, rows, columns] = geometry.latents(size.0, size.1, frames);
        let controls = control_sizes(config, &*model);
        let compute = config.train.bf16.kind(device);
        Ok(Self {
            conditions: conditions(&*model, (size, frames), &controls, compute)?,
            other: loaded_for_each_round(config, &model)?,
            trained: parts.iter().map(|part| part.expert).collect(),
            latents: [channels, of_latents, rows, columns],
            model,
        })
    }

    /// The most bytes that training on `config` has on the device at once if it is planned within `memory`; `None` if there is no
    /// such plan.
    ///
    /// # Errors
    /// If the config does not fit the model.
    pub(crate) fn peak(
        &self,
        config: &Config,
        device: Device,
        memory: Memory,
    ) -> Result<Option<Bytes>, Error> {
        let compute = config.train.bf16.kind(device);
        let largest = |rows: u32| self.batch(rows);
        let previews = !config.previews().map_err(Error::Data)?.is_empty();
        let planned = PlannedExperts::new(
            config,
            &self.model,
            &largest,
            (compute, device),
            &self.trained,
            (previews, self.other.as_ref().filter(|_| previews)),
        )?;
        match planned.peak(memory)? {
            Ok(peak) => Ok(Some(peak)),
            Err(
                PlanError::DeviceTooSmall { .. }
                | PlanError::HostTooSmall { .. }
                | PlanError::TooFewBlocks { .. },
            ) => Ok(None),
            Err(other) => Err(Error::Data(format!("the model cannot be placed: {other}"))),
        }
    }

    fn batch(&self, rows: u32) -> Result<Encoded, Error> {
        let each = || self.conditions.shallow_clone();
        let clips: Vec<_> = (0..rows).map(|_| each()).collect();
        let [channels, frames, height, width] = self.latents;
        let size = [i64::from(rows), channels, frames, height, width];
        Ok(Encoded {
            latents: Tensor::f_zeros(size, (Kind::Float, Device::Cpu))?,
            conditions: self.model.collate(&clips)?,
            empty: vec![None; clips.len()],
            regular: vec![false; clips.len()],
            rows: clips,
            tokens: 0,
        })
    }
}

/// The sizes of control pictures: one of each folder that the config names, and as many as are needed where it names none.
fn control_sizes(config: &Config, model: &dyn Diffusion) -> Vec<(u32, u32)> {
    let Some(rule) = model.controls() else {
        return Vec::new();
    };
    let folders = config.data.control_path.as_ref();
    let count = folders.map_or(rule.least, |folders| folders.list().len());
    let area = media::control_area(&config.data, rule);
    vec![rule.size(area, (area.isqrt(), area.isqrt())); count]
}

/// Conditions of the sizes that those of a clip have, as they would lie in the cache. Encoders are built of fake tensors.
fn conditions(
    model: &dyn Diffusion,
    (size, frames): ((i64, i64), i64),
    controls: &[(u32, u32)],
    compute: Kind,
) -> Result<Conditions, Error> {
    let _no_grad = tch::no_grad_guard();
    let text = SENTENCE.repeat(SENTENCES);
    let tokens = model.tokenizer()?.tokens_with(&text, controls)?;
    let mut made = model.of_tokens(&tokens)?;
    for (number, tokens) in tokens.iter().enumerate().take(model.text_encoders()) {
        let file = model.weights(Part::TextEncoder(number))?;
        made.join(sizes_alone(&file, compute, |builder| {
            let encoder = model.text_encoder(number, Device::Cpu, builder)?;
            encoder.encode(tokens)
        })?)?;
    }
    made.extend(model.framing_conditions(Framing::whole(size))?);
    for (number, (width, height)) in controls.iter().enumerate() {
        let latents = model
            .geometry()
            .latents((*width).into(), (*height).into(), 1);
        let [_, channels, _, rows, columns] = latents;
        let zeros = Tensor::f_zeros([channels, rows, columns], (Kind::Float, Device::Cpu))?;
        made.insert(&Controls::name(number), zeros);
    }
    if model.first_frame() == FirstFrame::Required {
        let file = model.weights(Part::Autoencoder)?;
        made.extend(sizes_alone(&file, compute, |builder| {
            let codec = model.autoencoder(Device::Cpu, builder)?;
            let frame = Tensor::f_empty([1, 3, size.1, size.0], (Kind::Float, Device::Cpu))?;
            model.first_frame_conditions(&*codec, &frame, frames, None)
        })?);
    }
    Ok(made)
}

/// Zeros in the place of what `make` makes of a part's fake weights.
fn sizes_alone(
    file: &PartFile,
    compute: Kind,
    make: impl FnOnce(&mut Builder) -> Result<Conditions, models::Error>,
) -> Result<Conditions, Error> {
    let tensors: &dyn TensorSource = file;
    let mut source = MetaWeights::new(Some(tensors), (compute, Device::Cpu));
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(&mut source, &mut parameters, compute, Base::Frozen(compute));
    let sizes: Vec<_> = {
        let _fake = FakeMode::begin(Device::Cpu)?;
        let made = make(&mut builder)?;
        made.iter()
            .map(|(name, tensor)| (name.to_owned(), tensor.size(), tensor.kind()))
            .collect()
    };
    let mut zeros = Conditions::default();
    for (name, size, kind) in sizes {
        zeros.insert(&name, Tensor::f_zeros(size, (kind, Device::Cpu))?);
    }
    Ok(zeros)
}
