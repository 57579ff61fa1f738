//! On which system a text was written, by paths and names that only one of them has.

use platform::machine::System;

use crate::signs::{self, is_drive};

/// The system, where a text shows it.
pub(super) fn of(text: &str) -> Option<System> {
    let has = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
    if has(signs::WSL) || has(signs::WSL_IN_PROSE) && !has(signs::ON_WINDOWS) {
        return Some(System::Wsl);
    }
    if has(signs::MACOS) {
        return Some(System::Macos);
    }
    let is_windows = has(signs::WINDOWS)
        || text.lines().any(|line| {
            line.trim_start_matches(['>', ' ']).starts_with("set ") && line.contains('=')
                || has_drive(line)
        });
    // A mount of Windows within Linux is WSL.
    if is_windows && has(&["/mnt/c/", "/usr/lib/wsl"]) {
        return Some(System::Wsl);
    }
    let names_windows =
        || has(signs::WINDOWS_IN_PROSE) && !has(signs::LINUX_IN_PROSE) && !has(signs::LINUX);
    (is_windows || names_windows()).then_some(System::Windows)
}

/// Whether a word of a line begins with a drive: `D:\ComfyUI`, `E:/TheRock`.
fn has_drive(line: &str) -> bool {
    if !line.contains(":\\") && !line.contains(":/") {
        return false;
    }
    line.split([' ', '\t', '"', '\'', '(', '<', '='])
        .any(is_drive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_tell_the_system() {
        for (text, system) in [
            ("WSL environment detected.", Some(System::Wsl)),
            ("/mnt/c/Users C:\\Users\\user", Some(System::Wsl)),
            ("PS C:\\ComfyUI> python main.py", Some(System::Windows)),
            (
                "Lib\\site-packages\\_rocm_sdk_core\\bin\\amdhip64_7.dll",
                Some(System::Windows),
            ),
            ("set HIP_VISIBLE_DEVICES=1", Some(System::Windows)),
            ("Ubuntu in WSL2", Some(System::Wsl)),
            (
                "it trains on Windows, and on Linux (WSL2) with another card",
                None,
            ),
            (
                "MIOpen Error: E:/TheRock/ml-libs/x.cpp:299",
                Some(System::Windows),
            ),
            ("see https://example.org/C:/x and a:b", None),
            ("Platform: macOS-14.5-arm64", Some(System::Macos)),
            // The wheels of TheRock have that package on Linux too.
            (
                "/venv/lib/python3.12/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7",
                None,
            ),
            ("gfx1100", None),
        ] {
            assert_eq!(of(text), system, "{text}");
        }
    }
}
