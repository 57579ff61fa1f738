//! Convolutions of autoencoders and UNets: `[frames or batch, channels, height, width]`.

use tch::Tensor;

use crate::Error;
use crate::model::{Builder, Initial};
use crate::tensor::{BaseMap, map_frozen, to_kind};

/// A 2D convolution.
#[derive(Debug)]
pub(crate) struct Conv {
    /// `[outputs, inputs, height, width]`
    weight: Tensor,
    /// `[outputs]`
    bias: Tensor,
}

impl Conv {
    pub(crate) fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        pixels: i64,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let shape = [outputs, inputs, pixels, pixels];
        let initial = Initial::Normal(((inputs * pixels * pixels) as f64).powf(-0.5));
        Ok(Self {
            weight: builder.matrix(&format!("{name}.weight"), &shape, initial, true)?,
            bias: builder.vector(&format!("{name}.bias"), outputs, Initial::Zeros)?,
        })
    }

    /// With zero padding on all sides, halving the size; an odd one is rounded up.
    pub(crate) fn halved(&self, input: &Tensor) -> Result<Tensor, Error> {
        self.forward(input, 2, self.weight.size()[2] / 2)
    }

    /// With a stride and without padding.
    pub(crate) fn strided(&self, input: &Tensor, stride: i64) -> Result<Tensor, Error> {
        self.forward(input, stride, 0)
    }

    /// With zero padding, so that the size stays the same.
    pub(crate) fn same_size(&self, input: &Tensor) -> Result<Tensor, Error> {
        self.forward(input, 1, self.weight.size()[2] / 2)
    }

    fn forward(&self, input: &Tensor, stride: i64, padding: i64) -> Result<Tensor, Error> {
        let kind = input.kind();
        let (weight, bias) = (to_kind(&self.weight, kind)?, to_kind(&self.bias, kind)?);
        Ok(input.f_conv2d(
            &weight,
            Some(&bias),
            [stride, stride],
            [padding, padding],
            [1, 1],
            1,
        )?)
    }

    /// The same on another base (see [`BaseMap`]).
    pub(crate) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: map_frozen(&self.weight, map)?,
            bias: map_frozen(&self.bias, map)?,
        })
    }
}

/// Normalises groups of channels over all pixels.
#[derive(Debug)]
pub(crate) struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    /// Added to variances.
    epsilon: f64,
}

impl GroupNorm {
    pub(crate) fn new(
        name: &str,
        channels: i64,
        (groups, epsilon): (i64, f64),
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        Ok(Self {
            weight: builder.vector(&format!("{name}.weight"), channels, Initial::Ones)?,
            bias: builder.vector(&format!("{name}.bias"), channels, Initial::Zeros)?,
            groups,
            epsilon,
        })
    }

    /// `[batch, channels, height, width]` to the same shape, in the same type.
    pub(crate) fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (weight, bias) = (
            to_kind(&self.weight, input.kind())?,
            to_kind(&self.bias, input.kind())?,
        );
        Ok(input.f_group_norm(self.groups, Some(&weight), Some(&bias), self.epsilon, true)?)
    }

    /// The same on another base (see [`BaseMap`]).
    pub(crate) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: map_frozen(&self.weight, map)?,
            bias: map_frozen(&self.bias, map)?,
            ..*self
        })
    }
}
