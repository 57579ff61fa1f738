//! The sizes of a transformer's modules, as a plan places them.

use std::collections::BTreeMap;

use models::diffusion::Diffusion;
use models::diffusion::files::PartFile;
use models::formats::TensorSource;
use placement::Bytes;
use placement::plan::{Module, PlacementConstraint, TensorSize};
use tch::Kind;

use crate::config::Quantization;
use crate::memory_plan::STREAM_ALIGNMENT;

/// The modules of a transformer: its blocks, and the rest.
pub(super) fn modules(
    component: &str,
    model: &dyn Diffusion,
    file: &PartFile,
    compute: Kind,
    quantization: Option<Quantization>,
) -> Vec<Module> {
    // Blocks by list and index, the others by name.
    let mut sizes: BTreeMap<(Option<(usize, usize)>, String), u64> = BTreeMap::new();
    let arch = model.arch();
    for name in file.names() {
        let Some(size) = file.shape(&name) else {
            continue;
        };
        let numbers = size.iter().product::<i64>().max(0) as f64;
        let each = match model.stays_fp32(&name) {
            true => 4.0,
            false => {
                let quantization = quantization.filter(|_| model.is_quantized(&name));
                bytes_of_each(&size, compute, quantization)
            }
        };
        let bytes = (numbers * each) as u64;
        let block = arch.part_of_block(&name).and_then(|(list, number, _)| {
            let at = arch.lists.iter().position(|own| own.name == list.name)?;
            Some((at, number))
        });
        let (module, bytes) = match block {
            Some((list, number)) => (
                format!("{component}.{}.{number}", arch.lists[list].name),
                bytes.next_multiple_of(STREAM_ALIGNMENT),
            ),
            None => {
                let first = name.split('.').next().unwrap_or_default();
                (format!("{component}.{first}"), bytes)
            }
        };
        *sizes.entry((block, module)).or_default() += bytes;
    }
    let modules = sizes.into_iter().enumerate();
    modules
        .map(|(storage, ((block, name), bytes))| Module {
            name,
            tensors: vec![TensorSize {
                storage: storage as u64,
                bytes: Bytes(bytes),
            }],
            constraint: match block {
                Some(_) => PlacementConstraint::Streamable,
                None => PlacementConstraint::Resident,
            },
        })
        .collect()
}

/// Bytes per element of a frozen tensor of this size.
pub(super) fn bytes_of_each(
    size: &[i64],
    compute: Kind,
    quantization: Option<Quantization>,
) -> f64 {
    match (size.len(), quantization) {
        (2, None) => compute.elt_size_in_bytes() as f64,
        (2, Some(Quantization::Int8)) => 1.0,
        // Half a byte, and a four-byte scale per 64 elements.
        (2, Some(Quantization::Nf4)) => 0.5 + 4.0 / 64.0,
        (4.., _) => compute.elt_size_in_bytes() as f64,
        _ => 4.0,
    }
}
