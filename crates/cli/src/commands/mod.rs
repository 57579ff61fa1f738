//! One file a subcommand.

pub(crate) mod delegate;
pub(crate) mod doctor;
