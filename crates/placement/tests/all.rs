//! What the crate offers, from outside: one program, so that it is linked once.

mod checksum;
mod matrix;
mod plan;
mod plan_edges;
mod plan_properties;
mod prefetch;
mod streaming;
mod streaming_odd;
mod together;
mod torch_transfer;
mod transfer;
