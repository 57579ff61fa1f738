//! The UNet and its text encoders as one denoiser, which is told tokens: so what a text means is learned, too.

use tch::{Device, Kind, Tensor};

use super::unet::Unet;
use crate::Error;
use crate::diffusion::parts::clip::{ClipText, POOLED};
use crate::diffusion::{Conditions, Denoiser, TEXT};
use crate::model::{BlockList, Pass};

/// The tokens for each encoder, `[length]`; −1 for a text that is encoded as zeros.
pub(super) const TOKENS: [&str; 2] = ["tokens", "tokens_2"];

/// A UNet with its text encoders.
#[derive(Debug)]
pub(super) struct WithText {
    pub(super) unet: Unet,
    pub(super) encoders: [ClipText; 2],
}

impl WithText {
    /// What the encoders make of the tokens among the conditions of a batch.
    fn encoded(&self, conditions: &Conditions, pass: Pass) -> Result<(Tensor, Tensor), Error> {
        let (mut states, mut pooled, mut there) = (Vec::new(), None, Vec::new());
        for (encoder, name) in self.encoders.iter().zip(TOKENS) {
            let ids = conditions.get(name)?;
            let (rows, length) = ids.size2()?;
            let ids = ids
                .f_to_device(Device::Cpu)?
                .f_to_kind(Kind::Int64)?
                .f_contiguous()?;
            there = Vec::<f32>::try_from(&ids.f_select(1, 0)?.f_ge(0)?.f_to_kind(Kind::Float)?)?;
            let ids = Vec::<i64>::try_from(&ids.f_clamp_min(0)?.f_view([rows * length])?)?;
            let texts: Vec<_> = ids.chunks(length as usize).map(<[i64]>::to_vec).collect();
            let (own, vector) = encoder.encode_all(&texts, pass != Pass::Evaluate)?;
            states.push(own);
            pooled = vector.or(pooled);
        }
        let pooled = pooled.ok_or_else(|| Error::Internal("encoders without a vector".into()))?;
        let text = Tensor::f_cat(&states, 2)?;
        if there.iter().all(|there| *there == 1.0) {
            return Ok((text, pooled));
        }
        let there = Tensor::f_from_slice(&there)?.f_to_device(text.device())?;
        let pooled = pooled.f_mul(&there.f_view([-1, 1])?)?;
        Ok((text.f_mul(&there.f_view([-1, 1, 1])?)?, pooled))
    }
}

impl Denoiser for WithText {
    fn predict(
        &self,
        noisy: &Tensor,
        times: &Tensor,
        conditions: &Conditions,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let (text, pooled) = self.encoded(conditions, pass)?;
        let mut told = conditions.shallow_clone();
        told.insert(TEXT, text);
        told.insert(POOLED, pooled);
        self.unet.predict(noisy, times, &told, pass)
    }

    /// Those of the UNet: the encoders stay on the device.
    fn lists(&self) -> Vec<&dyn BlockList> {
        self.unet.lists()
    }

    fn description(&self) -> String {
        format!("{}, and two text encoders", self.unet.description())
    }
}
