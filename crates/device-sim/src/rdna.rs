//! Machine code of RDNA, executed: what a kernel computes, and what it gets wrong.
//!
//! ```text
//! code object (ELF) ──llvm-objdump──▶ Listing ──┐
//!                   ──metadata──────▶ Kernel ───┴─▶ Launch ──▶ workgroups ──▶ Wave: scalar, vector, memory
//! ```
//!
//! A wave has 32 lanes and its instructions run one after the other; the waves of a workgroup run from barrier to
//! barrier. Reported as faults are registers that are used before the wait for what was loaded into them, accesses to LDS
//! by two waves without a barrier between them, addresses outside of live memory and of LDS, and whatever instruction is
//! not known here. Not seen are hazards of the pipelines, caches, and speed; transcendental functions are rounded
//! correctly, which they are not on a GPU.

mod code_object;
mod listing;
mod memory;
mod scalar;
mod vector;
mod wave;

use std::sync::Arc;

pub(crate) use code_object::{CodeObject, bundled};

use wave::{Pause, Wave};

/// What keeps a kernel from being executed to its end.
#[derive(Debug, thiserror::Error)]
#[error("{reason}, at {at:#x} of `{kernel}`")]
pub(crate) struct KernelFault {
    kernel: String,
    at: u64,
    reason: String,
}

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    object: Arc<CodeObject>,
    kernel: String,
    /// In workgroups.
    grid: u32,
    /// In lanes.
    block: u32,
    arguments: Vec<u8>,
}

impl Launch {
    /// A launch of `kernel` in one dimension; `arguments` are its kernarg segment.
    pub(crate) fn new(
        object: Arc<CodeObject>,
        kernel: &str,
        (grid, block): (u32, u32),
        arguments: Vec<u8>,
    ) -> Self {
        Self {
            object,
            kernel: kernel.to_owned(),
            grid,
            block,
            arguments,
        }
    }

    /// Executes all workgroups. `is_live` says whether all of these bytes may be accessed.
    pub(crate) fn run(&self, is_live: &dyn Fn(u64, u64) -> bool) -> Result<(), KernelFault> {
        let fault = |at, reason| KernelFault {
            kernel: self.kernel.clone(),
            at,
            reason,
        };
        let kernel = self
            .object
            .kernel(&self.kernel)
            .map_err(|reason| fault(0, reason))?;
        for group in 0..self.grid {
            let mut lds = memory::Lds::new(kernel.lds);
            let mut waves: Vec<Wave> = (0..self.block.div_ceil(wave::LANES as u32))
                .map(|index| {
                    Wave::new(
                        &self.object,
                        kernel,
                        &self.arguments,
                        group,
                        index,
                        self.block,
                    )
                })
                .collect();
            while !waves.is_empty() {
                let mut running = Vec::with_capacity(waves.len());
                let count = waves.len();
                for mut wave in waves {
                    match wave.run(&mut lds, is_live) {
                        Ok(Pause::Barrier) => running.push(wave),
                        Ok(Pause::End) => {}
                        Err(reason) => return Err(fault(wave.at(), reason)),
                    }
                }
                if !running.is_empty() && running.len() < count {
                    let reason = "a barrier that other waves of the workgroup have left out";
                    return Err(fault(running[0].at(), reason.to_owned()));
                }
                lds.synchronise();
                waves = running;
            }
        }
        Ok(())
    }
}
