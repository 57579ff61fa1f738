//! The tables of `catalogue/tables`, and what their rows are.

use crate::schema::Fact;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// The meaning of a key under which tools tell of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    DeviceId,
    Pci,
    Pool,
    Memory,
    Gfx,
    Units,
    Asic,
    Kind,
}

/// An architecture, and the first releases of ROCm and of the kernel that know it.
pub(crate) type Since = ((u8, u8, u8), (u32, u32), (u32, u32));

/// A family of distributions that does not install with apt.
pub(crate) struct Distribution {
    pub(crate) fact: Fact,
    pub(crate) name: &'static str,
    /// What shows it in a log.
    pub(crate) signs: &'static [&'static str],
    /// What `{apt}` becomes there.
    pub(crate) apt: &'static str,
    /// What `{initramfs}` becomes there.
    pub(crate) initramfs: &'static str,
}
