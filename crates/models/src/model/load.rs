//! Builds a frozen part of a model from its weights, and what is trained on it.

use placement::Placer;
use tch::{Device, Kind, Tensor};

use super::{Base, Builder, FileWeights, Streaming};
use crate::adapters::Attachment;
use crate::formats::TensorSource;
use crate::quant::Quantization;
use crate::{Error, Parameters};

/// How a frozen part is held.
#[derive(Debug, Clone)]
pub struct Load {
    /// The type of the matrix products, and of matrices that are not quantised.
    pub compute: Kind,
    /// Quantisation of the linear layers' matrices.
    pub quantization: Option<Quantization>,
    /// Which blocks are streamed.
    pub streaming: Option<Streaming>,
}

impl Load {
    /// All of it in `compute` on the device.
    pub fn whole(compute: Kind) -> Self {
        Self {
            compute,
            quantization: None,
            streaming: None,
        }
    }

    /// What `build` makes of `tensors`, on the placer's device.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn frozen<T>(
        self,
        tensors: &dyn TensorSource,
        placer: &mut Placer,
        build: impl FnOnce(Device, &mut Builder) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let trained = (None, &mut Parameters::default());
        Ok(self.adapted(tensors, placer, trained, build)?.0)
    }

    /// The same with adapters, whose tensors are registered in the parameters; also returns the frozen tensors that
    /// stay on the device, see [`Builder::take_frozen`].
    ///
    /// # Errors
    /// Those of `build`.
    pub fn adapted<T>(
        self,
        tensors: &dyn TensorSource,
        placer: &mut Placer,
        (adapters, parameters): (Option<&mut Attachment>, &mut Parameters),
        build: impl FnOnce(Device, &mut Builder) -> Result<T, Error>,
    ) -> Result<(T, Vec<(String, Tensor)>), Error> {
        let device = placer.device();
        let mut source = FileWeights::new(tensors, self.compute, placer);
        let base = Base::Frozen(self.compute);
        let mut builder = Builder::new(&mut source, parameters, self.compute, base)
            .quantized(self.quantization)
            .streamed(self.streaming);
        if let Some(adapters) = adapters {
            builder = builder.with_adapters(adapters);
        }
        let built = build(device, &mut builder)?;
        builder.finish_blocks()?;
        Ok((built, builder.take_frozen()))
    }
}
