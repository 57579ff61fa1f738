//! On which system a program ran, by words of its log.

use crate::signs::{self, is_drive};
use platform::machine::System;

/// Lines that show on which system the program ran.
#[derive(Default)]
pub(super) struct Clues {
    wsl: usize,
    windows: usize,
    linux: usize,
}

impl Clues {
    pub(super) fn read(&mut self, line: &str) {
        let has = |clues: &[&str]| clues.iter().any(|clue| line.contains(clue));
        self.wsl += usize::from(has(signs::WSL));
        // A path of Windows within a path of Linux is that of a mounted disk.
        if (line.contains(":\\") || line.contains(":/"))
            && line.split([' ', '"', '\'', '(', '=']).any(is_drive)
            || has(signs::WINDOWS)
            || has(signs::PROBABLY_WINDOWS)
        {
            self.windows += 1;
        } else {
            self.linux += usize::from(has(signs::LINUX));
        }
    }

    /// Programs for Windows are built on Linux and print paths of there, hardly ever the
    /// other way round.
    pub(super) fn system(&self) -> Option<System> {
        if self.wsl > 0 {
            Some(System::Wsl)
        } else if self.windows > 0 && self.windows * 4 >= self.linux {
            Some(System::Windows)
        } else if self.linux > 0 {
            Some(System::Linux)
        } else {
            None
        }
    }
}
