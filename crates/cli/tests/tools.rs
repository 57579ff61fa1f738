//! The subcommands that need no libtorch, as people and programs meet them.

#[cfg(unix)]
mod activate;
mod cache;
mod doctor;
#[cfg(unix)]
mod layouts;
mod link;
#[cfg(unix)]
mod probe;
mod replay;
#[cfg(unix)]
mod run;
mod shell;
