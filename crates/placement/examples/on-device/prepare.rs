//! `prepare` on a device: what was made before the move follows it, and what has to stay behind keeps its state.

use std::error::Error;

use placement::loader::{BoxError, Loader, LoaderOptions, Source};
use placement::prepare::{OptimizerState, Parameters};
use placement::{Placer, Policy, prepare};
use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::DEVICE;
use crate::simulator::order;

/// Two MiB, and four KiB: orders to the simulator can be about the larger one alone.
const LARGE: i64 = 1 << 19;
const SMALL: i64 = 1 << 10;

#[derive(Serialize)]
pub(crate) struct Row {
    way: &'static str,
    /// Where everything is: of the model, their gradients, what the optimizer updates, and its state.
    weights: Vec<String>,
    gradients: Vec<String>,
    updated: Vec<String>,
    state: Vec<String>,
    /// Whether weights, gradients and state are what they were, bit by bit.
    equal: bool,
    /// Whether preparing again left every tensor where it was.
    again: bool,
    said: String,
}

struct Named(Vec<(String, Tensor)>);

impl Named {
    fn places(&self) -> Vec<String> {
        let tensors = self.0.iter();
        tensors
            .map(|(_, tensor)| match tensor.device() {
                Device::Cpu => "cpu".to_owned(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn addresses(&self) -> Vec<usize> {
        let tensors = self.0.iter();
        tensors
            .map(|(_, tensor)| tensor.data_ptr() as usize)
            .collect()
    }

    fn on_host(&self) -> Result<Vec<Tensor>, tch::TchError> {
        let tensors = self.0.iter();
        tensors
            .map(|(_, tensor)| Ok(tensor.f_detach()?.f_to_device(Device::Cpu)?.copy()))
            .collect()
    }
}

impl Parameters for Named {
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
        let tensors = self.0.iter_mut();
        tensors
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect()
    }
}

struct Adam {
    weights: Named,
    state: Named,
}

impl OptimizerState for Adam {
    fn updates(&self) -> Vec<(String, Tensor)> {
        let weights = self.weights.0.iter();
        weights
            .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
            .collect()
    }

    fn state(&mut self) -> Vec<(String, &mut Tensor)> {
        self.state.parameters()
    }
}

struct Ones;

impl Source for Ones {
    type Sample = f32;
    type Batch = Tensor;

    fn len(&self) -> usize {
        4
    }

    fn sample(&self, _: usize, _: u64) -> Result<f32, BoxError> {
        Ok(1.0)
    }

    fn collate(&self, samples: Vec<f32>) -> Result<Tensor, BoxError> {
        Ok(Tensor::f_from_slice(&samples)?)
    }
}

pub(crate) fn run() -> Result<Vec<Row>, Box<dyn Error>> {
    Ok(vec![
        row("whole", None)?,
        // Copies are made in pieces; those of what is small are smaller still.
        row("one stays", Some("copy=h2d>=64K:zeros"))?,
    ])
}

fn row(way: &'static str, fault: Option<&str>) -> Result<Row, Box<dyn Error>> {
    let weight = |size: i64| -> Result<Tensor, tch::TchError> {
        let weight =
            Tensor::f_rand([size], (Kind::Float, Device::Cpu))?.f_set_requires_grad(true)?;
        // Made on the CPU, before anything moved.
        (&weight * 2).f_sum(Kind::Float)?.f_backward()?;
        Ok(weight)
    };
    let (small, large) = (weight(SMALL)?, weight(LARGE)?);
    let named = |small: &str, a: Tensor, large: &str, b: Tensor| {
        Named(vec![(small.to_owned(), a), (large.to_owned(), b)])
    };
    let mut model = named(
        "small",
        small.shallow_clone(),
        "large",
        large.shallow_clone(),
    );
    model.0.push(("tied".to_owned(), small.shallow_clone()));
    let gradients = named("small", small.grad(), "large", large.grad());
    let optimizer = Adam {
        state: named(
            "small.exp_avg",
            small.f_detach()?.f_rand_like()?,
            "large.exp_avg",
            large.f_detach()?.f_rand_like()?,
        ),
        weights: named("small", small, "large", large),
    };
    let before = [
        model.on_host()?,
        gradients.on_host()?,
        optimizer.state.on_host()?,
    ];

    if let Some(fault) = fault {
        order(fault)?;
    }
    let mut placer = Placer::new(DEVICE, Policy::default())?;
    let loader = Loader::new(Ones, LoaderOptions::default())?;
    let ready = prepare(&mut placer, model, optimizer, loader, ())?;
    let gradients = named(
        "small",
        ready.model.0[0].1.grad(),
        "large",
        ready.model.0[1].1.grad(),
    );
    let mut row = Row {
        way,
        weights: ready.model.places(),
        gradients: gradients.places(),
        updated: ready.optimizer.weights.places(),
        state: ready.optimizer.state.places(),
        equal: false,
        again: false,
        said: ready.preparation.to_string(),
    };
    order("reset_faults")?;
    let after = [
        ready.model.on_host()?,
        gradients.on_host()?,
        ready.optimizer.state.on_host()?,
    ];
    let mut pairs = before.iter().flatten().zip(after.iter().flatten());
    row.equal = pairs.all(|(before, after)| before.equal(after));
    if fault.is_none() {
        let addresses = [ready.model.addresses(), ready.optimizer.state.addresses()];
        let loader = ready.batches.loader;
        let twice = prepare(&mut placer, ready.model, ready.optimizer, loader, ())?;
        row.again = addresses == [twice.model.addresses(), twice.optimizer.state.addresses()];
    }
    Ok(row)
}
