//! On which system a program ran, by words of its log.

use platform::machine::System;

/// Lines that show on which system the program ran.
#[derive(Default)]
pub(super) struct Clues {
    wsl: usize,
    windows: usize,
    linux: usize,
}

impl Clues {
    pub(super) const WSL: [&str; 14] = [
        "microsoft-standard",
        "misc dxg",
        "dxgkrnl",
        "(WSL2",
        "WSL environment detected",
        "librocdxg",
        "/dev/dxg",
        "rocr4wsl",
        "WSL2",
        "sources/wsl/",
        "/usr/lib/wsl",
        "/mnt/c/Users",
        "/mnt/c/Windows",
        "wsl.localhost",
    ];
    pub(super) const WINDOWS: [&str; 21] = [
        "win-x86_64",
        "win_amd64",
        "(Windows)",
        "Windows 10",
        "Windows 11",
        "Adrenalin",
        "WinError",
        "0xC0000005",
        ".dll",
        ".exe",
        "PS C:",
        "Platform: Windows",
        "amd_windows.go",
        "MSC v.",
        "Press any key to continue",
        "as an internal or external command",
        "\\.zluda",
        "DXGI_ERROR_",
        "operable program or batch file",
        "lld-link: ",
        "LiveKernelEvent",
    ];
    pub(super) const LINUX: [&str; 14] = [
        "/home/",
        "/usr/",
        "/opt/",
        "/dev/",
        "/var/lib/",
        "/venv/",
        ".so",
        "[drm",
        "kernel:",
        "amdgpu 0000:",
        "systemd",
        "-generic",
        "(core dumped)",
        "x86_64-linux",
    ];

    pub(super) fn read(&mut self, line: &str) {
        let has = |clues: &[&str]| clues.iter().any(|clue| line.contains(clue));
        self.wsl += usize::from(has(&Self::WSL));
        // A path of Windows within a path of Linux is that of a mounted disk.
        if (line.contains(":\\") || line.contains(":/"))
            && line.split([' ', '"', '\'', '(', '=']).any(is_drive)
            || has(&Self::WINDOWS)
        {
            self.windows += 1;
        } else {
            self.linux += usize::from(has(&Self::LINUX));
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

/// `C:\Users…` at the start of a word, or `E:/TheRock…`.
pub(crate) fn is_drive(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.next() == Some(':')
        && chars.next().is_some_and(|c| c == '\\' || c == '/')
        && chars
            .next()
            .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
}
