//! Experts, whose weights are stacked where they are frozen.

use tch::{Kind, Tensor};

use super::{Base, Builder};
use crate::Error;
use crate::adapters::ExpertSizes;
use crate::model::Initial;
use crate::model::experts::{Expert, Experts};
use crate::quant::Mxfp4;
use crate::weight::{Stack, Weight};

impl Builder<'_> {
    /// The matrices of experts, whose names are `name`, the number of each, and the layer: gate and up `[inner, hidden]`,
    /// and down `[hidden, inner]`; and their biases, if they are `biased`; with their adapters, if they are targeted.
    ///
    /// # Errors
    /// If the source does not have them, or an adapter is to train them in full.
    pub fn experts(
        &mut self,
        name: &str,
        sizes: &ExpertSizes,
        (biased, initial): (bool, Initial),
    ) -> Result<Experts, Error> {
        let ExpertSizes {
            count,
            hidden,
            inner,
            ..
        } = *sizes;
        let names = |number: i64, role: &str| {
            ["gate_proj", "up_proj", "down_proj"]
                .map(|layer| format!("{name}.{number}.{layer}.{role}"))
        };
        let (wide, narrow) = ([inner, hidden], [hidden, inner]);
        let Base::Frozen(kind) = self.base else {
            let mut trained = |name: &String, shape: &[i64], initial: Initial| {
                let tensor = self.source.tensor(name, shape, initial)?;
                self.parameters.register(name, &tensor, shape.len() > 1)
            };
            let expert = |number: i64| {
                let [gate, up, down] = names(number, "weight");
                let weights = [
                    trained(&gate, &wide, initial)?,
                    trained(&up, &wide, initial)?,
                    trained(&down, &narrow, initial)?,
                ];
                let mut bias = |name: &String, width: i64| trained(name, &[width], Initial::Zeros);
                let biases = match names(number, "bias") {
                    [gate, up, down] if biased => {
                        Some([bias(&gate, inner)?, bias(&up, inner)?, bias(&down, hidden)?])
                    }
                    _ => None,
                };
                Ok(Expert { weights, biases })
            };
            return Ok(Experts::Trained(
                (0..count).map(expert).collect::<Result<_, Error>>()?,
            ));
        };
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let mut biases = [Vec::new(), Vec::new()];
        for number in 0..count {
            let [gate, up, down] = names(number, "weight");
            if let Some(adapters) = &mut self.adapters {
                adapters.expect_frozen(&gate)?;
            }
            let mut weight = |name: &str, parts: &[&String], shape: &[i64; 2]| {
                if let Some(packed) = self.packed(parts, shape)? {
                    return Ok(packed);
                }
                let part = |name: &&String| -> Result<Tensor, Error> {
                    Ok(self.tensor(name, shape, initial)?.f_to_kind(kind)?)
                };
                let parts = parts.iter().map(part).collect::<Result<Vec<_>, Error>>()?;
                match self.quantization {
                    Some(to) => Weight::quantized(name, &Tensor::f_cat(&parts, 0)?, to),
                    None => Ok(Weight::Dense(Tensor::f_cat(&parts, 0)?)),
                }
            };
            inputs.push(weight(&gate, &[&gate, &up], &wide)?);
            outputs.push(weight(&down, &[&down], &narrow)?);
            if biased {
                let [gate, up, down] = names(number, "bias");
                if let Some(adapters) = &mut self.adapters {
                    adapters.expect_frozen(&gate)?;
                }
                for (place, name, width) in [(0, gate, inner), (0, up, inner), (1, down, hidden)] {
                    let bias = self.tensor(&name, &[width], Initial::Zeros)?;
                    biases[place].push(bias.f_to_kind(Kind::Float)?);
                }
            }
        }
        let (gate_up, down) = (Stack::new(inputs)?, Stack::new(outputs)?);
        for stack in [&gate_up, &down] {
            stack.for_each(&mut |tensor| self.remember(name, tensor))?;
        }
        let biases = match biased {
            true => Some([Tensor::f_cat(&biases[0], 0)?, Tensor::f_cat(&biases[1], 0)?]),
            false => None,
        };
        for bias in biases.iter().flatten() {
            self.remember(name, bias);
        }
        let adapters = match &mut self.adapters {
            Some(adapters) => {
                let device = self.host_for.unwrap_or_else(|| gate_up.device());
                adapters.attach_experts(name, sizes, device, self.parameters)?
            }
            None => [None, None],
        };
        Ok(Experts::Frozen {
            gate_up,
            down,
            biases,
            adapters,
        })
    }

    /// Matrices of this shape one below the other, if the source has them in MXFP4. They stay so.
    fn packed(&mut self, names: &[&String], shape: &[i64; 2]) -> Result<Option<Weight>, Error> {
        let mut parts = Vec::new();
        for name in names {
            match self.source.packed(name, shape, self.host_for.is_some())? {
                Some(part) => parts.push(part),
                None => return Ok(None),
            }
        }
        Ok(Some(Weight::Mxfp4(Mxfp4::stacked(&parts)?)))
    }
}
