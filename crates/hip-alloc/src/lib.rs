//! A device-memory allocator for PyTorch on HIP that holds what is live, and nothing else.
