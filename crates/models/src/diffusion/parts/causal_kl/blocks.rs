//! The blocks of both autoencoders. All tensors are `[frames, channels, height, width]`.

use tch::Tensor;

use super::causal::{CausalConv, FeatureCache};
use crate::Error;
use crate::diffusion::parts::conv::Conv;
use crate::model::{Builder, Initial};
use crate::tensor::to_kind;

/// RMS norm over the channels of each pixel: divides by their L2 norm, times the square root of their number.
#[derive(Debug)]
pub(super) struct ChannelNorm {
    /// `[1, channels, 1, 1]`
    gain: Tensor,
    scale: f64,
}

impl ChannelNorm {
    /// The norm `name`; the shape of its weight has `spare` trailing ones.
    pub(super) fn new(
        name: &str,
        channels: i64,
        spare: usize,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let mut shape = vec![channels];
        shape.resize(1 + spare, 1);
        let gain = builder.kept(&format!("{name}.gamma"), &shape, Initial::Ones)?;
        Ok(Self {
            gain,
            scale: (channels as f64).sqrt(),
        })
    }

    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let kind = input.kind();
        let input = to_kind(input, tch::Kind::Float)?;
        let length = input
            .f_norm_scalaropt_dim(2.0, [1], true)?
            .f_clamp_min(1e-12)?;
        let gain = self.gain.f_view([1, -1, 1, 1])?.f_mul_scalar(self.scale)?;
        to_kind(&input.f_div(&length)?.f_mul(&gain)?, kind)
    }
}

/// Two convolutions with a skip connection.
#[derive(Debug)]
pub(super) struct Residual {
    norms: [ChannelNorm; 2],
    convolutions: [CausalConv; 2],
    shortcut: Option<CausalConv>,
}

impl Residual {
    pub(super) fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        Ok(Self {
            norms: [
                ChannelNorm::new(&part("norm1"), inputs, 3, builder)?,
                ChannelNorm::new(&part("norm2"), outputs, 3, builder)?,
            ],
            convolutions: [
                CausalConv::new(&part("conv1"), (inputs, outputs), (3, 3), builder)?,
                CausalConv::new(&part("conv2"), (outputs, outputs), (3, 3), builder)?,
            ],
            shortcut: match inputs == outputs {
                true => None,
                false => Some(CausalConv::new(
                    &part("conv_shortcut"),
                    (inputs, outputs),
                    (1, 1),
                    builder,
                )?),
            },
        })
    }

    pub(super) fn forward(
        &self,
        input: &Tensor,
        cache: &mut FeatureCache,
    ) -> Result<Tensor, Error> {
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.forward(input, &mut Default::default())?,
            None => input.shallow_clone(),
        };
        let mut stream = input.shallow_clone();
        for (norm, convolution) in self.norms.iter().zip(&self.convolutions) {
            let normed = norm.forward(&stream)?.f_silu()?;
            stream = convolution.forward(&normed, cache.next())?;
        }
        Ok(stream.f_add(&around)?)
    }
}

/// Attention between the pixels of one frame, with a single head.
#[derive(Debug)]
pub(super) struct Attention {
    norm: ChannelNorm,
    query_key_value: Conv,
    output: Conv,
}

impl Attention {
    pub(super) fn new(name: &str, channels: i64, builder: &mut Builder) -> Result<Self, Error> {
        let part = |part: &str| format!("{name}.{part}");
        Ok(Self {
            norm: ChannelNorm::new(&part("norm"), channels, 2, builder)?,
            query_key_value: Conv::new(&part("to_qkv"), (channels, 3 * channels), 1, builder)?,
            output: Conv::new(&part("proj"), (channels, channels), 1, builder)?,
        })
    }

    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (frames, channels, height, width) = input.size4()?;
        let normed = self.norm.forward(input)?;
        let parts = self.query_key_value.same_size(&normed)?.f_view([
            frames,
            3,
            channels,
            height * width,
        ])?;
        let part = |index| -> Result<Tensor, Error> {
            let part = parts.f_select(1, index)?.f_transpose(1, 2)?;
            Ok(part.f_contiguous()?.f_unsqueeze(1)?)
        };
        let mixed = Tensor::f_scaled_dot_product_attention(
            &part(0)?,
            &part(1)?,
            &part(2)?,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        let mixed = mixed
            .f_squeeze_dim(1)?
            .f_transpose(1, 2)?
            .f_reshape([frames, channels, height, width])?;
        Ok(self.output.same_size(&mixed)?.f_add(input)?)
    }
}

/// Residual, attention, residual: the middle of an encoder or decoder.
#[derive(Debug)]
pub(super) struct Middle {
    residuals: [Residual; 2],
    attention: Attention,
}

impl Middle {
    pub(super) fn new(name: &str, channels: i64, builder: &mut Builder) -> Result<Self, Error> {
        let shape = (channels, channels);
        Ok(Self {
            residuals: [
                Residual::new(&format!("{name}.resnets.0"), shape, builder)?,
                Residual::new(&format!("{name}.resnets.1"), shape, builder)?,
            ],
            attention: Attention::new(&format!("{name}.attentions.0"), channels, builder)?,
        })
    }

    pub(super) fn forward(
        &self,
        input: &Tensor,
        cache: &mut FeatureCache,
    ) -> Result<Tensor, Error> {
        let stream = self.residuals[0].forward(input, cache)?;
        let stream = self.attention.forward(&stream)?;
        self.residuals[1].forward(&stream, cache)
    }
}

/// Norm, activation, convolution: the output of an encoder or decoder.
#[derive(Debug)]
pub(super) struct Head {
    norm: ChannelNorm,
    convolution: CausalConv,
}

impl Head {
    pub(super) fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        Ok(Self {
            norm: ChannelNorm::new(&format!("{name}.norm_out"), inputs, 3, builder)?,
            convolution: CausalConv::new(
                &format!("{name}.conv_out"),
                (inputs, outputs),
                (3, 3),
                builder,
            )?,
        })
    }

    pub(super) fn forward(
        &self,
        input: &Tensor,
        cache: &mut FeatureCache,
    ) -> Result<Tensor, Error> {
        let normed = self.norm.forward(input)?.f_silu()?;
        self.convolution.forward(&normed, cache.next())
    }
}
