//! The rules of this repository, which `cargo xtask tidy` checks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod abi;
mod common;
mod handbook;
mod layers;
mod modules;
mod packages;
mod tidy;
mod words;
