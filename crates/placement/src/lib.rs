//! Tensors and modules onto the device step by step, verified, with fallback.
