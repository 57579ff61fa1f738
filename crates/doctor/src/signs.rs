//! Words by which a text shows on which system it was written.

/// Of the Windows Subsystem for Linux.
pub(crate) const WSL: [&str; 15] = [
    "WSL environment detected",
    "/dev/dxg",
    "librocdxg",
    "WSL2",
    "WSL version:",
    "wsl.exe",
    "microsoft-standard",
    "misc dxg",
    "dxgkrnl",
    "rocr4wsl",
    "sources/wsl/",
    "/usr/lib/wsl",
    "/mnt/c/Users",
    "/mnt/c/Windows",
    "wsl.localhost",
];

/// Of Windows; one of them is enough.
pub(crate) const WINDOWS: [&str; 35] = [
    "Platform: Windows",
    "win_amd64",
    "win-x86_64",
    "(Windows)",
    "Windows 10",
    "Windows 11",
    "Adrenalin",
    "PS C:\\",
    "PS D:\\",
    "PS E:\\",
    "PS F:\\",
    "C:\\Users\\",
    "C:\\Program",
    "MSC v.19",
    "OS: nt",
    "amd_windows.go",
    "gpu_windows.go",
    "pc-windows-msvc",
    "Windows-10",
    "Windows-11",
    "Direct3D",
    "atiadlxx",
    "win32",
    "AppData\\Local",
    "DriverVersion",
    "hipblas.dll",
    "\\_rocm_sdk_core",
    ".exe\"",
    "\"OS Version\":\"Windows",
    "Microsoft Windows",
    "\\venv\\Scripts",
    "python_env\\python.exe",
    "checkHipErrors() HIP API error",
    "as an internal or external command",
    "\\.zluda",
];

/// Of Windows as a rule; logs of Linux may have them in names of files.
pub(crate) const PROBABLY_WINDOWS: [&str; 11] = [
    "WinError",
    "0xC0000005",
    ".dll",
    ".exe",
    "PS C:",
    "MSC v.",
    "Press any key to continue",
    "DXGI_ERROR_",
    "operable program or batch file",
    "lld-link: ",
    "LiveKernelEvent",
];

/// Of Linux; programs for Windows that were built there print such paths, too.
pub(crate) const LINUX: [&str; 14] = [
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
