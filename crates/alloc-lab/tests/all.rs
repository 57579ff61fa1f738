//! Recordings and replays: one program, so that it is linked once.

mod baselines;
mod recorder;
mod traces;
