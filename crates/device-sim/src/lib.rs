//! Tests only: a simulated GPU runtime with the HIP and CUDA C ABI.
