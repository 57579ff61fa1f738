//! DiLoCo (Douillard et al. 2023, <https://arxiv.org/abs/2311.08105>): ranks train independently and exchange
//! weights every so many steps. The outer optimizer is SGD with Nesterov momentum.
//!
//! The *anchor* is the last weights that all ranks agreed on. The mean difference between it and the ranks'
//! weights is the outer gradient.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::config::Config;
use models::Parameters;

/// The anchors of all parameters and their momentum: fp32, in host memory.
#[derive(Debug)]
pub struct OuterOptimizer {
    learning_rate: f64,
    momentum: f64,
    anchors: Vec<Tensor>,
    velocities: Vec<Tensor>,
}

impl OuterOptimizer {
    /// Starts at the current parameters.
    pub fn new(learning_rate: f64, momentum: f64, parameters: &Parameters) -> Result<Self, Error> {
        let anchors = parameters
            .tensors()
            .map(on_host)
            .collect::<Result<Vec<_>, _>>()?;
        let velocities = anchors.iter().map(|anchor| Ok(anchor.f_zeros_like()?));
        Ok(Self {
            learning_rate,
            momentum,
            velocities: velocities.collect::<Result<_, Error>>()?,
            anchors,
        })
    }

    /// The outer optimizer configured in `config`, if any.
    pub fn from_config(config: &Config, parameters: &Parameters) -> Result<Option<Self>, Error> {
        let train = &config.train;
        let outer = (train.sync_every > 1)
            .then(|| Self::new(train.outer_learning_rate, train.outer_momentum, parameters));
        outer.transpose()
    }

    /// Sets the anchors to the current parameters.
    pub fn anchor(&mut self, parameters: &Parameters) -> Result<(), Error> {
        for (anchor, tensor) in self.anchors.iter_mut().zip(parameters.tensors()) {
            *anchor = on_host(tensor)?;
        }
        Ok(())
    }

    /// The difference between the anchor and `tensor`, the parameter at `index`: fp32, in host memory.
    pub fn moved(&self, index: usize, tensor: &Tensor) -> Result<Tensor, Error> {
        let _no_grad = tch::no_grad_guard();
        Ok(self.anchors[index].f_sub(&on_host(tensor)?)?)
    }

    /// Updates the anchor at `index` with the mean difference over all ranks, and returns a handle to it.
    ///
    /// # Errors
    /// If `mean` has another shape.
    pub fn step(&mut self, index: usize, mean: &Tensor) -> Result<&Tensor, Error> {
        let _no_grad = tch::no_grad_guard();
        let velocity = &mut self.velocities[index];
        let _ = velocity.f_mul_scalar_(self.momentum)?.f_add_(mean)?;
        let ahead = mean.f_add(&velocity.f_mul_scalar(self.momentum)?)?;
        let anchor = &mut self.anchors[index];
        let _ = anchor.f_sub_(&ahead.f_mul_scalar(self.learning_rate)?)?;
        Ok(anchor)
    }

    /// The momentum by name, for a checkpoint, whose weights are the anchors: `outer.<parameter>`.
    pub fn state<'a>(&'a self, parameters: &Parameters) -> Vec<(String, &'a Tensor)> {
        let names = parameters
            .iter()
            .map(|parameter| format!("outer.{}", parameter.name));
        names.zip(&self.velocities).collect()
    }
}

/// A copy in fp32 in host memory.
fn on_host(tensor: &Tensor) -> Result<Tensor, Error> {
    let _no_grad = tch::no_grad_guard();
    let mut copy = Tensor::f_empty(tensor.size(), (Kind::Float, Device::Cpu))?;
    copy.f_copy_(&tensor.f_detach()?)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_step_is_sgd_with_nesterovs_momentum() {
        let mut parameters = Parameters::default();
        let tensor = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        let tensor = parameters.register("w", &tensor, true).unwrap();
        let mut outer = OuterOptimizer::new(0.7, 0.9, &parameters).unwrap();
        // Like torch.optim.SGD(lr=0.7, momentum=0.9, nesterov=True) with gradients 1 and then 0.5.
        let (mut anchor, mut velocity) = (0.0, 0.0);
        for moved in [1.0, 0.5] {
            let mut place = tensor.detach();
            let _ = place.fill_(anchor - moved);
            let mean = outer.moved(0, &tensor).unwrap();
            assert!((mean.double_value(&[0]) - moved).abs() < 1e-6);
            velocity = 0.9 * velocity + moved;
            anchor -= 0.7 * (moved + 0.9 * velocity);
            let now = outer.step(0, &mean).unwrap().double_value(&[0]);
            assert!((now - anchor).abs() < 1e-6, "{now} {anchor}");
        }
        let state = outer.state(&parameters);
        assert_eq!(state[0].0, "outer.w");
        assert!((state[0].1.double_value(&[0]) - velocity).abs() < 1e-6);
        let mut place = tensor.detach();
        let _ = place.fill_(3.0);
        outer.anchor(&parameters).unwrap();
        assert_eq!(outer.moved(0, &tensor).unwrap().double_value(&[0]), 0.0);
    }
}
