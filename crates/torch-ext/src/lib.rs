//! A small device-agnostic shim over libtorch, with a safe Rust face.
