//! Properties of the simulated device.
//!
//! To CUDA programs it is an Ampere card (compute capability 8.6), so PyTorch
//! picks kernels that any wheel has; to HIP programs a `gfx1151`, or what the settings say.

use crate::architecture::Architecture;

/// Its name.
pub(super) const NAME: &str = "Surefoot device-sim";

/// CUDA 13.0, as `major * 1000 + minor * 10`.
pub(super) const CUDA_VERSION: i32 = 13000;

/// ROCm 6.4, as HIP encodes it.
pub(super) const HIP_VERSION: i32 = 60_443_483;

const MAJOR: i32 = 8;
const MINOR: i32 = 6;
const PROCESSORS: i32 = 40;
pub(super) const MAX_THREADS_PER_BLOCK: i32 = 1024;
pub(super) const MAX_THREADS_PER_PROCESSOR: i32 = 1536;
const MAX_BLOCKS_PER_PROCESSOR: i32 = 16;
const WARP: i32 = 32;
const REGISTERS: i32 = 65536;
const SHARED_PER_BLOCK: i32 = 48 << 10;
const SHARED_PER_BLOCK_OPT_IN: i32 = 99 << 10;
const SHARED_PER_PROCESSOR: i32 = 100 << 10;
const RESERVED_SHARED: i32 = 1 << 10;
const CONSTANT_MEMORY: i32 = 64 << 10;
const L2_CACHE: i32 = 6 << 20;
const BUS_WIDTH: i32 = 256;
const BLOCK_DIMENSIONS: [i32; 3] = [1024, 1024, 64];
/// Of the processors, kHz.
const CLOCK: i32 = 1_500_000;
/// kHz.
const MEMORY_CLOCK: i32 = 8_000_000;
const GRID_DIMENSIONS: [i32; 3] = [i32::MAX, 65535, 65535];

/// The PCI bus a device is on; bus 0 belongs to the host.
pub(super) fn pci_bus(device: usize) -> i32 {
    device as i32 + 1
}

/// The number by which Windows knows a device.
fn luid(device: usize) -> u64 {
    0x5f00 + device as u64
}

/// The UUID of a device.
pub(super) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"surefoot-sim-000";
    uuid[15] = b'0' + (device as u8 % 10);
    uuid
}

/// `cudaDeviceProp` of CUDA 12 and 13, and `hipDeviceProp_tR0600`: plain structures, the
/// fields of which are set by offset. The offsets were taken from the headers
/// with a C compiler; all others stay zero.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Properties<const SIZE: usize>([u8; SIZE]);

pub(super) type Cuda12Properties = Properties<1032>;
pub(super) type CudaProperties = Properties<1008>;
pub(super) type HipProperties = Properties<1472>;

impl<const SIZE: usize> Properties<SIZE> {
    /// Fields at the same offset in both structures.
    fn common(device: usize, memory: u64) -> Self {
        let mut properties = Properties([0; SIZE]);
        properties.bytes(0, NAME.as_bytes());
        properties.bytes(256, &uuid(device));
        properties.bytes(288, &memory.to_ne_bytes());
        properties.bytes(296, &(SHARED_PER_BLOCK as u64).to_ne_bytes());
        properties.int(304, REGISTERS);
        properties.int(308, WARP);
        properties.bytes(312, &u64::from(u32::MAX).to_ne_bytes());
        properties.int(320, MAX_THREADS_PER_BLOCK);
        for axis in 0..3 {
            properties.int(324 + 4 * axis, BLOCK_DIMENSIONS[axis]);
            properties.int(336 + 4 * axis, GRID_DIMENSIONS[axis]);
        }
        properties.bytes(352, &(CONSTANT_MEMORY as u64).to_ne_bytes());
        properties.int(360, MAJOR);
        properties.int(364, MINOR);
        properties
    }

    fn bytes(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn int(&mut self, offset: usize, value: i32) {
        self.bytes(offset, &value.to_ne_bytes());
    }
}

/// The structure of CUDA 13.
pub(super) fn cuda(device: usize, memory: u64, integrated: bool) -> CudaProperties {
    let mut properties = CudaProperties::common(device, memory);
    for (offset, value) in [
        (384, PROCESSORS),
        (388, i32::from(integrated)),
        (392, 1), // canMapHostMemory
        (560, 1), // concurrentKernels
        (568, pci_bus(device)),
        (584, 2), // asyncEngineCount
        (588, 1), // unifiedAddressing
        (592, BUS_WIDTH),
        (596, L2_CACHE),
        (604, MAX_THREADS_PER_PROCESSOR),
        (608, 1), // streamPrioritiesSupported
        (624, SHARED_PER_PROCESSOR),
        (632, REGISTERS),
        (636, 1), // managedMemory
        (668, 1), // cooperativeLaunch
        (672, SHARED_PER_BLOCK_OPT_IN),
        (688, MAX_BLOCKS_PER_PROCESSOR),
        (696, RESERVED_SHARED),
        (704, 1), // hostRegisterSupported
        (720, 1), // memoryPoolsSupported
    ] {
        properties.int(offset, value);
    }
    properties
}

/// The structure of CUDA 12, which PyTorch up to 2.8 is built for.
pub(super) fn cuda_12(device: usize, memory: u64, integrated: bool) -> Cuda12Properties {
    let mut properties = Cuda12Properties::common(device, memory);
    for (offset, value) in [
        (348, CLOCK),
        (388, PROCESSORS),
        (396, i32::from(integrated)),
        (400, 1), // canMapHostMemory
        (576, 1), // concurrentKernels
        (584, pci_bus(device)),
        (600, 2), // asyncEngineCount
        (604, 1), // unifiedAddressing
        (608, MEMORY_CLOCK),
        (612, BUS_WIDTH),
        (616, L2_CACHE),
        (624, MAX_THREADS_PER_PROCESSOR),
        (628, 1), // streamPrioritiesSupported
        (640, SHARED_PER_PROCESSOR),
        (648, REGISTERS),
        (652, 1), // managedMemory
        (688, 1), // cooperativeLaunch
        (696, SHARED_PER_BLOCK_OPT_IN),
        (712, MAX_BLOCKS_PER_PROCESSOR),
        (720, RESERVED_SHARED),
        (728, 1), // hostRegisterSupported
        (744, 1), // memoryPoolsSupported
    ] {
        properties.int(offset, value);
    }
    properties
}

/// The structure of HIP 6 and 7.
pub(super) fn hip(
    device: usize,
    memory: u64,
    integrated: bool,
    architecture: &Architecture,
) -> HipProperties {
    let mut properties = HipProperties::common(device, memory);
    if cfg!(windows) {
        properties.bytes(272, &luid(device).to_ne_bytes());
    }
    properties.int(388, PROCESSORS);
    properties.int(396, i32::from(integrated));
    properties.int(360, architecture.major);
    properties.int(364, architecture.minor);
    let name = architecture.name.as_bytes();
    properties.bytes(1160, &name[..name.len().min(255)]);
    properties
}

/// `cudaDeviceAttr` and `CUdevice_attribute`; what is not listed is 0.
pub(super) fn cuda_attribute(attribute: i32, device: usize, integrated: bool) -> i32 {
    match attribute {
        1 => MAX_THREADS_PER_BLOCK,
        2..=4 => BLOCK_DIMENSIONS[attribute as usize - 2],
        5..=7 => GRID_DIMENSIONS[attribute as usize - 5],
        8 => SHARED_PER_BLOCK,
        9 => CONSTANT_MEMORY,
        10 => WARP,
        11 => i32::MAX,
        12 | 82 => REGISTERS,
        13 => CLOCK,
        16 => PROCESSORS,
        18 => i32::from(integrated),
        36 => MEMORY_CLOCK,
        33 => pci_bus(device),
        37 => BUS_WIDTH,
        38 => L2_CACHE,
        39 => MAX_THREADS_PER_PROCESSOR,
        40 => 2, // copy engines
        75 => MAJOR,
        76 => MINOR,
        81 => SHARED_PER_PROCESSOR,
        97 => SHARED_PER_BLOCK_OPT_IN,
        106 => MAX_BLOCKS_PER_PROCESSOR,
        111 => RESERVED_SHARED,
        // mapped host memory, concurrent kernels, unified addressing, stream
        // priorities, managed memory, cooperative launch, host registration,
        // virtual memory, memory pools
        19 | 31 | 41 | 78 | 83 | 95 | 99 | 102 | 115 => 1,
        _ => 0,
    }
}

/// `hipDeviceAttribute_t`; what is not listed is 0.
pub(super) fn hip_attribute(
    attribute: i32,
    device: usize,
    integrated: bool,
    architecture: &Architecture,
) -> i32 {
    match attribute {
        2 => 2, // copy engines
        16 => i32::from(integrated),
        23 => architecture.major,
        61 => architecture.minor,
        26..=28 => BLOCK_DIMENSIONS[attribute as usize - 26],
        29..=31 => GRID_DIMENSIONS[attribute as usize - 29],
        56 => MAX_THREADS_PER_BLOCK,
        57 => MAX_THREADS_PER_PROCESSOR,
        63 => PROCESSORS,
        67 => pci_bus(device),
        71 | 72 => REGISTERS,
        74 => SHARED_PER_BLOCK,
        87 => WARP,
        // mapped host memory, managed memory, unified addressing, stream
        // priorities, memory pools, virtual memory
        3 | 24 | 78 | 85 | 88 | 89 => 1,
        _ => 0,
    }
}
