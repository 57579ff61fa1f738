//! What tch reads archives from.

use std::io::{Read, Seek};

/// A file or the like.
pub trait ReadStream: Read + Seek {}
