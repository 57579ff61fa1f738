//! Kernels: they are registered, queried and launched, but do nothing.
//!
//! Programs built by `nvcc` register their kernels and device variables when
//! they are loaded, long before they use a device: that part must not touch the
//! engine.

use std::cell::Cell;
use std::collections::HashMap;

use parking_lot::Mutex;

use super::memory::{plain, start};
use super::properties::{MAX_THREADS_PER_BLOCK, MAX_THREADS_PER_PROCESSOR};
use super::{In, Out, export, export_nothing};
use crate::engine::{Effect, Engine, Kind, current_device};
use crate::status::Status;

/// `dim3`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Dimensions {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) z: u32,
}

/// `cudaFuncAttributes` of CUDA 13
#[repr(C)]
struct FunctionAttributes {
    shared_bytes: u64,
    constant_bytes: u64,
    local_bytes: u64,
    max_threads_per_block: i32,
    registers: i32,
    ptx_version: i32,
    binary_version: i32,
    cache_mode: i32,
    max_dynamic_shared_bytes: i32,
    others: [i32; 24],
}

const _: () = assert!(size_of::<FunctionAttributes>() == 144);

/// The first fields of `cudaLaunchConfig_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchConfiguration {
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: u64,
    stream: u64,
}

/// The first fields of `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy)]
struct DriverLaunchConfiguration {
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: u32,
    stream: u64,
}

/// A device variable: its size, and its address once it has been requested.
struct Variable {
    size: u64,
    address: Option<u64>,
}

/// Device variables by the address of their shadow on the host.
static VARIABLES: Mutex<Option<HashMap<usize, Variable>>> = Mutex::new(None);

thread_local! {
    /// What `kernel<<<grid, block, shared, stream>>>` passes to the launch.
    static CONFIGURATION: Cell<Option<LaunchConfiguration>> = const { Cell::new(None) };
}

export! {
    fn launch(
        engine, _function: u64, grid: Dimensions, block: Dimensions, _arguments: u64, _shared: u64, stream: u64,
    ) as runtime cudaLaunchKernel, runtime __cudaLaunchKernel, runtime cudaLaunchCooperativeKernel,
         runtime hipLaunchKernel
    {
        launch_on(engine, grid, block, stream, Effect::Kernel)
    }

    fn launch_configured(engine, configuration: In<LaunchConfiguration>, _function: u64, _arguments: u64)
        as runtime cudaLaunchKernelExC
    {
        let LaunchConfiguration { grid, block, stream, .. } = configuration.get()?;
        launch_on(engine, grid, block, stream, Effect::Kernel)
    }

    fn launch_driver(
        engine, _function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        _shared: u32, stream: u64, _arguments: u64, _extra: u64,
    ) as driver cuLaunchKernel, driver cuLaunchCooperativeKernel
    {
        let grid = Dimensions { x: grid_x, y: grid_y, z: grid_z };
        launch_on(engine, grid, Dimensions { x: block_x, y: block_y, z: block_z }, stream, Effect::Kernel)
    }

    fn launch_driver_configured(
        engine, configuration: In<DriverLaunchConfiguration>, _function: u64, _arguments: u64, _extra: u64,
    ) as driver cuLaunchKernelEx
    {
        let DriverLaunchConfiguration { grid, block, stream, .. } = configuration.get()?;
        launch_on(engine, grid, block, stream, Effect::Kernel)
    }

    fn function_attributes(engine, attributes: Out<FunctionAttributes>, _function: u64)
        as runtime cudaFuncGetAttributes
    {
        let _ = engine;
        attributes.set(FunctionAttributes {
            shared_bytes: 0,
            constant_bytes: 0,
            local_bytes: 0,
            max_threads_per_block: MAX_THREADS_PER_BLOCK,
            registers: 32,
            ptx_version: 86,
            binary_version: 86,
            cache_mode: 0,
            max_dynamic_shared_bytes: 48 << 10,
            others: [0; 24],
        })
    }

    fn occupancy(engine, blocks: Out<i32>, _function: u64, threads: i32, _shared: u64)
        as runtime cudaOccupancyMaxActiveBlocksPerMultiprocessor, driver cuOccupancyMaxActiveBlocksPerMultiprocessor,
           runtime hipOccupancyMaxActiveBlocksPerMultiprocessor
    {
        let _ = engine;
        blocks.set(MAX_THREADS_PER_PROCESSOR / threads.clamp(1, MAX_THREADS_PER_PROCESSOR))
    }

    /// Clusters need a newer architecture than that of the simulated device.
    fn clusters(engine) as driver cuOccupancyMaxActiveClusters, runtime cudaOccupancyMaxActiveClusters {
        let _ = engine;
        Err(Status::NOT_SUPPORTED)
    }

    fn occupancy_with_flags(engine, blocks: Out<i32>, _function: u64, threads: i32, _shared: u64, _flags: u32)
        as runtime cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    {
        let _ = engine;
        blocks.set(MAX_THREADS_PER_PROCESSOR / threads.clamp(1, MAX_THREADS_PER_PROCESSOR))
    }

    /// A kernel is identified by the address of its host stub.
    fn get_kernel(engine, kernel: Out<usize>, function: usize) as runtime __cudaGetKernel {
        let _ = engine;
        kernel.set(function)
    }

    fn load_library(engine, library: Out<u64>) as runtime cudaLibraryLoadData,
        driver cuModuleLoad, driver cuModuleLoadData, driver cuModuleLoadDataEx, driver cuLibraryLoadData
    {
        library.set(engine.with(|state| state.timeline.handle()))
    }

    fn find_kernel(engine, kernel: Out<u64>, _library: u64, _name: u64)
        as runtime cudaLibraryGetKernel, driver cuModuleGetFunction, driver cuLibraryGetKernel
    {
        kernel.set(engine.with(|state| state.timeline.handle()))
    }

    fn kernel_function(engine, function: Out<u64>, kernel: u64) as driver cuKernelGetFunction {
        let _ = engine;
        function.set(kernel)
    }

    /// Attributes of a function of the driver API; the first is the block size.
    fn driver_function_attribute(engine, value: Out<i32>, attribute: i32, _function: u64)
        as driver cuFuncGetAttribute
    {
        let _ = engine;
        value.set(if attribute == 0 { MAX_THREADS_PER_BLOCK } else { 0 })
    }

    fn symbol_address(engine, address: Out<u64>, symbol: usize) as runtime cudaGetSymbolAddress {
        address.set(variable(engine, symbol)?.0)
    }

    fn copy_to_symbol(engine, symbol: usize, from: u64, size: u64, offset: u64, _kind: i32)
        as runtime cudaMemcpyToSymbol
    {
        let (address, room) = variable(engine, symbol)?;
        if offset.checked_add(size).is_none_or(|end| end > room) {
            return Err(Status::INVALID_VALUE);
        }
        start(engine, 0, plain(address + offset, from, size), true)
    }
}

export_nothing! {
    cudaFuncSetAttribute cudaFuncSetCacheConfig cudaKernelSetAttributeForDevice cudaLibraryUnload
    cuFuncSetAttribute cuFuncSetCacheConfig cuKernelSetAttribute cuModuleUnload cuLibraryUnload
    hipFuncSetAttribute
}

/// A handle for a fat binary, which only has to be non-null.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(binary: usize) -> usize {
    binary.max(1)
}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: usize) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaUnregisterFatBinary(_handle: usize) {}

#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_handle: usize) -> u8 {
    0
}

/// Called for hundreds of thousands of kernels while PyTorch is loaded.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction() {}

#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterVar(
    _handle: usize,
    shadow: usize,
    _address: usize,
    _name: usize,
    _external: i32,
    size: u64,
    _constant: i32,
    _global: i32,
) {
    let variable = Variable {
        size,
        address: None,
    };
    // In a forked child another thread of the parent may have held the lock, and copies do not work anyway.
    if !crate::process::forked() {
        VARIABLES
            .lock()
            .get_or_insert_default()
            .insert(shadow, variable);
    }
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPushCallConfiguration(
    grid: Dimensions,
    block: Dimensions,
    shared_bytes: u64,
    stream: u64,
) -> u32 {
    CONFIGURATION.set(Some(LaunchConfiguration {
        grid,
        block,
        shared_bytes,
        stream,
    }));
    0
}

#[unsafe(no_mangle)]
extern "C" fn __cudaPopCallConfiguration(
    grid: Out<Dimensions>,
    block: Out<Dimensions>,
    shared_bytes: Out<u64>,
    stream: Out<u64>,
) -> Status {
    let Some(configuration) = CONFIGURATION.take() else {
        return Status::INVALID_VALUE;
    };
    grid.set_if_wanted(configuration.grid);
    block.set_if_wanted(configuration.block);
    shared_bytes.set_if_wanted(configuration.shared_bytes);
    stream.set_if_wanted(configuration.stream);
    Status::SUCCESS
}

pub(super) fn launch_on(
    engine: &Engine,
    grid: Dimensions,
    block: Dimensions,
    stream: u64,
    effect: Effect,
) -> Result<(), Status> {
    let empty = |size: Dimensions| size.x == 0 || size.y == 0 || size.z == 0;
    let threads = u64::from(block.x) * u64::from(block.y);
    let threads = threads.saturating_mul(u64::from(block.z));
    if empty(grid) || empty(block) || threads > MAX_THREADS_PER_BLOCK as u64 {
        return Err(Status::INVALID_CONFIGURATION);
    }
    engine.with(|state| {
        let cost = state.device_time.kernel.as_nanos() as u64;
        state
            .timeline
            .submit(stream, current_device(), cost, effect)
            .map(drop)
    })
}

/// The address and size of a device variable, which is allocated when it is first requested.
fn variable(engine: &Engine, symbol: usize) -> Result<(u64, u64), Status> {
    // Inside the engine's lock, which is open while functions of the program run.
    engine.with(|state| {
        let mut variables = VARIABLES.lock();
        let variable = variables
            .as_mut()
            .and_then(|variables| variables.get_mut(&symbol))
            .ok_or(Status::NOT_FOUND)?;
        let address = match variable.address {
            Some(address) => address,
            None => state
                .memory
                .allocate(current_device(), variable.size, Kind::Device)?,
        };
        variable.address = Some(address);
        Ok((address, variable.size))
    })
}
