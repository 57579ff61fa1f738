//! A text encoder and a transformer that do not fit on the device together: device memory during the
//! phases of the plan, as counted by the allocator.

use std::error::Error;

use placement::phases::Parameters;
use placement::phases::{PhaseTransfers, SpillFile, StageComponent, enter};
use placement::plan::{
    Component, Memory, Module, OffloadOptions, Phase, PlacementConstraint, plan,
};
use placement::{Bytes, Placer, Policy};
use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::allocator::Library;

use crate::DEVICE;

const TEXT: u64 = 24 << 20;
const TRANSFORMER: u64 = 40 << 20;

#[derive(Serialize)]
pub(crate) struct Row {
    phase: String,
    entered: PhaseTransfers,
    /// Device memory afterwards, and the peak until then.
    live: u64,
    peak: u64,
    /// Copies until then, and how many of them were verified.
    arrived: u64,
    verified: u64,
}

struct Tensors(Vec<(String, Tensor)>);

impl Parameters for Tensors {
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
        let tensors = self.0.iter_mut();
        tensors
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect()
    }
}

pub(crate) fn run() -> Result<Vec<Row>, Box<dyn Error>> {
    let library = Library::find()?;
    library.install_for_accelerator()?;
    let component = |name: &str, storage, bytes| Component {
        name: name.to_owned(),
        modules: vec![Module::new(
            format!("{name}.0"),
            storage,
            Bytes(bytes),
            PlacementConstraint::Resident,
        )],
    };
    let phase = |name: &str, active: &str| Phase {
        name: name.to_owned(),
        active: vec![active.to_owned()],
        working: Bytes::ZERO,
    };
    let memory = Memory::Discrete {
        device: Bytes(48 << 20),
        host: Bytes::gib(1),
    };
    let parts = [
        component("text", 0, TEXT),
        component("transformer", 1, TRANSFORMER),
    ];
    let phases = [
        phase("encode", "text"),
        phase("train", "transformer"),
        phase("sample", "text"),
    ];
    let plan = plan(&parts, &phases, memory, &OffloadOptions::default())?;

    let tensors = |name: &str, bytes: u64| -> Result<Tensors, Box<dyn Error>> {
        let tensor = Tensor::f_rand([bytes as i64 / 4], (Kind::Float, Device::Cpu))?;
        Ok(Tensors(vec![(format!("{name}.0.weight"), tensor)]))
    };
    let (mut text, mut transformer) =
        (tensors("text", TEXT)?, tensors("transformer", TRANSFORMER)?);
    let sent = text.0[0].1.copy();
    let mut placer = Placer::new(DEVICE, Policy::default())?;
    let mut spill_file = SpillFile::new(&std::env::temp_dir())?;
    let mut rows = Vec::new();
    for phase in &plan.phases {
        let mut components = [
            StageComponent {
                name: "text",
                parameters: &mut text,
            },
            StageComponent {
                name: "transformer",
                parameters: &mut transformer,
            },
        ];
        let entered = enter(&mut placer, phase, &mut components, &mut spill_file)?;
        let stats = library.stats(0)?;
        let routes = &placer.report().routes;
        rows.push(Row {
            phase: phase.phase.clone(),
            entered,
            live: stats.live_bytes,
            peak: stats.live_peak_bytes,
            arrived: routes.iter().map(|route| route.tensors).sum(),
            verified: routes.iter().map(|route| route.verified).sum(),
        });
    }
    match text.0[0].1.f_to_device(Device::Cpu)?.equal(&sent) {
        true => Ok(rows),
        false => Err("the text encoder came back changed".into()),
    }
}
