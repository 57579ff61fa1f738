//! What the rest of a log says, and how it sharpens a cause.

use super::Match;
use crate::{Gfx, wheels};

/// Facts about the program and its machine that a log mentions.
#[derive(Default)]
pub(super) struct Context {
    /// The log comes from Windows.
    pub(super) is_windows: bool,
    override_value: Option<String>,
    /// The ROCm of the wheel: `6.1` of `+rocm6.1`.
    rocm: Option<String>,
    /// `/dev/kfd` is open to everybody.
    kfd_is_public: bool,
}

impl Context {
    /// Takes what one more line says.
    pub(super) fn read(&mut self, line: &str) {
        let word_after = |marker: &str| {
            let start = line.find(marker)? + marker.len();
            let rest = &line[start..];
            let end = rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
                .unwrap_or(rest.len());
            Some(rest[..end].trim_end_matches('.').to_owned()).filter(|word| !word.is_empty())
        };
        self.is_windows = self.is_windows
            || line.contains("WinError")
            || line.contains("0xC0000005")
            || line.contains(":\\") && line.split_whitespace().any(is_drive);
        if self.override_value.is_none() {
            self.override_value = word_after("HSA_OVERRIDE_GFX_VERSION=")
                .or_else(|| word_after("HSA_OVERRIDE_GFX_VERSION "));
        }
        if self.rocm.is_none() {
            self.rocm = word_after("+rocm");
        }
        self.kfd_is_public =
            self.kfd_is_public || line.contains("/dev/kfd") && line.contains("rw-rw-rw-");
    }

    /// Replaces a general cause by the one that the text proves.
    pub(super) fn sharpen(&self, matches: &mut [Match]) {
        for found in matches {
            match found.id.as_str() {
                "invalid-device-function" | "no-kernel-image" => self.name_the_override(found),
                "kfd-permission" if self.kfd_is_public => {
                    found.cause = "The process may not open /dev/kfd although everybody may (mode 0666): a container without the device, a device cgroup, or a security module.".to_owned();
                    found.fix.retain(|step| !step.contains("usermod"));
                    found
                        .fix
                        .push("sudo dmesg | grep -iE 'apparmor|selinux|denied'".to_owned());
                }
                "invalid-argument" if self.is_windows => {
                    found.fix.insert(
                        0,
                        "Windows: HIP_VISIBLE_DEVICES=<index of the card>".to_owned(),
                    );
                }
                _ => {}
            }
        }
    }

    fn name_the_override(&self, found: &mut Match) {
        let Some(value) = &self.override_value else {
            return;
        };
        let Some(target) = Gfx::from_override(value) else {
            found.cause = format!(
                "HSA_OVERRIDE_GFX_VERSION={value} is not valid (`major.minor.stepping`, decimal)."
            );
            return;
        };
        let wheel = self
            .rocm
            .as_deref()
            .and_then(|rocm| Some((rocm, wheels::upstream_architectures(rocm)?)));
        found.cause = match wheel {
            Some((rocm, list)) if !list.contains(&target) => format!(
                "HSA_OVERRIDE_GFX_VERSION={value} makes the GPU pass for {target}, and the rocm{rocm} wheel has no code for {target}."
            ),
            _ => format!(
                "HSA_OVERRIDE_GFX_VERSION={value} makes the GPU pass for {target}; the library that failed has no code for {target}."
            ),
        };
    }
}

/// `C:\Users…`, also behind a quote or a bracket.
fn is_drive(word: &str) -> bool {
    let mut chars = word.trim_start_matches(['"', '\'', '(']).chars();
    chars.next().is_some_and(|c| c.is_ascii_uppercase())
        && chars.next() == Some(':')
        && chars.next() == Some('\\')
}
