//! Sources of a model's tensors.

use placement::Placer;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::formats::{TensorSource, require_finite};
use crate::quant::{MXFP4_BLOCK, Mxfp4};

/// Initial values of a tensor that is not loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// Normally distributed with mean zero and this standard deviation.
    Normal(f64),
    /// All ones, for norms.
    Ones,
    /// A constant.
    Constant(f64),
    /// All zeros, for biases.
    Zeros,
}

/// Provides a model with its tensors, on their device.
pub trait WeightSource {
    /// The tensor `name`, of exactly this shape.
    ///
    /// # Errors
    /// If there is no such tensor or its shape differs.
    fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error>;

    /// The same in fp32, whatever type the others are read in: a tensor that stays in fp32 must not have been
    /// rounded on the way.
    fn exact_tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, Error> {
        self.tensor(name, shape, initial)
    }

    /// The same in host memory, for streamed blocks.
    fn host_tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, Error> {
        Ok(self
            .tensor(name, shape, initial)?
            .f_to_device(Device::Cpu)?)
    }

    /// The matrix `name` of this shape in MXFP4, if it is stored so; in host memory if `on_the_host`.
    ///
    /// # Errors
    /// If its shape differs, or it cannot be read.
    fn packed(
        &mut self,
        _name: &str,
        _shape: &[i64],
        _on_the_host: bool,
    ) -> Result<Option<Mxfp4>, Error> {
        Ok(None)
    }
}

/// The weights of a published model.
pub struct FileWeights<'a> {
    tensors: &'a dyn TensorSource,
    placer: &'a mut Placer,
    kind: Kind,
}

impl<'a> FileWeights<'a> {
    /// The weights of `tensors`, read as `kind` and moved to their device by `placer`.
    pub fn new(tensors: &'a dyn TensorSource, kind: Kind, placer: &'a mut Placer) -> Self {
        Self {
            tensors,
            placer,
            kind,
        }
    }
}

impl FileWeights<'_> {
    /// The tensor in host memory, as `kind`.
    fn read(&self, name: &str, shape: &[i64], kind: Kind) -> Result<Tensor, Error> {
        require(self.tensors, name, shape)?;
        let tensor = self.tensors.read(name, kind)?;
        require_finite(self.tensors, name, &tensor)?;
        Ok(tensor)
    }
}

impl WeightSource for FileWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        let tensor = self.host_tensor(name, shape, initial)?;
        Ok(self.placer.weight(name, &tensor, None)?)
    }

    fn exact_tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        _initial: Initial,
    ) -> Result<Tensor, Error> {
        let tensor = self.read(name, shape, Kind::Float)?;
        Ok(self.placer.weight(name, &tensor, None)?)
    }

    fn host_tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        _initial: Initial,
    ) -> Result<Tensor, Error> {
        self.read(name, shape, self.kind)
    }

    fn packed(
        &mut self,
        name: &str,
        shape: &[i64],
        on_the_host: bool,
    ) -> Result<Option<Mxfp4>, Error> {
        if !self.tensors.is_mxfp4(name) {
            return Ok(None);
        }
        require(self.tensors, name, shape)?;
        let packed = self.tensors.read_mxfp4(name)?;
        let not_numbers = packed.scales.f_eq(255)?.f_sum(Kind::Int64)?;
        let bad = not_numbers.f_int64_value(&[])?;
        if bad > 0 {
            return Err(Error::NotFinite {
                path: self.tensors.path().to_owned(),
                tensor: name.to_owned(),
                bad: bad * MXFP4_BLOCK,
                of: shape.iter().product(),
            });
        }
        Ok(Some(match on_the_host {
            true => packed,
            false => Mxfp4 {
                packed: self.placer.weight(name, &packed.packed, None)?,
                scales: self.placer.weight(name, &packed.scales, None)?,
            },
        }))
    }
}

/// The shapes of a model without its data, to inspect it before it is loaded: for [`FakeMode`](torch_ext::fake::FakeMode), in
/// which they take no memory.
pub struct MetaWeights<'a> {
    tensors: Option<&'a dyn TensorSource>,
    options: (Kind, Device),
}

impl<'a> MetaWeights<'a> {
    /// The shapes of `tensors`, or whatever is asked for, as if they were read as this type and moved to this device.
    pub fn new(tensors: Option<&'a dyn TensorSource>, options: (Kind, Device)) -> Self {
        Self { tensors, options }
    }
}

impl WeightSource for MetaWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[i64], _initial: Initial) -> Result<Tensor, Error> {
        if let Some(tensors) = self.tensors {
            require(tensors, name, shape)?;
        }
        Ok(Tensor::f_empty(shape, self.options)?)
    }

    fn exact_tensor(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
    ) -> Result<Tensor, Error> {
        Ok(self.tensor(name, shape, initial)?.f_to_kind(Kind::Float)?)
    }

    fn packed(&mut self, name: &str, shape: &[i64], _: bool) -> Result<Option<Mxfp4>, Error> {
        let Some(tensors) = self.tensors.filter(|tensors| tensors.is_mxfp4(name)) else {
            return Ok(None);
        };
        require(tensors, name, shape)?;
        Mxfp4::shape_alone(shape, self.options.1).map(Some)
    }
}

/// Fails unless `tensors` have `name` with this shape.
fn require(tensors: &dyn TensorSource, name: &str, shape: &[i64]) -> Result<(), Error> {
    let reason = match tensors.shape(name) {
        Some(found) if found == shape => return Ok(()),
        Some(found) => format!("`{name}` is {found:?}, but its config makes it {shape:?}"),
        None => format!("`{name}` is missing, which its config requires"),
    };
    Err(Error::file(tensors.path(), reason))
}

/// Randomly initialised weights. They are drawn on the CPU, so the same seed gives the same weights on every
/// device.
pub struct RandomWeights<'a> {
    placer: &'a mut Placer,
}

impl<'a> RandomWeights<'a> {
    /// Weights drawn from `seed`, moved to their device by `placer`.
    pub fn new(seed: u64, placer: &'a mut Placer) -> Self {
        tch::manual_seed(seed as i64);
        Self { placer }
    }
}

impl WeightSource for RandomWeights<'_> {
    fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        let options = (Kind::Float, Device::Cpu);
        let tensor = match initial {
            Initial::Normal(deviation) => {
                Tensor::f_randn(shape, options)?.f_mul_scalar(deviation)?
            }
            Initial::Ones => Tensor::f_ones(shape, options)?,
            Initial::Constant(number) => Tensor::f_full(shape, number, options)?,
            Initial::Zeros => Tensor::f_zeros(shape, options)?,
        };
        Ok(self.placer.weight(name, &tensor, None)?)
    }
}

#[cfg(test)]
mod tests {
    use torch_ext::fake::{self, PassMemory};

    use super::*;

    #[test]
    fn a_pass_of_shapes_is_counted_and_draws_no_numbers() {
        let draw = || Vec::<f32>::try_from(Tensor::rand([4], (Kind::Float, Device::Cpu))).unwrap();
        tch::manual_seed(7);
        let first = draw();
        tch::manual_seed(7);
        let options = (Kind::Float, Device::Cpu);
        let build = || {
            let weight = MetaWeights::new(None, options).tensor("w", &[256, 512], Initial::Ones)?;
            Ok(weight.f_set_requires_grad(true)?)
        };
        let loss = |weight: &Tensor| -> Result<Tensor, Error> {
            let input = Tensor::f_randn([64, 512], options)?.f_dropout(0.5, true)?;
            let output = input.f_linear(weight, None::<&Tensor>)?;
            assert!(f64::try_from(&output.f_sum(Kind::Float)?).is_err());
            Ok(output.f_silu()?.f_sum(Kind::Float)?)
        };
        let pass = fake::pass(Device::Cpu, build, loss).unwrap();
        assert!(!fake::is_on());
        // The input of the product, and what the activation gets; in the backward pass their gradients meet.
        let (input, output, weights) = (64 * 512 * 4, 64 * 256 * 4, 256 * 512 * 4);
        let kept = input + output;
        let PassMemory { temporary, .. } = pass;
        assert_eq!((pass.weights, pass.kept), (weights, kept));
        assert!(
            (weights..=weights + 2 * output).contains(&temporary),
            "{pass:?}"
        );
        assert_eq!(draw(), first);
    }

    #[test]
    fn what_is_computed_of_real_numbers_can_be_read() {
        let loss = |_: &()| -> Result<Tensor, Error> {
            let real = Tensor::f_from_slice(&[3i64, -100, 5])?;
            let learned = real.f_ne(-100)?.f_nonzero()?.f_squeeze_dim(1)?;
            assert_eq!(Vec::<i64>::try_from(&learned)?, [0, 2]);
            let table = Tensor::f_zeros([8, 4096], (Kind::Float, Device::Cpu))?;
            let table = table.f_set_requires_grad(true)?;
            Ok(table.f_index_select(0, &learned)?.f_sum(Kind::Float)?)
        };
        let pass = fake::pass(Device::Cpu, || Ok(()), loss).unwrap();
        // The table, and its gradient.
        assert!(
            pass.kept >= 8 * 4096 * 4 && pass.temporary >= 8 * 4096 * 4,
            "{pass:?}"
        );
    }
}
