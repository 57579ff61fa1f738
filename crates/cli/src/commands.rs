//! The subcommands, one per file.

pub(crate) mod activate;
mod activation;
pub(crate) mod cache;
pub(crate) mod delegate;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod explain;
mod hosted;
pub(crate) mod probe;
pub(crate) mod queue;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod shell;
mod trainer_libraries;
mod trainers;
pub(crate) mod ui;
mod ui_dev;
