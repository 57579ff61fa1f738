//! The output of `hipInfo`, and on which system it ran.

use platform::hipinfo;
use platform::machine::{Gpu, Machine, System};

/// The GPUs that it lists.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    let Some(listing) = hipinfo::parse(text) else {
        return Vec::new();
    };
    // There is a hipInfo for Linux too; it is the Windows one that has no rocminfo beside it.
    let is_linux = ["/opt/rocm", "/dev/kfd", "Linux", "$ "]
        .iter()
        .any(|sign| text.contains(sign));
    if !is_linux {
        machine.system = System::Windows;
    }
    machine.reported.hip_free = machine.reported.hip_free.or(listing.free);
    listing.gpus
}
