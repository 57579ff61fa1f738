//! One file a subcommand.

mod cache;
pub(crate) mod delegate;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod explain;
mod live;
pub(crate) mod probe;
pub(crate) mod run;
