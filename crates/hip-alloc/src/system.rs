//! What the library needs of the operating system, once for each of them.
//!
//! Everything here has the same name and meaning in both files; what only one of them has (forks, signals) is
//! nothing on the other.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;
