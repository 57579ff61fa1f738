//! The tests that need no process of their own: one program, so that it is linked once.

mod bundle;
#[cfg(target_os = "linux")]
mod queue;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod stop;
