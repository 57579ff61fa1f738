//! Modules of HIP: code objects, whose kernels are executed if the settings name a disassembler.

use std::ffi::c_void;
use std::sync::Arc;

use super::kernels::{Dimensions, launch_on};
use super::{Out, Text, export};
use crate::engine::Effect;
use crate::process;
use crate::rdna::{CodeObject, Launch, bundled};
use crate::status::Status;

export! {
    fn load_module(engine, module: Out<u64>, image: usize) as runtime hipModuleLoadData {
        if image == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let (disassembler, architecture) =
            engine.with(|state| (state.disassembler.clone(), state.architecture.name.clone()));
        let object = match disassembler {
            None => None,
            Some(disassembler) => {
                // SAFETY: the API documents `image` as code objects; only bundles are taken here.
                let elf = unsafe { bundled(image as *const u8, &architecture) }?;
                Some(CodeObject::read(&elf, &architecture, &disassembler).map_err(|reason| {
                    process::tell(&format!("a code object was refused: {reason}"));
                    Status::INVALID_IMAGE
                })?)
            }
        };
        engine.with(|state| {
            let handle = state.timeline.handle();
            if let Some(object) = object {
                state.code.insert(handle, Arc::new(object));
            }
            module.set(handle)
        })
    }

    fn find_function(engine, function: Out<u64>, module: u64, name: Text) as runtime hipModuleGetFunction {
        let name = name.get()?.to_string_lossy().into_owned();
        engine.with(|state| {
            let handle = state.timeline.handle();
            if let Some(object) = state.code.get(&module) {
                object.kernel(&name).map_err(|_| Status::NOT_FOUND)?;
                state.kernels.insert(handle, (Arc::clone(object), name));
            }
            function.set(handle)
        })
    }

    /// Its functions must not be launched any more.
    fn unload_module(engine, module: u64) as runtime hipModuleUnload {
        engine.with(|state| {
            if let Some(object) = state.code.remove(&module) {
                state.kernels.retain(|_, (other, _)| !Arc::ptr_eq(other, &object));
            }
        });
        Ok(())
    }

    fn launch_function(
        engine, function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        _shared: u32, stream: u64, arguments: u64, _extra: u64,
    ) as runtime hipModuleLaunchKernel
    {
        let grid = Dimensions { x: grid_x, y: grid_y, z: grid_z };
        let block = Dimensions { x: block_x, y: block_y, z: block_z };
        let kernel = engine.with(|state| state.kernels.get(&function).cloned());
        let effect = match kernel {
            None => Effect::Kernel,
            Some((object, name)) => {
                if [grid.y, grid.z, block.y, block.z] != [1; 4] || arguments == 0 {
                    process::tell("kernels are executed in one dimension, and with `kernelParams`");
                    return Err(Status::NOT_SUPPORTED);
                }
                let kernel = object.kernel(&name).map_err(|_| Status::NOT_FOUND)?;
                let mut bytes = vec![0; kernel.arguments_size];
                let pointers = arguments as *const *const c_void;
                for (index, (offset, size)) in kernel.arguments.iter().enumerate() {
                    // SAFETY: the API documents an array with a pointer for each argument, of the size that the
                    // code object says.
                    unsafe {
                        let argument = pointers.add(index).read();
                        std::ptr::copy_nonoverlapping(argument.cast(), &raw mut bytes[*offset], *size);
                    }
                }
                let launch = Launch::new(Arc::clone(&object), &name, (grid.x, block.x), bytes);
                Effect::Execute(Arc::new(launch))
            }
        };
        launch_on(engine, grid, block, stream, effect)
    }
}
