//! The subcommands that need no libtorch, as people and programs meet them.

#[cfg(unix)]
mod activate;
mod common;
mod doctor;
#[cfg(unix)]
mod probe;
mod replay;
#[cfg(unix)]
mod run;
