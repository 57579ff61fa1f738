//! What single lines of a log say: on which system it ran, a package, a kernel, the value of a variable.

use super::marks::{Marks, Sign};
use crate::signs::is_drive;
use platform::machine::System;

/// Lines that show on which system the program ran.
#[derive(Default)]
pub(super) struct Clues {
    wsl: usize,
    windows: usize,
    linux: usize,
    /// It is named in a sentence.
    says_wsl: bool,
    says_windows: bool,
    /// What people call them.
    names_windows: bool,
    names_linux: bool,
}

impl Clues {
    pub(super) fn read(&mut self, line: &str, marks: &Marks) {
        self.wsl += usize::from(marks.has(Sign::Wsl));
        self.says_wsl |= marks.has(Sign::WslInProse);
        self.says_windows |= marks.has(Sign::OnWindows);
        self.names_windows |= marks.has(Sign::WindowsInProse);
        self.names_linux |= marks.has(Sign::LinuxInProse);
        // A path of Windows within a path of Linux is that of a mounted disk.
        if (line.contains(":\\") || line.contains(":/"))
            && line.split([' ', '"', '\'', '(', '=']).any(is_drive)
            || marks.has(Sign::Windows)
        {
            self.windows += 1;
        } else {
            self.linux += usize::from(marks.has(Sign::Linux));
        }
    }

    /// Programs for Windows are built on Linux and print paths of there, hardly ever the
    /// other way round.
    pub(super) fn system(&self) -> Option<System> {
        if self.wsl > 0 || self.says_wsl && !self.says_windows {
            Some(System::Wsl)
        } else if self.windows > 0 && self.windows * 4 >= self.linux {
            Some(System::Windows)
        } else if self.linux > 0 {
            Some(System::Linux)
        } else {
            match (self.names_windows, self.names_linux) {
                (true, false) => Some(System::Windows),
                (false, true) => Some(System::Linux),
                _ => None,
            }
        }
    }
}

/// The package that a frame of a traceback is in: `File "…/site-packages/diffusers/…", line 1, in f`.
pub(super) fn package_of_frame(line: &str) -> Option<&str> {
    let (_, path) = line.split_once("File \"")?;
    let (_, rest) = path.split_once("-packages")?;
    let name = rest[1.min(rest.len())..]
        .split(['/', '\\', '"', '.'])
        .next()?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

/// The package whose sources pip takes: `Using cached xformers-0.0.28.post3.tar.gz (7.8 MB)`.
pub(super) fn package_of_sources(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(".tar.gz")?;
    let is_of_pip = ["Using cached ", "Downloading "]
        .iter()
        .any(|mark| before.contains(mark));
    let file = before.rsplit([' ', '/']).next()?;
    let (name, version) = file.rsplit_once('-')?;
    (is_of_pip && version.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
}

/// The release of a kernel that a line names as a distribution does.
pub(super) fn kernel_of(line: &str) -> Option<String> {
    if !line.contains("-generic") && !line.contains("kernel") {
        return None;
    }
    let is_release = |word: &&str| {
        let mut numbers = word.split(['.', '-']);
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.contains('-')
            && (0..3).all(|_| {
                numbers.next().is_some_and(|n| {
                    !n.is_empty() && n.len() < 4 && n.bytes().all(|b| b.is_ascii_digit())
                })
            })
    };
    let release = |part: &str| {
        let mut words =
            part.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')));
        words.find(is_release).map(str::to_owned)
    };
    // `module amdgpu/6.16.13-2278356.24.04 for kernel 6.18.7-061807-generic`.
    let named = line
        .split_once("kernel ")
        .and_then(|(_, rest)| release(rest));
    named.or_else(|| release(line))
}

pub(super) fn word_after(line: &str, marker: &str) -> Option<String> {
    let start = line.find(marker)? + marker.len();
    let rest = line[start..].trim_start_matches(['"', '\\', '\'']);
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
        .unwrap_or(rest.len());
    Some(rest[..end].trim_end_matches('.').to_owned()).filter(|word| !word.is_empty())
}
