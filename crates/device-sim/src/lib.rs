//! Tests only: a simulated GPU for real programs.
//!
//! Preloaded into a process, the shared library replaces CUDA's runtime and driver,
//! cuBLAS, NVML and HIP. Device memory is host memory, so copies, memsets,
//! streams, events, pinned and virtual memory really work; kernels do nothing, but those of HIP code objects, which
//! are executed on request. That
//! is enough for real PyTorch to run whole training loops on a machine without a
//! GPU, with intact copies and an allocator that works as on a
//! real device. Capacity, latencies and faults are configurable: see [`settings`].
//!
//! ```text
//! PyTorch, hip-alloc, …
//!     │ cudaMalloc, hipMalloc, cuMemMap, cublasSgemm_v2, nvmlInit_v2, …
//! api/      C functions, each written once for all APIs that have it
//!     │ counted, delayed or failed as configured: calls
//! engine/    memory, streams and events, copies, captures
//! rdna/      machine code
//! ```
//!
//! `libcuda.so.1` and `libnvidia-ml.so.1`, which programs look for on disk,
//! are links to the same file; `install` creates them. On Windows a copy of the library is `amdhip64_7.dll`.

mod api;
pub mod architecture;
mod calls;
mod control;
mod engine;
mod environment;
#[cfg(unix)]
pub mod install;
mod process;
mod rdna;
pub mod settings;
pub mod status;

pub use control::{device_sim_calls, device_sim_control, device_sim_report};
