//! Which wheel has code for which architecture, and what to type to get it.

use platform::Gfx;
use platform::gfx::{Architecture, Override};
use platform::machine::System;
pub use platform::wheels::{
    NEWEST_UPSTREAM, is_in_newest_upstream, major_minor, upstream_architectures,
};

/// PyTorch's own index, without the version.
const UPSTREAM_INDEX: &str = "https://download.pytorch.org/whl/rocm";
/// AMD's index, whose wheels are split by architecture.
const DEVICE_INDEX: &str = "https://repo.amd.com/rocm/whl-multi-arch/";

/// The commands that install a torch with native code, best first. Empty if there are none.
#[must_use]
pub fn install(gfx: Gfx) -> Vec<String> {
    let mut commands = Vec::new();
    if needs_old_upstream(gfx) {
        commands.push(format!(
            "pip install torch torchvision --index-url {UPSTREAM_INDEX}6.3"
        ));
    } else if is_in_newest_upstream(gfx) {
        commands.push(format!(
            "pip install torch torchvision --index-url {UPSTREAM_INDEX}{NEWEST_UPSTREAM}"
        ));
    }
    if gfx.architecture().is_some_and(|known| known.device_wheel) {
        commands.push(format!(
            "pip install \"torch[device-{gfx}]\" \"torchvision[device-{gfx}]\" torchaudio --index-url {DEVICE_INDEX}"
        ));
    }
    commands
}

/// Whether newer upstream wheels list an architecture that their rocBLAS has no kernels for: gfx906 since ROCm 6.4
/// (unsloth PR #7354), and gfx900 (pytorch #179865).
#[must_use]
pub fn needs_old_upstream(gfx: Gfx) -> bool {
    gfx == Gfx::new(9, 0, 6) || gfx == Gfx::new(9, 0, 0)
}

/// An APU whose instructions are those of gfx900 (LLVM's `gfx9-generic`, and the same mixed-precision ones), so that its code runs there.
pub(crate) fn is_like_gfx900(gfx: Gfx) -> bool {
    [(9, 0, 2), (9, 0, 9), (9, 0, 12)].contains(&(gfx.major, gfx.minor, gfx.stepping))
}

/// The same on a system: PyTorch's own index has wheels with ROCm for Linux only.
#[must_use]
pub fn install_on(system: System, gfx: Gfx) -> Vec<String> {
    let mut commands = install(gfx);
    if system == System::Windows {
        commands.retain(|command| command.ends_with(DEVICE_INDEX));
    }
    commands
}

/// The value of `HSA_OVERRIDE_GFX_VERSION` that lets an upstream wheel run on this
/// architecture; `None` when it has native code, or when no value is safe.
#[must_use]
pub fn override_for(gfx: Gfx) -> Option<&'static str> {
    match gfx
        .architecture()
        .map(|known: &Architecture| known.override_value)
    {
        Some(Override::Works(value)) => Some(value),
        _ => None,
    }
}

/// The torchvision that belongs to a torch (2.11 ↔ 0.26, one step a minor version).
#[must_use]
pub fn torchvision_for(torch: (u32, u32)) -> Option<(u32, u32)> {
    match torch {
        (2, minor) => Some((0, minor + 15)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strix_halo_has_two_ways_and_navi_22_one() {
        let commands = install(Gfx::new(11, 5, 1));
        assert_eq!(commands.len(), 2);
        assert!(commands[0].ends_with("/rocm7.2"));
        let commands = install(Gfx::new(10, 3, 1));
        assert_eq!(commands.len(), 1);
        assert!(commands[0].contains("torch[device-gfx1031]"));
    }

    #[test]
    fn only_cards_that_have_one_get_an_override() {
        assert_eq!(override_for(Gfx::new(10, 3, 1)), Some("10.3.0"));
        for never in [
            (10, 3, 0),
            (10, 1, 0),
            (10, 3, 3),
            (11, 0, 3),
            (11, 5, 1),
            (12, 0, 1),
        ] {
            assert_eq!(
                override_for(Gfx::new(never.0, never.1, never.2)),
                None,
                "{never:?}"
            );
        }
    }

    #[test]
    fn torchvision_follows_torch() {
        assert_eq!(torchvision_for((2, 13)), Some((0, 28)));
    }
}
