#![doc = include_str!("../README.md")]

pub mod baselines;
pub mod pickle;
pub mod policies;
pub mod replay;
pub mod synthetic;
pub mod trace;
