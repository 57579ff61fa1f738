//! Builds models: gets weights from a source and decides what is trained.

mod experts;

use tch::{Device, Kind, Tensor};

use super::blocks::Streamer;
use super::layers::{Embedding, LayerNorm, Linear, RmsNorm};
use super::{Initial, Streaming, WeightSource};
use crate::Error;
use crate::adapters::{Attachment, HEAD};
use crate::parameters::Parameters;
use crate::quant::Quantization;
use crate::tensor::shared;
use crate::weight::Weight;

/// Whether a model's own weights are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// All of them are, in fp32.
    Trained,
    /// None are; matrices are kept in this type, and only adapters are trained.
    Frozen(Kind),
}

/// Provides the layers of a model with their weights, and registers what is trained.
pub struct Builder<'a> {
    source: &'a mut dyn WeightSource,
    parameters: &'a mut Parameters,
    compute: Kind,
    base: Base,
    adapters: Option<&'a mut Attachment>,
    quantization: Option<Quantization>,
    streaming: Option<Streamer>,
    /// The frozen tensors that stay on the device.
    frozen: Vec<(String, Tensor)>,
    /// Set while a streamed block is built: the device on which its adapters are, and on which it will
    /// compute.
    host_for: Option<Device>,
}

impl<'a> Builder<'a> {
    /// A builder for a model that computes its matrix products in `compute`.
    pub fn new(
        source: &'a mut dyn WeightSource,
        parameters: &'a mut Parameters,
        compute: Kind,
        base: Base,
    ) -> Self {
        Self {
            source,
            parameters,
            compute,
            base,
            adapters: None,
            quantization: None,
            streaming: None,
            frozen: Vec::new(),
            host_for: None,
        }
    }

    /// Attaches adapters to the layers that they target.
    pub fn with_adapters(self, adapters: &'a mut Attachment) -> Self {
        Self {
            adapters: Some(adapters),
            ..self
        }
    }

    /// Quantises the matrices of frozen linear layers. The head is not quantised, as in bitsandbytes, since
    /// its errors go straight into the logits.
    pub fn quantized(self, quantization: Option<Quantization>) -> Self {
        Self {
            quantization,
            ..self
        }
    }

    /// Streams blocks of a frozen base.
    pub fn streamed(self, streaming: Option<Streaming>) -> Self {
        Self {
            streaming: streaming.map(Streamer::new),
            ..self
        }
    }

    /// What streams blocks, if any are to be.
    pub(super) fn streamer(&mut self) -> Option<&mut Streamer> {
        self.streaming.as_mut()
    }

    /// Makes streamed blocks usable, when the last list of blocks is built. Does nothing if none is streamed.
    ///
    /// # Errors
    /// If the ring cannot be allocated.
    pub fn finish_blocks(&mut self) -> Result<(), Error> {
        self.streaming.take().map_or(Ok(()), Streamer::finish)
    }

    /// Handles ([`Tensor::shallow_clone`]) to the frozen tensors that stay on the device, each under its name and an
    /// index; those of streamed blocks belong to the swapper. If their storage is moved away, it must be back before the model is used.
    pub fn take_frozen(&mut self) -> Vec<(String, Tensor)> {
        std::mem::take(&mut self.frozen)
    }

    /// Remembers a frozen tensor that is not part of a streamed block.
    fn remember(&mut self, name: &str, tensor: &Tensor) {
        if self.host_for.is_none() && !tensor.requires_grad() {
            let name = format!("{name}.{}", self.frozen.len());
            self.frozen.push((name, tensor.shallow_clone()));
        }
    }

    /// Puts what `build` creates into host memory, except for adapters, which go to `device`.
    pub(crate) fn on_the_host<T>(
        &mut self,
        device: Device,
        build: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.host_for = Some(device);
        let built = build(self);
        self.host_for = None;
        built
    }

    fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        match self.host_for {
            None => self.source.tensor(name, shape, initial),
            Some(_) => self.source.host_tensor(name, shape, initial),
        }
    }

    /// The type of matrix products.
    pub fn compute(&self) -> Kind {
        self.compute
    }

    /// Whether the model's own weights are frozen.
    pub fn is_frozen(&self) -> bool {
        matches!(self.base, Base::Frozen(_))
    }

    /// A matrix named `name`.
    ///
    /// # Errors
    /// If the source does not have it.
    pub fn matrix(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        decay: bool,
    ) -> Result<Tensor, Error> {
        let matrix = self.dense(name, shape, initial, decay)?;
        self.remember(name, &matrix);
        Ok(matrix)
    }

    /// A matrix that is not remembered, because it may be quantised.
    fn dense(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        decay: bool,
    ) -> Result<Tensor, Error> {
        let tensor = self.tensor(name, shape, initial)?;
        match self.base {
            Base::Trained => self.parameters.register(name, &tensor, decay),
            Base::Frozen(kind) => match self.trained_copy(name, &tensor, decay)? {
                Some(whole) => Ok(whole),
                None => Ok(tensor.f_to_kind(kind)?),
            },
        }
    }

    /// The trainable copy of the tensor `name`, if an adapter trains it in full.
    fn trained_copy(
        &mut self,
        name: &str,
        tensor: &Tensor,
        decay: bool,
    ) -> Result<Option<Tensor>, Error> {
        let device = self.host_for.unwrap_or_else(|| tensor.device());
        match &mut self.adapters {
            Some(adapters) => adapters.trained_copy(name, tensor, (device, decay), self.parameters),
            None => Ok(None),
        }
    }

    /// The frozen embedding or head `name`: `tensor`, or an adapter's replacement for it, stored under that
    /// name or that of the weight it is `tied` to.
    fn table(&mut self, name: &str, tensor: Tensor, tied: Option<&str>) -> Result<Tensor, Error> {
        let replaced = match &mut self.adapters {
            Some(adapters) => adapters.table(name, &tensor.size(), tied)?,
            None => None,
        };
        match replaced {
            Some(table) => Ok(table
                .f_to_device(tensor.device())?
                .f_to_kind(tensor.kind())?),
            None => Ok(tensor),
        }
    }

    /// The embedding `name` of `[vocabulary, hidden]`; and the head, if it is `tied` to the embedding but
    /// cannot use the same tensor.
    ///
    /// # Errors
    /// If the source does not have its weights, or the adapter does not match.
    pub fn embedding(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        tied: bool,
    ) -> Result<(Embedding, Option<Linear>), Error> {
        let weight_name = format!("{name}.weight");
        let tensor = self.tensor(&weight_name, shape, initial)?;
        let compute = self.compute;
        let Base::Frozen(kind) = self.base else {
            let weight = self.parameters.register(&weight_name, &tensor, false)?;
            let embedding = Embedding {
                weight,
                compute,
                adapter: None,
                padding: -1,
            };
            return Ok((embedding, None));
        };
        let table = self.table(name, tensor, tied.then_some(HEAD))?;
        let whole = self.trained_copy(&weight_name, &table, true)?;
        let table = table.f_to_kind(kind)?;
        let adapter = match &mut self.adapters {
            Some(adapters) => adapters.attach_embedding(name, &table, self.parameters)?,
            None => None,
        };
        let head = if tied {
            self.tied_head(&table, whole.is_some())?
        } else {
            None
        };
        let weight = whole.unwrap_or(table);
        self.remember(&weight_name, &weight);
        Ok((
            Embedding {
                weight,
                compute,
                adapter,
                padding: -1,
            },
            head,
        ))
    }

    /// The head that is tied to the embedding's weight `table`, if the two differ in what they compute with.
    fn tied_head(&mut self, table: &Tensor, is_left: bool) -> Result<Option<Linear>, Error> {
        let whole = self.trained_copy(&format!("{HEAD}.weight"), table, true)?;
        let is_whole = whole.is_some();
        let weight = Weight::Dense(whole.unwrap_or_else(|| table.shallow_clone()));
        let adapter = match &mut self.adapters {
            Some(adapters) => adapters.attach(HEAD, &weight, table.device(), self.parameters)?,
            None => None,
        };
        let differs = is_whole || is_left || adapter.is_some();
        Ok(differs.then_some(Linear {
            weight,
            bias: None,
            compute: self.compute,
            adapter,
        }))
    }

    /// A vector named `name`: a bias or a norm's weight. Always fp32, since it is small.
    ///
    /// # Errors
    /// If the source does not have it.
    pub fn vector(&mut self, name: &str, width: i64, initial: Initial) -> Result<Tensor, Error> {
        let tensor = self.tensor(name, &[width], initial)?;
        self.registered(name, tensor, false)
    }

    /// A tensor named `name` that is always read and kept in fp32, whatever the model's types.
    ///
    /// # Errors
    /// If the source does not have it.
    pub fn kept(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        self.exact(name, shape, initial, false)
    }

    /// The same with weight decay, if it is trained and `decay` says so.
    ///
    /// # Errors
    /// As [`Builder::kept`].
    pub fn exact(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        decay: bool,
    ) -> Result<Tensor, Error> {
        let tensor = self.source.exact_tensor(name, shape, initial)?;
        let tensor = match self.host_for {
            None => tensor,
            Some(_) => tensor.f_to_device(Device::Cpu)?,
        };
        self.registered(name, tensor, decay)
    }

    /// A tensor named `name` that is part of the model but never trained, in fp32.
    ///
    /// # Errors
    /// As [`Builder::kept`].
    pub(crate) fn constant(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, Error> {
        let tensor = self.source.exact_tensor(name, shape, initial)?;
        let tensor = match self.host_for {
            None => tensor,
            Some(_) => tensor.f_to_device(Device::Cpu)?,
        };
        match self.base {
            Base::Trained => self.parameters.hold(name, &tensor),
            Base::Frozen(_) => {
                self.remember(name, &tensor);
                if let Some(adapters) = &mut self.adapters {
                    adapters.note_constant(name);
                }
            }
        }
        Ok(tensor)
    }

    /// The table of an embedding named `name`, in host memory unless it is trained. It has no adapter.
    ///
    /// # Errors
    /// If the source does not have it, or an adapter is to train it in full.
    pub(crate) fn host_embedding(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, Error> {
        self.leave_out(name);
        let name = format!("{name}.weight");
        match self.base {
            Base::Trained => {
                let table = self.tensor(&name, shape, initial)?;
                self.parameters.register(&name, &table, false)
            }
            Base::Frozen(kind) => {
                if let Some(adapters) = &mut self.adapters {
                    adapters.expect_frozen(&name)?;
                }
                let table = self.source.host_tensor(&name, shape, initial)?;
                Ok(table.f_to_kind(kind)?)
            }
        }
    }

    fn registered(&mut self, name: &str, tensor: Tensor, decay: bool) -> Result<Tensor, Error> {
        match self.base {
            Base::Trained => self.parameters.register(name, &tensor, decay),
            Base::Frozen(_) => match self.trained_copy(name, &tensor, decay)? {
                Some(whole) => Ok(whole),
                None => {
                    let tensor = tensor.f_to_kind(Kind::Float)?;
                    self.remember(name, &tensor);
                    Ok(tensor)
                }
            },
        }
    }

    /// A linear layer named `name`, with its adapter if it is targeted.
    ///
    /// # Errors
    /// If the source does not have its weights.
    pub fn linear(
        &mut self,
        name: &str,
        shape: (i64, i64),
        bias: bool,
        initial: Initial,
    ) -> Result<Linear, Error> {
        let linear = self.bare_linear(name, shape, bias, initial)?;
        self.adapted(name, linear)
    }

    /// A linear layer whose matrix is not quantised, because it is small and its errors matter.
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn unquantized(
        &mut self,
        name: &str,
        shape: (i64, i64),
        bias: bool,
        initial: Initial,
    ) -> Result<Linear, Error> {
        let quantization = self.quantization.take();
        let linear = self.bare_linear(name, shape, bias, initial);
        self.quantization = quantization;
        self.adapted(name, linear?)
    }

    /// The layer with its adapter, if it is targeted.
    fn adapted(&mut self, name: &str, linear: Linear) -> Result<Linear, Error> {
        let adapter = match &mut self.adapters {
            Some(adapters) => {
                let device = self.host_for.unwrap_or_else(|| linear.weight.device());
                adapters.attach(name, &linear.weight, device, self.parameters)?
            }
            None => None,
        };
        Ok(Linear { adapter, ..linear })
    }

    /// A linear layer that has no adapter even if it is targeted: see [`Builder::leave_out`].
    ///
    /// # Errors
    /// As [`Builder::linear`].
    pub fn bare_linear(
        &mut self,
        name: &str,
        (inputs, outputs): (i64, i64),
        bias: bool,
        initial: Initial,
    ) -> Result<Linear, Error> {
        let weight_name = format!("{name}.weight");
        let dense = self.dense(&weight_name, &[outputs, inputs], initial, true)?;
        let dense = match name {
            HEAD if !dense.requires_grad() => self.table(HEAD, dense, None)?,
            _ => dense,
        };
        let adapters = self.adapters.as_mut();
        let mut adapters = adapters.filter(|_| name != HEAD && !dense.requires_grad());
        let dense = match adapters.as_mut() {
            Some(adapters) => adapters.take_principal(name, &dense)?.unwrap_or(dense),
            None => dense,
        };
        let weight = match (self.base, self.quantization) {
            (Base::Frozen(_), Some(to)) if name != HEAD && !dense.requires_grad() => {
                let weight = Weight::quantized(&weight_name, &dense, to)?;
                if let Some(adapters) = adapters {
                    adapters.take_lost(name, &dense, &weight)?;
                }
                weight
            }
            _ => Weight::Dense(dense),
        };
        weight.map(&mut |tensor| {
            self.remember(&weight_name, tensor);
            shared(tensor)
        })?;
        let bias = match bias {
            true => Some(self.vector(&format!("{name}.bias"), outputs, Initial::Zeros)?),
            false => None,
        };
        Ok(Linear {
            weight,
            bias,
            compute: self.compute,
            adapter: None,
        })
    }

    /// Names a module that cannot have an adapter, so that one that is asked for is refused.
    pub fn leave_out(&mut self, name: &str) {
        if let Some(adapters) = &mut self.adapters {
            adapters.leave_out(name);
        }
    }

    /// An RMS norm named `name`.
    ///
    /// # Errors
    /// If the source does not have its weight.
    pub fn norm(&mut self, name: &str, width: i64, epsilon: f64) -> Result<RmsNorm, Error> {
        Ok(RmsNorm {
            weight: self.vector(&format!("{name}.weight"), width, Initial::Ones)?,
            epsilon,
            plus_one: false,
        })
    }

    /// The same with a weight that is stored as its difference to one.
    ///
    /// # Errors
    /// As [`Builder::norm`].
    pub fn norm_plus_one(
        &mut self,
        name: &str,
        width: i64,
        epsilon: f64,
    ) -> Result<RmsNorm, Error> {
        Ok(RmsNorm {
            weight: self.vector(&format!("{name}.weight"), width, Initial::Zeros)?,
            epsilon,
            plus_one: true,
        })
    }

    /// A layer norm named `name`.
    ///
    /// # Errors
    /// If the source does not have its weights.
    pub fn layer_norm(&mut self, name: &str, width: i64, epsilon: f64) -> Result<LayerNorm, Error> {
        Ok(LayerNorm {
            weight: self.vector(&format!("{name}.weight"), width, Initial::Ones)?,
            bias: self.vector(&format!("{name}.bias"), width, Initial::Zeros)?,
            epsilon,
        })
    }
}
