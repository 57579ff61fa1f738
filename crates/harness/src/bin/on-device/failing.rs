//! A module whose move fails: the tensors of the caller afterwards, and the memory that was freed.

use std::error::Error;

use placement::{Placer, Policy, Verify};
use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::allocator::Library;

use crate::DEVICE;
use crate::simulator::configure;

/// The number of tensors: three groups.
const TENSORS: i64 = 600;

#[derive(Serialize)]
pub(crate) struct Row {
    error: String,
    /// Whether the caller's tensors are unchanged, in the same memory.
    unchanged: bool,
    /// Tensors still on the device, as counted by the allocator.
    live: u64,
}

pub(crate) fn run() -> Result<Vec<Row>, Box<dyn Error>> {
    let library = Library::find()?;
    library.install_for_accelerator()?;
    // In the second group each time. The lost context comes last: nothing can be done after it.
    Ok(vec![
        fail("copy=h2d@300+:zeros", &library)?,
        fail("lose=cudaMemcpyAsync@700:illegal_address", &library)?,
    ])
}

fn fail(fault: &str, library: &Library) -> Result<Row, Box<dyn Error>> {
    let policy = Policy {
        verify: Verify::Always,
        may_stay_on_host: false,
        ..Policy::default()
    };
    let mut placer = Placer::new(DEVICE, policy)?;
    let tensor = |number| Tensor::f_full([256], number, (Kind::Float, Device::Cpu));
    let mut weights: Vec<Tensor> = (1..=TENSORS).map(tensor).collect::<Result<_, _>>()?;
    let places: Vec<_> = weights.iter().map(Tensor::data_ptr).collect();
    let before = library.stats(0)?.live_allocations;
    configure(fault)?;
    let names = (0..).map(|number| format!("{number}.weight"));
    let outcome = placer.move_in_place(names.zip(&mut weights));
    configure("reset_faults")?;
    let live = library.stats(0)?.live_allocations.saturating_sub(before);
    let mut unchanged = true;
    for ((weight, place), number) in weights.iter().zip(places).zip(1..) {
        let as_it_was = weight.device() == Device::Cpu && weight.data_ptr() == place;
        unchanged &= as_it_was && weight.equal(&tensor(number)?);
    }
    Ok(Row {
        error: match outcome {
            Ok(_) => "none".to_owned(),
            Err(error) => error.to_string(),
        },
        unchanged,
        live,
    })
}
