//! The tests that need no process of their own: one program, so that it is linked once.

mod common;
mod hostile_programs;
mod settings;
mod shared_library;
