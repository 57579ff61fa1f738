//! What a model is made with: a source of weights, and what becomes of them.

use tch::{Device, Kind, Tensor};

use super::layers::{Embedding, Linear, RmsNorm};
use super::{Initial, Streaming, WeightSource};
use crate::Error;
use crate::adapters::{Attachment, HEAD};
use crate::parameters::Parameters;
use crate::quant::Quantization;
use crate::weight::Weight;

/// Whether a model's own weights learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// All of them, in fp32.
    Trained,
    /// None of them; matrices are kept in this type. Only adapters learn.
    Frozen(Kind),
}

/// Hands the parts of a model their weights and registers what is trained.
pub struct Builder<'a> {
    source: &'a mut dyn WeightSource,
    parameters: &'a mut Parameters,
    compute: Kind,
    base: Base,
    adapters: Option<&'a mut Attachment>,
    quantization: Option<Quantization>,
    streaming: Option<Streaming>,
    /// While a streamed block is built: the device that its adapters are on, and will compute.
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
            host_for: None,
        }
    }

    /// The same builder, which puts adapters on the layers that they target.
    pub fn with_adapters(self, adapters: &'a mut Attachment) -> Self {
        Self {
            adapters: Some(adapters),
            ..self
        }
    }

    /// The same builder, which keeps the matrices of frozen linear layers in fewer bits. The
    /// head stays as it is, as in bitsandbytes: its errors are the model's errors.
    pub fn quantized(self, quantization: Option<Quantization>) -> Self {
        Self {
            quantization,
            ..self
        }
    }

    /// The same builder, which streams blocks of a frozen base.
    pub fn streamed(self, streaming: Option<Streaming>) -> Self {
        Self { streaming, ..self }
    }

    /// What is to be streamed, for the decoder to do it.
    pub(super) fn take_streaming(&mut self) -> Option<Streaming> {
        self.streaming.take()
    }

    /// What `build` makes is in host memory, but for the adapters, which are on `device`.
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

    /// Whether the model's own weights stay as they are.
    pub fn is_frozen(&self) -> bool {
        matches!(self.base, Base::Frozen(_))
    }

    /// A matrix called `name`.
    ///
    /// # Errors
    /// When the source does not have it.
    pub fn matrix(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        decay: bool,
    ) -> Result<Tensor, Error> {
        let tensor = self.tensor(name, shape, initial)?;
        match self.base {
            Base::Trained => self.parameters.register(name, &tensor, decay),
            Base::Frozen(kind) => match self.whole(name, &tensor)? {
                Some(whole) => Ok(whole),
                None => Ok(tensor.f_to_kind(kind)?),
            },
        }
    }

    /// What an adapter trains in place of the tensor called `name`, if it does.
    fn whole(&mut self, name: &str, tensor: &Tensor) -> Result<Option<Tensor>, Error> {
        let device = self.host_for.unwrap_or_else(|| tensor.device());
        match &mut self.adapters {
            Some(adapters) => adapters.whole(name, tensor, device, self.parameters),
            None => Ok(None),
        }
    }

    /// The frozen table (embedding or head) called `name`: `tensor`, or what an adapter has in its
    /// place, under that name or that of one `tied` to it.
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

    /// The embedding called `name`, of `[vocabulary, hidden]`; and, where the head is `tied` to it
    /// and does not compute with the very same table, the head.
    ///
    /// # Errors
    /// When the source does not have its weights, or the adapter does not fit.
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
            };
            return Ok((embedding, None));
        };
        let table = self.table(name, tensor, tied.then_some(HEAD))?;
        let whole = self.whole(&weight_name, &table)?;
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
        Ok((
            Embedding {
                weight,
                compute,
                adapter,
            },
            head,
        ))
    }

    /// The head that is tied to the embedding's `table`, where it does not compute with what the
    /// embedding does.
    fn tied_head(&mut self, table: &Tensor, is_left: bool) -> Result<Option<Linear>, Error> {
        let whole = self.whole(&format!("{HEAD}.weight"), table)?;
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

    /// A vector called `name`: a bias or a norm. Small enough to stay in fp32 always.
    ///
    /// # Errors
    /// When the source does not have it.
    pub fn vector(&mut self, name: &str, width: i64, initial: Initial) -> Result<Tensor, Error> {
        let tensor = self.tensor(name, &[width], initial)?;
        self.registered(name, tensor)
    }

    /// A tensor called `name` that stays in fp32 whatever the model computes in, and whatever the
    /// others are read in.
    ///
    /// # Errors
    /// When the source does not have it.
    pub fn kept(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        let tensor = self.source.exact_tensor(name, shape, initial)?;
        let tensor = match self.host_for {
            None => tensor,
            Some(_) => tensor.f_to_device(Device::Cpu)?,
        };
        self.registered(name, tensor)
    }

    fn registered(&mut self, name: &str, tensor: Tensor) -> Result<Tensor, Error> {
        match self.base {
            Base::Trained => self.parameters.register(name, &tensor, false),
            Base::Frozen(_) => match self.whole(name, &tensor)? {
                Some(whole) => Ok(whole),
                None => Ok(tensor.f_to_kind(Kind::Float)?),
            },
        }
    }

    /// A linear layer called `name`, with the adapter that targets it, if one does.
    ///
    /// # Errors
    /// When the source does not have its weights.
    pub fn linear(
        &mut self,
        name: &str,
        (inputs, outputs): (i64, i64),
        bias: bool,
        initial: Initial,
    ) -> Result<Linear, Error> {
        let weight_name = format!("{name}.weight");
        let dense = self.matrix(&weight_name, &[outputs, inputs], initial, true)?;
        let dense = match name {
            HEAD if !dense.requires_grad() => self.table(HEAD, dense, None)?,
            _ => dense,
        };
        let weight = match (self.base, self.quantization) {
            (Base::Frozen(_), Some(to)) if name != HEAD && !dense.requires_grad() => {
                Weight::quantized(&weight_name, &dense, to)?
            }
            _ => Weight::Dense(dense),
        };
        let bias = match bias {
            true => Some(self.vector(&format!("{name}.bias"), outputs, Initial::Zeros)?),
            false => None,
        };
        let adapter = match &mut self.adapters {
            Some(adapters) => {
                let device = self.host_for.unwrap_or_else(|| weight.device());
                adapters.attach(name, &weight, device, self.parameters)?
            }
            None => None,
        };
        Ok(Linear {
            weight,
            bias,
            compute: self.compute,
            adapter,
        })
    }

    /// A root-mean-square norm called `name`.
    ///
    /// # Errors
    /// When the source does not have its weight.
    pub fn norm(&mut self, name: &str, width: i64, epsilon: f64) -> Result<RmsNorm, Error> {
        let weight = self.vector(&format!("{name}.weight"), width, Initial::Ones)?;
        Ok(RmsNorm { weight, epsilon })
    }
}
